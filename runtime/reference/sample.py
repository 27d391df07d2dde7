"""GridSample."""

from __future__ import annotations

import numpy as np

from .. import numerics
from ..isa import GridSample, Shaped
from ..isa.sample import I16_LIMITS
from .common import Array, IntArray, Operands, cast, centred, operand


def grid_sample(op: GridSample, ins: Operands, out: Shaped) -> Array:
    """NUMERICS D11: positions first, then D10's bilinear kernel or the nearest pixel."""
    x = operand(ins, 0).astype(np.int64)
    columns, rows = grid_positions(op, operand(ins, 1))
    if op.border:
        rows, columns = (
            np.clip(p, 0, (d - 1) << op.fraction_bits) for p, d in zip((rows, columns), x.shape[1:3], strict=True)
        )
    if op.nearest:
        return cast(_pixels(op, x, _rounded(op, rows), _rounded(op, columns)), out)
    total = np.zeros(out.shape, np.int64)
    for row, row_weight in _neighbours(op, rows):
        for column, column_weight in _neighbours(op, columns):
            total += _pixels(op, x, row, column) * (row_weight * column_weight)[..., None]
    return cast(numerics.round_shift_half_up(total, 16), out)


def grid_positions(op: GridSample, grid: Array) -> tuple[IntArray, IntArray]:
    """(columns, rows), [N,OH,OW] each: 16-bit positions with `fraction_bits`, in int64."""
    steps = centred(grid, op.grid_zero_point) * np.asarray(op.multipliers, np.int64)
    positions = numerics.round_shift_half_up(steps, np.asarray(op.shifts)) + np.asarray(op.origin, np.int64)
    clipped = np.clip(positions, *I16_LIMITS)
    return clipped[..., 0], clipped[..., 1]


def _neighbours(op: GridSample, position: IntArray) -> list[tuple[IntArray, IntArray]]:
    """The pixels at and behind a position, with their weights: 256 together."""
    low = position >> op.fraction_bits
    weight = (position - (low << op.fraction_bits)) << (8 - op.fraction_bits)
    return [(low, 256 - weight), (low + 1, weight)]


def _rounded(op: GridSample, position: IntArray) -> IntArray:
    """The position without its fraction, half to even."""
    bits = op.fraction_bits
    if bits == 0:
        return position
    return (position + (1 << (bits - 1)) - 1 + ((position >> bits) & 1)) >> bits


def _pixels(op: GridSample, x: IntArray, rows: IntArray, columns: IntArray) -> IntArray:
    """[N,OH,OW,C]: x at rows and columns, `pad_value` outside."""
    n, h, w, _ = x.shape
    inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    batch = np.arange(n)[:, None, None]
    seen = x[batch, np.clip(rows, 0, h - 1), np.clip(columns, 0, w - 1)]
    return np.where(inside[..., None], seen, op.pad_value)
