"""Limits of pools, reductions and elementwise ops."""

from __future__ import annotations

import math

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.passes.matching import MAX_RANK

from ..march import MarchSpec
from .registry import legal, reject


def _is_global(op: ops.Pool) -> bool:
    return op.out.type.shape[2:] == (1, 1) and tuple(op.kernel) == op.x.type.shape[2:]


def _dims(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


@legal(ops.MaxPool)
def max_pool_window(op: ops.MaxPool, march: MarchSpec) -> Rejection | None:
    """A max pool's kernel is at most {march.max_pool_kernel}, its stride at most {march.max_pool_stride}.

    Try: pool in two steps.
    """
    if max(op.kernel) > march.max_pool_kernel or max(op.strides) > march.max_pool_stride:
        return reject(f"Here kernel {_dims(op.kernel)}, stride {_dims(op.strides)}.")
    return None


@legal(ops.MaxPool)
def max_pool_size(op: ops.MaxPool, march: MarchSpec) -> Rejection | None:
    """A max pool reads at most {march.max_pool_side} rows, columns and channels.

    Try: cut the image into tiles, or the channels into groups.
    """
    shape = op.x.type.shape
    return reject(f"Here it reads {_dims(shape)}.") if max(shape[1:]) > march.max_pool_side else None


@legal(ops.AvgPool)
def avg_pool_window(op: ops.AvgPool, march: MarchSpec) -> Rejection | None:
    """An average pool's kernel is at most {march.max_avg_kernel}, its stride at most {march.max_pool_stride};
    a global one covers at most {march.max_global_pool} positions.

    Try: pool in two steps.
    """
    if _is_global(op):
        area = op.kernel[0] * op.kernel[1]
        return reject(f"Here {area}.") if area > march.max_global_pool else None
    if max(op.kernel) > march.max_avg_kernel or max(op.strides) > march.max_pool_stride:
        return reject(f"Here kernel {_dims(op.kernel)}, stride {_dims(op.strides)}.")
    return None


@legal(ops.Pool)
def pool_reach(op: ops.Pool, march: MarchSpec) -> Rejection | None:
    """A pool's dilation is at most 65536, and it pads at most {march.max_pool_pad} on each side.

    Try: pad in an op of its own.
    """
    if max(op.dilations) <= 65536 and max(op.pads) <= march.max_pool_pad:
        return None
    return reject(f"Here dilation {_dims(op.dilations)}, pads {_dims(op.pads)}.")


@legal(ops.Reduce)
def reduced_size(op: ops.Reduce, march: MarchSpec) -> Rejection | None:
    """A reduction runs over at most 65535 elements.

    Try: reduce in two steps.
    """
    count = math.prod(op.x.type.shape[a] for a in op.axes)
    return reject(f"Here {count}.") if count > 65535 else None


@legal(ops.ReduceSum, ops.ReduceMean, where=lambda march: bool(march.reduced_axes))
def reduced_axes(op: ops.Reduce, march: MarchSpec) -> Rejection | None:
    """A sum or mean of [N,C,H,W] on {march.name} runs over {march.reduced_axis_names};
    one over H and W is a global average.

    Try: transpose before, or write a mean over H and W as a global average pool.
    """
    axes = set(op.axes)
    if op.x.type.rank != 4 or axes <= set(march.reduced_axes) or axes == {2, 3}:
        return None
    return reject(f"Here over {', '.join('NCHW'[a] for a in sorted(axes))}.")


@legal(ops.Sub, where=lambda march: not march.has_sub)
def has_subtraction(op: ops.Sub, march: MarchSpec) -> Rejection | None:
    """{march.name} does not subtract.

    Try: multiply one operand by -1 and add.
    """
    return reject("")


@legal(ops.Binary)
def elementwise_rank(op: ops.Binary, march: MarchSpec) -> Rejection | None:
    """Elementwise ops have at most {march.elementwise_rank} axes.

    Try: merge axes by a reshape.
    """
    rank = op.out.type.rank
    return reject(f"Here {rank}.") if rank > march.elementwise_rank else None


@legal(ops.Lut, ops.SegmentLut, where=lambda march: march.max_lut > 0)
def table_size(op: ops.Lut | ops.SegmentLut, march: MarchSpec) -> Rejection | None:
    """{march.name} looks up at most {march.max_lut} elements in a table: sigmoid, tanh, silu, gelu and the like.

    Try: use relu, relu6 or another function without a table.
    """
    count = math.prod(op.x.type.shape)
    return reject(f"Here {count}.") if count > march.max_lut else None


@legal(ops.Lut, ops.SegmentLut)
def table_batch(op: ops.Lut | ops.SegmentLut, march: MarchSpec) -> Rejection | None:
    """A table is looked up for at most 6 axes, the first of at most {march.max_lut_batch}.

    Try: merge axes by a reshape.
    """
    shape = op.x.type.shape
    if len(shape) <= MAX_RANK and (not shape or shape[0] <= march.max_lut_batch):
        return None
    return reject(f"Here {_dims(shape)}.")


RULES = (
    max_pool_window, max_pool_size, avg_pool_window, pool_reach, reduced_size, reduced_axes, has_subtraction,
    elementwise_rank, table_size, table_batch,
)  # fmt: skip
