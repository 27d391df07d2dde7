"""Scales of constants: no histogram is needed where all values are at hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .grid import Array, Floats, Grid
from .methods import best_of_ladder

RUNGS = 16  # thresholds from the largest magnitude down to a quarter of it: weights have short tails


def absmax_of(x: Array, axis: int | None) -> Floats:
    """The largest magnitude of each index of `axis` (of the whole, one, where it is None); 0 of nothing."""
    return np.abs(_rows(x, axis)).max(axis=1, initial=0.0)


def weight_scales(x: Array, grid: Grid, axis: int | None, method: str = "min-max") -> npt.NDArray[np.float32]:
    """One scale per index of `axis`: by `min-max`, or by `mse`, the threshold with the least squared error.

    A channel of nothing but zeros has the largest scale of the others: any would do, and this one keeps the ratios
    that requantisation works with within bounds.
    """
    largest = absmax_of(x, axis)
    if method == "mse":
        largest = np.array([_best(row, grid) for row in _rows(x, axis)])
    some = float(largest.max(initial=0.0))
    return grid.scale(np.where(largest > 0, largest, some))


def _best(row: Floats, grid: Grid) -> float:
    absmax = float(np.abs(row).max(initial=0.0))
    if not absmax:
        return 0.0

    def loss(threshold: float) -> float:
        scale = float(grid.scale(threshold))
        q = np.clip(np.rint(row / scale), grid.qmin, grid.qmax)
        return float(((q * scale - row) ** 2).sum())

    return best_of_ladder(absmax, loss, RUNGS)


def _rows(x: Array, axis: int | None) -> Floats:
    wide = np.asarray(x, np.float64)
    return wide.reshape(1, -1) if axis is None else np.moveaxis(wide, axis, 0).reshape(x.shape[axis], -1)
