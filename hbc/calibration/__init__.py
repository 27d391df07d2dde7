"""Statistics of tensors, and the scales chosen from them: what calibration is, in NumPy, for PTQ and QAT alike.

    seen = Statistics()
    for batch in batches:
        seen.add(batch)                                     # or seen.merge(statistics of another device)
    choice = choose(seen, Grid(bits=8), parse_method("percentile=0.9999"))
    choice.scale                                            # float32, one per channel

A grid says which integers there are and by which convention a threshold becomes a scale: `T / 127`, as calibrated (PTQ)
models have it, or `T / 128`, as QAT does.
"""

from __future__ import annotations

from .grid import Convention, Grid
from .methods import (
    METHODS,
    Choice,
    Fixed,
    Kl,
    Method,
    MinMax,
    Mix,
    MovingAverage,
    Mse,
    Percentile,
    choose,
    parse_method,
)
from .statistics import Statistics
from .weights import absmax_of, weight_scales

__all__ = [
    "METHODS",
    "Choice",
    "Convention",
    "Fixed",
    "Grid",
    "Kl",
    "Method",
    "MinMax",
    "Mix",
    "MovingAverage",
    "Mse",
    "Percentile",
    "Statistics",
    "absmax_of",
    "choose",
    "parse_method",
    "weight_scales",
]
