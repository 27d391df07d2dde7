"""Which part of each operand an instruction reads for a box of its result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hbc_runtime import isa
from hbc_runtime.program import Model

from .boxes import Box, Range, common, is_empty, whole

Shape = tuple[int, ...]
Regions = list[Box | None]  # per operand; None where it isn't there or nothing of it is read


def regions(model: Model, op: isa.Instruction, box: Box) -> Regions:
    """For every operand of `op` the smallest box that holds what it contributes to `box` of the result."""
    return _RULES[type(op)](model, op, box)


# ---- ranges along one axis


def window(out: Range, size: int, kernel: int, stride: int, pad: int, dilation: int) -> Range:
    """Positions of an axis of `size` from the first to the last that the windows `out` touch; at least one."""
    first = out[0] * stride - pad
    last = (out[1] - 1) * stride - pad + dilation * (kernel - 1)
    lo = min(max(first, 0), size - 1)
    return lo, max(lo + 1, min(last + 1, size))


def spread(out: Range, size: int, kernel: int, stride: int, pad: int, dilation: int) -> Range:
    """Input positions of a transposed convolution that reach `out`, and the one at or before its first position."""
    first = min(-(-(out[0] + pad - dilation * (kernel - 1)) // stride), (out[0] + pad) // stride)
    last = (out[1] - 1 + pad) // stride
    lo = min(max(first, 0), size - 1)
    return lo, max(lo + 1, min(last + 1, size))


def _broadcast(box: Box, shape: Shape) -> Box:
    return tuple((0, 1) if d == 1 else r for r, d in zip(box, shape, strict=True))


def _param(shape: Shape, along: Range) -> Box:
    """Of a parameter with one entry, or one per index of an axis."""
    return ((0, 1),) if shape == (1,) else (along,)


def group_channels(out: Range, channels: int, outputs: int, group: int) -> Range:
    """Input channels of the groups that output channels `out` belong to."""
    per_out, per_in = outputs // group, channels // group
    return out[0] // per_out * per_in, (-(-out[1] // per_out)) * per_in


def _shapes(model: Model, op: isa.Instruction) -> list[Shape | None]:
    return [None if i < 0 else model.tensors[i].shape for i in op.inputs]


def _params(found: list[Shape | None], first: int, along: Range) -> Regions:
    """Parameters from operand `first` on."""
    return [None if s is None else _param(s, along) for s in found[first:]]


# ---- rules


def _conv(model: Model, op: isa.Conv2d, box: Box) -> Regions:
    found = _shapes(model, op)
    x, w = found[0], found[1]
    assert x is not None
    assert w is not None
    n, rows, columns, out = box
    read = (
        n,
        window(rows, x[1], w[1], op.strides[0], op.pads[0], op.dilations[0]),
        window(columns, x[2], w[2], op.strides[1], op.pads[1], op.dilations[1]),
        group_channels(out, x[3], w[0], op.group),
    )
    params = _params(found, 2, out)
    if found[6] is not None:
        params[4] = box  # the addend
    return [read, (out, *whole(w[1:])), *params]


def _conv_transpose(model: Model, op: isa.ConvTranspose2d, box: Box) -> Regions:
    found = _shapes(model, op)
    x, w = found[0], found[1]
    assert x is not None
    assert w is not None
    n, rows, columns, out = box
    read = (
        n,
        spread(rows, x[1], w[1], op.strides[0], op.pads[0], op.dilations[0]),
        spread(columns, x[2], w[2], op.strides[1], op.pads[1], op.dilations[1]),
        group_channels(out, x[3], w[0], op.group),
    )
    return [read, (out, *whole(w[1:])), *_params(found, 2, out)]


def _matmul(model: Model, op: isa.Matmul, box: Box) -> Regions:
    found = _shapes(model, op)
    a, b = found[0], found[1]
    assert a is not None
    assert b is not None
    lhs = (*_broadcast(box[:-2], a[:-2]), box[-2], (0, a[-1]))
    rhs = (*_broadcast(box[:-2], b[:-2]), (0, b[-2]), box[-1])
    return [lhs, rhs, *_params(found, 2, box[-1])]


def _elementwise(model: Model, op: isa.Instruction, box: Box) -> Regions:
    """Operands of the result's rank broadcast, others are parameters and read whole."""
    return [
        None if s is None else (_broadcast(box, s) if i < _DATA.get(type(op), 1) else whole(s))
        for i, s in enumerate(_shapes(model, op))
    ]


