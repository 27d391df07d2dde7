"""What a tensor's values are like while batches stream by, channel by channel, and what rounding takes from each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
BINS = 48
CONSTANT = 1e-6  # standard deviation of a channel, over its largest magnitude, that is float32's rounding


@dataclass
class TensorStatistics:
    """Figures of one tensor, before it is rounded.

    `axis`: of the channels; None for a tensor that has none. `scale`, `qmin`, `qmax`: how it is rounded,
    q = clip(floor(x / scale + 1/2)); without a scale it stays real, and what int8 would take is estimated. The
    histogram's range is that of the first batch, outliers are in its outer bins.
    """

    axis: int | None = None
    scale: float | None = None
    qmin: int = -128
    qmax: int = 127
    shape: tuple[int, ...] = ()
    elements: int = 0  # finite ones
    nonfinite: int = 0
    saturated: int = 0
    reach: int = 0  # the largest magnitude of its integers
    low: Floats = field(default_factory=lambda: np.zeros(0))
    high: Floats = field(default_factory=lambda: np.zeros(0))
    count: Floats = field(default_factory=lambda: np.zeros(0))
    sums: Floats = field(default_factory=lambda: np.zeros(0))
    squares: Floats = field(default_factory=lambda: np.zeros(0))  # of deviations from the channel's mean
    clipping: float = 0.0  # squared errors of what saturates
    bounds: tuple[float, float] = (0.0, 0.0)
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, x: Array) -> None:
        """One batch of reals."""
        self.shape = x.shape
        rows = self._rows(np.asarray(x, np.float64))
        if not self.low.size:
            self._open(rows)
        for channel, row in enumerate(rows):
            kept = row[np.isfinite(row)]
            self.nonfinite += row.size - kept.size
            if kept.size:
                self._channel(channel, kept)
        kept = rows[np.isfinite(rows)]
        self.elements += kept.size
        self.counts += np.histogram(np.clip(kept, *self.bounds), BINS, self.bounds)[0]

    def _rows(self, x: Array) -> Array:
        if self.axis is None or x.ndim < 2:
            return x.reshape(1, -1)
        return np.moveaxis(x, self.axis, 0).reshape(x.shape[self.axis], -1)

    def _open(self, rows: Array) -> None:
        channels = len(rows)
        self.low, self.high = np.full(channels, np.inf), np.full(channels, -np.inf)
        self.count, self.sums, self.squares = (np.zeros(channels) for _ in range(3))
        kept = rows[np.isfinite(rows)]
        low, high = (float(kept.min()), float(kept.max())) if kept.size else (0.0, 0.0)
        self.bounds = (low, high) if high > low else (low - 0.5, high + 0.5)

    def _channel(self, c: int, row: Floats) -> None:
        self.low[c], self.high[c] = min(self.low[c], row.min()), max(self.high[c], row.max())
        before, mean = self.count[c], float(row.mean())
        apart = mean - (self.sums[c] / before if before else mean)  # Chan et al. 1979: variances of parts
        self.squares[c] += float(np.square(row - mean).sum()) + apart**2 * before * row.size / (before + row.size)
        self.count[c] += row.size
        self.sums[c] += float(row.sum())
        if self.scale is None:
            return
        q = np.floor(row / self.scale + 0.5)
        beyond = (q < self.qmin) | (q > self.qmax)
        q = q.clip(self.qmin, self.qmax)
        self.reach = max(self.reach, int(np.abs(q).max()))
        self.saturated += int(np.count_nonzero(beyond))
        self.clipping += float(np.square(row - q * self.scale)[beyond].sum())

    @property
    def channels(self) -> int:
        """How many channels."""
        return len(self.low)

    @property
    def absmax(self) -> Floats:
        """The largest magnitude of each channel; 0 where nothing was finite."""
        found = np.maximum(np.abs(self.low), np.abs(self.high))
        return np.where(np.isfinite(found), found, 0.0)

    @property
    def minimum(self) -> float:
        """The least value."""
        return float(self.low.min()) if self.elements else 0.0

    @property
    def maximum(self) -> float:
        """The largest value."""
        return float(self.high.max()) if self.elements else 0.0

    @property
    def mean(self) -> float:
        """Of all finite elements."""
        return float(self.sums.sum() / self.elements) if self.elements else 0.0

    @property
    def std(self) -> float:
        """Of all finite elements, over their number."""
        if not self.elements:
            return 0.0
        means = self.sums / np.maximum(self.count, 1)
        return float(np.sqrt((self.squares.sum() + (self.count * (means - self.mean) ** 2).sum()) / self.elements))

    @property
    def channel_std(self) -> Floats:
        """Of each channel about its own mean."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    @property
    def used(self) -> float | None:
        """The share of the integers' range that magnitudes reach; None without a scale."""
        return None if self.scale is None else self.reach / max(-self.qmin, self.qmax)

    @property
    def saturation(self) -> float | None:
        """The share of elements beyond the range; None without a scale."""
        return None if self.scale is None else self.saturated / max(self.elements, 1)

    @property
    def spread(self) -> float:
        """The largest channel's magnitude over the median one's, of channels that aren't all 0; 1 without any."""
        held = self.absmax[self.absmax > 0]
        return float(held.max() / np.median(held)) if held.size else 1.0

    @property
    def clipping_sqnr(self) -> float:
        """dB of the tensor's variance over the noise of what saturates; ∞ where nothing does."""
        signal = self.std**2 * self.elements
        if not self.clipping:
            return math.inf
        return 10 * math.log10(signal / self.clipping) if signal else -math.inf

    @property
    def held(self) -> tuple[float, float]:
        """The least and the largest value that the integers can stand for; without a scale, int8's."""
        return self.qmin * self.step(), self.qmax * self.step()

    def step(self) -> float:
        """The scale; without one, int8's of the largest magnitude."""
        return float(self.absmax.max(initial=0.0)) / 128 if self.scale is None else self.scale

    def channel_bits(self) -> Floats:
        """Bits that are left of each channel that varies: log2(std · √12 / step).

        The noise of rounding has a standard deviation of step / √12, so this is half of log2(variance / noise): 6.02 dB
        are one bit. A uniform spread over 2^n steps comes to n; a channel that varies less than its noise has less
        than none.
        """
        std = self.channel_std
        varies = std > CONSTANT * self.absmax
        return np.asarray(np.log2(std[varies] * math.sqrt(12.0) / self.step())) if self.step() else np.zeros(0)
