"""Divisions and squares become products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import numerics

from .base import Pass, Target
from .matching import activation_behind, is_default_clip, real_constant
from .quanta import LIMITS, ROUNDED, TOP, is_activation, reach_of, scale_of
from .ranges import integer_range
from .segments import INPUTS, divide


@dataclass(frozen=True)
class LowerToMul(Pass):
    """quantize(a / b) → a · (1/b), the reciprocals in i16: constants, or a table of b (NUMERICS 5).

        %q = div %a, %b                            %r = lut %y, %t           (1/b, i16)
        %z = quantize %q         (%a, %b of %x, %y)  →   %z = mul %x, %r

    Only for `--arith bpu`, and only where the reciprocals' rounding moves no result by more than 2 quanta (256 of an
    i16 result): |a| ≤ what the result holds of a·b, times the reciprocal's error, over the result's scale, plus a
    rounding. A divisor whose integers may stand for 0 stays in reals. x² that became no table is x · x.
    """

    name: ClassVar[str] = "lower-to-mul"
    changes_numerics: ClassVar[bool] = True  # a rounded reciprocal in place of a division

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Quantize):
            maker = op.x.op if op.out.uses else None
            if isinstance(maker, ops.Pow):
                changes += _square(Rewriter(module.graph, maker), maker, target.semantics)
            elif isinstance(maker, ops.Div) and not target.semantics.is_onnx:
                changes += _divide(Rewriter(module.graph, op), maker, op, target)
        return changes


def _divide(rw: Rewriter, op: ops.Div, quantize: ops.Quantize, target: Target) -> int:
    found = quotient(op, quantize, target.semantics)
    if isinstance(found, Quotient):
        product = rw.op(ops.Mul, found.numerator, found.reciprocal(rw), type=quantize.out.type, clip=op.clip)
        if target.legal(product) is None:
            rw.replace(quantize, product, op)
    return rw.changes


def _square(rw: Rewriter, op: ops.Pow, sem: Semantics) -> int:
    """x ** 2 of an activation → x · x, in reals: `fold-qdq` takes it from there."""
    exponent = real_constant(op.rhs, sem)
    if exponent is None or exponent.size == 0 or not np.all(exponent == 2) or activation_behind(op.lhs) is None:
        return 0
    if op.out.type.shape == op.lhs.type.shape:
        rw.replace(op, rw.op(ops.Mul, op.lhs, op.lhs, type=op.out.type, clip=op.clip))
    return rw.changes


@dataclass(frozen=True)
class Quotient:
    """A division that a product can stand for; `error` is its largest distance from the quotient, in quanta."""

    numerator: Value
    error: float
    reciprocal: Callable[[Rewriter], Value]


def quotient(op: ops.Div, quantize: ops.Quantize, sem: Semantics) -> Quotient | Rejection:
    """The product for quantize(op), or why there is none."""
    a, t = activation_behind(op.lhs), quantize.out.type
    divisor, constant = activation_behind(op.rhs), real_constant(op.rhs, sem)
    hint = "replace it by Mul with a quantised reciprocal"
    if not is_activation(t) or quantize.narrow:
        return Rejection("its result isn't quantised to the whole of int8 or int16 with one scale", "quantise it so")
    if a is None or a.defined_by(ops.Const) or (constant is None and divisor is None):
        names = " or ".join(repr(v.name) for v in op.operands if v is not None and v.name) or "an operand"
        return Rejection(f"{names} isn't quantised per tensor", "quantise numerator and divisor")
    if constant is not None:
        made = _of_constant(np.asarray(constant, np.float64), op.rhs.name)
    else:
        assert divisor is not None
        made = _of_tensor(divisor, op.divisor)
    if made is None:
        who = f" ({divisor.name!r})" if divisor is not None and divisor.name else ""
        what = f"its divisor may be 0, or its reciprocal leaves float32{who}"
        return Rejection(what, "clip the divisor away from 0")
    worst = _worst(made, a.type, t)
    if worst > LIMITS[t.dtype]:
        what = f"an i16 reciprocal of its divisor would move its result by up to {worst:.1f} quanta"
        return Rejection(f"{what} ({LIMITS[t.dtype]:.0f} are allowed)", hint)
    return Quotient(a, worst, made.make)


@dataclass(frozen=True)
class _Reciprocals:
    """The divisor's reals, what an i16 says of their reciprocals, and how to put those into the graph."""

    divisors: np.ndarray
    errors: np.ndarray
    make: Callable[[Rewriter], Value]


