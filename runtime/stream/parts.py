"""One box of an instruction's result, computed by the reference: the instruction as it is for that box alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import isa
from ..program import Model
from ..reference import execute
from ..types import DType
from .needs import Span, Spans, grouped

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Part:
    """The shape and dtype of a box."""

    shape: tuple[int, ...]
    dtype: DType


def compute(
    model: Model, op: isa.Instruction, box: Spans, read: Sequence[Spans | None], ins: list[Array | None]
) -> Array:
    """`box` of the result of `op`; `ins` are the operands' `read` spans, dense, None where an operand is left out."""
    part = _Part(tuple(hi - lo for lo, hi in box), model.tensors[op.outputs[0]].dtype)
    if isinstance(op, isa.Pad) and ins[0] is not None and ins[0].size == 0:
        return np.full(part.shape, op.value, part.dtype.numpy)
    if isinstance(op, isa.Reshape):
        return _reshape(model, op, box, read, ins).reshape(part.shape)
    alone = _alone(model, op, box, read, ins)
    return execute(alone, ins, [part])[0]


def _alone(model: Model, op: isa.Instruction, box: Spans, read: Sequence[Spans | None], ins: list[Array | None]) -> Any:
    """`op` with the attributes that it has for `box`; operands that hold positions are made relative, in `ins`."""
    x = read[0]
    assert x is not None
    if isinstance(op, isa.Conv2d):
        weight = model.tensors[op.inputs[1]].shape
        pads = [_pads(box[1 + i], x[1 + i], weight[1 + i], op.strides[i], op.pads[i], op.dilations[i]) for i in (0, 1)]
        _, group = grouped(box[3], weight[0], model.tensors[op.inputs[0]].shape[3], op.group)
        return replace(op, pads=(pads[0][0], pads[1][0], pads[0][1], pads[1][1]), group=group)
    if isinstance(op, isa.ConvTranspose2d):
        return _conv_transpose(model, op, box, x, ins)
    if isinstance(op, isa.MaxPool | isa.AvgPool):
        pads = [_pads(box[1 + i], x[1 + i], op.kernel[i], op.strides[i], op.pads[i], op.dilations[i]) for i in (0, 1)]
        if isinstance(op, isa.AvgPool):
            _pick_positions(model, op, box, read, ins)
        return replace(op, pads=(pads[0][0], pads[1][0], 0, 0))
    if isinstance(op, isa.Concat):
        ins[:] = [a for a in ins if a is not None and a.size]
        return replace(op, inputs=(0,) * len(ins))
    if isinstance(op, isa.Slice):
        at = zip(op.starts, op.steps, box, x, strict=True)
        return replace(op, starts=tuple(start + step * span[0] - first[0] for start, step, span, first in at))
    if isinstance(op, isa.Pad):
        begin = [lo + p - b[0] for (lo, _), p, b in zip(x, op.pads, box, strict=False)]
        end = [b[1] - (hi + p) for (_, hi), p, b in zip(x, op.pads, box, strict=False)]
        return replace(op, pads=(*begin, *end))
    if isinstance(op, isa.ResizeNearest | isa.ResizeBilinear):
        _relative_tables(op, x, ins)
    if isinstance(op, isa.Gather):
        ins[1] = _there(ins[1]) - np.int32(x[op.axis][0])
    return op


def _there(x: Array | None) -> Array:
    assert x is not None
    return x


def _pads(out: Span, read: Span, kernel: int, stride: int, pad: int, dilation: int) -> tuple[int, int]:
    """Positions before and behind `read` that the windows `out` reach over and that hold nothing."""
    first, last = out[0] * stride - pad, (out[1] - 1) * stride - pad + dilation * (kernel - 1)
    if read[0] == read[1]:
        return last + 1 - first, 0
    return read[0] - first, last + 1 - read[1]


def _conv_transpose(model: Model, op: isa.ConvTranspose2d, box: Spans, x: Spans, ins: list[Array | None]) -> Any:
    """Rows and columns of zeros come before the input where the box begins before what it spreads over."""
    weight = model.tensors[op.inputs[1]].shape
    before, pads, more = [], [], []
    for i in (0, 1):
        out, read = box[1 + i], x[1 + i]
        stride, pad, reach = op.strides[i], op.pads[i], op.dilations[i] * (weight[1 + i] - 1) + 1
        first = read[0] if read[0] < read[1] else (out[0] + pad) // stride
        extra = max(0, -(-(first * stride - pad - out[0]) // stride)) + (read[0] == read[1])
        top = pad + out[0] - (first - extra) * stride
        size = (extra + read[1] - read[0] - 1) * stride + reach
        before.append(extra)
        pads.append(top)
        more.append(max(0, top + out[1] - out[0] - size))
    ins[0] = np.pad(_there(ins[0]), ((0, 0), (before[0], 0), (before[1], 0), (0, 0)), constant_values=op.x_zero_point)
    _, group = grouped(box[3], weight[0], model.tensors[op.inputs[0]].shape[3], op.group)
    return replace(op, pads=(*pads, 0, 0), output_padding=tuple(more), group=group)


def _pick_positions(
    model: Model, op: isa.AvgPool, box: Spans, read: Sequence[Spans | None], ins: list[Array | None]
) -> None:
    """Of multipliers and shifts per output position those of the box."""
    width = model.tensors[op.outputs[0]].shape[2]
    positions = (np.arange(*box[1])[:, None] * width + np.arange(*box[2])).ravel()
    for i in (1, 2, 3):
        spans, param = read[i], ins[i]
        if spans is not None and param is not None and model.tensors[op.inputs[i]].shape != (1,):
            ins[i] = param[positions - spans[0][0]]


def _relative_tables(op: isa.Instruction, x: Spans, ins: list[Array | None]) -> None:
    """Row and column numbers counted from where the part of the input begins."""
    for i in (1, 2):
        table = np.array(_there(ins[i]))
        if isinstance(op, isa.ResizeNearest):
            table -= np.int32(x[i][0])
        else:
            table[:, :2] -= np.int32(x[i][0])
        ins[i] = table


def _reshape(model: Model, op: isa.Reshape, box: Spans, read: Sequence[Spans | None], ins: list[Array | None]) -> Array:
    """Element by element, wherever it stands under the operand's shape."""
    spans, x = read[0], _there(ins[0])
    assert spans is not None
    return x[positions_under(box, model.tensors[op.outputs[0]].shape, model.tensors[op.inputs[0]].shape, spans)]


def positions_under(box: Spans, shape: tuple[int, ...], other: tuple[int, ...], spans: Spans) -> tuple[Array, ...]:
    """Where the elements of `box` stand, in order, within `spans` of a tensor of shape `other` over the same bytes."""
    if not shape or not other:
        return tuple(np.zeros(1, np.int64) for _ in other)
    flat = np.ravel_multi_index(np.ix_(*[np.arange(*s) for s in box]), shape).ravel()
    return tuple(c - lo for c, (lo, _) in zip(np.unravel_index(flat, other), spans, strict=True))
