"""Normalisations in integers, every row brought to one size first.

A row's variance may be anything from nothing to a quarter of the square of what the type holds, and 16 bits for it
don't go that far: the squares of a row that uses a tenth of the range have a hundredth of the steps. But a norm doesn't
change when its row is multiplied by a number. So each row is divided by its range first (largest − smallest, a table
of 1/x): then its elements have 15 bits, and its variance lies between 1/2N and 1/4 (Popoviciu), whatever the row.
epsilon is divided by the square of the same number, by a table of its own.

The quotient's own rounding cancels. But 1/range is i16, too: rows of an i16 tensor that span less than 1/256 of what
the type holds are all divided by that, and have the fewer bits the narrower they are; the bound doesn't speak of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Value
from hbc.ir.types import DType, TensorType
from hbc.passes.quanta import ROUNDED, TOP, reach_of, scale_of, sixteen_bits

from .parts import Parts, Table, i16, size_along, sum_error
from .sums import Curve, Domain, Form, Offset, Since, Terms, of_sum

ROOM = 17 / 16  # the table of 1/range is at most 1/256 off
STEP = ROOM / TOP  # of a row's elements after the division, and of their squares
SMALLEST = 256  # ranges below 1/256 of the largest are divided by that: 1/range has i16, too
VANISHING = 1e-6  # an epsilon below this part of the variance is left out


@dataclass(frozen=True)
class Norm:
    """What is normalised how: over which axes, about the mean or about 0, and what follows in reals."""

    axes: tuple[int, ...]
    epsilon: float
    scale: np.ndarray | None
    bias: np.ndarray | None
    shape: tuple[int, ...]  # of the result; rows may be another view of it
    centred: bool = True

    @cached_property
    def largest(self) -> tuple[float, float]:
        """The largest magnitudes of scale (1 without) and bias (0 without)."""
        w = 1.0 if self.scale is None else float(np.abs(self.scale).max(initial=0.0))
        return w, 0.0 if self.bias is None else float(np.abs(self.bias).max(initial=0.0))

    @cached_property
    def constants(self) -> tuple[tuple[np.ndarray, float] | None, tuple[np.ndarray, float] | None]:
        """Scale and bias as i16 of their own ranges."""
        scale, bias = (None if a is None else sixteen_bits(a) for a in (self.scale, self.bias))
        return scale, bias


@dataclass(frozen=True)
class _Rows:
    """Rows of range 1: the elements, how far each may be off, and epsilon as something to add to their variance."""

    u: Value
    error: float
    epsilon: Offset | None
    largest_epsilon: float


def forms(x: TensorType, norm: Norm) -> tuple[Form, ...]:
    """The forms of the sum of squares."""
    low, high = _variances(size_along(x, norm.axes), norm.centred)
    fine = math.sqrt(low * high)
    split = max(1.0, round(math.sqrt(low) / STEP)) * STEP
    return (Form(), Form(fine), Form(fine, split))


def normalise(parts: Parts, x: Value, norm: Norm, form: Form, out: TensorType, clip: tuple[float, float]) -> float:
    """The norm of `x` (rows over `norm.axes`); returns how far the result may be off, in its quanta."""
    count = size_along(x.type, norm.axes)
    rows = _rows(parts, x, norm)
    low, high = _variances(count, norm.centred)
    terms = _squares(parts, rows.u, form)
    domain = Domain(low, high + rows.largest_epsilon, count, norm.axes, ops.ReduceMean)
    rsqrt = Curve(inverse_root, 1 / math.sqrt(low) / TOP, falls=True)
    q = of_sum(parts, _with_row_error(terms, rows.error), domain, rsqrt, form, rows.epsilon)
    grid = domain.grid()
    relative = q.error * np.sqrt(grid) + rows.error / np.sqrt(grid)
    return _finish(parts, rows, q.out, norm, out, clip, _Spread(grid, relative, math.sqrt(count)))


def inverse_root(v: np.ndarray) -> np.ndarray:
    """1/√v."""
    return np.asarray(1 / np.sqrt(v))


def _variances(count: int, centred: bool) -> tuple[float, float]:  # noqa: FBT001 - the two kinds of norm
    """The least and the largest variance of a row of range 1 (mean square of one whose range holds 0).

    The least is 1/2N, or the 1/4 that epsilon adds to rows too narrow to be brought to range 1; a little less for the
    rounding of 1/range.
    """
    return min(0.49 / count, 0.24), (0.25 if centred else 1.0) * ROOM


# ---- rows of range 1


def _rows(parts: Parts, x: Value, norm: Norm) -> _Rows:
    largest = parts.reduce(ops.ReduceMax, x, norm.axes)
    smallest = parts.reduce(ops.ReduceMin, x, norm.axes)
    if not norm.centred:
        largest = parts.make(ops.Clip, largest, type=largest.type, low=0.0)
        smallest = parts.make(ops.Clip, smallest, type=smallest.type, high=0.0)
    narrow = x.type.dtype is DType.I8
    step, widest = (scale_of(x.type), 255) if narrow else (2 * scale_of(x.type), TOP)
    span = parts.binary(ops.Sub, largest, smallest, step)
    least = max(step, widest * step / SMALLEST, 2 * math.sqrt(norm.epsilon))
    inverse = parts.table(span, Since(np.reciprocal, least, None), 1 / least / TOP, (0, widest))
    if norm.centred:
        shifted = _shifted(parts, x, largest, smallest)
        unit = parts.binary(ops.Mul, shifted, inverse.out, STEP)
        mean = parts.reduce(ops.ReduceMean, unit, norm.axes, STEP)
        unit = parts.binary(ops.Sub, unit, mean, STEP)
        error = 1.5 * STEP
    else:
        unit = parts.binary(ops.Mul, x, inverse.out, STEP)
        error = 0.5 * STEP
    most = norm.epsilon / least**2
    if most < VANISHING * _variances(size_along(x.type, norm.axes), norm.centred)[0]:
        return _Rows(unit, error, None, 0.0)
    return _Rows(unit, error, _epsilon(span, inverse, norm.epsilon, widest), most * ROOM)


def _shifted(parts: Parts, x: Value, largest: Value, smallest: Value) -> Value:
    """A row less a number of its own that lets the differences fit i16 exactly: its smallest, or (i16) its middle."""
    s = scale_of(x.type)
    if x.type.dtype is DType.I8:
        return parts.binary(ops.Sub, x, smallest, s)
    total = parts.binary(ops.Add, largest, smallest, 2 * s)
    half = parts.constant(np.full([1] * x.type.rank, 0.5))
    return parts.binary(ops.Sub, x, parts.binary(ops.Mul, total, half, s), s)


def _epsilon(span: Value, inverse: Table, epsilon: float, widest: int) -> Offset:
    """epsilon over the square of what the row was divided by: of the integers of the table that divided it."""

    def make(parts: Parts, scale: float) -> tuple[Value, float]:
        def f(a: np.ndarray) -> np.ndarray:
            q = np.minimum(np.maximum(np.rint(a / scale_of(span.type)), 0), widest)
            divided = inverse.division.at(q) * scale_of(inverse.out.type)
            return np.minimum(epsilon * divided**2, scale * TOP)

        table = parts.table(span, f, scale, (0, widest))
        return table.out, table.error

    return make


def _squares(parts: Parts, u: Value, form: Form) -> Terms:
    """The squares of elements; in a split form also of those below a limit, by a finer scale that saturates there."""
    coarse = parts.binary(ops.Mul, u, u, STEP)
    if form.split is None:
        return Terms(coarse, 0.5 * STEP)
    scale = form.split / TOP
    return Terms(coarse, 0.5 * STEP, fine=parts.binary(ops.Mul, u, u, scale), fine_error=0.5 * scale)


# ---- product with 1/√variance, and what follows


@dataclass(frozen=True)
class _Spread:
    """Over the grid of variances how far 1/√variance may be off, relatively; and the largest normalised value."""

    grid: np.ndarray
    relative: np.ndarray
    largest: float


def _finish(
    parts: Parts, rows: _Rows, q: Value, norm: Norm, out: TensorType, clip: tuple[float, float], spread: _Spread
) -> float:
    """u · q · scale + bias; returns the error in quanta of the result."""
    w, b = norm.largest
    reach = reach_of(out) + b  # beyond it the result saturates
    size = np.minimum(1 / np.sqrt(spread.grid), spread.largest)  # of the largest normalised value at that variance
    error = w * rows.error / np.sqrt(spread.grid) + np.minimum(w * size, reach) * spread.relative
    z, rounded = _product(parts, rows.u, q, norm, spread.largest, out, clip)
    error = error + w * rounded
    if norm.scale is not None:
        z, rounded = _scaled(parts, z, norm, min(spread.largest * ROOM * w, reach * ROOM), out, clip)
        error = error + rounded + size * 0.5 * w / TOP
    if norm.constants[1] is not None:
        bias = parts.made_constant(*norm.constants[1])
        parts.make(ops.Add, z, bias, type=out, clip=clip)
        error = error + 0.5 * b / TOP + sum_error((TOP, scale_of(z.type)), (TOP, scale_of(bias.type)))
    return float(error.max()) / scale_of(out) + ROUNDED


def _product(
    parts: Parts, u: Value, q: Value, norm: Norm, largest: float, out: TensorType, clip: tuple[float, float]
) -> tuple[Value, float]:
    """(u · q in the shape of the result, its rounding); the result itself where nothing follows."""
    last = norm.scale is None and norm.bias is None
    t = out.with_shape(u.type.shape) if last else i16(u.type.shape, largest * ROOM / TOP)
    z = parts.make(ops.Mul, u, q, type=t, clip=clip if last else ops.NO_CLIP)
    if u.type.shape != norm.shape:
        z = parts.make(ops.Reshape, z, shape=norm.shape, type=t.with_shape(norm.shape))
    return z, 0.0 if last else 0.5 * scale_of(t)


def _scaled(
    parts: Parts, z: Value, norm: Norm, reach: float, out: TensorType, clip: tuple[float, float]
) -> tuple[Value, float]:
    """(z · scale, its rounding); the result itself where no bias follows."""
    assert norm.constants[0] is not None
    scale = parts.made_constant(*norm.constants[0])
    if norm.bias is None:
        return parts.make(ops.Mul, z, scale, type=out, clip=clip), 0.0
    product = parts.make(ops.Mul, z, scale, type=i16(norm.shape, (reach or 1.0) / TOP))
    return product, 0.5 * scale_of(product.type)


def _with_row_error(terms: Terms, error: float) -> Terms:
    """Squares of elements that are themselves off add their square; the part that grows with them is `relative`'s."""
    more = error**2
    return Terms(terms.coarse, terms.error + more, terms.relative, terms.fine, terms.fine_error + more)
