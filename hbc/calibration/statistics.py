"""What is remembered of a tensor while samples stream by: ranges, their moving average, a histogram of magnitudes.

Statistics of parts merge: a batch may be cut in two, or samples shared among devices, and range and histogram come out
as of the whole, to the last count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .grid import Array, Floats

BINS = 4096  # a power of two; at least half of them lie below the largest magnitude
AVERAGING = 0.01  # how much one batch weighs in the moving average: the vendor's calibration has this default
CHUNK = 1 << 20  # elements that are counted at once: bounds the memory beside the tensor itself
NOTHING = -1200  # exponent of a histogram of zeros: below that of any float64

Counts = npt.NDArray[np.int64]


@dataclass
class Statistics:
    """Statistics of a tensor, per channel of `axis` or of the whole (then with one channel).

    `low`, `high`: least and largest value. `average_low`, `average_high`: their moving averages,
    `a ← a + averaging · (batch's − a)`, from the first batch on. `counts[c, i]`: how many magnitudes of channel c lie
    in `[i, i+1) · 2^exponent[c] / bins`; the exponent is the least that holds them all, and growing by one adds bins up
    in pairs, which loses nothing but width. `nonfinite` counts NaN and ±inf, which everything else leaves out.
    """

    axis: int | None = None
    bins: int = BINS
    averaging: float = AVERAGING
    batches: int = 0
    nonfinite: int = 0
    low: Floats = field(default_factory=lambda: np.zeros(0))
    high: Floats = field(default_factory=lambda: np.zeros(0))
    average_low: Floats = field(default_factory=lambda: np.zeros(0))
    average_high: Floats = field(default_factory=lambda: np.zeros(0))
    exponents: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Counts = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @property
    def absmax(self) -> Floats:
        """The largest magnitude of each channel; 0 where there was no finite element."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def elements(self) -> Counts:
        """Finite elements of each channel."""
        return self.counts.sum(axis=1)

    def add(self, x: Array) -> None:
        """One batch: an array of numbers of any shape; with an axis, of as many channels as the batches before."""
        rows = _rows(np.asarray(x), self.axis)
        self._open(len(rows))
        ranges = [self._add_row(c, row) for c, row in enumerate(rows)]
        weight = self.averaging if self.batches else 1.0
        for c, found in enumerate(ranges):
            if found is not None:
                self.average_low[c] += weight * (found[0] - self.average_low[c])
                self.average_high[c] += weight * (found[1] - self.average_high[c])
        self.batches += 1

    def merge(self, other: Statistics) -> None:
        """Add what another one saw. Averages are weighted by batches: their order is lost, the other figures exact."""
        if not other.batches:
            return
        self._open(len(other.low))
        total = self.batches + other.batches
        weight = other.batches / total
        self.average_low += (other.average_low - self.average_low) * weight
        self.average_high += (other.average_high - self.average_high) * weight
        seen, new = self.elements > 0, other.elements > 0
        for mine, theirs, pick in ((self.low, other.low, np.minimum), (self.high, other.high, np.maximum)):
            mine[:] = np.where(seen & new, pick(mine, theirs), np.where(new, theirs, mine))
        for c, counts in enumerate(other.counts):
            self._count(c, counts, int(other.exponents[c]))
        self.batches, self.nonfinite = total, self.nonfinite + other.nonfinite

    def state(self) -> dict[str, Array]:
        """Everything as arrays: for a checkpoint, or to send to another device."""
        names = ("low", "high", "average_low", "average_high", "exponents", "counts")
        scalars = np.array([self.batches, self.nonfinite], np.int64)
        return {name: np.array(getattr(self, name)) for name in names} | {"scalars": scalars}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], *, axis: int | None = None, averaging: float = AVERAGING) -> Statistics:
        """The statistics that `state` came from."""
        arrays = {name: np.array(value) for name, value in state.items() if name != "scalars"}
        batches, nonfinite = (int(v) for v in state["scalars"])
        bins = int(arrays["counts"].shape[1])
        return cls(axis=axis, bins=bins, averaging=averaging, batches=batches, nonfinite=nonfinite, **arrays)

    def _open(self, channels: int) -> None:
        if not self.batches and not len(self.low):
            self.low, self.high, self.average_low, self.average_high = (np.zeros(channels) for _ in range(4))
            self.exponents = np.full(channels, NOTHING, np.int64)
            self.counts = np.zeros((channels, self.bins), np.int64)
        if channels != len(self.low):
            msg = f"{channels} channels after batches of {len(self.low)}"
            raise ValueError(msg)

    def _add_row(self, c: int, row: Array) -> tuple[float, float] | None:
        found: tuple[float, float] | None = None
        seen = bool(self.counts[c].any())
        for start in range(0, row.size, CHUNK):
            part = row[start : start + CHUNK].astype(np.float64)
            fine = part[np.isfinite(part)]
            self.nonfinite += part.size - fine.size
            if not fine.size:
                continue
            low, high = float(fine.min()), float(fine.max())
            found = (low, high) if found is None else (min(low, found[0]), max(high, found[1]))
            self._count(c, *magnitudes(fine, max(-low, high), self.bins))
        if found is not None:
            self.low[c] = min(found[0], self.low[c]) if seen else found[0]
            self.high[c] = max(found[1], self.high[c]) if seen else found[1]
        return found

    def _count(self, c: int, counts: Counts, exponent: int) -> None:
        common = max(int(self.exponents[c]), exponent)
        self.counts[c] = grown(self.counts[c], common - int(self.exponents[c])) + grown(counts, common - exponent)
        self.exponents[c] = common


def magnitudes(x: Floats, largest: float, bins: int) -> tuple[Counts, int]:
    """Counts of |x| in `bins` equal bins of [0, 2^e), and e, the least exponent that holds `largest`, their maximum."""
    if not largest > 0:
        counts = np.zeros(bins, np.int64)
        counts[0] = x.size
        return counts, NOTHING
    exponent = int(np.frexp(largest)[1])
    index = np.ldexp(np.abs(x), bins.bit_length() - 1 - exponent).astype(np.int64)  # exact: a power of two
    return np.bincount(index, minlength=bins).astype(np.int64), exponent


def grown(counts: Counts, by: int) -> Counts:
    """The counts over a range 2^by times as wide, in as many bins."""
    if by <= 0:
        return counts
    bins = len(counts)
    wide = np.zeros(bins, np.int64)
    kept = bins >> by if by < bins.bit_length() else 0
    if kept:
        wide[:kept] = counts.reshape(kept, -1).sum(axis=1)
    else:
        wide[0] = counts.sum()
    return wide


def _rows(x: Array, axis: int | None) -> Array:
    """The elements of each channel, one row per channel."""
    if axis is None:
        return x.reshape(1, -1)
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
