"""What a tiling is told."""

from __future__ import annotations

from dataclasses import dataclass

from hbc.options import LEVELS, OBJECTIVES


@dataclass(frozen=True)
class TilingOptions:
    """How hard to try.

    `level`: O0 takes each layer whole from DDR to DDR and one tile after another; O1 works on one tile while the next
    is loaded and the last is stored; O2 keeps on chip what is read again, layer after layer, and makes layers band by
    band of rows where that saves what it is to save; O3 looks for better tiles and bands. `objective`: what is to be
    saved from O2 on, by an estimate: time (`latency`), DDR bytes (`bandwidth`), or both (`balance`). `on_chip_bytes`:
    instead of the march's. Raises ValueError for another level or objective, or a memory of no bytes.
    """

    level: str = "O2"
    objective: str = "latency"
    on_chip_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            msg = f"level is {self.level!r}; known are {', '.join(LEVELS)}"
            raise ValueError(msg)
        if self.objective not in OBJECTIVES:
            msg = f"objective is {self.objective!r}; known are {', '.join(OBJECTIVES)}"
            raise ValueError(msg)
        if self.on_chip_bytes is not None and self.on_chip_bytes < 1:
            msg = f"on_chip_bytes is {self.on_chip_bytes}; a tile needs at least one byte"
            raise ValueError(msg)

    @property
    def number(self) -> int:
        """0 … 3."""
        return LEVELS.index(self.level)


__all__ = ["LEVELS", "OBJECTIVES", "TilingOptions"]
