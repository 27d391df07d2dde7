"""What the network learns to draw: LaneAF's three maps, a quarter of the image's height and width.

`hm` [1, h, w]: 1 on lane lines. `vaf` [2, h, w]: unit vectors from each cell of a line to that line's place one row
further up. `haf` [1, h, w]: ±1, on which side of a cell its line's middle is. (Abualsaud et al., "LaneAF: Robust
Multi-Lane Detection with Affinity Fields", 2021.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .scenes import STEP, Image, Lane

Map = npt.NDArray[np.float32]
REACH = 1.5  # cells to each side of a line's middle that belong to it


@dataclass(frozen=True)
class Maps:
    """Ground truth of one scene: hm [1, h, w], vaf [2, h, w], haf [1, h, w], all float32."""

    hm: Map
    vaf: Map
    haf: Map


def network_input(image: Image) -> Map:
    """An image u8[H, W, 3] as the network takes it: f32[3, H, W], (pixel − 128) / 128, the integers of scale 1/128."""
    centred = (image.astype(np.float32) - 128) / 128
    return np.ascontiguousarray(centred.transpose(2, 0, 1))


def to_cell(pixel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Pixels as cells; the middle of cell 0 is pixel 1.5."""
    return (pixel + 0.5) / STEP - 0.5


def to_pixel(cell: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Cells as pixels."""
    return (cell + 0.5) * STEP - 0.5


def draw_maps(lanes: Sequence[Lane], rows: int, columns: int) -> Maps:
    """The maps of an image of `rows` by `columns` pixels; lanes have a point in the middle of each row of cells."""
    h, w = rows // STEP, columns // STEP
    maps = Maps(np.zeros((1, h, w), np.float32), np.zeros((2, h, w), np.float32), np.zeros((1, h, w), np.float32))
    near = np.full((h, w), np.inf)  # where two lines meet, a cell belongs to the nearer one
    for lane in lanes:
        _draw(maps, near, lane)
    return maps


def _draw(maps: Maps, near: npt.NDArray[np.float64], lane: Lane) -> None:
    x, y = to_cell(lane[:, 0]), np.rint(to_cell(lane[:, 1])).astype(int)
    following = np.append(x[1:], 2 * x[-1] - x[-2])  # the last row looks on as the line came
    columns = np.arange(near.shape[1])
    for middle, ahead, row in zip(x, following, y, strict=True):
        away = np.abs(columns - middle)
        mine = columns[(away <= REACH) & (away < near[row])]
        near[row, mine] = away[mine]
        aside = ahead - mine
        length = np.hypot(aside, 1.0)
        maps.hm[0, row, mine] = 1
        maps.vaf[0, row, mine] = aside / length
        maps.vaf[1, row, mine] = -1 / length
        maps.haf[0, row, mine] = np.where(middle >= mine, 1, -1)
