"""What goes wrong where in a quantised model: reports as table, CSV and page, and what they are made of.

`hbc.quantization.debug` makes such reports of PyTorch models, `hbc debug` of files.
"""

from __future__ import annotations

from .measures import METRICS, Similarity, loss_of, similarity, worst_of
from .report import DETAIL, Column, Figure, Report, write_page
from .tensor_statistics import TensorStatistics

__all__ = [
    "DETAIL",
    "METRICS",
    "Column",
    "Figure",
    "Report",
    "Similarity",
    "TensorStatistics",
    "loss_of",
    "similarity",
    "worst_of",
    "write_page",
]
