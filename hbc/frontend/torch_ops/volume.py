"""Convolutions, pools and resizes of three spatial axes: in integers as 2-D ones, in reals by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from hbc.ir.core import Value
from hbc.ir.ops import MaxPool, Pool
from hbc.ir.types import TensorType

from ..onnx_ops.conv import REAL_VOLUME
from ..onnx_ops.pool import UNEVEN, UNEVEN_HINT
from ..onnx_ops.volume import average_volume, convolve_transposed_volume, convolve_volume, is_integral, max_volume
from ..onnx_ops.window import Window
from ..torch_calls import called
from ..torch_node import TorchNode

QUANTISE = "quantise its operands and its result"


def convolved_volume(n: TorchNode, x: Value, weight: Value, bias: Value | None, w: Window, group: int) -> Value:
    """conv of [N,C,D,H,W]: a conv2d of its planes where the weight is quantised, else a call."""
    if is_integral(weight):
        return convolve_volume(n, x, weight, bias, w, group)
    return _conv_call(n, "Conv", (x, weight, bias), w, group)


def transposed_volume(
    n: TorchNode, x: Value, weight: Value, bias: Value | None, w: Window, extra: Sequence[int], group: int
) -> Value:
    """The same of a transposed convolution."""
    if is_integral(weight):
        return convolve_transposed_volume(n, x, weight, bias, w, extra, group)
    return _conv_call(n, "ConvTranspose", (x, weight, bias), w, group, output_padding=list(extra))


def _conv_call(
    n: TorchNode, op_type: str, operands: Sequence[Value | None], w: Window, group: int, **attrs: Sequence[int]
) -> Value:
    shape = n.result.shape if len(n.result.shape) == 5 else (1, *n.result.shape)
    x = operands[0]
    assert x is not None
    return called(
        n, op_type, operands, [TensorType(shape, x.type.dtype)], reason=REAL_VOLUME, hint=QUANTISE, **attrs,
        kernel_shape=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, group=group,
    )[0]  # fmt: skip


def pooled_volume(n: TorchNode, cls: type[Pool], x: Value, w: Window, *, include_pad: bool = True) -> Value:
    """A pool of [N,C,D,H,W], with PyTorch's own count of windows."""
    counts = n.result.shape[-3:]
    if cls is MaxPool:
        return max_volume(n, x, w, counts)
    y = average_volume(n, x, w, counts, include_pad=include_pad) if is_integral(x) else None
    if y is not None:
        return y
    reason, hint = (UNEVEN, UNEVEN_HINT) if is_integral(x) else ("a 3-D average of reals", QUANTISE)
    return called(
        n, "AveragePool", [x], [TensorType((*x.type.shape[:2], *counts), x.type.dtype)], reason=reason, hint=hint,
        kernel_shape=w.kernel, strides=w.strides, pads=w.pads, count_include_pad=int(include_pad),
        ceil_mode=int(n.flag("ceil_mode")),
    )[0]  # fmt: skip
