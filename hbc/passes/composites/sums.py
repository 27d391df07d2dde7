"""A function of a sum of many small terms, where 16 bits for the sum alone are too few.

The sum of N terms in [0, 1] may be as small as one term and as large as N. Rounded to i16 by one scale, a small sum
loses most of its bits; and N terms that are each rounded to 1/32767 may together be off by N/65534. Three forms, from
cheap to dear:

- one sum, by the scale of the largest;
- two sums of the same terms, a fine one that saturates and a coarse one. Each has a table; the coarse one's gives,
  below the point where the fine one saturates, what leaves the choice to the fine one. The smaller (of a falling
  function) or the larger of the two results is the right one;
- besides that, terms below a limit have a tensor with a finer scale; the coarse one gives what lies above the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Value
from hbc.passes.quanta import TOP, scale_of

from .parts import Function, Parts

GRID = 400  # points at which an error is looked at
FloatArray = np.ndarray
# Something that is added to the sum: its integers by a scale, and how far they may be off.
Offset = Callable[[Parts, float], tuple[Value, float]]


@dataclass(frozen=True)
class Form:
    """Where the fine sum saturates, and up to where terms have a finer scale; None where there is no such thing."""

    fine: float | None = None
    split: float | None = None


@dataclass(frozen=True)
class Terms:
    """What is summed: values in [0, high] as i16, and the finer tensor of a split form.

    Each is at most `error` off, plus `relative` of itself.
    """

    coarse: Value
    error: float
    relative: float = 0.0
    fine: Value | None = None
    fine_error: float = 0.0


@dataclass(frozen=True)
class Domain:
    """What is known of a sum (or mean): its limits, how many terms it has, over which axes, and as which op."""

    low: float
    high: float
    count: int
    axes: tuple[int, ...]
    op: type[ops.Reduce]

    @property
    def weight(self) -> float:
        """By how much the error of one term moves a sum of `count` such errors."""
        return float(self.count) if self.op is ops.ReduceSum else 1.0

    def grid(self) -> FloatArray:
        """Sums from the smallest to the largest."""
        return _grid(self.low, self.high)


@lru_cache(maxsize=64)
def _grid(low: float, high: float) -> FloatArray:
    grid = np.geomspace(low, high, GRID)
    grid.flags.writeable = False  # every domain of these limits has it
    return grid


@dataclass(frozen=True)
class Since:
    """f of a sum that is at least `low`; below `since`, where there is one, f(low)."""

    f: Function
    low: float
    since: float | None

    def __call__(self, s: np.ndarray) -> np.ndarray:
        inside = self.f(np.maximum(s, self.low))
        return inside if self.since is None else np.where(s < self.since, self.f(np.float64(self.low)), inside)


@dataclass(frozen=True)
class OfSum:
    """f(sum) as i16; at each point of the domain's grid how far it may be off."""

    out: Value
    error: FloatArray


@dataclass(frozen=True)
class Curve:
    """A monotone function of the sum, and the scale of its i16 result. It is steepest where the sum is smallest."""

    f: Function
    scale: float
    falls: bool


def of_sum(parts: Parts, terms: Terms, domain: Domain, curve: Curve, form: Form, offset: Offset | None = None) -> OfSum:
    """f(Σ terms) in one of the three forms. `offset` adds something of the reduced shape to the sum."""
    coarse = domain.high / TOP
    if form.fine is None:
        table, error = _table(parts, terms, domain, curve, form, coarse, None, offset)
        return OfSum(table, error)
    fine, fine_error = _table(parts, terms, domain, curve, form, form.fine / TOP, None, offset)
    rest, rest_error = _table(parts, terms, domain, curve, form, coarse, form.fine, offset)
    join = ops.Minimum if curve.falls else ops.Maximum
    joined = parts.make(join, fine, rest, type=fine.type)
    near = domain.grid() <= form.fine
    return OfSum(joined, np.where(near, fine_error, rest_error))


def _table(
    parts: Parts,
    terms: Terms,
    domain: Domain,
    curve: Curve,
    form: Form,
    scale: float,
    since: float | None,
    offset: Offset | None,
) -> tuple[Value, FloatArray]:
    """(f of the sum by one scale, its error over the grid); `since` is where the coarse one begins to count."""
    total, rounded = _sum(parts, terms, domain, form, scale)
    if offset is not None:
        more, error = offset(parts, scale)
        total = parts.binary(ops.Add, total, more, scale)
        rounded = rounded + error
    step = scale_of(total.type)

    lowest = max(0, int((domain.low - float(rounded[0])) / step))
    table = parts.table(total, Since(curve.f, domain.low, since), curve.scale, (lowest, TOP))
    grid = domain.grid()
    moved = np.maximum(grid - rounded, domain.low / 2)
    return table.out, np.abs(curve.f(moved) - curve.f(grid)) + table.error


def _sum(parts: Parts, terms: Terms, domain: Domain, form: Form, scale: float) -> tuple[Value, FloatArray]:
    """(the sum by `scale`, how far it may be off over the grid)."""
    grid = domain.grid()
    if form.split is None or terms.fine is None:
        total = parts.reduce(domain.op, terms.coarse, domain.axes, scale)
        return total, 0.5 * scale + domain.weight * terms.error + grid * terms.relative
    limit = scale_of(terms.coarse.type)
    minus = parts.constant(np.asarray([-form.split]).reshape([1] * terms.coarse.type.rank), limit)
    above = parts.binary(ops.Add, terms.coarse, minus, limit, clip=(0.0, np.inf))
    low = parts.reduce(domain.op, terms.fine, domain.axes, scale)
    high = parts.reduce(domain.op, above, domain.axes, scale)
    share = np.minimum(domain.weight, grid / form.split)  # terms above the limit can't be many where the sum is small
    error = scale + domain.weight * terms.fine_error + share * terms.error + grid * terms.relative
    return parts.binary(ops.Add, low, high, scale), error
