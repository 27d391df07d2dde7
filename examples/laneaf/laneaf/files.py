"""Images and lanes in files: PNG, and CULane's text of one lane a line, `x y x y …` in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from .scenes import Image, Lane


def read_image(path: Path) -> Image:
    """u8[H, W, 3], RGB. Raises OSError, with what Pillow says, for a file that isn't an image."""
    with Pillow.open(path) as file:
        return np.asarray(file.convert("RGB"))


def write_image(path: Path, image: Image) -> None:
    """A PNG; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(image).save(path, optimize=True)


def resized(image: Image, rows: int, columns: int) -> Image:
    """The image at another size."""
    if image.shape[:2] == (rows, columns):
        return image
    return np.asarray(Pillow.fromarray(image).resize((columns, rows), Pillow.Resampling.BILINEAR))


def lines_file(image: Path) -> Path:
    """Where the lanes of an image file are."""
    return image.with_suffix(".lines.txt")


def write_lanes(path: Path, lanes: Sequence[Lane]) -> None:
    """One lane a line."""
    path.write_text("".join(" ".join(f"{v:.2f}" for v in lane.ravel()) + "\n" for lane in lanes), encoding="utf-8")


def read_lanes(path: Path) -> tuple[Lane, ...]:
    """What `write_lanes` wrote. Raises ValueError for a line that isn't pairs of numbers."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return tuple(np.array([float(v) for v in line]).reshape(-1, 2) for line in lines)
