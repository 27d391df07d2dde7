"""What follows from a command stream: whether it is sound (`check`), and what it computes (`emulate`).

Nothing here shares code with the compiler that writes streams.
"""

from __future__ import annotations

from .check import check_commands
from .emulate import TileEngine, run_commands
from .sound import check_streams

__all__ = ["TileEngine", "check_commands", "check_streams", "run_commands"]
