"""ConvTranspose2d: by phases where bytes allow (`phases.py`), else the convolution of a stuffed input (`window.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...isa import ConvTranspose2d
from ...program import Tensor
from ..convolve import Operands as Addresses
from ..finish import constant
from ..host import Dot, Host
from ..phases import Phase, convolve_phase, phases_of
from ..quad_conv import QuadConvolution
from ..registry import Constants, KernelBuilder, Packed, kernel, operand, packing
from ..window import Axis, Window
from .byte_conv import finish_of, is_quick, pack_byte_window, takes_quads
from .conv import emit_window, fits_i32, pack_window


@dataclass(frozen=True)
class PhasesVariant:
    """The packing variant: every phase, and how it was packed."""

    phases: tuple[tuple[Phase, Any], ...]  # with ByteVariants


@packing(ConvTranspose2d)
def pack_conv_transpose(
    op: ConvTranspose2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> Packed:
    """As for Conv2d, phase by phase, or with the kernel turned round."""
    x, weight, out = operand(ins, 0), operand(ins, 1), outs[0]
    window, values = transposed_window(op, x, weight, out), constants[1]
    phases = () if host.dot is Dot.PAIRS else phases_of(window)  # whose panels hold lists of further steps besides
    quick = is_quick(op, out, constants, host)
    bias = constant(constants, 2, "bias") if op.inputs[2] >= 0 else None
    narrow = values is not None and fits_i32(window, x.dtype, weight, values, bias, 0)
    if values is None or not phases or not narrow or not takes_quads(window, x, values.dtype, host, quick=quick):
        return pack_window(op, window, weight, (x, out), constants, host, 0)
    packed = [_pack_phase(op, p, x, constants, host, quick=quick) for p in phases]
    arrays = tuple(a for p in packed for a in p.arrays)
    return Packed(arrays, PhasesVariant(tuple((p, q.variant) for p, q in zip(phases, packed, strict=True))))


def _pack_phase(
    op: ConvTranspose2d, phase: Phase, x: Tensor, constants: Constants, host: Host, *, quick: bool
) -> Packed:
    """One phase's weights and parameters; where pixels are joined, each has its own copy of the parameters."""
    values = constant(constants, 1, "weight")
    channels = len(values)
    own = [np.tile(c, phase.joined) if c is not None and c.shape == (channels,) else c for c in constants]
    bias = own[2] if op.inputs[2] >= 0 else None
    turned_back = phase.weights(values[:, ::-1, ::-1])[:, ::-1, ::-1]  # as `pack_byte_window` turns it again
    return pack_byte_window(op, phase.window, turned_back, bias, x, own, host, quick=quick)


@kernel(ConvTranspose2d)
def emit_conv_transpose(
    k: KernelBuilder, op: ConvTranspose2d, ins: Sequence[Tensor | None], outs: Sequence[Tensor]
) -> None:
    """One function per phase; the items are those of all phases, one after the other."""
    if not isinstance(k.variant, PhasesVariant):
        emit_window(k, op, transposed_window(op, operand(ins, 0), operand(ins, 1), outs[0]), ins, outs[0])
        return
    parts = []
    for number, (phase, variant) in enumerate(k.variant.phases):
        part = k.part(number, (ins, outs), variant)
        parameters, weight = part.packed[2 * number : 2 * number + 2]
        at = Addresses(part.ins[0], weight, parameters, parameters, part.outs[0], part.outs[0])
        c = QuadConvolution(phase.window, variant.plan, finish_of(op, outs[0], None), variant.shifts)
        convolve_phase(part, c, phase, at)
        parts.append(part)
    k.call_parts(parts)


def transposed_window(op: ConvTranspose2d, x: Tensor, weight: Tensor, out: Tensor) -> Window:
    """Input pixel i reaches output i·s − p + t·d; so output o reads, for tap K−1−t, position o + p − (K−1)·d + t·d."""

    def axis(i: int) -> Axis:
        kernel_size, dilation = weight.shape[1 + i], op.dilations[i]
        pad = (kernel_size - 1) * dilation - op.pads[i]
        return Axis(x.shape[1 + i], out.shape[1 + i], kernel_size, 1, dilation, pad, op.strides[i])

    return Window(x.shape[0], x.shape[3], op.group, out.shape[3], axis(0), axis(1), 0, op.x_zero_point)
