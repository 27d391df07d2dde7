"""Elementwise arithmetic, comparisons and logic, with broadcasting."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Op, Value
from hbc.ir.ops import (
    PLAIN_UNARY,
    Add,
    BatchNorm,
    Cast,
    Conv2d,
    ConvTranspose2d,
    Div,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    Maximum,
    Minimum,
    Mul,
    Pow,
    Sub,
    Where,
)
from hbc.ir.types import DType

from ..torch_calls import call_like
from ..torch_node import Results, TorchNode
from ..torch_records import Weight
from .arith import truncated
from .registry import torch_op


def _scaled(n: TorchNode, x: Value) -> Value:
    """x · alpha."""
    alpha = n.number("alpha", 1.0)
    return x if alpha == 1.0 else n.op(Mul, x, n.const(np.asarray(alpha, x.type.dtype.numpy)))


@torch_op("aten::add", "aten::sub", "aten::rsub", "aten::subtract")
def add(n: TorchNode) -> Results:
    """lhs ± alpha·rhs; rsub the other way round. Truth values add to their or."""
    lhs, rhs = n.pair()
    if lhs.type.dtype is DType.BOOL:
        return n.op(LogicalOr, lhs, rhs)
    if n.word == "rsub":
        return n.op(Sub, rhs, _scaled(n, lhs))
    return n.op(Add if n.word == "add" else Sub, lhs, _scaled(n, rhs))


def _per_channel(n: TorchNode) -> np.ndarray | None:
    """A known operand with one number per channel of what a convolution gives, in float64; None for any other.

    QAT modules of `torch.ao` undo the batch norm that is in their weights by such a division.
    """
    known, shape = n.array(1), n.result.shape
    if known is None or known.dtype.kind != "f" or len(shape) != 4 or isinstance(n.arg(0), Weight):
        return None
    by_channel = known.size == shape[1] and known.shape[-3:] == (shape[1], 1, 1)
    if not by_channel or not isinstance(n.x(0).op, (Conv2d, ConvTranspose2d)):
        return None
    return known.astype(np.float64).reshape(-1)


def _scaled_channels(n: TorchNode, factors: np.ndarray) -> Value:
    """x · factors per channel: what a convolution takes into its weights."""
    return n.op(BatchNorm, n.real(0), n.const(factors.astype(np.float32)), n.const(np.zeros(factors.size, np.float32)))


@torch_op("aten::mul", "aten::multiply")
def mul(n: TorchNode) -> Results:
    """lhs · rhs; of truth values their and."""
    factors = _per_channel(n)
    if factors is not None:
        return _scaled_channels(n, factors)
    lhs, rhs = n.pair()
    return n.op(LogicalAnd if lhs.type.dtype is DType.BOOL else Mul, lhs, rhs)


@torch_op("aten::div", "aten::divide", "aten::true_divide", "aten::floor_divide")
def div(n: TorchNode) -> Results:
    """lhs / rhs, its floor, or what stands before its point; integers divide as reals, which is exact below 2²⁴."""
    factors = _per_channel(n)
    if factors is not None and n.word == "div" and n.arg("rounding_mode") is None and factors.all():
        return _scaled_channels(n, 1 / factors)
    lhs, rhs = n.operand(0, DType.F32), n.operand(1, DType.F32)
    mode = "floor" if n.word == "floor_divide" else n.arg("rounding_mode")
    y = n.op(Div, lhs, rhs)
    if mode is None:
        return y
    if mode == "trunc":
        return n.cast(truncated(n, y), n.dtype)
    return n.cast(n.op(PLAIN_UNARY["floor"], y), n.dtype)


@torch_op("aten::maximum", "aten::minimum", "aten::fmax", "aten::fmin")
def extreme(n: TorchNode) -> Results:
    """The larger or the smaller one."""
    return n.op(Maximum if "max" in n.word else Minimum, *n.pair())


@torch_op("aten::pow")
def power(n: TorchNode) -> Results:
    """base ** exponent; a square is a product."""
    exponent = n.array(1)
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) in {1.0, 2.0}:
        x = n.operand(0, n.dtype)
        return x if float(exponent.reshape(-1)[0]) == 1.0 else n.op(Mul, x, x)
    return n.cast(n.op(Pow, n.operand(0, DType.F32), n.operand(1, DType.F32)), n.dtype)


@torch_op("aten::addcmul", "aten::addcdiv")
def add_of_pair(n: TorchNode) -> Results:
    """self + value · tensor1 · tensor2, or / tensor2."""
    y = n.op(Mul if n.word == "addcmul" else Div, n.real(1), n.real(2))
    value = n.number("value", 1.0)
    y = y if value == 1.0 else n.op(Mul, y, n.const(np.float32(value)))
    return n.op(Add, n.real(0), y)


@torch_op("aten::lerp")
def lerp(n: TorchNode) -> Results:
    """self + weight · (end − self)."""
    x = n.real(0)
    return n.op(Add, x, n.op(Mul, n.op(Sub, n.real(1), x), n.operand(2, DType.F32)))


_COMPARISONS: dict[str, type[Op]] = {
    "eq": Equal, "lt": Less, "le": LessOrEqual, "gt": Greater, "ge": GreaterOrEqual,
}  # fmt: skip


@torch_op(*(f"aten::{name}" for name in (*_COMPARISONS, "ne")))
def comparison(n: TorchNode) -> Results:
    """A bool per element."""
    lhs, rhs = n.pair()
    if n.word != "ne":
        return n.op(_COMPARISONS[n.word], lhs, rhs)
    return n.op(LogicalNot, n.op(Equal, lhs, rhs))


BITS = "it works on the bits of integers"
_LOGIC: dict[str, type[Op]] = {
    "logical_and": LogicalAnd, "logical_or": LogicalOr, "logical_xor": LogicalXor, "bitwise_and": LogicalAnd,
    "bitwise_or": LogicalOr, "bitwise_xor": LogicalXor, "__and__": LogicalAnd, "__or__": LogicalOr,
}  # fmt: skip


@torch_op(*(f"aten::{name}" for name in _LOGIC))
def logic(n: TorchNode) -> Results:
    """Of truth values: what isn't 0 is true. Bits of integers are combined on the CPU."""
    if n.dtype is not DType.BOOL:
        kind = {"a": "BitwiseAnd", "o": "BitwiseOr", "x": "BitwiseXor"}[n.word.strip("_").removeprefix("bitwise_")[0]]
        return call_like(n, kind, [n.operand(0, n.dtype), n.operand(1, n.dtype)], reason=BITS)
    return n.op(_LOGIC[n.word], n.operand(0, DType.BOOL), n.operand(1, DType.BOOL))


