"""How alike two arrays are, in the figures that quantisation is judged by; cosine and SQNR are those of `hbc verify`.

cosine  of the two as vectors
mse     mean of squared differences
l1      mean of absolute differences
kl      Σ p·log(p/q) in nats, p and q the histograms of reference and judged values: 128 equal bins over the range
        of both, half a count added to each, so that an empty bin isn't infinitely unlikely (Krichevsky, Trofimov)
sqnr    10·log10(Σ reference² / Σ difference²) in dB
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import OptionError, error, nearest
from hbc.verify.measure import Distance, measure
from hbc.verify.measure import worst as worst_distance

Array = npt.NDArray[Any]
METRICS = ("cosine", "mse", "l1", "kl", "sqnr")
BINS = 128
PRIOR = 0.5  # counts added to each bin


@dataclass(frozen=True)
class Similarity:
    """`distance`: what `hbc verify` measures (cosine, SQNR, largest difference and the same in quanta)."""

    distance: Distance
    mse: float
    l1: float
    kl: float

    @property
    def cosine(self) -> float:
        """Of the two as vectors."""
        return self.distance.cosine

    @property
    def sqnr(self) -> float:
        """In dB; ∞ where nothing differs."""
        return self.distance.sqnr


def similarity(got: Array, want: Array, quantum: float | None = None) -> Similarity:
    """How alike `got` is to the reference `want`: two arrays of one shape. `quantum`: the step to count in."""
    a, b = (np.asarray(v, np.float64) for v in (got, want))
    apart = np.abs(a - b)
    size = max(apart.size, 1)
    return Similarity(
        measure(a, b, quantum=quantum),
        float(np.square(apart).sum() / size),
        float(apart.sum() / size),
        divergence(a, b),
    )


def divergence(got: Array, want: Array) -> float:
    """The KL divergence of the histograms of values: 0 where they are equal; values that aren't finite are left out."""
    a, b = (v[np.isfinite(v)] for v in (got.ravel(), want.ravel()))
    if not a.size or not b.size:
        return 0.0 if a.size == b.size else math.inf
    low, high = min(a.min(), b.min()), max(a.max(), b.max())
    if not high > low:
        return 0.0
    q, p = (np.histogram(v, BINS, (low, high))[0] + PRIOR for v in (a, b))
    p, q = p / p.sum(), q / q.sum()
    return max(0.0, float((p * np.log(p / q)).sum()))


def worst_of(rows: Sequence[Similarity]) -> Similarity:
    """Several batches as one: the worst of each figure."""
    distance = worst_distance([r.distance for r in rows])
    return Similarity(distance, max(r.mse for r in rows), max(r.l1 for r in rows), max(r.kl for r in rows))


def loss_of(found: Similarity, metric: str) -> float:
    """The figure as a loss, 0 for equal and larger for worse: 1 − cosine, noise / signal for SQNR, else itself.

    OptionError for a metric that there is none of.
    """
    require_metric(metric)
    if metric == "cosine":
        return 1.0 - found.cosine
    if metric == "sqnr":
        return math.inf if found.sqnr == -math.inf else 10.0 ** (-found.sqnr / 10)
    return float(getattr(found, metric))


def require_metric(metric: str) -> None:
    """OptionError, with the nearest name, for a metric that there is none of."""
    if metric not in METRICS:
        hint = nearest(metric, METRICS, limit=1) or f"metrics are {', '.join(METRICS)}"
        raise error(OptionError, f"there is no metric {metric!r}", hint=hint)
