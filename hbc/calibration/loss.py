"""What a scale costs, from a histogram: expected squared error and cosine, in closed form.

Within a bin, magnitudes are taken as spread evenly. With u = |x| / s and k = round(u), r = u − k, the squared error of
rounding, summed from 0 to u, is `s³ (k/12 + r³/3)`: every whole step adds s³/12. Beyond qmax it is the square of the
distance to qmax. So the error of a bin [a, b) is exact for any scale, be a step wider or narrower than a bin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .grid import Floats
from .statistics import Counts

_Integral = Callable[[Floats, int], Floats]


@dataclass(frozen=True)
class Magnitudes:
    """The bins of one channel that hold something: `edges[i]` … `edges[i] + width`, `counts[i]` elements each."""

    edges: Floats
    counts: Counts
    width: float
    absmax: float

    @property
    def total(self) -> int:
        """All elements."""
        return int(self.counts.sum())

    @classmethod
    def of(cls, counts: Counts, exponent: int, absmax: float) -> Magnitudes:
        """Those of one row of `Statistics`."""
        width = float(np.ldexp(1.0, exponent)) / len(counts)
        if not width:  # nothing but zeros, or what float64 has no bins for
            return cls(np.zeros(1), counts.sum(keepdims=True), 1.0, 0.0)
        held = np.flatnonzero(counts)
        return cls(np.asarray(held * width, np.float64), counts[held], width, absmax)


def squared_error(m: Magnitudes, scale: float, qmax: int) -> float:
    """The mean squared error of quantising by `scale`, magnitudes beyond `qmax · scale` saturating."""
    if not m.absmax or not m.total:
        return 0.0
    return float(m.counts @ _per_bin(m, scale, qmax, _rounding_error)) * scale**2 / m.total


def cosine(m: Magnitudes, scale: float, qmax: int) -> float:
    """The expected cosine of a tensor and what quantising leaves of it: Σ x·x' / √(Σx² Σx'²); 1 for zeros.

    Of each bin, Σx·x' follows from Σx², Σx'² and Σ(x − x')².
    """
    if not m.absmax or not m.total:
        return 1.0
    low, high = m.edges / scale, (m.edges + m.width) / scale
    squares = float(m.counts @ ((high**2 + high * low + low**2) / 3))
    error = float(m.counts @ _per_bin(m, scale, qmax, _rounding_error))
    rounded = float(m.counts @ _per_bin(m, scale, qmax, _rounded_squares))
    norm = float(np.sqrt(squares * rounded))
    return (squares + rounded - error) / 2 / norm if norm else float(squares == rounded)


def clipped(m: Magnitudes, threshold: float) -> float:
    """The share of elements whose magnitude lies beyond `threshold`."""
    if threshold >= m.absmax or not m.total:
        return 0.0
    beyond = np.clip((m.edges + m.width - threshold) / m.width, 0.0, 1.0)
    return float(m.counts @ beyond) / m.total


def _per_bin(m: Magnitudes, scale: float, qmax: int, integral: _Integral) -> Floats:
    """The mean over each bin of a function of u = |x| / scale, by its integral from 0."""
    low, high = m.edges / scale, (m.edges + m.width) / scale
    return (integral(high, qmax) - integral(low, qmax)) / (high - low)


def _rounding_error(u: Floats, qmax: int) -> Floats:
    """∫₀ᵘ (t − round(t))² dt, rounded values stopping at qmax."""
    k = np.minimum(np.rint(u), qmax)
    return k / 12 + (u - k) ** 3 / 3


def _rounded_squares(u: Floats, qmax: int) -> Floats:
    """∫₀ᵘ round(t)² dt, rounded values stopping at qmax: step j stands from j − 1/2 to j + 1/2."""
    k = np.minimum(np.rint(u), qmax)
    return np.where(k > 0, (k - 1) * k * (2 * k - 1) / 6 + k**2 * (u - (k - 0.5)), 0.0)