def _of_constant(divisors: np.ndarray, name: str | None) -> _Reciprocals | None:
    scale = _scale(divisors)
    if scale is None:
        return None
    ints = np.rint(1 / divisors / scale).astype(np.int16)
    t = TensorType(ints.shape, DType.I16, Quant.per_tensor(scale))

    def make(rw: Rewriter) -> Value:
        return rw.op(ops.Const, value=np.asarray(ints), type=t, name=name and f"{name}.reciprocal").out

    return _Reciprocals(divisors, np.abs(ints * scale - 1 / divisors), make)


def _of_tensor(value: Value, told: tuple[int, ...]) -> _Reciprocals | None:
    """A table: 256 entries for i8 (D7), segments for i16 (D8). None where 0 is among the divisors.

    `told`: the divisors' limits, where the model says them: they hold then, whatever stands in front of them.
    """
    q = value.type.quant
    assert q is not None
    (lo, hi), zero = integer_range(value), q.zero_point[0]
    if told:
        least, most = value.type.dtype.limits
        lo, hi = max(told[0], least), min(told[1], most)
    if lo <= zero <= hi:
        return None
    inputs = np.arange(lo, hi + 1)
    divisors = (inputs - zero) * q.scale[0]
    scale = _scale(divisors)
    if scale is None:
        return None
    t = TensorType(value.type.shape, DType.I16, Quant.per_tensor(scale))

    def integers(index: np.ndarray) -> np.ndarray:
        """What never comes repeats the nearest that does, so that no table bends for its sake."""
        reals = (np.clip(index, lo, hi) - zero) * q.scale[0]
        return numerics.lut_table(np.reciprocal, reals, scale, 0, -TOP - 1, TOP)

    if value.type.dtype is DType.I8:
        table = integers(np.arange(-128, 128)).astype(np.int16)
        errors = np.abs(table[inputs + 128] * scale - 1 / divisors)
        return _Reciprocals(
            divisors, errors, lambda rw: rw.op(ops.Lut, value, rw.op(ops.Const, value=table).out, type=t).out
        )
    division = divide(integers(INPUTS), (lo, hi))

    def segments(rw: Rewriter) -> Value:
        constants = (rw.op(ops.Const, value=a).out for a in (division.segments, division.table))
        return rw.op(ops.SegmentLut, value, *constants, type=t).out

    return _Reciprocals(divisors, np.abs(division.at(inputs) * scale - 1 / divisors), segments)


def _scale(divisors: np.ndarray) -> float | None:
    """The float32 scale in which i16 holds every reciprocal; None where one is infinite."""
    with np.errstate(all="ignore"):
        reciprocals = np.abs(1 / divisors)
    if not reciprocals.size or not np.all(np.isfinite(reciprocals)) or not np.all(np.isfinite(divisors)):
        return None
    scale = np.nextafter(np.float32(reciprocals.max() / TOP), np.float32(np.inf))  # so that the largest one fits
    return float(scale) if np.isfinite(scale) and scale > np.finfo(np.float32).tiny else None


def _worst(made: _Reciprocals, a: TensorType, t: TensorType) -> float:
    """Quanta: a numerator beyond what the result holds saturates either way."""
    numerator, step, held = reach_of(a), scale_of(t), reach_of(t) + scale_of(t)
    largest = np.minimum(numerator, held * np.abs(made.divisors))
    return float((largest * made.errors).max() / step) + ROUNDED


def why_no_product(op: Op, sem: Semantics) -> Rejection | None:
    """Why a division whose operands and result are quantised stays in reals, for `why_real`."""
    if not isinstance(op, ops.Div) or not is_default_clip(op):
        return None
    quantizes = [u for u in op.out.users if isinstance(u, ops.Quantize)]
    if not quantizes or activation_behind(op.lhs) is None:
        return None
    if activation_behind(op.rhs) is None and real_constant(op.rhs, sem) is None:
        return None
    if sem.is_onnx:
        return Rejection("a division is computed in floats under --arith onnx", "compile with --arith bpu")
    found = quotient(op, quantizes[0], sem)
    return found if isinstance(found, Rejection) else None
