"""Comparisons, positions and choices among reals become those of the integers behind them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import numerics

from .base import Pass, Target
from .matching import activation_behind, real_constant

SWAPPED: dict[type[Op], type[Op]] = {
    ops.Equal: ops.Equal,
    ops.Less: ops.Greater,
    ops.LessOrEqual: ops.GreaterOrEqual,
    ops.Greater: ops.Less,
    ops.GreaterOrEqual: ops.LessOrEqual,
}


@dataclass(frozen=True)
class FoldSelect(Pass):
    """dequantize → comparison, arg_max or where → the same on integers; exact in both arithmetics.

        %a = dequantize %x                        %t = const dense<12> : tensor<i8, …>
        %m = greater %a, %c    (%c constant)  →   %m = greater_or_equal %x, %t
        %i = arg_max %a {axis = 1}                %i = arg_max %x {axis = 1}

    Two tensors are compared where they have one dtype, scale and zero point. A tensor and a constant: the constant
    becomes the integer at which the answer changes, found among the float32 reals of all integers. A where of
    dequantized tensors of one type chooses integers, which are dequantized behind it. An arg_max that is cast to i32
    counts in i32.
    """

    name: ClassVar[str] = "fold-select"

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in list(module.graph.ops):
            rw = Rewriter(module.graph, op)
            folded = _folded(rw, op, target.semantics)
            if folded is not None:
                rw.replace(op, folded)
            changes += rw.changes
        return changes


def _folded(rw: Rewriter, op: Op, sem: Semantics) -> Op | None:
    if isinstance(op, ops.ArgExtremum):
        x = activation_behind(op.x)
        return None if x is None or not is_injective(x.type) else rw.op(type(op), x, type=op.out.type, **op.attrs)
    if isinstance(op, ops.Comparison):
        return _compared(rw, op, sem)
    if isinstance(op, ops.Where):
        return _chosen(rw, op)
    if isinstance(op, ops.Cast) and op.out.type.dtype is DType.I32:
        return _counted(rw, op)
    return None


def _compared(rw: Rewriter, op: ops.Comparison, sem: Semantics) -> Op | None:
    a, b = activation_behind(op.lhs), activation_behind(op.rhs)
    for x, other, kind in ((a, op.rhs, type(op)), (b, op.lhs, SWAPPED[type(op)])):
        constant = real_constant(other, sem)
        if x is None or constant is None or x.defined_by(ops.Const):
            continue
        found = threshold(x.type, kind, np.asarray(constant, np.float32))
        if found is None:
            return None
        relation, integers = found
        t = TensorType(integers.shape, x.type.dtype, x.type.quant)
        const = rw.op(ops.Const, value=np.asarray(integers), type=t, name=other.name).out
        return rw.op(relation, x, const, type=op.out.type)
    alike = a is not None and b is not None and (a.type.dtype, a.type.quant) == (b.type.dtype, b.type.quant)
    if not alike or a is None or not is_injective(a.type):
        return None
    return rw.op(type(op), a, b, type=op.out.type)


def _chosen(rw: Rewriter, op: ops.Where) -> Op | None:
    """where of two dequantized tensors of one type → dequantize of a where."""
    a, b = activation_behind(op.lhs), activation_behind(op.rhs)
    if a is None or b is None or (a.type.dtype, a.type.quant) != (b.type.dtype, b.type.quant):
        return None
    where = rw.op(ops.Where, op.condition, a, b, type=TensorType(op.out.type.shape, a.type.dtype, a.type.quant))
    return rw.op(ops.Dequantize, where.out)


def _counted(rw: Rewriter, op: ops.Cast) -> Op | None:
    """cast(arg_max(x)) to i32 → arg_max(x) in i32."""
    position = op.x.op
    if not isinstance(position, ops.ArgExtremum) or position.x.type.quant is None:
        return None
    return rw.op(type(position), position.x, type=op.out.type, loc=position.loc, **position.attrs)


# ---- integers and their reals


def is_injective(t: TensorType) -> bool:
    """True where different integers of a narrow, per-tensor type are different float32 reals, in the same order."""
    assert t.quant is not None
    reals = _reals(t.dtype, t.quant)
    return bool(np.all(reals[1:] > reals[:-1]))


@lru_cache(maxsize=64)
def _reals(dtype: DType, quant: Quant) -> np.ndarray:
    """The reals of all integers of a narrow dtype, ascending; float32."""
    lo, hi = dtype.limits
    with np.errstate(over="ignore"):
        return numerics.dequantize(np.arange(lo, hi + 1), quant.scale[0], quant.zero_point[0])


def threshold(t: TensorType, kind: type[Op], constant: np.ndarray) -> tuple[type[Op], np.ndarray] | None:
    """(comparison, integers of `t`) that say of every integer what `kind` says of its real and `constant`; or None.

    The reals ascend with their integers, so that an order changes its answer at one integer: less means "below it",
    greater "from it on". It may be the one behind the largest, which the strict and the weak relation avoid between
    them: q < T is q ≤ T − 1.
    """
    assert t.quant is not None
    reals, (lo, hi) = _reals(t.dtype, t.quant), t.dtype.limits
    nan = np.isnan(constant)
    if nan.any():
        return (ops.Less, np.full(constant.shape, lo, t.dtype.numpy)) if nan.all() else None
    if kind is ops.Equal:
        return _match(reals, constant, t.dtype)
    below = kind in {ops.Less, ops.LessOrEqual}
    # how many integers lie before the change: those below the constant, or those not above it
    side: Literal["left", "right"] = "left" if kind in {ops.Less, ops.GreaterOrEqual} else "right"
    change = lo + np.searchsorted(reals, constant, side).astype(np.int64)
    if np.all(change <= hi):
        return (ops.Less if below else ops.GreaterOrEqual), change.astype(t.dtype.numpy)
    if np.all(change > lo):
        return (ops.LessOrEqual if below else ops.Greater), (change - 1).astype(t.dtype.numpy)
    return None


def _match(reals: np.ndarray, constant: np.ndarray, dtype: DType) -> tuple[type[Op], np.ndarray] | None:
    """equal: the one integer of each constant; where none of them has one, what is never true."""
    lo = dtype.limits[0]
    count = np.searchsorted(reals, constant, "right") - np.searchsorted(reals, constant, "left")
    if not count.any():
        return ops.Less, np.full(constant.shape, lo, dtype.numpy)
    if not np.all(count == 1):
        return None
    return ops.Equal, (lo + np.searchsorted(reals, constant, "left")).astype(dtype.numpy)
