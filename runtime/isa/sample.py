"""Sampling at positions that are computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import INT_ACT, Instruction, Opcode, Shaped, all_present, check_operand_zero_point, require

MAX_FRACTION = 8  # bits of a position behind the point: as many as a weight has
I16_LIMITS = (-32768, 32767)


@dataclass(frozen=True, kw_only=True)
class GridSample(Instruction):
    """NUMERICS D11, D10: x [N,H,W,C] read at positions [N,OH,OW,2] (column, row), in i16 with `fraction_bits`.

    position = sat16(((grid − grid_zero_point) · multipliers + 2^(shifts − 1)) >> shifts) + origin), for columns, rows;
    a shift of 0 adds no rounding term. Beyond the input lies `pad_value`, or with `border` its nearest pixel.
    Bilinear: y = (Σ x·w_row·w_column + 2^15) >> 16 over four neighbours, weights of 8 bits. `nearest`: the position
    rounded half to even.
    """

    opcode = Opcode.GRID_SAMPLE
    operands = ("x", "grid")
    nearest: bool = False
    border: bool = False
    fraction_bits: int
    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]
    origin: tuple[int, ...]
    grid_zero_point: int = 0
    pad_value: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, grid = all_present(ins)
        require(x.dtype in INT_ACT and outs[0].dtype is x.dtype, "x must be i8 or i16, and its dtype stay")
        require(grid.dtype in INT_ACT, f"the grid is {grid.dtype.text}, not i8 or i16")
        require(len(x.shape) == 4 and len(grid.shape) == 4 and grid.shape[3] == 2, f"grid {grid.shape} of {x.shape}")
        want = (x.shape[0], *grid.shape[1:3], x.shape[3])
        require(grid.shape[0] == x.shape[0] and outs[0].shape == want, f"output shape is {outs[0].shape}, not {want}")
        require(0 <= self.fraction_bits <= MAX_FRACTION, f"{self.fraction_bits} fraction bits")
        reach = I16_LIMITS[1] >> self.fraction_bits
        sizes = x.shape[1:3]
        room = min(sizes) >= 1 and max(sizes) <= reach
        require(room, f"{sizes} pixels in positions with {self.fraction_bits} fraction bits")
        for name, values, low, high in (
            ("multipliers", self.multipliers, 0, (1 << 31) - 1),
            ("shifts", self.shifts, 0, 62),
            ("origin", self.origin, *I16_LIMITS),
        ):
            require(len(values) == 2 and low <= min(values) and max(values) <= high, f"{name} {values}")
        check_operand_zero_point(self.grid_zero_point, grid)
        check_operand_zero_point(self.pad_value, x)
