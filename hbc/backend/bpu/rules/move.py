"""Limits of moves: joins, slices, borders, resizes, and of tensors at large."""

from __future__ import annotations

import math
from itertools import pairwise

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.ir.types import DType

from ..march import MarchSpec
from .registry import legal, reject

COMPUTING = (
    ops.Conv2d, ops.ConvTranspose2d, ops.Linear, ops.Matmul, ops.BatchNorm, ops.Binary, ops.Pool, ops.Reduce, ops.Lut,
    ops.SegmentLut, ops.ResizeLinear, ops.ResizeNearest, ops.GridSample, ops.Concat,
)  # fmt: skip


def _dims(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


@legal(*COMPUTING)
def tensor_bytes(op: Op, march: MarchSpec) -> Rejection | None:
    """A tensor is at most {march.max_tensor_gib} GiB.

    Try: cut it into parts.
    """
    for value in (*op.operands, *op.results):
        if value is not None and math.prod(value.type.shape) * value.type.dtype.size > march.max_tensor_gib << 30:
            return reject(f"Here {value.name or 'one'!r} is {_dims(value.type.shape)} of {value.type.dtype.text}.")
    return None


@legal(ops.Concat)
def concat_operands(op: ops.Concat, march: MarchSpec) -> Rejection | None:
    """A concat has at most {march.max_concat} operands.

    Try: concatenate in two steps.
    """
    return reject(f"Here {len(op.xs)}.") if len(op.xs) > march.max_concat else None


@legal(ops.Concat)
def concat_size(op: ops.Concat, march: MarchSpec) -> Rejection | None:
    """What a concat gives has at most {march.max_concat_size} elements on each axis.

    Try: concatenate parts, and let what follows read them apart.
    """
    shape = op.out.type.shape
    return reject(f"Here {_dims(shape)}.") if max(shape, default=0) > march.max_concat_size else None


@legal(ops.Concat, where=lambda march: march.max_concat_channels > 0)
def concat_channels(op: ops.Concat, march: MarchSpec) -> Rejection | None:
    """A concat of [N,C,H,W] gives at most {march.max_concat_channels} channels.

    Try: let what follows read the parts apart.
    """
    shape = op.out.type.shape
    return reject(f"Here {shape[1]}.") if len(shape) == 4 and shape[1] > march.max_concat_channels else None


@legal(ops.Slice)
def slice_size(op: ops.Slice, march: MarchSpec) -> Rejection | None:
    """A slice reads at most 2097151 elements on each axis.

    Try: reshape before it.
    """
    shape = op.x.type.shape
    return reject(f"Here {_dims(shape)}.") if max(shape, default=0) >= 2097152 else None


@legal(ops.Pad)
def pad_size(op: ops.Pad, march: MarchSpec) -> Rejection | None:
    """A pad adds at most 4096 on each side of an axis.

    Try: concatenate constants.
    """
    return reject(f"Here {_dims(op.pads)}.") if max(op.pads, default=0) > 4096 else None


@legal(ops.Gather, where=lambda march: march.has_gather)
def gather_size(op: ops.Gather, march: MarchSpec) -> Rejection | None:
    """A gather of other than i8 stays outside, and reads and gives at most 65536 elements on each axis.

    Try: quantise its operand to int8, or use slices and a concat.
    """
    sizes, dtype = (*op.x.type.shape, *op.out.type.shape), op.x.type.dtype
    if max(sizes, default=0) <= 65536 and dtype in {DType.I8, DType.U8}:
        return None
    return reject(f"Here {_dims(op.x.type.shape)} of {dtype.text} to {_dims(op.out.type.shape)}.")


@legal(ops.Gather, where=lambda march: not march.has_gather)
def has_gather(op: ops.Gather, march: MarchSpec) -> Rejection | None:
    """{march.name} does not gather, but for rows or columns of [N,C,H,W] in order: a nearest resize.

    Try: use slices and a concat.
    """
    ordered = all(a <= b for a, b in pairwise(op.indices))
    if op.x.type.rank == 4 and op.axis in {2, 3} and ordered:
        return None
    return reject(f"Here along axis {op.axis} of {_dims(op.x.type.shape)}.")


@legal(ops.ResizeLinear, ops.ResizeNearest)
def resize_size(op: ops.ResizeLinear | ops.ResizeNearest, march: MarchSpec) -> Rejection | None:
    """A resize reads and gives at most {march.max_resize_side} rows, columns and channels, and scales by 1/256 to 256.

    Try: resize in two steps, or cut the image into tiles.
    """
    given, made = op.x.type.shape, op.out.type.shape
    ratios = [b / max(a, 1) for a, b in zip(given[2:], made[2:], strict=True)]
    if max(*given[1:], *made[1:]) <= march.max_resize_side and all(1 / 256 <= r <= 256 for r in ratios):
        return None
    return reject(f"Here {_dims(given)} to {_dims(made)}.")


RULES = (
    tensor_bytes, concat_operands, concat_size, concat_channels, slice_size, pad_size, gather_size, has_gather,
    resize_size,
)  # fmt: skip
