"""softmax and log_softmax in integers: largest, difference, eˣ table, sum, table of the sum, product or difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Value
from hbc.ir.types import DType, TensorType
from hbc.passes.quanta import ROUNDED, TOP, scale_of

from .parts import Parts, size_along, sum_error
from .sums import Curve, Domain, Form, Terms, of_sum

STEP = 1.0 / TOP  # of e and of 1/Σe: both lie in [0, 1]
NEGLIGIBLE = 11.0  # e⁻¹¹ is half a step


def forms(count: int) -> tuple[Form, ...]:
    """The forms of a sum of `count` terms, the largest of which is 1."""
    fine = float(count) ** (1 / 3)
    split = max(1.0, round(TOP / math.sqrt(count))) * STEP
    return (Form(), Form(fine), Form(fine, split)) if count > 8 else (Form(),)


def softmax(parts: Parts, x: Value, axis: int, form: Form, out: TensorType, clip: tuple[float, float]) -> float:
    """e / Σe; returns how far the result may be off, in its quanta."""
    e = _exponentials(parts, x, axis, form, saturates=True)
    inverse = of_sum(parts, e.terms, e.domain, Curve(np.reciprocal, STEP, falls=True), form)
    parts.make(ops.Mul, e.terms.coarse, inverse.out, type=out, clip=clip)
    off = (e.terms.error + e.terms.relative) / e.domain.grid() + inverse.error
    return float(off.max()) / scale_of(out) + ROUNDED


def log_softmax(parts: Parts, x: Value, axis: int, form: Form, out: TensorType, clip: tuple[float, float]) -> float:
    """(x − largest) − log Σe; returns how far the result may be off, in its quanta."""
    e = _exponentials(parts, x, axis, form, saturates=False)
    logarithm = of_sum(parts, e.terms, e.domain, Curve(np.log, math.log(e.domain.high) / TOP, falls=False), form)
    difference, furthest = e.difference, e.furthest
    if x.type.dtype is DType.I8:  # a finer scale, still exact: D6 adds tensors of one size best
        difference, furthest = parts.binary(ops.Sub, x, e.largest, scale_of(x.type) / 128), 128 * furthest
    parts.make(ops.Sub, difference, logarithm.out, type=out, clip=clip)
    reaches = (furthest, scale_of(difference.type)), (TOP, scale_of(logarithm.out.type))
    return float((e.error + logarithm.error + sum_error(*reaches)).max()) / scale_of(out) + ROUNDED


@dataclass(frozen=True)
class _Exponentials:
    """x less the largest along the axis, how far it may be off and how large it gets; eˣ of it as terms of a sum."""

    largest: Value
    difference: Value
    error: float
    furthest: int
    terms: Terms
    domain: Domain


def _exponentials(parts: Parts, x: Value, axis: int, form: Form, *, saturates: bool) -> _Exponentials:
    """The differences of i8 are exact in i16.

    Those of i16 need a 17th bit: where `saturates` allows it they saturate at a value whose eˣ is nothing, else their
    scale is twice that of `x`.
    """
    s, axes, narrow = scale_of(x.type), (axis,), x.type.dtype is DType.I8
    doubled = not narrow and not (saturates and s * TOP >= NEGLIGIBLE)
    furthest = 255 if narrow else TOP + 1
    largest = parts.reduce(ops.ReduceMax, x, axes)
    d = parts.binary(ops.Sub, x, largest, 2 * s if doubled else s)
    error = s if doubled else 0.0
    lost = 0.0 if narrow or doubled else math.exp(-s * TOP)
    e = parts.table(d, np.exp, STEP, (-furthest, 0))
    terms = Terms(e.out, e.error + lost, error)
    if form.split is not None:
        limit = form.split
        fine = parts.table(d, lambda v: np.minimum(np.exp(v), limit), limit / TOP, (-furthest, 0))
        terms = Terms(e.out, e.error, error, fine.out, fine.error + lost)
    count = max(2, size_along(x.type, axes))
    return _Exponentials(largest, d, error, furthest, terms, Domain(1.0, float(count), count, axes, ops.ReduceSum))
