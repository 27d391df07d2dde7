"""Fake quantisation written as float arithmetic becomes quantize and dequantize."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, Quant, TensorType

from .base import Pass, Target
from .matching import const_value

ROUND = ops.PLAIN_UNARY["round"]


@dataclass(frozen=True)
class RecognizeFakeQuant(Pass):
    """(clip(round(x / s) + z) − z) · s becomes quantize, clip of integers, dequantize.

        %a = div %x, 0.1
        %b = round %a                            %q = quantize %x : i8, q<0.1:0>
        %c = clip %b {low = -8, high = 7}    →   %c = clip %q {low = -0.8, high = 0.7}
        %y = mul %c, 0.1                         %y = dequantize %c

    The scale is one number and the same on both sides, the limits are whole numbers that fit 16 bits, and the zero
    point is added behind the rounding: then it says the same under `--arith onnx`, on every tie.
    """

    name: ClassVar[str] = "recognize-fake-quant"
    changes_numerics: ClassVar[bool] = True  # quantize rounds by the march, and takes NaN for 0

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Mul):
            found = _grid_of(op)
            if found is None or op.out.type != found.x.type or tuple(op.clip) != ops.NO_CLIP:
                continue
            rw = Rewriter(module.graph, op)
            rw.replace(op, _on_grid(rw, found), *found.sources)
            changes += rw.changes
        return changes


@dataclass(frozen=True)
class _Grid:
    """What is rounded, and to what: integers from `low` to `high`, `zero` for 0."""

    x: Value
    scale: float
    zero: float
    low: float
    high: float
    sources: tuple[Op, ...]


def _grid_of(op: ops.Mul) -> _Grid | None:
    for value, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        scale = _scalar(factor)
        if scale is not None and 0 < scale < math.inf:
            found = _rounded_by(value, scale)
            if found is not None:
                return found
    return None


def _rounded_by(value: Value, scale: float) -> _Grid | None:
    """The grid behind `value`, the integers of a tensor without their zero point."""
    sources: list[Op] = []
    zero, value = _shift(value, sources)
    low, high, offset, rounded = -math.inf, math.inf, 0.0, False  # what is above is `offset` more than `value`
    while isinstance(value.op, (ops.Clip, ROUND, ops.Add, ops.Sub)):
        op = value.op
        if isinstance(op, ops.Clip):
            low, high = max(low, op.low + offset), min(high, op.high + offset)
        elif isinstance(op, ROUND):
            rounded = True
        if isinstance(op, (ops.Clip, ROUND)):
            sources.append(op)
            value = op.x
            continue
        taken, below = _shift(value, sources)
        if rounded or below is value:
            return None  # rounding comes before the zero point, or a number is no single one
        offset, value = offset - taken, below
    x = _divided(value, scale)
    if x is None or not rounded or offset != zero or value.op is None:
        return None
    grid = _Grid(x, scale, zero, low, high, (*sources, value.op))
    return grid if _home(grid) is not None else None


def _shift(value: Value, sources: list[Op]) -> tuple[float, Value]:
    """(z, v) where `value` is v − z for a number z; (0, value) where it is anything else."""
    op = value.op
    if not isinstance(op, (ops.Add, ops.Sub)) or tuple(op.clip) != ops.NO_CLIP:
        return 0.0, value
    number = _scalar(op.rhs)
    if number is not None:
        sources.append(op)
        return (-number if isinstance(op, ops.Add) else number), op.lhs
    number = _scalar(op.lhs) if isinstance(op, ops.Add) else None
    if number is None:
        return 0.0, value
    sources.append(op)
    return -number, op.rhs


def _divided(value: Value, scale: float) -> Value | None:
    """x where `value` is x / scale: a division, or the product with a reciprocal that is exact."""
    op = value.op
    if isinstance(op, ops.Div):
        return op.lhs if _scalar(op.rhs) == scale else None
    if isinstance(op, ops.Mul):
        for x, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            by = _scalar(factor)
            if by is not None and by * scale == 1.0:
                return x
    return None


def _scalar(value: Value) -> float | None:
    array = const_value(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype == np.float32 else None


def _on_grid(rw: Rewriter, grid: _Grid) -> Op:
    home = _home(grid)
    assert home is not None
    dtype, shift = home
    t = TensorType(grid.x.type.shape, dtype, Quant.per_tensor(grid.scale, int(grid.zero) - shift))
    integers: Value = rw.op(ops.Quantize, grid.x, type=t).out
    if (grid.low - shift, grid.high - shift) != dtype.limits:
        low, high = ((limit - grid.zero) * grid.scale for limit in (grid.low, grid.high))
        integers = rw.op(ops.Clip, integers, type=t, low=low, high=high).out
    return rw.op(ops.Dequantize, integers)


def _home(grid: _Grid) -> tuple[DType, int] | None:
    """A signed dtype for the grid, and what is taken off its integers to fit; None for a grid of no such dtype."""
    numbers = (grid.low, grid.high, grid.zero)
    if grid.low > grid.high or not all(math.isfinite(v) and v == round(v) for v in numbers):
        return None
    for dtype in (DType.I8, DType.I16):
        low, high = dtype.limits
        for shift in (0, high + 1):
            if low <= min(numbers) - shift and max(numbers) - shift <= high:
                return dtype, shift
    return None
