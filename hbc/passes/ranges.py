"""Which integers a quantised tensor can hold, as far as the ops behind it say so."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.ir.fixed_point.params import clamp_limits
from hbc.ir.types import TensorType

from .matching import const_value, integers_behind

Interval = tuple[float, float]
DEEPEST = 24  # ops looked through
EVERYTHING = (-math.inf, math.inf)


def integer_range(value: Value, depth: int = DEEPEST) -> tuple[int, int]:
    """(smallest, largest) integer that a value of narrow integers can hold; never narrower than the truth."""
    lo, hi = value.type.dtype.limits
    op = value.op
    if op is None or depth == 0:
        return lo, hi
    constant = const_value(value)
    if constant is not None:
        return (int(constant.min()), int(constant.max())) if constant.size else (lo, hi)
    if isinstance(op, (ops.Lut, ops.SegmentLut)):
        table = const_value(op.table)
        return (lo, hi) if table is None else (max(lo, int(table.min())), min(hi, int(table.max())))
    if isinstance(op, ops.Quantize):
        low, high = _quantized(value.type, real_range(op.x, depth - 1))
        return max(low, op.limits[0]), high
    if isinstance(op, ops.Clip):
        low, high = clamp_limits(value.type, (op.low, op.high))
        below, above = integer_range(op.x, depth - 1)
        return int(np.clip(below, low, high)), int(np.clip(above, low, high))
    if isinstance(op, ops.Requantize):
        return _quantized(value.type, _reals(op.x, depth - 1))
    if isinstance(op, (ops.Move, ops.MaxPool, ops.ReduceMax, ops.ReduceMin)) and not isinstance(op, ops.Pad):
        source: Value = op.operands[0]  # type: ignore[assignment]
        return integer_range(source, depth - 1)
    if "clip" in op.attrs:
        return clamp_limits(value.type, op.attrs["clip"])
    return lo, hi


def _quantized(t: TensorType, reals: Interval) -> tuple[int, int]:
    """The integers of reals within an interval, one more on each side for what a requantize may be off."""
    lo, hi = t.dtype.limits
    if t.quant is None or not t.quant.is_per_tensor:
        return lo, hi
    scale, zero = t.quant.scale[0], t.quant.zero_point[0]
    low = lo if reals[0] == -math.inf else int(np.clip(math.floor(reals[0] / scale + 0.5) - 1 + zero, lo, hi))
    high = hi if reals[1] == math.inf else int(np.clip(math.ceil(reals[1] / scale - 0.5) + 1 + zero, lo, hi))
    return low, high


def _reals(value: Value, depth: int) -> Interval:
    """The reals of a tensor of integers of one scale."""
    q = value.type.quant
    if q is None or not q.is_per_tensor or not value.type.dtype.is_integer:
        return EVERYTHING
    low, high = integer_range(value, depth)
    return (low - q.zero_point[0]) * q.scale[0], (high - q.zero_point[0]) * q.scale[0]


def real_range(value: Value, depth: int = DEEPEST) -> Interval:
    """An interval that holds a tensor's reals; everything, where what makes it says nothing."""
    constant = const_value(value)
    if constant is not None:
        finite = constant.size and np.all(np.isfinite(constant))
        return (float(constant.min()), float(constant.max())) if finite else EVERYTHING
    ints = integers_behind(value)
    if ints is not None and depth:
        return _reals(ints, depth - 1)
    op = value.op
    if op is None or depth == 0:
        return EVERYTHING
    low, high = _computed(op, depth - 1)
    clip = op.attrs.get("clip", ops.NO_CLIP)
    return max(low, clip[0]), max(min(high, clip[1]), low, clip[0])


def _computed(op: Op, depth: int) -> Interval:
    if isinstance(op, ops.Clip):
        low, high = real_range(op.x, depth)
        return min(max(low, op.low), op.high), min(max(high, op.low), op.high)
    if isinstance(op, (ops.Add, ops.Maximum, ops.Minimum)):
        (a, b), (c, d) = real_range(op.lhs, depth), real_range(op.rhs, depth)
        if isinstance(op, ops.Add):
            return a + c, b + d
        pick = max if isinstance(op, ops.Maximum) else min
        return pick(a, c), pick(b, d)
    if isinstance(op, (ops.Move, ops.MaxPool)) and not isinstance(op, ops.Pad):
        source: Value = op.operands[0]  # type: ignore[assignment]
        return real_range(source, depth)
    return EVERYTHING
