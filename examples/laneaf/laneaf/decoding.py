"""From the network's maps to lanes: cells of a row become clusters, clusters become lanes, from the bottom upwards."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .maps import to_pixel
from .scenes import Lane

Row = npt.NDArray[np.floating]
THRESHOLD = 0.0  # of the heat map's logit: probability 1/2
FARTHEST = 2.5  # cells between where a lane says that it goes on and a cluster that it takes
MOST_MISSING = 3  # rows that a lane may be hidden
LEAST_POINTS = 4


@dataclass
class Track:
    """A lane while it grows: its points (cells), where it goes next, and how often it wasn't found since."""

    columns: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    ahead: float = 0.0
    slope: float = 0.0
    missing: int = 0

    def add(self, row: int, column: float, ahead: float) -> None:
        """One more point, and the column that its cells point to in the next row."""
        self.columns.append(column)
        self.rows.append(row)
        self.ahead, self.slope, self.missing = ahead, ahead - column, 0

    def miss(self) -> None:
        """Not found in this row: go on in the same direction."""
        self.ahead += self.slope
        self.missing += 1


def decode(hm: Row, vaf: Row, haf: Row, threshold: float = THRESHOLD) -> tuple[Lane, ...]:
    """Lanes of maps [1, h, w] (logits), [2, h, w] and [1, h, w], from left to right at their lower ends."""
    growing: list[Track] = []
    done: list[Track] = []
    for row in range(hm.shape[1] - 1, -1, -1):
        found = clusters(hm[0, row], haf[0, row], threshold)
        points = [_point(cells, hm[0, row], vaf[:, row]) for cells in found]
        taken = _match(growing, [p[0] for p in points])
        for track in growing:
            track.miss()
        for i, (column, ahead) in enumerate(points):
            track = growing[taken[i]] if i in taken else Track()
            track.add(row, column, ahead)
            if i not in taken:
                growing.append(track)
        done += [t for t in growing if t.missing > MOST_MISSING]
        growing = [t for t in growing if t.missing <= MOST_MISSING]
    lanes = [_lane(t) for t in [*done, *growing] if len(t.rows) >= LEAST_POINTS]
    return tuple(sorted(lanes, key=lambda lane: float(lane[0, 0])))


def clusters(hm: Row, haf: Row, threshold: float = THRESHOLD) -> list[npt.NDArray[np.intp]]:
    """Cells [w] of one row that belong together: neighbours, cut where cells that point left meet ones that point
    right.
    """
    cells = np.flatnonzero(hm > threshold)
    if not cells.size:
        return []
    apart = np.diff(cells) > 1
    turn = (haf[cells[:-1]] < 0) & (haf[cells[1:]] >= 0)
    return np.split(cells, np.flatnonzero(apart | turn) + 1)


def _point(cells: npt.NDArray[np.intp], hm: Row, vaf: Row) -> tuple[float, float]:
    """The middle of a cluster, weighted by the heat map, and where its cells point to one row up."""
    weight = 1 / (1 + np.exp(-np.clip(hm[cells].astype(np.float64), -30, 30)))
    weight /= weight.sum()
    aside, up = vaf[0, cells].astype(np.float64), vaf[1, cells].astype(np.float64)
    step = np.clip(aside / np.maximum(-up, 0.1), -8, 8)
    return float((weight * cells).sum()), float((weight * (cells + step)).sum())


def _match(tracks: list[Track], columns: list[float]) -> dict[int, int]:
    """Cluster → track: the nearest pair first, each once."""
    pairs = sorted(
        (abs(track.ahead - column), i, k) for k, track in enumerate(tracks) for i, column in enumerate(columns)
    )
    taken: dict[int, int] = {}
    for away, i, k in pairs:
        if away <= FARTHEST and i not in taken and k not in taken.values():
            taken[i] = k
    return taken


def _lane(track: Track) -> Lane:
    columns, rows = np.array(track.columns), np.array(track.rows, np.float64)
    return np.stack([to_pixel(columns), to_pixel(rows)], axis=1)