@torch_op("aten::logical_not", "aten::bitwise_not")
def negation(n: TorchNode) -> Results:
    """True for what is 0. Bits of integers are turned on the CPU."""
    if n.dtype is not DType.BOOL:
        return call_like(n, "BitwiseNot", [n.x(0)], reason=BITS)
    return n.op(LogicalNot, n.cast(n.x(0), DType.BOOL))


@torch_op("aten::where")
def where(n: TorchNode) -> Results:
    """One of two where a condition holds."""
    if len(n.args) < 3:
        raise n.refuse("the number of its results depends on the data", "use torch.where with three arguments")
    return n.op(Where, n.cast(n.x(0), DType.BOOL), n.operand(1, n.dtype), n.operand(2, n.dtype))


@torch_op("aten::masked_fill")
def masked_fill(n: TorchNode) -> Results:
    """A number where a mask holds."""
    return n.op(Where, n.cast(n.x(1), DType.BOOL), n.operand(2, n.dtype), n.cast(n.x(0), n.dtype))


@torch_op("aten::__lshift__", "aten::__rshift__", "aten::bitwise_left_shift", "aten::bitwise_right_shift")
def shift(n: TorchNode) -> Results:
    """Integers times a known power of two, or divided by it and rounded down (exact below 2²⁴)."""
    factor = np.exp2(n.known(1).astype(np.float64))
    if "l" in n.word.strip("_")[:1] or "left" in n.word:
        return n.op(Mul, n.cast(n.x(0), n.dtype), n.const(factor.astype(n.dtype.numpy)))
    y = n.op(Mul, n.real(0), n.const((1 / factor).astype(np.float32)))
    return n.cast(n.op(PLAIN_UNARY["floor"], y), n.dtype)


@torch_op("aten::to", "aten::_to_copy", "aten::type_as")
def to(n: TorchNode) -> Results:
    """Another dtype."""
    x = n.x(0)
    if n.result.dtype is DType.F16 and in_reals(x):
        return n.op(Cast, n.op(Cast, x, to=DType.F16), to=DType.F32)
    return n.cast(x, n.dtype)


def in_reals(x: Value) -> bool:
    """True for reals, which may have been rounded to half precision."""
    return x.type.dtype is DType.F32
