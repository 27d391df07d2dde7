"""How the scale of a tensor is chosen from its statistics.

Every method picks a threshold T; the grid's convention makes a scale of it (T / 127 or T / 128).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import OptionError, error, nearest

from .divergence import kl_threshold
from .grid import Floats, Grid
from .loss import Magnitudes, clipped, cosine, squared_error
from .statistics import Statistics

Loss = Literal["cosine", "mse"]

LADDER, RUNGS = 2.0 ** (-1 / 8), 64  # thresholds that `mse` tries: from the largest magnitude down to 1/256 of it
FINE = 4  # and then between the neighbours of the best, by this many steps to each side


@dataclass(frozen=True)
class Choice:
    """What a method chose, per channel (one, where the statistics are of the whole tensor).

    `scale`: float32. `threshold`: what it was made from. `clipped`: the share of elements beyond the threshold.
    `mse`: the mean squared error that the histogram leads one to expect. `method`: the one that it is by (of `mix`, the
    best).
    """

    method: str
    threshold: Floats
    scale: npt.NDArray[np.float32]
    clipped: Floats
    mse: Floats


class Method(Protocol):
    """A rule for thresholds."""

    @property
    def text(self) -> str:
        """As a user writes it: `percentile=0.9999`."""

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """The threshold of one channel, and the method that it is by."""


@dataclass(frozen=True)
class MinMax:
    """The largest magnitude: nothing is clipped. The vendor's default for weights."""

    text: str = "min-max"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """max(|low|, |high|)."""
        return float(statistics.absmax[channel]), self.text


@dataclass(frozen=True)
class MovingAverage:
    """The moving average of the batches' least and largest values (averaging constant 0.01 in the vendor's tools)."""

    text: str = "moving-average"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """max(|average low|, |average high|)."""
        low, high = statistics.average_low[channel], statistics.average_high[channel]
        return float(max(abs(low), abs(high))), self.text


@dataclass(frozen=True)
class Percentile:
    """The least magnitude that is no less than `share` of all; within a bin, magnitudes are taken as spread evenly."""

    share: float = 0.9999

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            hint = "give the share of elements to keep, such as 0.9999"
            raise error(OptionError, f"a percentile of {self.share:g}", why="it lies in 0 … 1", hint=hint)

    @property
    def text(self) -> str:
        """`percentile=0.9999`."""
        return f"percentile={self.share:g}"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """From the cumulated counts."""
        m = magnitudes_of(statistics, channel)
        if self.share == 1 or not m.total:
            return m.absmax, self.text
        below = np.cumsum(m.counts)
        wanted = self.share * m.total
        i = min(int(np.searchsorted(below, wanted)), len(below) - 1)
        into = (wanted - (below[i] - m.counts[i])) / m.counts[i]
        return float(min(m.edges[i] + into * m.width, m.absmax)), self.text


@dataclass(frozen=True)
class Mse:
    """The threshold of the least expected squared error, rounding and clipping together (`hbc.calibration.loss`).

    Of a ladder of thresholds, then of finer ones around the best.
    """

    text: str = "mse"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """The best of the ladder."""
        m = magnitudes_of(statistics, channel)
        if not m.absmax:
            return 0.0, self.text

        def loss(threshold: float) -> float:
            return squared_error(m, float(grid.scale(threshold)), grid.qmax)

        return best_of_ladder(m.absmax, loss), self.text


@dataclass(frozen=True)
class Kl:
    """The threshold whose quantised distribution is nearest to the clipped one by Kullback and Leibler's divergence.

    With more than 8 bits there are more integers than bins to tell them by: the largest magnitude.
    """

    text: str = "kl"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """See `hbc.calibration.divergence`."""
        m = magnitudes_of(statistics, channel)
        return kl_threshold(m, grid.qmax), self.text