_DATA: dict[type[isa.Instruction], int] = {
    isa.Add: 2, isa.Mul: 2, isa.Maximum: 2, isa.Minimum: 2, isa.Compare: 2, isa.Select: 3, isa.Logical: 2,
}  # fmt: skip


def _per_axis(model: Model, op: Any, box: Box) -> Regions:
    along = box[op.axis] if op.axis >= 0 else (0, 1)
    return [box, *_params(_shapes(model, op), 1, along)]


def _pool(model: Model, op: isa.MaxPool | isa.AvgPool, box: Box) -> Regions:
    found = _shapes(model, op)
    x, out = found[0], model.tensors[op.outputs[0]].shape
    assert x is not None
    rows = window(box[1], x[1], op.kernel[0], op.strides[0], op.pads[0], op.dilations[0])
    columns = window(box[2], x[2], op.kernel[1], op.strides[1], op.pads[1], op.dilations[1])
    positions = box[1][0] * out[2] + box[2][0], (box[1][1] - 1) * out[2] + box[2][1]
    return [(box[0], rows, columns, box[3]), *_params(found, 1, positions)]


def _reduce(model: Model, op: Any, box: Box) -> Regions:
    found = _shapes(model, op)
    x = found[0]
    assert x is not None
    axes = (op.axis,) if isinstance(op, isa.ArgMax) else op.axes
    read = tuple((0, d) if i in axes else r for i, (d, r) in enumerate(zip(x, box, strict=True)))
    return [read, *_params(found, 1, (0, 1))]


def _concat(model: Model, op: isa.Concat, box: Box) -> Regions:
    found: Regions = []
    at = 0
    for s in _shapes(model, op):
        assert s is not None
        lo, hi = box[op.axis]
        part = tuple((lo - at, hi - at) if i == op.axis else r for i, r in enumerate(box))
        read = common(part, whole(s))
        found.append(None if is_empty(read) else read)
        at += s[op.axis]
    return found


def _slice(model: Model, op: isa.Slice, box: Box) -> Regions:
    ends = [
        (start + lo * step, start + (hi - 1) * step)
        for (lo, hi), start, step in zip(box, op.starts, op.steps, strict=True)
    ]
    return [tuple((min(a, b), max(a, b) + 1) for a, b in ends)]


def _pad(model: Model, op: isa.Pad, box: Box) -> Regions:
    shape = model.tensors[op.inputs[0]].shape
    read = common(tuple((lo - p, hi - p) for (lo, hi), p in zip(box, op.pads, strict=False)), whole(shape))
    return [None if is_empty(read) else read]


def _transpose(model: Model, op: isa.Transpose, box: Box) -> Regions:
    return [tuple(box[op.perm.index(i)] for i in range(len(box)))]


def _reshape(model: Model, op: isa.Reshape, box: Box) -> Regions:
    return [reshaped(box, model.tensors[op.outputs[0]].shape, model.tensors[op.inputs[0]].shape)]


