"""The BPU's instructions cut into tiles, as commands of its engines.

regions   which part of each operand a box of a result needs
views     which tensors lie inside others, and take no command
split     into which boxes results are cut
emit      where tiles lie on chip, what is loaded and stored when, who waits for whom
ddr       where in DDR lies what leaves the chip
costs     what each command asks of its engine
"""

from __future__ import annotations

from .costs import Cost, command_cost, stream_costs
from .options import LEVELS, TilingOptions
from .tile import tile_program, tile_segment

__all__ = ["LEVELS", "Cost", "TilingOptions", "command_cost", "stream_costs", "tile_program", "tile_segment"]