@dataclass(frozen=True)
class Mix:
    """The best of several methods by a loss: `cosine` between a tensor and what quantising leaves of it, or `mse`."""

    methods: tuple[Method, ...] = (MinMax(), Percentile(0.9999), Percentile(0.99999), Kl(), Mse())
    loss: Loss = "cosine"
    text: str = "mix"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """That of the method with the least loss; the first of equals."""
        m = magnitudes_of(statistics, channel)
        found = [method.threshold(statistics, channel, grid) for method in self.methods]
        return min(found, key=lambda f: self._loss(m, float(grid.scale(f[0])), grid))

    def _loss(self, m: Magnitudes, scale: float, grid: Grid) -> float:
        return squared_error(m, scale, grid.qmax) if self.loss == "mse" else -cosine(m, scale, grid.qmax)


@dataclass(frozen=True)
class Fixed:
    """A threshold that is known beforehand, whatever the samples say: a `qat` grid of 8 bits makes T / 128 of it."""

    value: float

    def __post_init__(self) -> None:
        if not 0 < self.value < np.inf:
            hint = "give the largest magnitude that the tensor may have"
            raise error(OptionError, f"a fixed threshold of {self.value:g}", why="it is positive and finite", hint=hint)

    @property
    def text(self) -> str:
        """`fixed=6`."""
        return f"fixed={self.value:g}"

    def threshold(self, statistics: Statistics, channel: int, grid: Grid) -> tuple[float, str]:
        """The value itself."""
        return self.value, self.text


_PLAIN: dict[str, Callable[[], Method]] = {
    "min-max": MinMax,
    "moving-average": MovingAverage,
    "percentile": Percentile,
    "mse": Mse,
    "kl": Kl,
    "mix": Mix,
}
_WITH_NUMBER: dict[str, Callable[[float], Method]] = {"percentile": Percentile, "fixed": Fixed}
METHODS = (*_PLAIN, "fixed")


def parse_method(text: str) -> Method:
    """`min-max`, `moving-average`, `percentile[=0.9999]`, `mse`, `kl`, `mix`, `fixed=T`; OptionError for others."""
    name, equals, number = text.strip().partition("=")
    if equals and name in _WITH_NUMBER:
        try:
            return _WITH_NUMBER[name](float(number))
        except ValueError as err:
            raise error(OptionError, f"{number!r} of method {text!r} is no number", hint=f"{name}=0.9999") from err
    if not equals and name in _PLAIN:
        return _PLAIN[name]()
    hint = nearest(name, METHODS) or f"methods are {', '.join(METHODS)}"
    why = "it needs a number, as in fixed=6" if text == "fixed" else f"methods are {', '.join(METHODS)}"
    raise error(OptionError, f"there is no calibration method {text!r}", why=why, hint=hint)


def choose(statistics: Statistics, grid: Grid, method: Method) -> Choice:
    """The scales of a tensor by `method`, one per channel of its statistics."""
    found = [method.threshold(statistics, c, grid) for c in range(len(statistics.counts))]
    thresholds = np.array([t for t, _ in found])
    scales = grid.scale(thresholds)
    rows = [magnitudes_of(statistics, c) for c in range(len(found))]
    beyond = np.array([clipped(m, t) for m, t in zip(rows, thresholds, strict=True)])
    errors = np.array([squared_error(m, float(s), grid.qmax) for m, s in zip(rows, scales, strict=True)])
    names = {name for _, name in found}
    text = names.pop() if len(names) == 1 else method.text
    return Choice(text, thresholds, scales, beyond, errors)


def magnitudes_of(statistics: Statistics, channel: int) -> Magnitudes:
    """The histogram of one channel."""
    return Magnitudes.of(
        statistics.counts[channel], int(statistics.exponents[channel]), float(statistics.absmax[channel])
    )


def best_of_ladder(absmax: float, loss: Callable[[float], float], rungs: int = RUNGS) -> float:
    """The threshold of least loss among `absmax · 2^(−i/8)`, then among finer ones beside it; the larger of equals."""
    best = _least([absmax * LADDER**i for i in range(rungs + 1)], loss)
    step = LADDER ** (1 / (FINE + 1))
    beside = [best * step**i for i in range(-FINE, FINE + 1)]
    return _least([t for t in beside if t <= absmax], loss)


def _least(thresholds: Sequence[float], loss: Callable[[float], float]) -> float:
    losses = [loss(t) for t in thresholds]
    return thresholds[int(np.argmin(losses))]
