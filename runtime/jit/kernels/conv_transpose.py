"""ConvTranspose2d: the convolution of a stuffed input with the kernel turned round (`window.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from ...isa import ConvTranspose2d
from ...program import Tensor
from ..host import Host
from ..registry import Constants, KernelBuilder, Packed, kernel, operand, packing
from ..window import Axis, Window
from .conv import emit_window, pack_window


@packing(ConvTranspose2d)
def pack_conv_transpose(
    op: ConvTranspose2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> Packed:
    """As for Conv2d, with the kernel turned round."""
    x, weight = operand(ins, 0), operand(ins, 1)
    return pack_window(op, transposed_window(op, x, weight, outs[0]), weight, (x, outs[0]), constants, host, 0)


@kernel(ConvTranspose2d)
def emit_conv_transpose(
    k: KernelBuilder, op: ConvTranspose2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor]
) -> None:
    """See `convolve.py`."""
    emit_window(k, op, transposed_window(op, operand(ins, 0), operand(ins, 1), outs[0]), ins, outs[0])


def transposed_window(op: ConvTranspose2d, x: Tensor, weight: Tensor, out: Tensor) -> Window:
    """Input pixel i reaches output i·s − p + t·d; so output o reads, for tap K−1−t, position o + p − (K−1)·d + t·d."""

    def axis(i: int) -> Axis:
        kernel_size, dilation = weight.shape[1 + i], op.dilations[i]
        pad = (kernel_size - 1) * dilation - op.pads[i]
        return Axis(x.shape[1 + i], out.shape[1 + i], kernel_size, 1, dilation, pad, op.strides[i])

    return Window(x.shape[0], x.shape[3], op.group, out.shape[3], axis(0), axis(1), 0, op.x_zero_point)
