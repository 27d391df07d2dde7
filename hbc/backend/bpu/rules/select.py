"""Limits of comparisons, logic, choices and positions."""

from __future__ import annotations

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.ir.types import DType
from hbc.passes.matching import MAX_RANK

from ..march import MarchSpec
from .registry import legal, reject


@legal(ops.Comparison, ops.Where, ops.ArgExtremum)
def compared_dtype(op: Op, march: MarchSpec) -> Rejection | None:
    """Comparisons, where and arg_max on {march.name} take {march.activation_names}; equal also takes bools.

    Try: quantise the tensor to {march.activation_names}.
    """
    for value in op.operands[1:] if isinstance(op, ops.Where) else op.operands:
        assert value is not None
        dtype = value.type.dtype
        if dtype not in march.activations and not (isinstance(op, ops.Equal) and dtype is DType.BOOL):
            reason = f"Here {value.name or 'one of its tensors'!r} is {dtype.text}."
            return reject(reason, f"quantise {value.name or 'it'} to {march.activation_names}")
    return None


@legal(ops.Comparison, ops.Logical, ops.LogicalNot, ops.Where)
def choice_rank(op: Op, march: MarchSpec) -> Rejection | None:
    """Comparisons, logic and where have at most 6 axes.

    Try: merge axes by a reshape.
    """
    return reject(f"Here {op.out.type.rank}.") if op.out.type.rank > MAX_RANK else None


@legal(ops.ArgExtremum)
def arg_size(op: ops.ArgExtremum, march: MarchSpec) -> Rejection | None:
    """arg_max and arg_min run over at most {march.max_arg} elements; on bernoulli2, bayes and bayes-e over axis 1 of a
    tensor of 4 axes.

    Try: reduce in two steps, or keep it outside the model.
    """
    count = op.x.type.shape[op.axis]
    if count > march.max_arg:
        return reject(f"Here {count}.")
    if march.has_arg_of_any_axis or (op.x.type.rank == 4 and op.axis == 1):
        return None
    return reject(f"Here axis {op.axis} of {op.x.type.rank}.", "transpose it to axis 1 of [N,C,H,W]")


RULES = (compared_dtype, choice_rank, arg_size)
