"""Columns and figures that reports of model files and of PyTorch models have in common."""

from __future__ import annotations

from .measures import Similarity
from .report import DETAIL, Column

# of a feature map, behind what names it
FEATURE_COLUMNS = (
    Column("type", "dtype"),
    Column("shape", "shape", "shape", rank=DETAIL),
    Column("scale", "scale", "number", "the step of its integers", rank=2),
    Column("min", "low", "number", "the least value before rounding"),
    Column("max", "high", "number", "the largest value before rounding"),
    Column("mean", "mean", "number", rank=5),
    Column("std", "std", "number", "standard deviation of all elements", rank=6),
    Column("used", "used", "share", "share of the integers' range that is reached"),
    Column("saturated", "saturated", "share", "share of the elements beyond the range"),
    Column("spread", "spread", "number", "the largest channel's magnitude over the median one's", rank=4),
    Column("bits", "bits", "bits", "bits left in the median channel of those that vary"),
    Column("values", "histogram", "histogram", "histogram from min to max, by the root of the count", rank=3),
    Column("why", "reasons", "words", "why it is flagged", rank=DETAIL),
    Column("advice", "advice", about="what to try"),
)
# of one output of one sample, behind what names the sample
CASE_COLUMNS = (
    Column("output", "output"),
    Column("loss", "loss", "number", "by the metric of the ranking: the larger, the worse"),
    Column("cosine", "cosine", "cosine"),
    Column("SQNR", "sqnr", "decibel"),
    Column("MSE", "mse", "number", rank=1),
    Column("L1", "l1", "number", rank=2),
    Column("KL", "kl", "number", rank=3),
    Column("error", "atol", "number", "the largest difference"),
)


class WithSimilarity:
    """A row's `figures`, by the names that columns have for them."""

    figures: Similarity

    cosine = property(lambda self: self.figures.cosine)
    sqnr = property(lambda self: self.figures.sqnr)
    mse = property(lambda self: self.figures.mse)
    l1 = property(lambda self: self.figures.l1)
    kl = property(lambda self: self.figures.kl)
    atol = property(lambda self: self.figures.distance.max_abs)
