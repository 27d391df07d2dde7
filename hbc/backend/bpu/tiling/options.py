"""What a tiling is told."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("O0", "O1", "O2", "O3")
OBJECTIVES = ("latency", "bandwidth", "balance")


@dataclass(frozen=True)
class TilingOptions:
    """How hard to try, and for what.

    `level`: O0 takes each layer whole from DDR to DDR and one tile after another; O1 works on one tile while the next
    is loaded and the last is stored; O2 keeps on chip what is read again, layer after layer; O3 also searches over
    tile shapes. `objective`: what that search makes small: time, DDR traffic, or both alike. `on_chip_bytes`: instead
    of the march's.
    """

    level: str = "O2"
    objective: str = "latency"
    on_chip_bytes: int | None = None

    def __post_init__(self) -> None:
        assert self.level in LEVELS, self.level
        assert self.objective in OBJECTIVES, self.objective

    @property
    def number(self) -> int:
        """0 … 3."""
        return LEVELS.index(self.level)
