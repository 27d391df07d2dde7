"""Functions of one variable."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Op, Value
from hbc.ir.ops import PLAIN_UNARY, Add, Clip, Greater, Less, Maximum, Minimum, Mul, Sub, Where
from hbc.ir.ops.unary import Elu, Gelu, HardSigmoid, HardSwish, LeakyRelu, Selu, Softplus, ThresholdedRelu
from hbc.ir.types import DType

from ..onnx_ops.pick import sliced
from ..torch_node import Results, TorchNode
from ..torch_records import Ref, Weight
from .registry import torch_op

_PLAIN = {
    "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "log": "log", "sqrt": "sqrt", "reciprocal": "reciprocal",
    "erf": "erf", "special_erf": "erf", "floor": "floor", "ceil": "ceil", "round": "round", "sign": "sign",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "silu": "silu",
    "mish": "mish", "special_expit": "sigmoid",
}  # fmt: skip


@torch_op(*(f"aten::{name}" for name in _PLAIN))
def plain(n: TorchNode) -> Results:
    """A function without parameters."""
    return n.op(PLAIN_UNARY[_PLAIN[n.word]], n.real())


@torch_op("aten::abs", "aten::neg")
def signed(n: TorchNode) -> Results:
    """Of reals; of integers as a product and a maximum."""
    x = n.cast(n.x(), n.dtype)
    if x.type.dtype is DType.F32:
        return n.op(PLAIN_UNARY[n.word], x)
    below = n.op(Mul, x, n.const(np.asarray(-1, n.dtype.numpy)))
    return below if n.word == "neg" else n.op(Maximum, x, below)


@torch_op("aten::relu")
def relu(n: TorchNode) -> Results:
    """max(x, 0)."""
    return n.op(Clip, n.cast(n.x(), n.dtype), low=0.0, high=math.inf)


@torch_op("aten::relu6")
def relu6(n: TorchNode) -> Results:
    """x in [0, 6]."""
    return n.op(Clip, n.real(), low=0.0, high=6.0)


@torch_op("aten::hardtanh")
def hardtanh(n: TorchNode) -> Results:
    """x in [min_val, max_val]."""
    return n.op(Clip, n.real(), low=n.number("min_val", -1.0), high=n.number("max_val", 1.0))


@torch_op("aten::clamp", "aten::clip", "aten::clamp_min", "aten::clamp_max")
def clamp(n: TorchNode) -> Results:
    """x between numbers, or between tensors: then the larger, then the smaller one."""
    x = n.cast(n.x(), n.dtype)
    low, high = n.arg("min"), n.arg("max")
    if not any(isinstance(v, (Ref, Weight)) for v in (low, high)):
        bounds = (n.number("min", -math.inf), n.number("max", math.inf))
        return n.op(Clip, x, low=bounds[0], high=bounds[1])
    x = n.op(Maximum, x, n.operand("min", n.dtype)) if low is not None else x
    return n.op(Minimum, x, n.operand("max", n.dtype)) if high is not None else x


@torch_op("aten::leaky_relu")
def leaky_relu(n: TorchNode) -> Results:
    """x, below 0 times negative_slope."""
    return n.op(LeakyRelu, n.real(), alpha=n.number("negative_slope", 0.01))


@torch_op("aten::prelu", "aten::_prelu_kernel", "quantized::prelu")
def prelu(n: TorchNode) -> Results:
    """leaky_relu for one slope, else slope·x where x is below 0, along axis 1."""
    x, slope = n.real(0), n.array(1)
    if slope is not None and slope.size and (slope == slope.reshape(-1)[0]).all():
        return n.op(LeakyRelu, x, alpha=float(slope.reshape(-1)[0]))
    weight = n.known(1).astype(np.float32)
    if weight.ndim == 1:
        weight = weight.reshape([-1 if i == 1 else 1 for i in range(x.type.rank)])
    below = n.op(Less, x, n.const(np.float32(0)))
    return n.op(Where, below, n.op(Mul, x, n.const(weight)), x)


@torch_op("aten::elu")
def elu(n: TorchNode) -> Results:
    """scale·(x, below 0: alpha·(exp(x·input_scale) − 1))."""
    if n.number("input_scale", 1.0) != 1.0:
        raise n.refuse(f"its input_scale is {n.number('input_scale')}")
    return _times(n, n.op(Elu, n.real(), alpha=n.number("alpha", 1.0)), n.number("scale", 1.0))


@torch_op("aten::celu", "quantized::celu")
def celu(n: TorchNode) -> Results:
    """max(0, x) + min(0, alpha·(exp(x/alpha) − 1)): elu in x/alpha, scaled by alpha."""
    alpha = n.number("alpha", 1.0)
    return _times(n, n.op(Elu, _times(n, n.real(), 1 / alpha)), alpha)


def _times(n: TorchNode, x: Value, factor: float) -> Value:
    return x if factor == 1.0 else n.op(Mul, x, n.const(np.float32(factor)))


@torch_op("aten::selu")
def selu(n: TorchNode) -> Results:
    """SELU with its constants."""
    return n.op(Selu, n.real())


@torch_op("aten::gelu")
def gelu(n: TorchNode) -> Results:
    """x·Φ(x), or its tanh form."""
    return n.op(Gelu, n.real(), tanh=n.arg("approximate", "none") == "tanh")


@torch_op("aten::hardswish")
def hardswish(n: TorchNode) -> Results:
    """x · relu6(x + 3) / 6."""
    return n.op(HardSwish, n.real())


@torch_op("aten::hardsigmoid")
def hardsigmoid(n: TorchNode) -> Results:
    """relu6(x + 3) / 6."""
    return n.op(HardSigmoid, n.real(), alpha=1 / 6, beta=0.5)


@torch_op("aten::softplus")
def softplus(n: TorchNode) -> Results:
    """log(1 + eˣ); `threshold` only keeps PyTorch from overflowing."""
    beta = n.number("beta", 1.0)
    return _times(n, n.op(Softplus, _times(n, n.real(), beta)), 1 / beta)


@torch_op("aten::log_sigmoid", "aten::log_sigmoid_forward")
def log_sigmoid(n: TorchNode) -> Results:
    """−softplus(−x)."""
    y = _negated(n, n.op(Softplus, _negated(n, n.real())))
    return [y, None] if len(n.record.results) > 1 else y


def _negated(n: TorchNode, x: Value) -> Value:
    return n.op(PLAIN_UNARY["neg"], x)


@torch_op("aten::threshold", "quantized::threshold")
def threshold(n: TorchNode) -> Results:
    """x above the threshold, else the value."""
    limit, value = n.number("threshold"), n.number("value")
    if value == 0 and limit >= 0:
        return n.op(ThresholdedRelu, n.real(), alpha=limit)
    x = n.real()
    return n.op(Where, n.op(Greater, x, n.const(np.float32(limit))), x, n.const(np.float32(value)))


@torch_op("aten::rsqrt")
def rsqrt(n: TorchNode) -> Results:
    """1 / √x."""
    return _chain(n, "sqrt", "reciprocal")


@torch_op("aten::expm1")
def expm1(n: TorchNode) -> Results:
    """eˣ − 1."""
    return n.op(Sub, n.op(PLAIN_UNARY["exp"], n.real()), n.const(np.float32(1)))


@torch_op("aten::log1p")
def log1p(n: TorchNode) -> Results:
    """log(1 + x)."""
    return n.op(PLAIN_UNARY["log"], n.op(Add, n.real(), n.const(np.float32(1))))


def _chain(n: TorchNode, *names: str) -> Value:
    x = n.real()
    for name in names:
        cls: type[Op] = PLAIN_UNARY[name]
        x = n.op(cls, x)
    return x


@torch_op("aten::square")
def square(n: TorchNode) -> Results:
    """x · x."""
    x = n.cast(n.x(), n.dtype)
    return n.op(Mul, x, x)


@torch_op("aten::glu")
def glu(n: TorchNode) -> Results:
    """The first half times the sigmoid of the second."""
    x = n.real()
    axis = n.axis("dim", x.type.rank, -1)
    half = x.type.shape[axis] // 2
    first, second = sliced(n, x, axis, 0, half), sliced(n, x, axis, half, half)
    return n.op(Mul, first, n.op(PLAIN_UNARY["sigmoid"], second))