def reshaped(box: Box, shape: Shape, other: Shape) -> Box:
    """The smallest box of a tensor of shape `other` that holds what `box` holds of the same bytes under `shape`.

    Axes are matched in groups of equal size, such as (20, 20, 64) and (400, 64): 20·20 with 400, 64 with 64.
    """
    found: list[Range] = [(0, 1)] * len(other)
    i = j = 0
    while i < len(shape) or j < len(other):
        a, b = shape[i : i + 1], other[j : j + 1]
        first, second = i, j
        i, j = i + len(a), j + len(b)
        while math.prod(a) != math.prod(b):
            if math.prod(a) < math.prod(b):
                a, i = (*a, shape[i]), i + 1
            else:
                b, j = (*b, other[j]), j + 1
        found[second:j] = _flat_hull(box[first:i], a, b)
    return tuple(found)


def _flat_hull(box: Box, shape: Shape, other: Shape) -> list[Range]:
    """The same within one group: the flat positions from the box's first element to its last, as a box of `other`."""
    if len(shape) == len(other) == 1:
        return list(box)
    first = last = 0
    for (lo, hi), d in zip(box, shape, strict=True):
        first, last = first * d + lo, last * d + hi - 1
    found: list[Range] = []
    for k in range(len(other)):
        inner = math.prod(other[k + 1 :])
        a, b = first // inner, last // inner
        found.append((a, b + 1))
        if a != b:  # more than one index: whatever is inside of it may be touched whole
            return found + [(0, d) for d in other[k + 1 :]]
        first, last = first - a * inner, last - a * inner
    return found


def _resize(model: Model, op: isa.ResizeNearest | isa.ResizeBilinear, box: Box) -> Regions:
    columns = 1 if isinstance(op, isa.ResizeNearest) else 2
    read: list[Range] = []
    for operand, along in zip(op.inputs[1:], box[1:3], strict=True):
        table = model.constant(operand)
        part = table.reshape(len(table), -1)[along[0] : along[1], :columns]
        read.append((int(part.min()), int(part.max()) + 1))
    tables: Regions = [
        (along, *whole(model.tensors[t].shape[1:])) for t, along in zip(op.inputs[1:], box[1:3], strict=True)
    ]
    return [(box[0], read[0], read[1], box[3]), *tables]


def _gather(model: Model, op: isa.Gather, box: Box) -> Regions:
    along = box[op.axis]
    part = model.constant(op.inputs[1])[along[0] : along[1]]
    read = int(part.min()), int(part.max()) + 1
    return [tuple(read if i == op.axis else r for i, r in enumerate(box)), (along,)]


def _grid_sample(model: Model, op: isa.GridSample, box: Box) -> Regions:
    _, h, w, _ = model.tensors[op.inputs[0]].shape
    return [(box[0], (0, h), (0, w), box[3]), (*box[:3], (0, 2))]


_RULES: dict[type[isa.Instruction], Callable[[Model, Any, Box], Regions]] = {
    isa.Quantize: _per_axis, isa.Dequantize: _per_axis, isa.Requantize: _per_axis, isa.FlipSign: _elementwise,
    isa.Conv2d: _conv, isa.ConvTranspose2d: _conv_transpose, isa.Matmul: _matmul,
    isa.Add: _elementwise, isa.Mul: _elementwise, isa.Maximum: _elementwise, isa.Minimum: _elementwise,
    isa.Clamp: _elementwise, isa.Lut: _elementwise, isa.SegmentLut: _elementwise, isa.Compare: _elementwise,
    isa.Select: _elementwise, isa.Logical: _elementwise,
    isa.MaxPool: _pool, isa.AvgPool: _pool, isa.ReduceSum: _reduce, isa.ReduceMax: _reduce, isa.ReduceMin: _reduce,
    isa.ArgMax: _reduce, isa.ArgMin: _reduce,
    isa.Concat: _concat, isa.Slice: _slice, isa.Pad: _pad, isa.Transpose: _transpose, isa.Reshape: _reshape,
    isa.Expand: _elementwise, isa.ResizeNearest: _resize, isa.ResizeBilinear: _resize, isa.Gather: _gather,
    isa.GridSample: _grid_sample,
}  # fmt: skip
