"""What of its operands an instruction reads for one box of its result: from the positions themselves, axis by axis.

Spans are pairs (first, behind the last); a span of equal ends holds nothing. ValueError for a box that is no tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import isa
from ..program import Model

Span = tuple[int, int]
Spans = tuple[Span, ...]
MOST_POSITIONS = 1 << 24  # that are looked at for one box
Needs = list["Spans | None"]  # per operand; None where it is left out


def needs(model: Model, op: isa.Instruction, box: Spans) -> Needs:
    """Per operand of `op` the spans that `box` of its result depends on."""
    shapes = [None if i < 0 else model.tensors[i].shape for i in op.inputs]
    return _FAMILIES[type(op)](model, op, shapes, box)


def hull(positions: npt.NDArray[np.int64], size: int) -> Span:
    """From the first to the last of `positions` that an axis of `size` has; (0, 0) where it has none."""
    inside = positions[(positions >= 0) & (positions < size)]
    return (int(inside.min()), int(inside.max()) + 1) if inside.size else (0, 0)


def _require_few(positions: int) -> None:
    if positions > MOST_POSITIONS:
        msg = f"a box of {positions} positions is more than is checked at once, {MOST_POSITIONS}"
        raise ValueError(msg)


@lru_cache(maxsize=4096)
def taps(out: Span, size: int, kernel: int, stride: int, pad: int, dilation: int) -> Span:
    """Positions that the windows `out` of a convolution or pool read."""
    _require_few((out[1] - out[0]) * kernel)
    first = np.arange(*out) * stride - pad
    return hull(first[:, None] + np.arange(kernel) * dilation, size)


@lru_cache(maxsize=4096)
def sources(out: Span, size: int, kernel: int, stride: int, pad: int, dilation: int) -> Span:
    """Positions that a transposed convolution spreads into `out`."""
    _require_few((out[1] - out[0]) * kernel)
    steps = (np.arange(*out) + pad)[:, None] - np.arange(kernel) * dilation
    return hull(steps[steps % stride == 0] // stride, size)


def grouped(out: Span, outputs: int, inputs: int, group: int) -> tuple[Span, int]:
    """Input channels of output channels `out`, and how many groups they are. ValueError where `out` cuts one short."""
    per_out, per_in = outputs // group, inputs // group
    first, last = out[0] // per_out, (out[1] - 1) // per_out
    if first != last and (out[0] % per_out or out[1] % per_out):
        msg = f"channels {out[0]} to {out[1]} cross the border of a group of {per_out}"
        raise ValueError(msg)
    return (first * per_in, (last + 1) * per_in), last + 1 - first


def full(shape: Sequence[int]) -> Spans:
    """All of a tensor."""
    return tuple((0, d) for d in shape)


def repeated(box: Spans, shape: Sequence[int]) -> Spans:
    """`box` in an operand that is repeated along its axes of size 1."""
    return tuple((0, 1) if d == 1 else span for span, d in zip(box, shape, strict=True))


def _parameters(shapes: Sequence[tuple[int, ...] | None], along: Span) -> Needs:
    """Parameters with one entry, or one for each index of an axis."""
    return [None if s is None else ((0, 1),) if s == (1,) else (along,) for s in shapes]


def _conv(model: Model, op: isa.Conv2d, shapes: list[Any], box: Spans) -> Needs:
    (_, h, w, c), (o, kh, kw, cg) = shapes[:2]
    rows = taps(box[1], h, kh, op.strides[0], op.pads[0], op.dilations[0])
    columns = taps(box[2], w, kw, op.strides[1], op.pads[1], op.dilations[1])
    channels, _ = grouped(box[3], o, c, op.group)
    found: Needs = [(box[0], rows, columns, channels), (box[3], *full((kh, kw, cg)))]
    found += _parameters(shapes[2:], box[3])
    if shapes[6] is not None:
        found[6] = box
    return found


def _conv_transpose(model: Model, op: isa.ConvTranspose2d, shapes: list[Any], box: Spans) -> Needs:
    (_, h, w, c), (o, kh, kw, cg) = shapes[:2]
    rows = sources(box[1], h, kh, op.strides[0], op.pads[0], op.dilations[0])
    columns = sources(box[2], w, kw, op.strides[1], op.pads[1], op.dilations[1])
    channels, _ = grouped(box[3], o, c, op.group)
    return [(box[0], rows, columns, channels), (box[3], *full((kh, kw, cg))), *_parameters(shapes[2:], box[3])]


def _matmul(model: Model, op: isa.Matmul, shapes: list[Any], box: Spans) -> Needs:
    a, b = shapes[:2]
    left = (*repeated(box[:-2], a[:-2]), box[-2], (0, a[-1]))
    right = (*repeated(box[:-2], b[:-2]), (0, b[-2]), box[-1])
    return [left, right, *_parameters(shapes[2:], box[-1])]


def _pool(model: Model, op: isa.MaxPool | isa.AvgPool, shapes: list[Any], box: Spans) -> Needs:
    _, h, w, _ = shapes[0]
    rows = taps(box[1], h, op.kernel[0], op.strides[0], op.pads[0], op.dilations[0])
    columns = taps(box[2], w, op.kernel[1], op.strides[1], op.pads[1], op.dilations[1])
    width = model.tensors[op.outputs[0]].shape[2]
    positions = box[1][0] * width + box[2][0], (box[1][1] - 1) * width + box[2][1]
    return [(box[0], rows, columns, box[3]), *_parameters(shapes[1:], positions)]


def _reduction(model: Model, op: Any, shapes: list[Any], box: Spans) -> Needs:
    gone = {op.axis} if isinstance(op, isa.ArgMax) else set(op.axes)
    x = tuple((0, d) if i in gone else span for i, (d, span) in enumerate(zip(shapes[0], box, strict=True)))
    return [x, *_parameters(shapes[1:], (0, 1))]


def _per_axis(model: Model, op: Any, shapes: list[Any], box: Spans) -> Needs:
    return [box, *_parameters(shapes[1:], box[op.axis] if op.axis >= 0 else (0, 1))]


def _pointwise(count: int) -> Callable[..., Needs]:
    """The first `count` operands element by element, the others whole."""

    def rule(model: Model, op: isa.Instruction, shapes: list[Any], box: Spans) -> Needs:
        return [
            None if s is None else repeated(box, s) if i < count else full(s) for i, s in enumerate(shapes)
        ]  # fmt: skip

    return rule


def _concat(model: Model, op: isa.Concat, shapes: list[Any], box: Spans) -> Needs:
    ends = np.cumsum([s[op.axis] for s in shapes]).tolist()
    found: Needs = []
    for s, end in zip(shapes, ends, strict=True):
        first = end - s[op.axis]
        span = max(box[op.axis][0] - first, 0), min(box[op.axis][1] - first, s[op.axis])
        found.append((*box[: op.axis], span if span[0] < span[1] else (0, 0), *box[op.axis + 1 :]))
    return found


def _slice(model: Model, op: isa.Slice, shapes: list[Any], box: Spans) -> Needs:
    picks = [start + step * np.arange(*span) for start, step, span in zip(op.starts, op.steps, box, strict=True)]
    return [tuple(hull(p, d) for p, d in zip(picks, shapes[0], strict=True))]


def _pad(model: Model, op: isa.Pad, shapes: list[Any], box: Spans) -> Needs:
    return [tuple(hull(np.arange(*span) - pad, d) for span, pad, d in zip(box, op.pads, shapes[0], strict=False))]


def _transpose(model: Model, op: isa.Transpose, shapes: list[Any], box: Spans) -> Needs:
    x: list[Span] = [(0, 0)] * len(box)
    for axis, source in enumerate(op.perm):
        x[source] = box[axis]
    return [tuple(x)]


def _reshape(model: Model, op: isa.Reshape, shapes: list[Any], box: Spans) -> Needs:
    return [under_shape(box, model.tensors[op.outputs[0]].shape, shapes[0])]


def under_shape(box: Spans, shape: Sequence[int], other: Sequence[int]) -> Spans:
    """The hull, in a tensor of shape `other`, of the elements that `box` holds of the same bytes under `shape`."""
    first, length = runs(box, shape)
    last = first + length - 1
    found: list[Span] = []
    inner = math.prod(other)
    for d in other:
        outer, inner = inner, inner // d
        if ((first // outer) != (last // outer)).any():
            found.append((0, d))  # a run goes on in the next round of this axis
        else:
            found.append((int((first // inner % d).min()), int((last // inner % d).max()) + 1))
    return tuple(found)


def runs(box: Spans, shape: Sequence[int]) -> tuple[npt.NDArray[np.int64], int]:
    """The runs of adjacent elements that a box consists of: where each begins in row-major order, and their length."""
    axes = len(shape)
    length = 1
    while axes and box[axes - 1] == (0, shape[axes - 1]):
        axes -= 1
        length *= shape[axes]
    if axes:
        axes -= 1
        length *= box[axes][1] - box[axes][0]
    _require_few(math.prod(hi - lo for lo, hi in box[:axes]))
    inner = math.prod(shape[axes + 1 :])
    first = np.array([box[axes][0] * inner if axes < len(shape) else 0], np.int64)
    for axis in reversed(range(axes)):
        inner *= shape[axis + 1]
        first = (np.arange(*box[axis])[:, None] * inner + first).ravel()
    return first, length


def _resize(model: Model, op: isa.ResizeNearest | isa.ResizeBilinear, shapes: list[Any], box: Spans) -> Needs:
    entries = 1 if isinstance(op, isa.ResizeNearest) else 2
    spans: list[Span] = []
    for tensor, span, d in zip(op.inputs[1:], box[1:3], shapes[0][1:3], strict=True):
        table = model.constant(tensor)
        spans.append(hull(table.reshape(len(table), -1)[span[0] : span[1], :entries].astype(np.int64), d))
    tables: Needs = [(span, *full(s[1:])) for span, s in zip(box[1:3], shapes[1:], strict=True)]
    return [(box[0], *spans, box[3]), *tables]


def _gather(model: Model, op: isa.Gather, shapes: list[Any], box: Spans) -> Needs:
    span = box[op.axis]
    read = hull(model.constant(op.inputs[1])[span[0] : span[1]].astype(np.int64), shapes[0][op.axis])
    return [(*box[: op.axis], read, *box[op.axis + 1 :]), (span,)]


def _grid_sample(model: Model, op: isa.GridSample, shapes: list[Any], box: Spans) -> Needs:
    return [(box[0], *full(shapes[0][1:3]), box[3]), (*box[:3], (0, 2))]


_FAMILIES: dict[type[isa.Instruction], Callable[..., Needs]] = {
    isa.Conv2d: _conv, isa.ConvTranspose2d: _conv_transpose, isa.Matmul: _matmul,
    isa.MaxPool: _pool, isa.AvgPool: _pool,
    isa.ReduceSum: _reduction, isa.ReduceMax: _reduction, isa.ReduceMin: _reduction,
    isa.ArgMax: _reduction, isa.ArgMin: _reduction,
    isa.Quantize: _per_axis, isa.Dequantize: _per_axis, isa.Requantize: _per_axis,
    isa.FlipSign: _pointwise(1), isa.Clamp: _pointwise(1), isa.Lut: _pointwise(1), isa.SegmentLut: _pointwise(1),
    isa.Expand: _pointwise(1), isa.Add: _pointwise(2), isa.Mul: _pointwise(2), isa.Maximum: _pointwise(2),
    isa.Minimum: _pointwise(2), isa.Compare: _pointwise(2), isa.Logical: _pointwise(2), isa.Select: _pointwise(3),
    isa.Concat: _concat, isa.Slice: _slice, isa.Pad: _pad, isa.Transpose: _transpose, isa.Reshape: _reshape,
    isa.ResizeNearest: _resize, isa.ResizeBilinear: _resize, isa.Gather: _gather, isa.GridSample: _grid_sample,
}  # fmt: skip
