"""The entropy method: the clipping whose loss of information is least, by Kullback and Leibler's divergence.

For every threshold, the reference P is the histogram below it, with all that lies beyond added to its last bin. Q is
the same histogram (without what lies beyond) as `levels` integers could tell it: its bins in `levels` equal groups,
each group's counts spread evenly over those of its bins that hold something. The least Σ P log(P / Q) wins.
It is the method that NVIDIA published for TensorRT ("8-bit inference with TensorRT", GTC 2017), on magnitudes.
"""

from __future__ import annotations

import numpy as np

from .grid import Floats
from .loss import Magnitudes

STEPS = 256  # thresholds that are tried, at most
LEAST = 1e-12  # what stands for no probability at all in Q


def kl_threshold(m: Magnitudes, levels: int) -> float:
    """The best threshold, at most `m.absmax`; `m.absmax` where the bins in use are no more than the levels."""
    if not m.absmax or not m.total:
        return m.absmax
    histogram = _dense(m)
    used = len(histogram)
    if used <= levels:
        return m.absmax
    # A ReLU leaves so many zeros, which cost nothing at any scale, that they'd drown everything else.
    histogram[0] = min(histogram[0], histogram[1])
    stride = max(1, (used - levels) // STEPS)
    tried = [*range(used, levels, -stride)]
    losses = [_divergence(histogram, upto, levels) for upto in tried]
    return min(tried[int(np.argmin(losses))] * m.width, m.absmax)


def _dense(m: Magnitudes) -> Floats:
    index = np.rint(m.edges / m.width).astype(np.int64)
    dense = np.zeros(int(index[-1]) + 1)
    dense[index] = m.counts
    return dense


def _divergence(histogram: Floats, upto: int, levels: int) -> float:
    below = histogram[:upto]
    p = below.copy()
    p[-1] += histogram[upto:].sum()
    total, kept = p.sum(), below.sum()
    if not kept:
        return float("inf")
    group = np.arange(upto) * levels // upto
    sums = np.bincount(group, below, levels)
    held = np.bincount(group, below > 0, levels)
    q = np.where(below > 0, (sums / np.maximum(held, 1))[group], 0.0) / kept
    p /= total
    at = p > 0
    return float((p[at] * np.log(p[at] / np.maximum(q[at], LEAST))).sum())
