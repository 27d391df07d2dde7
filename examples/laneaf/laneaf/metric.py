"""F1 of lanes, as CULane counts: lanes are drawn as wide lines, and two are the same where these overlap by half.

CULane draws 30 pixels wide in images of 1640 and takes masks. Here a lane is, in each pixel row between its ends, the
span that a line of `LINE` of the image's width covers there, so that no rasteriser decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .scenes import Lane

LINE = 30 / 1640  # width of a drawn line, in widths of the image
OVERLAP = 0.5  # least intersection over union of a match


@dataclass(frozen=True)
class Score:
    """Lanes found that are there, found that aren't, and not found."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.wrong + other.wrong, self.missed + other.missed)

    @property
    def f1(self) -> float:
        """2 · right / (2 · right + wrong + missed); 1 where there is nothing to find and nothing found."""
        total = 2 * self.right + self.wrong + self.missed
        return 2 * self.right / total if total else 1.0


def score(found: Sequence[Lane], truth: Sequence[Lane], rows: int, columns: int) -> Score:
    """One image's score: the largest overlap is matched first, each lane once."""
    a, b = ([spans(lane, rows, columns) for lane in lanes] for lanes in (found, truth))
    pairs = sorted(((overlap(x, y), i, k) for i, x in enumerate(a) for k, y in enumerate(b)), reverse=True)
    used: set[tuple[str, int]] = set()
    right = 0
    for iou, i, k in pairs:
        if iou > OVERLAP and ("found", i) not in used and ("truth", k) not in used:
            used |= {("found", i), ("truth", k)}
            right += 1
    return Score(right, len(found) - right, len(truth) - right)


def spans(lane: Lane, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """[rows, 2]: where the drawn lane begins and ends in each pixel row; NaN above and below it."""
    up = lane[np.argsort(lane[:, 1])]
    y = np.arange(rows, dtype=np.float64)
    x = np.interp(y, up[:, 1], up[:, 0], left=np.nan, right=np.nan)
    slope = np.interp(y, up[:, 1], np.gradient(up[:, 0], up[:, 1]))
    half = LINE * columns / 2 * np.hypot(slope, 1.0)
    return np.stack([x - half, x + half], axis=1)


def overlap(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Intersection over union of two lanes' spans."""
    both = np.fmin(a[:, 1], b[:, 1]) - np.fmax(a[:, 0], b[:, 0])
    both = np.where(np.isnan(a[:, 0]) | np.isnan(b[:, 0]), 0, np.maximum(both, 0)).sum()
    areas = np.nansum(a[:, 1] - a[:, 0]) + np.nansum(b[:, 1] - b[:, 0])
    return float(both / (areas - both))
