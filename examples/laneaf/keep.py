"""Take what `run.py` wrote as the trained model of this folder, and write the scenes that come with it.

python examples/laneaf/keep.py build/laneaf
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from laneaf.files import lines_file, write_image, write_lanes
from laneaf.scenes import HELD_OUT, scene

HERE = Path(__file__).parent
SCENES = {"bright": 0, "dashes": 1, "car": 4, "bend": 6}  # held-out scenes by number


def main(trained: Path) -> None:
    """Copy and write."""
    for kind in ("onnx", "hbm"):
        shutil.copyfile(trained / f"model.{kind}", HERE / f"lane.{kind}")
    for name, number in SCENES.items():
        made = scene(HELD_OUT + number)
        path = HERE / "scenes" / f"{name}.png"
        write_image(path, made.image)
        write_lanes(lines_file(path), made.lanes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
