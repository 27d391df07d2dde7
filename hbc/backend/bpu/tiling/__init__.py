"""The BPU's instructions cut into tiles, as commands of its engines.

regions   which part of each operand a box of a result needs
views     which tensors lie inside others, and take no command
split     into which boxes results are cut
emit      where tiles lie on chip, what is loaded and stored when, who waits for whom
ddr       where in DDR lies what leaves the chip
costs     what each command asks of its engine
timing    how long a stream takes at the march's peak rates
cascade   instructions made together, band by band of rows
plan      what can be chosen, and the stream of a choice
search    what each level chooses
"""

from __future__ import annotations

from .costs import Cost, command_cost, stream_costs
from .options import LEVELS, OBJECTIVES, TilingOptions
from .tile import tile_program, tile_segment, tile_what_fits
from .timing import Timing, stream_timing

__all__ = [
    "LEVELS",
    "OBJECTIVES",
    "Cost",
    "TilingOptions",
    "Timing",
    "command_cost",
    "stream_costs",
    "stream_timing",
    "tile_program",
    "tile_segment",
    "tile_what_fits",
]
