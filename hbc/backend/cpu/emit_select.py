"""ONNX forms of comparisons, logic, where and positions."""

from __future__ import annotations

from hbc.ir.core import Op
from hbc.ir.ops import (
    ArgExtremum,
    ArgMax,
    ArgMin,
    Comparison,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Logical,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    Where,
)
from hbc.ir.types import DType

from .emitter import EmitRules, Emitter

RULES = EmitRules()
_NARROW = {DType.I8, DType.U8, DType.I16, DType.U16}  # ONNX Runtime compares none of them in every version
_COMPARE: dict[type[Op], tuple[str, int]] = {  # and the first opset that has it for numbers
    Equal: ("Equal", 7),
    Less: ("Less", 9),
    LessOrEqual: ("LessOrEqual", 12),
    Greater: ("Greater", 9),
    GreaterOrEqual: ("GreaterOrEqual", 12),
}
FLOATS_EQUAL = 11  # the opset since which Equal takes floats
_LOGICAL: dict[type[Op], str] = {LogicalAnd: "And", LogicalOr: "Or", LogicalXor: "Xor"}


@RULES(*_COMPARE)
def compare(e: Emitter, op: Comparison) -> str:
    """Before opset 12, a ≤ b is a < b or a = b, which NaN leaves false; before 11 floats are not equal to anything."""
    name, since = _COMPARE[type(op)]
    dtype, operands = op.lhs.type.dtype, [e.tensor(op.lhs), e.tensor(op.rhs)]
    if dtype in _NARROW:
        operands = [e.cast(x, DType.I32) for x in operands]
    if isinstance(op, (Equal, LessOrEqual, GreaterOrEqual)) and dtype.is_float and e.opset < FLOATS_EQUAL:
        raise e.error(f"before opset {FLOATS_EQUAL} Equal takes no {dtype.text}")
    if e.opset < since and name.endswith("OrEqual"):
        return e.node("Or", e.node(name.removesuffix("OrEqual"), *operands), e.node("Equal", *operands))
    return e.node(name, *operands)


@RULES(*_LOGICAL)
def logical(e: Emitter, op: Logical) -> str:
    return e.node(_LOGICAL[type(op)], e.tensor(op.lhs), e.tensor(op.rhs))


@RULES(LogicalNot)
def logical_not(e: Emitter, op: LogicalNot) -> str:
    return e.node("Not", e.tensor(op.x))


@RULES(Where)
def where(e: Emitter, op: Where) -> str:
    """Dtypes that ONNX Runtime doesn't choose among go through i32."""
    dtype, operands = op.out.type.dtype, [e.tensor(op.lhs), e.tensor(op.rhs)]
    wide = DType.I32 if dtype in {DType.I8, DType.I16, DType.U16, DType.BOOL} else dtype
    if wide is not dtype:
        operands = [e.cast(x, wide) for x in operands]
    y = e.node("Where", e.tensor(op.condition), *operands)
    return y if wide is dtype else e.cast(y, dtype)


@RULES(ArgMax, ArgMin)
def position(e: Emitter, op: ArgExtremum) -> str:
    """Narrow integers go through i32; the last of equal values came with opset 12."""
    x, dtype = e.tensor(op.x), op.x.type.dtype
    x = e.cast(x, DType.I32) if dtype in _NARROW else x
    name = "ArgMax" if isinstance(op, ArgMax) else "ArgMin"
    if op.select_last and e.opset < 12:
        raise e.error(f"before opset 12 {name} takes the first of equal values")
    last = 1 if op.select_last else None
    y = e.node(name, x, axis=op.axis, keepdims=int(op.keepdims), select_last_index=last)
    return y if op.out.type.dtype is DType.I64 else e.cast(y, op.out.type.dtype)
