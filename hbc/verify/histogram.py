"""How a tensor's values, and their differences, are distributed: counts that samples add up in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .stage import Array

BINS = 48
STEPS = 8  # quanta on each side; beyond, one bin for the rest


@dataclass(frozen=True)
class Histogram:
    """Counts of one tensor's values in both stages between `low` and `high`, and of the differences.

    `values` are equal bins, outliers in the outer ones; the first sample sets the range. Differences (judged minus
    reference) between `-reach` and `reach`, in the tensor's quanta where `in_quanta`, else in its unit; of those in
    quanta, bin i is centred on step i − STEPS and the outer ones hold the rest.
    """

    low: float
    high: float
    reference: tuple[int, ...]
    judged: tuple[int, ...]
    reach: float
    in_quanta: bool
    difference: tuple[int, ...]


@dataclass
class HistogramMaker:
    """Adds samples up."""

    quantum: float | None
    low: float = 0.0
    high: float = 0.0
    reach: float = 0.0
    counts: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, reference: Array, judged: Array) -> None:
        """One sample: two arrays of reals of one shape."""
        a, b = (v.astype(np.float64).ravel() for v in (reference, judged))
        fine = np.isfinite(a) & np.isfinite(b)
        a, b = a[fine], b[fine]
        if not self.counts:
            self._open(a, b)
        apart = (b - a) / (self.quantum or 1.0)
        edge = np.nextafter(self.reach, 0)
        rows = [np.clip(a, self.low, self.high), np.clip(b, self.low, self.high), np.clip(apart, -edge, edge)]
        ranges = [(self.low, self.high)] * 2 + [(-self.reach, self.reach)]
        for i, (row, bounds) in enumerate(zip(rows, ranges, strict=True)):
            self.counts[i] += np.histogram(row, len(self.counts[i]), bounds)[0]

    def _open(self, a: Array, b: Array) -> None:
        both = np.concatenate([a, b]) if a.size else np.zeros(1)
        self.low, self.high = float(both.min()), float(both.max())
        if not self.high > self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        largest = float(np.abs(b - a).max(initial=0.0))
        self.reach = STEPS + 0.5 if self.quantum else max(largest, 1e-12)
        differences = 2 * STEPS + 1
        self.counts = [np.zeros(n, np.int64) for n in (BINS, BINS, differences)]

    def done(self) -> Histogram:
        """The counts."""
        reference, judged, difference = (tuple(map(int, c)) for c in self.counts)
        return Histogram(self.low, self.high, reference, judged, self.reach, self.quantum is not None, difference)
