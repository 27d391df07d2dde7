"""Functions of one variable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hbc.ir.core import Op, Value
from hbc.ir.ops import PLAIN_UNARY, Cast, Clip, Dequantize, Less, Maximum, Minimum, Mul, Reinterpret, Where
from hbc.ir.ops.unary import Elu, Gelu, HardSigmoid, HardSwish, LeakyRelu, Selu, Softplus, ThresholdedRelu
from hbc.ir.types import DType

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_quant import quantized
from ..onnx_weights import limited_weight
from .registry import onnx_op

_PLAIN = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
    "Erf": "erf", "Abs": "abs", "Neg": "neg", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Softsign": "softsign", "Mish": "mish",
}  # fmt: skip

# Attributes with ONNX's defaults, which its operator definitions state as float32.
_WITH_FLOATS: dict[str, tuple[type[Op], dict[str, float]]] = {
    "LeakyRelu": (LeakyRelu, {"alpha": 0.01}),
    "Elu": (Elu, {"alpha": 1.0}),
    "Selu": (Selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "HardSigmoid": (HardSigmoid, {"alpha": 0.2, "beta": 0.5}),
    "ThresholdedRelu": (ThresholdedRelu, {"alpha": 1.0}),
    "HardSwish": (HardSwish, {}),
    "Softplus": (Softplus, {}),
}


@onnx_op(*_PLAIN)
def plain(n: Node) -> Results:
    """A function without attributes."""
    operands = n.reals()
    return n.call() if operands is None else n.op(PLAIN_UNARY[_PLAIN[n.op_type]], operands[0])


@onnx_op(*_WITH_FLOATS)
def with_floats(n: Node) -> Results:
    """A function with float attributes."""
    operands = n.reals()
    if operands is None:
        return n.call()
    cls, defaults = _WITH_FLOATS[n.op_type]
    attrs: dict[str, Any] = {name: n.number(name, default) for name, default in defaults.items()}
    return n.op(cls, operands[0], **attrs)


@onnx_op("Gelu")
@onnx_op("Gelu", domain="com.microsoft")
def gelu(n: Node) -> Results:
    """x·Φ(x), or its tanh form."""
    operands = n.reals()
    if operands is None:
        return n.call()
    return n.op(Gelu, operands[0], tanh=n.text("approximate", "none") == "tanh")


@onnx_op("Relu")
def relu(n: Node) -> Results:
    """max(x, 0)."""
    return limited(n, n.x(0), 0.0, math.inf)


@onnx_op("Clip")
def clip(n: Node) -> Results:
    """Bounds as attributes (before opset 11), as known operands, or computed: then the larger, then the smaller one."""
    if n.version < 11:
        low, high = n.number("min", -math.inf), n.number("max", math.inf)
        return limited(n, n.x(0), low, high)
    bounds = []
    for index, default in ((1, -math.inf), (2, math.inf)):
        array = n.array(index) if n.has(index) else np.asarray(default)
        if array is None or array.size != 1:
            return _between(n)
        bounds.append(float(array.reshape(-1)[0]))
    return limited(n, n.x(0), *bounds)


def _between(n: Node) -> Results:
    """min(max(x, low), high) of reals, which is what ONNX's text says of bounds that cross."""
    operands = n.reals()
    scalars = [n.x(i) for i in (1, 2) if n.has(i)]
    if operands is None or any(v.type.elements != 1 or v.type.rank > n.x(0).type.rank for v in scalars):
        return n.call()
    x = operands[0]
    x = n.op(Maximum, x, n.x(1)) if n.has(1) else x
    return n.op(Minimum, x, n.x(2)) if n.has(2) else x


def limited(n: Building, x: Value, low: float, high: float) -> Value:
    """x in [low, high], in x's own numbers; quantised integers are limited as the reals they stand for (exactly so)."""
    if math.isnan(low) or math.isnan(high):
        raise n.fail("a bound is NaN", hint="check the constant")
    if low == -math.inf and high == math.inf:
        return x
    weight = limited_weight(n, x, low, high)
    if weight is not None:
        return weight
    quant = x.type.quant
    if quant is None or not quant.is_per_tensor or not x.type.dtype.is_integer:
        return n.op(Clip, n.stripped(x), low=low, high=high)
    scale, zero = quant.scale[0], quant.zero_point[0]
    reals = n.op(Clip, n.op(Dequantize, x), low=(low - zero) * scale, high=(high - zero) * scale)
    return quantized(n, reals, quant, x.type.dtype)


def uncast(n: Node, x: Value, dtype: DType) -> Value | None:
    """Quantised integers that were cast to a wider dtype, perhaps clipped there, and are now cast back; else None.

    Nothing wraps or rounds on that way, so it is a clip of the integers themselves, which keep their scale.
    """
    clip = x.defined_by(Clip)
    cast = (x if clip is None else clip.x).defined_by(Cast)
    plain = None if cast is None else cast.x.defined_by(Reinterpret)
    if cast is None or plain is None or plain.x.type.quant is None or plain.x.type.dtype is not dtype:
        return None
    low, high = dtype.limits
    wide = cast.out.type.dtype
    if not (wide is DType.F32 or (wide.is_integer and wide.limits[0] <= low and high <= wide.limits[1])):
        return None
    if clip is None:
        return plain.x
    least, most = max(clip.low, low), min(clip.high, high)
    if least > high or most < low or any(b != round(b) for b in (least, most)):
        return None
    return limited(n, plain.x, least, most)


@onnx_op("PRelu")
def prelu(n: Node) -> Results:
    """leaky_relu for one slope, else slope·x where x is below 0: each element is rounded once, on its side."""
    operands = n.reals()
    if operands is None:
        return n.call()
    x, slope = operands
    known = n.array(1)
    if known is not None and known.size and (known == known.reshape(-1)[0]).all() and x.type.rank >= slope.type.rank:
        return n.op(LeakyRelu, x, alpha=float(known.reshape(-1)[0]))
    below = n.op(Less, x, n.const(np.float32(0)))
    return n.op(Where, below, n.op(Mul, x, slope), x)


@onnx_op("Celu")
def celu(n: Node) -> Results:
    """max(0, x) + min(0, alpha·(exp(x/alpha) − 1)): elu in x/alpha, scaled by alpha."""
    operands = n.reals()
    alpha = n.number("alpha", 1.0)
    if operands is None or alpha == 0:
        return n.call()
    inner = n.op(Mul, operands[0], n.const(np.float32(1 / alpha))) if alpha != 1 else operands[0]
    outer = n.op(Elu, inner)
    return outer if alpha == 1 else n.op(Mul, outer, n.const(np.float32(alpha)))
