"""Limits of pools, reductions and elementwise ops."""

from __future__ import annotations

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.passes.matching import MAX_RANK
from hbc_runtime import isa

from ..march import MarchSpec
from .registry import legal, reject


def _is_global(op: ops.Pool) -> bool:
    return op.out.type.shape[2:] == (1, 1) and tuple(op.kernel) == op.x.type.shape[2:]


@legal(ops.MaxPool)
def max_pool_window(op: ops.MaxPool, march: MarchSpec) -> Rejection | None:
    """A max pool's kernel is at most {march.max_pool_kernel}, its stride at most {march.max_pool_stride}."""
    if max(op.kernel) > march.max_pool_kernel or max(op.strides) > march.max_pool_stride:
        return reject(f"Here kernel {op.kernel}, stride {op.strides}.", "pool in two steps")
    return None


@legal(ops.AvgPool)
def avg_pool_window(op: ops.AvgPool, march: MarchSpec) -> Rejection | None:
    """An average pool's kernel is at most {march.max_avg_kernel}, its stride at most {march.max_pool_stride};
    a global one covers at most {march.max_global_pool} positions.
    """
    if _is_global(op):
        area = op.kernel[0] * op.kernel[1]
        return reject(f"Here {area}.", "pool in two steps") if area > march.max_global_pool else None
    if max(op.kernel) > march.max_avg_kernel or max(op.strides) > march.max_pool_stride:
        return reject(f"Here kernel {op.kernel}, stride {op.strides}.", "pool in two steps")
    return None


@legal(ops.Pool)
def pool_reach(op: ops.Pool, march: MarchSpec) -> Rejection | None:
    """A pool's dilation and pads are at most 65536."""
    if max(*op.dilations, *op.pads) <= isa.MAX_WINDOW:
        return None
    return reject(f"Here dilation {op.dilations}, pads {op.pads}.", "use smaller ones")


@legal(ops.Reduce)
def reduced_size(op: ops.Reduce, march: MarchSpec) -> Rejection | None:
    """A reduction runs over at most 65535 elements."""
    count = 1
    for a in op.axes:
        count *= op.x.type.shape[a]
    return reject(f"Here {count}.", "reduce in two steps") if count > 65535 else None


@legal(ops.Concat)
def concat_operands(op: ops.Concat, march: MarchSpec) -> Rejection | None:
    """A concat has at most {march.max_concat} operands."""
    return reject(f"Here {len(op.xs)}.", "concatenate in two steps") if len(op.xs) > march.max_concat else None


@legal(ops.Sub)
def has_subtraction(op: ops.Sub, march: MarchSpec) -> Rejection | None:
    """bernoulli2 does not subtract."""
    return None if march.has_sub else reject(f"Here the march is {march.name}.", "multiply one operand by -1 and add")


@legal(ops.Binary)
def elementwise_rank(op: ops.Binary, march: MarchSpec) -> Rejection | None:
    """Elementwise ops have at most 6 axes."""
    return reject(f"Here {op.out.type.rank}.", "merge axes by a reshape") if op.out.type.rank > MAX_RANK else None


RULES = (
    max_pool_window, avg_pool_window, pool_reach, reduced_size, concat_operands, has_subtraction, elementwise_rank,
)  # fmt: skip
