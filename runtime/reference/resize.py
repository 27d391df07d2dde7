"""ResizeNearest and ResizeBilinear."""

from __future__ import annotations

import numpy as np

from .. import numerics
from ..isa import ResizeBilinear, ResizeNearest, Shaped
from .common import Array, Operands, cast, operand


def resize_nearest(_op: ResizeNearest, ins: Operands, out: Shaped) -> Array:
    """y[n,h,w,c] = x[n, rows[h], columns[w], c]."""
    x, rows, columns = (operand(ins, i) for i in range(3))
    return cast(x[:, rows][:, :, columns], out)


def resize_bilinear(_op: ResizeBilinear, ins: Operands, out: Shaped) -> Array:
    """NUMERICS D10: four neighbours by 8-bit weights, rounded half up once."""
    x, rows, columns = (operand(ins, i).astype(np.int64) for i in range(3))
    total = np.zeros(out.shape, np.int64)
    for row, wh in ((rows[:, 0], 256 - rows[:, 2]), (rows[:, 1], rows[:, 2])):
        for column, ww in ((columns[:, 0], 256 - columns[:, 2]), (columns[:, 1], columns[:, 2])):
            total += x[:, row][:, :, column] * (wh[:, None] * ww)[:, :, None]
    return cast(numerics.round_shift_half_up(total, 16), out)
