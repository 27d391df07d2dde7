"""How long a program takes on a board, and where the time goes."""

from __future__ import annotations

from .boards import DEFAULTS, Board, Rates, board_named, boards
from .estimate import CpuPart, Estimate, estimate
from .fields import as_json
from .page import page
from .stream import Replay, replay

__all__ = [
    "DEFAULTS", "Board", "CpuPart", "Estimate", "Rates", "Replay", "as_json", "board_named", "boards", "estimate",
    "page", "replay",
]  # fmt: skip
