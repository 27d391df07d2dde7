"""Reductions over axes."""

from __future__ import annotations

from hbc.ir.ops import Reduce, ReduceMax, ReduceMean, ReduceMin, ReduceSum
from hbc.ir.types import DType

from ..onnx_node import Node, Results
from .pool import per_tensor
from .registry import onnx_op

_CLASSES: dict[str, type[Reduce]] = {
    "ReduceMean": ReduceMean, "ReduceSum": ReduceSum, "ReduceMax": ReduceMax, "ReduceMin": ReduceMin,
}  # fmt: skip


@onnx_op(*_CLASSES)
def reduction(n: Node) -> Results:
    """Mean and sum of reals (sum also of plain integers), largest and smallest also of quantised integers."""
    picks = n.op_type in {"ReduceMax", "ReduceMin"}
    x = per_tensor(n, n.x(0)) if picks else n.plain(0)
    axes, given = n.ints("axes"), n.has(1)
    if given:
        axes = n.known_integers(1)
    ok = x.type.dtype is DType.F32 or (x.type.dtype.is_integer and n.op_type != "ReduceMean")
    if not ok or (given and axes is None):
        return n.call()
    if not axes and n.integer("noop_with_empty_axes"):
        return x
    found = normal_axes(n, axes, x.type.rank) if axes else tuple(range(x.type.rank))
    if not found:
        return x  # a scalar
    return n.op(_CLASSES[n.op_type], x, axes=found, keepdims=bool(n.integer("keepdims", 1)))


def normal_axes(n: Node, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`axes` counted from the front, sorted; FrontendError where one is no axis or comes twice."""
    if any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) < len(axes):
        raise n.fail(
            f"axes {list(axes)} are not distinct axes of a tensor of rank {rank}", hint="export the model again"
        )
    return tuple(sorted(a % rank for a in axes))
