"""A weight and what its integers leave of it, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
NORMAL = 0.6745  # the median magnitude of a normal distribution, in standard deviations
MOST_BITS = 32.0


@dataclass(frozen=True)
class WeightStatistics:
    """Per output channel.

    `absmax`: the largest magnitude. `sqnr`: dB of the rounded channel. `peak`: the largest magnitude over the usual
    one, the median magnitude of what isn't 0. `bits`: log2 of how many steps the usual spread is worth, as of
    activations (`TensorStatistics.channel_bits`), from the median, which outliers don't move.
    """

    absmax: Floats
    sqnr: Floats
    peak: Floats
    bits: Floats

    @property
    def channels(self) -> int:
        """How many channels."""
        return len(self.absmax)

    @property
    def spread(self) -> float:
        """The largest channel's magnitude over the smallest's that isn't 0; 1 for zeros."""
        held = self.absmax[self.absmax > 0]
        return float(held.max() / held.min()) if held.size else 1.0

    @property
    def worst(self) -> int:
        """The channel of the least SQNR."""
        return int(np.argmin(self.sqnr)) if self.sqnr.size else 0


def weight_statistics(real: Array, rounded: Array, scale: Array, axis: int | None) -> WeightStatistics:
    """`real` and `rounded`: reals of one shape; `scale`: one per channel of `axis`, or one for all (`axis` None)."""
    rows, after = _rows(real, axis), _rows(rounded, axis)
    steps = np.resize(np.asarray(scale, np.float64).ravel(), len(rows))
    made = [_channel(a, b, float(s)) for a, b, s in zip(rows, after, steps, strict=True)]
    columns = np.array(made, np.float64).reshape(-1, 4).T
    return WeightStatistics(*(np.ascontiguousarray(c) for c in columns))


def _rows(x: Array, axis: int | None) -> Floats:
    x = np.asarray(x, np.float64)
    return x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def _channel(real: Floats, rounded: Floats, step: float) -> tuple[float, float, float, float]:
    magnitudes = np.abs(real)
    largest = float(magnitudes.max(initial=0.0))
    noise, signal = float(np.square(real - rounded).sum()), float(np.square(real).sum())
    sqnr = 10 * np.log10(signal / noise) if noise and signal else (np.inf if not noise else -np.inf)
    held = magnitudes[magnitudes > 0]
    if not held.size or step <= 0:
        return largest, float(sqnr), 1.0, MOST_BITS
    usual = float(np.median(held))
    bits = np.log2(usual / NORMAL * np.sqrt(12.0) / step)
    return largest, float(sqnr), largest / usual, float(min(bits, MOST_BITS))
