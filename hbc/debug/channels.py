"""Pictures of feature maps channel by channel, for a report's page."""

from __future__ import annotations

from collections.abc import Sequence

from .figures import ranges
from .report import Figure
from .tensor_statistics import TensorStatistics

PICTURED = 6  # feature maps of one report


def channel_figures(flagged: Sequence[tuple[str, TensorStatistics]]) -> tuple[Figure, ...]:
    """One picture for each of the first flagged feature maps: the range of every channel in that of the integers."""
    found = []
    for name, s in flagged[:PICTURED]:
        rows = [(f"channel {c}", float(s.low[c]), float(s.high[c])) for c in range(s.channels) if s.count[c]]
        about = "The range of each channel; between the dashed lines lies what the integers can hold."
        found.append(Figure(f"Channels of {name}", ranges(rows, limit=s.held), about))
    return tuple(found)
