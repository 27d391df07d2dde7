"""Limits of resampling."""

from __future__ import annotations

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.types import DType

from ..march import MarchSpec
from .registry import legal, reject

MAX_SIDE = 1024  # [ops]
MAX_AREA = 720 * 1024  # [ops]


@legal(ops.GridSample, where=lambda march: not march.has_grid_sample)
def has_grid_sample(op: ops.GridSample, march: MarchSpec) -> Rejection | None:
    """{march.name} does not sample by a grid.

    Try: compile for bayes or nash, or sample outside the model.
    """
    return reject("")


@legal(ops.GridSample)
def grid_sample_size(op: ops.GridSample, march: MarchSpec) -> Rejection | None:
    """A grid sample reads images of at most 1024 rows and columns, and 720·1024 pixels.

    Try: resize the image before, or cut it into tiles.
    """
    h, w = op.x.type.shape[2:]
    if max(h, w) <= MAX_SIDE and h * w <= MAX_AREA:
        return None
    return reject(f"Here they are {h}x{w}.")


@legal(ops.GridSample)
def grid_sample_dtype(op: ops.GridSample, march: MarchSpec) -> Rejection | None:
    """A bilinear grid sample takes i8.

    Try: quantise its operand to int8.
    """
    dtype = op.x.type.dtype
    if op.nearest or dtype in {DType.I8, DType.U8}:
        return None
    return reject(f"Here it is {dtype.text}.")


RULES = (has_grid_sample, grid_sample_size, grid_sample_dtype)
