"""How far one array is from another: figures, and what they are called.

The verdicts, from the figures alone:

    EQUAL        every element is equal; NaN equals NaN
    ≤1 QUANTUM   the largest difference is at most one step of the tensor's scale
    CLOSE        the SQNR is at least 27 dB: noise has at most 1/500 of the signal's power
    DIFFERENT    anything else

27 dB is the noise that can turn a vector by an angle of cosine 0.999 at most (√(1 − 10^−2.7)); unlike a cosine, it sees
a wrong scale, too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CLOSE_SQNR = 27.0  # dB
CLOSE_COSINE = 0.999  # what that comes to
ONE = 1.01  # quanta that count as one: two floats that were dequantised carry float32's rounding besides


class Verdict(str, enum.Enum):
    """What a pair of figures is called, from best to worst."""

    EQUAL = "EQUAL"
    ONE_QUANTUM = "≤1 QUANTUM"
    CLOSE = "CLOSE"
    DIFFERENT = "DIFFERENT"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Distance:
    """How far one array is from another.

    `equal`: the share of elements that are exactly equal. `max_abs`: the largest difference; `max_quanta`: the same in
    quantisation steps, where there is one. `cosine`: of the two as vectors. `sqnr`: 10·log10(Σ want² / Σ (got − want)²)
    in dB, ∞ where nothing differs.
    """

    equal: float
    max_abs: float
    max_quanta: float | None
    cosine: float
    sqnr: float

    @property
    def verdict(self) -> Verdict:
        """EQUAL, ≤1 QUANTUM, CLOSE or DIFFERENT."""
        if self.equal == 1.0 and self.max_abs == 0.0:
            return Verdict.EQUAL
        if self.max_quanta is not None and self.max_quanta <= ONE:
            return Verdict.ONE_QUANTUM
        return Verdict.CLOSE if self.sqnr >= CLOSE_SQNR else Verdict.DIFFERENT


def measure(got: Array, want: Array, *, unit: float = 1.0, quantum: float | None = None) -> Distance:
    """How far `got` is from `want`: two arrays of one shape, in multiples of `unit`. NaN equals NaN.

    `quantum` is the quantisation step in the tensor's own unit, not in multiples of `unit`.
    """
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = a == b
    if not same.all():
        same |= np.isnan(a) & np.isnan(b)
    share = float(np.count_nonzero(same)) / same.size if same.size else 1.0
    if share == 1.0:
        return Distance(1.0, 0.0, None if quantum is None else 0.0, 1.0, math.inf)
    with np.errstate(invalid="ignore", over="ignore"):  # inf − inf
        apart = np.where(same, 0.0, np.abs(a - b))
    largest = math.inf if np.isnan(apart).any() else float(apart.max(initial=0.0)) * unit
    quanta = None if quantum is None else largest / quantum
    return Distance(share, largest, quanta, cosine(a, b), _sqnr(apart, b))


def cosine(a: Array, b: Array) -> float:
    """The cosine of the angle between two arrays as float64 vectors: 0 where one of them is 0 or not finite.

    Two single numbers have no angle worth the name: for them it is 1 − |a − b| / max(|a|, |b|).
    """
    x, y = a.ravel(), b.ravel()
    largest = [float(np.abs(v).max(initial=0.0)) for v in (x, y)]
    if not all(0 < m < math.inf for m in largest):
        return 0.0
    if x.size == 1:
        return 1.0 - float(abs(x[0] - y[0])) / max(largest)
    x, y = (v / m for v, m in zip((x, y), largest, strict=True))  # so that squares neither overflow nor vanish
    return float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y))


def _sqnr(apart: Array, want: Array) -> float:
    """−∞ where the signal is 0, or a difference not finite; infinities that both have are no signal."""
    if not np.isfinite(apart).all():
        return -math.inf
    real = want[np.isfinite(want)]
    largest = float(max(np.abs(real).max(initial=0.0), apart.max(initial=0.0)))
    signal, noise = (float(np.square(v / largest).sum()) if largest else 0.0 for v in (real, apart))
    if noise == 0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal else -math.inf


def worst(rows: Sequence[Distance]) -> Distance:
    """Several samples as one: the worst of each figure, of `equal` the mean."""
    quanta = [r.max_quanta for r in rows if r.max_quanta is not None]
    return Distance(
        equal=sum(r.equal for r in rows) / len(rows),
        max_abs=max(r.max_abs for r in rows),
        max_quanta=max(quanta, default=None),
        cosine=min(r.cosine for r in rows),
        sqnr=min(r.sqnr for r in rows),
    )


def finite(value: Any) -> Any:
    """The value with what JSON has no number for (inf, NaN) as text."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
