"""Comparisons, logic, where, positions."""

from __future__ import annotations

from collections.abc import Sequence

from hbc.ir.core import Op, Value
from hbc.ir.ops import (
    ArgMax,
    ArgMin,
    Dequantize,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    Where,
)
from hbc.ir.types import DType

from ..onnx_node import Node, Results
from .pool import per_tensor
from .registry import onnx_op
from .shape import axis_of

_COMPARISONS: dict[str, type[Op]] = {
    "Equal": Equal, "Less": Less, "LessOrEqual": LessOrEqual, "Greater": Greater, "GreaterOrEqual": GreaterOrEqual,
}  # fmt: skip
_LOGICAL: dict[str, type[Op]] = {"And": LogicalAnd, "Or": LogicalOr, "Xor": LogicalXor}


@onnx_op(*_COMPARISONS)
def compare(n: Node) -> Results:
    """Reals, plain integers, or (equal alone) bools; doubles stay with ONNX Runtime, which doesn't round them."""
    operands = of_one_dtype(n, (0, 1), bools=n.op_type == "Equal")
    if operands is None:
        return n.call(reason=f"{n.op_type} compares operands of a dtype that instructions don't take")
    return n.op(_COMPARISONS[n.op_type], *operands)


@onnx_op(*_LOGICAL)
def logical(n: Node) -> Results:
    """Of two bools."""
    return n.op(_LOGICAL[n.op_type], n.x(0), n.x(1))


@onnx_op("Not")
def logical_not(n: Node) -> Results:
    """Of a bool."""
    return n.op(LogicalNot, n.x(0))


@onnx_op("Where")
def where(n: Node) -> Results:
    """Reals, plain integers or bools."""
    operands = of_one_dtype(n, (1, 2), bools=True)
    if operands is None:
        return n.call(reason="Where chooses among operands of a dtype that instructions don't take")
    return n.op(Where, n.plain(0), *operands)


def of_one_dtype(n: Node, indices: Sequence[int], *, bools: bool) -> Sequence[Value] | None:
    """These operands as numbers where they share one dtype that the IR carries unrounded, else None."""
    values = [n.plain(i) for i in indices]
    wide = any(n.scope.wide.get(n.name(i)) is DType.F64 for i in indices)
    dtypes = {v.type.dtype for v in values}
    (dtype, *others) = dtypes
    ok = dtype is DType.F32 or dtype.is_integer or (bools and dtype is DType.BOOL)
    return values if ok and not others and not wide else None


@onnx_op("ArgMax", "ArgMin")
def position(n: Node) -> Results:
    """Reals, or integers: those of one scale are taken as the reals that they stand for, whose order is theirs."""
    x = per_tensor(n, n.x(0))
    wide = n.scope.wide.get(n.name(0)) is DType.F64
    if wide or not (x.type.dtype is DType.F32 or x.type.dtype.is_integer):
        return n.call(reason=f"{n.op_type} of a dtype that instructions don't take")
    axis = axis_of(n, max(x.type.rank, 1), 0)
    if x.type.rank == 0 or x.type.shape[axis] == 0:
        return n.call(reason=f"{n.op_type} of a tensor without elements along an axis")
    if x.type.quant is not None:
        x = n.op(Dequantize, x)
    cls = ArgMax if n.op_type == "ArgMax" else ArgMin
    keep, last = bool(n.integer("keepdims", 1)), bool(n.integer("select_last_index"))
    return n.op(cls, x, axis=axis, keepdims=keep, select_last=last)
