"""Comparisons, logic, where and positions as instructions: no arithmetic, operands of one scale."""

from __future__ import annotations

from hbc_runtime import isa

from ..core import Op, Value
from ..ops.select import ArgExtremum, ArgMax, Comparison, Logical, LogicalNot, Where
from ..ops.shapes import broadcast
from ..semantics import Semantics
from ..types import DType
from .core import Arrays, Fixed, Ref, View


def _aligned(op: Op) -> tuple[list[Ref], Ref]:
    """All operands and the result under shapes of one rank."""
    values: list[Value] = [v for v in op.operands if v is not None]
    rank = op.out.type.rank
    shapes = [(1,) * (rank - v.type.rank) + v.type.shape for v in values]
    return [Ref(i, View.RESHAPE, s) for i, s in enumerate(shapes)], Ref(0, View.RESHAPE, broadcast(*shapes))


def compare(op: Comparison, sem: Semantics, arrays: Arrays) -> Fixed:
    """equal, less, … of one scale and zero point → Compare."""
    operands, out = _aligned(op)
    return Fixed(isa.Compare, tuple(operands), {"relation": op.RELATION}, out)


def logical(op: Logical | LogicalNot, sem: Semantics, arrays: Arrays) -> Fixed:
    """logical_and, … → Logical."""
    operands, out = _aligned(op)
    if isinstance(op, LogicalNot):
        return Fixed(isa.Logical, (*operands, None), {"junction": isa.Junction.NOT}, out)
    return Fixed(isa.Logical, tuple(operands), {"junction": op.JUNCTION}, out)


def where(op: Where, sem: Semantics, arrays: Arrays) -> Fixed:
    """where of one scale → Select."""
    operands, out = _aligned(op)
    return Fixed(isa.Select, tuple(operands), {}, out)


def position(op: ArgExtremum, sem: Semantics, arrays: Arrays) -> Fixed:
    """arg_max, arg_min → ArgMax, ArgMin: a scale is positive, so that reals and integers have one order."""
    kept = tuple(1 if i == op.axis else d for i, d in enumerate(op.x.type.shape))
    fields = {"axis": op.axis, "select_last": op.select_last}
    cls = isa.ArgMax if isinstance(op, ArgMax) else isa.ArgMin
    return Fixed(cls, (Ref(0),), fields, Ref(0, View.RESHAPE, kept))


def has_integers(op: Op) -> bool:
    """True for an op of this family whose operands are integers or bools as its instruction takes them."""
    if isinstance(op, (Logical, LogicalNot)):
        return True
    if isinstance(op, Where):
        return op.lhs.type.quant is not None and op.lhs.type.quant.is_per_tensor
    first = op.operands[0]
    assert first is not None
    if isinstance(op, Comparison) and first.type.dtype is DType.BOOL:
        return True
    return first.type.quant is not None and first.type.quant.is_per_tensor


FAMILY = (Comparison, Logical, LogicalNot, Where, ArgExtremum)
