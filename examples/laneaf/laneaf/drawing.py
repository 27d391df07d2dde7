"""Pictures of lanes on their scenes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw

from .scenes import Image, Lane

COLOURS = ((255, 64, 64), (64, 220, 90), (70, 150, 255), (255, 190, 40), (230, 90, 255), (60, 230, 230))
TRUTH = (255, 255, 255)


def draw_lanes(image: Image, found: Sequence[Lane], truth: Sequence[Lane] = (), zoom: int = 3) -> Image:
    """The image, `zoom` times as large: lanes found as coloured lines, the true ones as white dots."""
    rows, columns = image.shape[:2]
    picture = Pillow.fromarray(image).resize((columns * zoom, rows * zoom), Pillow.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    for i, lane in enumerate(found):
        pen.line(_points(lane, zoom), fill=COLOURS[i % len(COLOURS)], width=max(2, zoom), joint="curve")
    for lane in truth:
        for x, y in _points(lane, zoom):
            pen.ellipse((x - 1.5, y - 1.5, x + 1.5, y + 1.5), fill=TRUTH)
    return np.asarray(picture)


def sheet(pictures: Sequence[Image], columns: int = 2, gap: int = 4) -> Image:
    """Pictures of one size side by side, in rows of `columns`."""
    h, w, _ = pictures[0].shape
    rows = -(-len(pictures) // columns)
    page = np.full((rows * (h + gap) - gap, columns * (w + gap) - gap, 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        y, x = i // columns * (h + gap), i % columns * (w + gap)
        page[y : y + h, x : x + w] = picture
    return page


def _points(lane: Lane, zoom: int) -> list[tuple[float, float]]:
    """Pixels of the enlarged picture; a pixel's middle stays its middle."""
    return [((x + 0.5) * zoom - 0.5, (y + 0.5) * zoom - 0.5) for x, y in lane.tolist()]
