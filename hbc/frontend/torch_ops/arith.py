"""Arithmetic that PyTorch has and the IR has not: remainders, angles, logarithms of other bases, what is no number."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Op, Value
from hbc.ir.ops import (
    PLAIN_UNARY,
    Add,
    Concat,
    Div,
    Equal,
    Greater,
    Less,
    LogicalAnd,
    LogicalNot,
    LogicalXor,
    Maximum,
    Minimum,
    Mul,
    Sub,
    Where,
)
from hbc.ir.types import DType

from ..onnx_ops.pick import sliced
from ..onnx_ops.shape import expanded
from ..torch_calls import call_like
from ..torch_node import Results, TorchNode
from .registry import torch_op

_RUNNING: dict[str, type[Op]] = {"cumprod": Mul, "cummax": Maximum, "cummin": Minimum}
STEPS = 64  # along an axis that is run through one by one


def unary(n: TorchNode, name: str, x: Value) -> Value:
    """A plain function of reals."""
    cls: type[Op] = PLAIN_UNARY[name]
    return n.op(cls, x)


def number(n: TorchNode, value: float) -> Value:
    """A constant of reals."""
    return n.const(np.float32(value))


def truncated(n: TorchNode, x: Value) -> Value:
    """Reals without what is behind the point: sign(x) · ⌊|x|⌋."""
    return n.op(Mul, unary(n, "sign", x), unary(n, "floor", unary(n, "abs", x)))


@torch_op("aten::trunc", "aten::fix")
def trunc(n: TorchNode) -> Results:
    """Without what is behind the point."""
    return truncated(n, n.real()) if n.dtype is DType.F32 else n.x()


@torch_op("aten::frac")
def frac(n: TorchNode) -> Results:
    """What is behind the point."""
    x = n.real()
    return n.op(Sub, x, truncated(n, x))


@torch_op("aten::fmod", "aten::remainder")
def remainder(n: TorchNode) -> Results:
    """fmod has the dividend's sign, remainder the divisor's. On the CPU."""
    x, y = n.operand(0, n.dtype), n.operand(1, n.dtype)
    if n.dtype is not DType.F32:
        return call_like(n, "Mod", [x, y], fmod=int(n.word == "fmod"))
    r = call_like(n, "Mod", [x, y], fmod=1)
    if n.word == "fmod":
        return r
    zero = number(n, 0)
    apart = n.op(LogicalXor, n.op(Less, r, zero), n.op(Less, y, zero))
    other_side = n.op(LogicalAnd, apart, n.op(LogicalNot, n.op(Equal, r, zero)))
    return n.op(Where, other_side, n.op(Add, r, y), r)


_BASES = {"exp2": math.log(2), "log2": 1 / math.log(2), "log10": 1 / math.log(10)}


@torch_op("aten::exp2", "aten::special_exp2")
def exp2(n: TorchNode) -> Results:
    """2ˣ = exp(x · ln 2)."""
    return unary(n, "exp", n.op(Mul, n.real(), number(n, math.log(2))))


@torch_op("aten::log2", "aten::log10")
def log_of_base(n: TorchNode) -> Results:
    """ln x / ln base."""
    return n.op(Mul, unary(n, "log", n.real()), number(n, _BASES[n.word]))


@torch_op("aten::erfc", "aten::special_erfc")
def erfc(n: TorchNode) -> Results:
    """1 − erf x."""
    return n.op(Sub, number(n, 1), unary(n, "erf", n.real()))


@torch_op("aten::atan2", "aten::arctan2")
def atan2(n: TorchNode) -> Results:
    """The angle of (x, y): atan(y / x), half a turn further where x is below 0."""
    y, x = n.operand(0, DType.F32), n.operand(1, DType.F32)
    zero = number(n, 0)
    half = n.op(Where, n.op(Less, y, zero), number(n, -math.pi), number(n, math.pi))
    angle = unary(n, "atan", n.op(Div, y, x))
    angle = n.op(Where, n.op(Less, x, zero), n.op(Add, angle, half), angle)
    nowhere = n.op(LogicalAnd, n.op(Equal, x, zero), n.op(Equal, y, zero))
    return n.op(Where, nowhere, zero, angle)


@torch_op("aten::hypot")
def hypot(n: TorchNode) -> Results:
    """√(x² + y²)."""
    x, y = n.real(0), n.real(1)
    return unary(n, "sqrt", n.op(Add, n.op(Mul, x, x), n.op(Mul, y, y)))


@torch_op("aten::xlogy", "aten::special_xlogy")
def xlogy(n: TorchNode) -> Results:
    """x · ln y, and 0 where x is 0."""
    x, y = n.operand(0, DType.F32), n.operand(1, DType.F32)
    return n.op(Where, n.op(Equal, x, number(n, 0)), number(n, 0), n.op(Mul, x, unary(n, "log", y)))


@torch_op("aten::heaviside")
def heaviside(n: TorchNode) -> Results:
    """0 below 0, 1 above, the given value at 0."""
    x, zero = n.real(0), number(n, 0)
    return n.op(Where, n.op(Equal, x, zero), n.real("values"), n.cast(n.op(Greater, x, zero), DType.F32))


@torch_op("aten::isnan", "aten::isinf")
def not_finite(n: TorchNode) -> Results:
    """Whether x is no number (it differs from itself), or infinite."""
    x = n.real()
    if n.word == "isnan":
        return n.op(LogicalNot, n.op(Equal, x, x))
    return n.op(Equal, unary(n, "abs", x), number(n, math.inf))


@torch_op("aten::nan_to_num")
def nan_to_num(n: TorchNode) -> Results:
    """Numbers in place of NaN and the infinities."""
    x, most = n.real(), float(np.finfo(np.float32).max)
    y = n.op(Where, n.op(Equal, x, x), x, number(n, n.number("nan", 0.0)))
    y = n.op(Where, n.op(Equal, x, number(n, math.inf)), number(n, n.number("posinf", most)), y)
    return n.op(Where, n.op(Equal, x, number(n, -math.inf)), number(n, n.number("neginf", -most)), y)


@torch_op("aten::rrelu", "aten::rrelu_with_noise", "aten::rrelu_with_noise_functional")
def rrelu(n: TorchNode) -> Results:
    """x, below 0 times the mean of the two slopes."""
    if n.flag("training"):
        raise n.refuse("the model is in training mode and draws slopes at random", "call model.eval() before tracing")
    x = n.real(0)
    slope = (n.number("lower", 1 / 8) + n.number("upper", 1 / 3)) / 2
    return [n.op(Maximum, x, n.op(Mul, x, number(n, slope))), *[None] * (len(n.record.results) - 1)]


@torch_op("aten::broadcast_tensors")
def broadcast_tensors(n: TorchNode) -> Results:
    """Each in the shape of all."""
    return [expanded(n, v, r.shape) for v, r in zip(n.many(0), n.record.results, strict=True)]


@torch_op("aten::cumprod", "aten::cummax", "aten::cummin")
def running(n: TorchNode) -> Results:
    """Running products, largest or smallest, one by one along an axis."""
    x = n.cast(n.x(0), n.dtype)
    axis = n.axis("dim", x.type.rank)
    size = x.type.shape[axis] if x.type.rank else 0
    if not 0 < size <= STEPS:
        raise n.refuse(f"it runs along an axis of {size}", f"at most {STEPS} steps are taken one by one")
    steps = [sliced(n, x, axis, 0, 1)]
    for i in range(1, size):
        steps.append(n.op(_RUNNING[n.word], steps[-1], sliced(n, x, axis, i, 1)))
    y = steps[0] if size == 1 else n.op(Concat, *steps, axis=axis)
    return [y, *[None] * (len(n.record.results) - 1)]
