"""Lut and SegmentLut."""

from __future__ import annotations

import numpy as np

from .. import numerics
from ..isa import Lut, SegmentLut, Shaped
from .common import Array, Operands, cast, operand


def lut(_op: Lut, ins: Operands, out: Shaped) -> Array:
    """NUMERICS D7: table[x + 128]."""
    return cast(operand(ins, 1)[operand(ins, 0).astype(np.int64) + 128], out)


def segment_lut(op: SegmentLut, ins: Operands, out: Shaped) -> Array:
    """NUMERICS D8: the last segment that starts at or below x, and half-up interpolation inside it."""
    x, segments, table = operand(ins, 0).astype(np.int64), operand(ins, 1).astype(np.int64), operand(ins, 2)
    segment = segments[np.searchsorted(segments[:, 0], x, side="right") - 1]
    first, shift, row = (segment[..., i] for i in range(3))
    position = x - first
    entry = np.minimum(position >> shift, 63)
    fraction = position - (entry << shift)
    low, high = (table[row, entry + i].astype(np.int64) for i in range(2))
    y = low + numerics.round_shift_half_up((high - low) * fraction, shift)
    return cast(np.clip(y, op.clamp_min, op.clamp_max), out)
