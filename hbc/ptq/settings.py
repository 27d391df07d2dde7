"""How one tensor is rounded, and how that was chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hbc.calibration import Grid
from hbc.calibration.grid import Array
from hbc.ir.types import DType, Quant


@dataclass(frozen=True)
class Setting:
    """Integers of `bits` bits, 8 or 16, in steps of `scale` (float32 numbers; several along `axis`).

    `method`: what chose the scale. `threshold`: the largest magnitude that it was made from. `clipped`: the share of
    calibrated elements beyond it. `narrow`: the least integer is left out, as weights have it.
    """

    bits: int
    scale: tuple[float, ...]
    method: str = ""
    threshold: float = 0.0
    clipped: float = 0.0
    axis: int | None = None
    narrow: bool = False

    @property
    def dtype(self) -> DType:
        """i8 or i16."""
        return DType.I8 if self.bits == 8 else DType.I16

    @property
    def quant(self) -> Quant:
        """Scales as the IR has them."""
        if self.axis is None:
            return Quant.per_tensor(self.scale[0])
        return Quant(self.scale, (0,) * len(self.scale), self.axis)

    @property
    def grid(self) -> Grid:
        """The integers."""
        return Grid(self.bits, narrow=self.narrow)

    def integers(self, x: Array) -> Array:
        """Constants as integers: half away from zero, as calibrated weights are rounded (NUMERICS 2)."""
        scale = np.asarray(self.scale, np.float32) if self.axis is not None else np.float32(self.scale[0])
        made = self.grid.quantize(x, scale, axis=self.axis, rounding="half_away")
        return made.astype(self.dtype.numpy)

    def rounded(self, x: Array) -> Array:
        """Activations as they come back from their integers, float32."""
        return self.grid.fake_quantize(x, np.float32(self.scale[0]))
