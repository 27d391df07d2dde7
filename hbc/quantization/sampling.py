"""Sampling by positions in pixels, as the chip's own instruction has them: int16 with a power-of-two fraction."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hbc.ir.fixed_point.sample import fraction_bits

from .errors import no_such
from .stubs import FloatFunctional

MODES = ("bilinear", "nearest")
PADDINGS = ("zeros", "border")


class PixelSample(nn.Module):
    """x [N,C,H,W] at `grid` [N,OH,OW,2], positions (column, row) in pixels: 0 is the first pixel's centre."""

    def __init__(self, mode: str, padding_mode: str) -> None:
        super().__init__()
        for what, value, known in (("mode", mode, MODES), ("padding_mode", padding_mode, PADDINGS)):
            if value not in known:
                raise no_such(what, value, known)
        self.mode, self.padding_mode = mode, padding_mode

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        gain, offset = normalising(x.shape[2:], grid)
        return functional.grid_sample(x, grid * gain + offset, self.mode, self.padding_mode, align_corners=False)


def normalising(sizes: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """(gain, offset) of (column, row): pixel · gain + offset is the −1 … 1 of grid_sample without align_corners."""
    size = torch.tensor(list(sizes)[::-1], dtype=torch.float64)
    return (2 / size).to(like), (1 / size - 1).to(like)


def grid_scale(sizes: tuple[int, ...]) -> float:
    """One step of an int16 position in an image of these sizes: 2^−F pixels, F at most 8 (NUMERICS 9, D11)."""
    return 2.0 ** -fraction_bits(tuple(sizes))


class GridSample(nn.Module):
    """Reads x [N,C,H,W] at positions in pixels: `sample(x, grid)`, grid [N,OH,OW,2] of (column, row).

    `offsets`: the grid holds distances from each result's own pixel, as flow and deformation nets predict them; else
    absolute positions. `mode`: bilinear or nearest; beyond the image lie zeros, or with padding_mode `border` its
    outer pixels. Prepared, the grid is int16 in steps of 2^−F pixels, whatever was calibrated: F is 8 for images of up
    to 127 pixels, 4 at 1024.
    """

    def __init__(
        self,
        mode: Literal["bilinear", "nearest"] = "bilinear",
        padding_mode: Literal["zeros", "border"] = "zeros",
        *,
        offsets: bool = False,
    ) -> None:
        super().__init__()
        self.sample, self.offsets = PixelSample(mode, padding_mode), offsets
        self.add = FloatFunctional()

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        if self.offsets:
            rows, columns = torch.meshgrid(*(torch.arange(s) for s in grid.shape[1:3]), indexing="ij")
            own = torch.stack([columns, rows], -1).to(grid).unsqueeze(0)
            grid = self.add.add(grid, own)
        y: Tensor = self.sample(x, grid)
        return y
