"""Sampling at positions that are computed at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType
from .shapes import given


@define_op("grid_sample")
class GridSample(Op):
    """x [N,C,H,W] at the positions of `grid` [N,OH,OW,2]: (column, row), −1 and 1 at the edges of the input.

    The edges are the centres of the outer pixels with `align_corners`, else their outer borders. A position is
    interpolated between its four pixels, or with `nearest` rounded half to even. Beyond the input lie zeros, or with
    `border` its outer pixels. With `pixels`, `grid` holds positions in pixels: 0 is the centre of the first one.

    (C1) ranks are 4, the grid's last size is 2, batches agree.  (C2) the result is [N,C,OH,OW].
    """

    x: Value = operand()
    grid: Value = operand()
    nearest: bool = attr(default=False)
    border: bool = attr(default=False)
    align_corners: bool = attr(default=False)
    pixels: bool = attr(default=False)

    def infer(self) -> Sequence[TensorType]:
        n, c = self.x.type.shape[:2]
        return [TensorType((n, c, *self.grid.type.shape[1:3]), self.x.type.dtype, self.x.type.quant)]

    def verify(self) -> None:
        x, grid = self.x.type.shape, self.grid.type.shape
        fits = len(x) == len(grid) == 4 and grid[3] == 2 and x[0] == grid[0] and min(x[2:]) > 0
        self.require(fits, "C1", f"x is {x}, grid is {grid}")
        self.require(self.out.type.shape == (*x[:2], *grid[1:3]), "C2", f"result is {self.out.type.shape}")

    def line(self, axis: int) -> tuple[float, float]:
        """(factor, offset): a coordinate along spatial axis `axis` is at pixel coordinate · factor + offset."""
        size = self.x.type.shape[2 + axis]
        if self.pixels:
            return 1.0, 0.0
        return ((size - 1) / 2 if self.align_corners else size / 2), (size - 1) / 2

    def normalising(self) -> tuple[np.ndarray, np.ndarray]:
        """(gain, offset), each f32[2] for (column, row): pixel · gain + offset is −1 … 1 without `align_corners`."""
        sizes = np.array(self.x.type.shape[:1:-1], np.float64)
        return (2 / sizes).astype(np.float32), (1 / sizes - 1).astype(np.float32)

    def positions(self, grid: np.ndarray) -> list[np.ndarray]:
        """[rows, columns], each [N,OH,OW], in float32 step by step as ONNX Runtime has them."""
        if self.pixels:
            return [grid[..., 1].astype(np.float32), grid[..., 0].astype(np.float32)]
        found = []
        one, two = np.float32(1), np.float32(2)
        for axis, coordinate in ((0, grid[..., 1]), (1, grid[..., 0])):
            size = np.float32(self.x.type.shape[2 + axis])
            shifted = coordinate.astype(np.float32) + one
            found.append(shifted / two * (size - one) if self.align_corners else (shifted * size - one) / two)
        return found

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0]).astype(np.float64)
        places = [np.nan_to_num(p.astype(np.float64)) for p in self.positions(given(operands[1]))]
        if self.border:
            places = [np.clip(p, 0, d - 1) for p, d in zip(places, x.shape[2:], strict=True)]
        if self.nearest:
            rows, columns = (np.rint(p) for p in places)
            return [self._pixels(x, rows, columns).astype(np.float32)]
        total = np.zeros(self.out.type.shape)
        top, left = (np.floor(p) for p in places)
        for rows, row_weight in ((top, 1 - (places[0] - top)), (top + 1, places[0] - top)):
            for columns, column_weight in ((left, 1 - (places[1] - left)), (left + 1, places[1] - left)):
                total += self._pixels(x, rows, columns) * (row_weight * column_weight)[:, None]
        return [total.astype(np.float32)]

    @staticmethod
    def _pixels(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """[N,C,OH,OW]: x at whole rows and columns, 0 outside."""
        n, _, h, w = x.shape
        inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
        r, c = (np.clip(p, 0, d - 1).astype(np.int64) for p, d in ((rows, h), (columns, w)))
        seen = x[np.arange(n)[:, None, None], :, r, c]  # [N,OH,OW,C]
        return np.where(inside[:, None], np.moveaxis(seen, -1, 1), 0.0)
