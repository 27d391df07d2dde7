"""The BPU's instructions cut into tiles, as commands of its engines.

regions   which part of each operand a box of a result needs
views     which tensors lie inside others, and take no command
split     into which boxes results are cut
emit      where tiles lie on chip, what is loaded and stored when, who waits for whom
ddr       where in DDR lies what leaves the chip
"""

from __future__ import annotations

from .options import LEVELS, TilingOptions
from .tile import tile_program, tile_segment

__all__ = ["LEVELS", "TilingOptions", "tile_program", "tile_segment"]
