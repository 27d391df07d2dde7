"""The parts of a decomposition: quantised ops with i16 results, and tables whose error is measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Op, Value
from hbc.ir.location import Loc
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.base import Target
from hbc.passes.quanta import TOP, scale_of, sixteen_bits
from hbc.passes.segments import FIRST, INPUTS, LAST, divide
from hbc_runtime import numerics

Function = Callable[[np.ndarray], np.ndarray]  # of reals, in float64


class Results(Protocol):
    """What a table gives."""

    def at(self, q: np.ndarray) -> np.ndarray:
        """The table's results for integers `q`, each within the reach it was made for."""


@dataclass(frozen=True)
class Table:
    """A table's result, the largest distance of its reals from the function, and what it gives."""

    out: Value
    error: float
    division: Results


class Parts:
    """Ops made so far, in order; no graph holds them until `ops` is inserted. `drop` takes them back.

    `error` is how far the result may be from the real one, in its quanta, once that is known.
    """

    def __init__(self, loc: Loc) -> None:
        self.loc = loc
        self.ops: list[Op] = []
        self.error = math.inf

    @classmethod
    def least_error(cls, loc: Loc, build: Callable[[Parts], float]) -> float:  # noqa: ARG003 - for heirs
        """What `build`'s error is at least, where that is known for less than the error itself costs; else 0."""
        return 0.0

    def drop(self) -> None:
        """Forget every op: their operands no longer have them as readers."""
        for op in self.ops:
            op.drop_operands()
        self.ops = []

    def rejection(self, target: Target) -> Rejection | None:
        """Why one of the parts may not run on the BPU, or None."""
        return next((found for op in self.ops if (found := target.legal(op)) is not None), None)

    def make(self, cls: type[Op], *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:  # noqa: A002
        """A new op's only result."""
        op = make_op(cls, operands, attrs, self.loc, None if type is None else [type])
        self.ops.append(op)
        return op.out

    def binary(self, cls: type[ops.Binary], a: Value, b: Value, scale: float, **attrs: Any) -> Value:
        """An elementwise op of two tensors with an i16 result of `scale`."""
        return self.make(cls, a, b, type=i16(_joined(a.type.shape, b.type.shape), scale), **attrs)

    def reduce(self, cls: type[ops.Reduce], x: Value, axes: tuple[int, ...], scale: float | None = None) -> Value:
        """A reduction that keeps its axes: an i16 result of `scale`, or `x`'s own type (largest, smallest)."""
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.type.shape))
        t = x.type.with_shape(shape) if scale is None else i16(shape, scale)
        return self.make(cls, x, axes=axes, type=t)

    def constant(self, reals: np.ndarray, scale: float | None = None) -> Value:
        """Reals as i16, of their own range where no scale is given (half to even)."""
        if scale is None:
            return self.made_constant(*sixteen_bits(reals))
        ints = np.asarray(np.clip(np.rint(reals / np.float64(np.float32(scale))), -TOP, TOP), np.int16)
        return self.made_constant(ints, scale)

    def made_constant(self, ints: np.ndarray, scale: float) -> Value:
        """Integers of 16 bits that stand for reals by a scale."""
        return self.make(ops.Const, value=ints, type=i16(ints.shape, scale))

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        """f of an i16 tensor whose integers lie in `reach`, as i16 of `scale`."""
        t = i16(x.type.shape, scale)
        reals = INPUTS * scale_of(x.type)
        values = numerics.lut_table(f, reals, scale_of(t), 0, FIRST, LAST)
        division = divide(values, reach)
        segments, table = (self.make(ops.Const, value=a) for a in (division.segments, division.table))
        q = np.arange(reach[0], reach[1] + 1)
        error = float(np.abs(division.at(q) * scale_of(t) - f(q * scale_of(x.type))).max())
        return Table(self.make(ops.SegmentLut, x, segments, table, type=t), error, division)


@lru_cache(maxsize=256)
def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(a, b))


@lru_cache(maxsize=256)
def i16(shape: tuple[int, ...], scale: float) -> TensorType:
    """The type of an inner tensor: i16, zero point 0, a float32 scale (D9)."""
    return TensorType(shape, DType.I16, Quant.per_tensor(float(np.float32(scale))))


def sum_error(a: tuple[int, float], b: tuple[int, float]) -> float:
    """How far D6's 15-bit multipliers move the sum of two tensors, each as (largest integer, scale); in reals."""
    return (a[0] + b[0]) * max(a[1], b[1]) / 2**15


def size_along(t: TensorType, axes: tuple[int, ...]) -> int:
    """How many elements a reduction over `axes` joins."""
    return math.prod(t.shape[a] for a in axes)
