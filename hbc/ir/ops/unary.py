"""Functions of one variable. Between a dequantize and a quantize they become look-up tables (`lower-to-lut`).

`function` is evaluated in float64 (NUMERICS D7). Formulas are ONNX's operator definitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType
from .shapes import given

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Unary(Op):
    """Base of the functions of one variable.

    (C1) the result has the operand's shape.
    """

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [self.x.type]

    def verify(self) -> None:
        self.require(self.out.type.shape == self.x.type.shape, "C1", f"result is {self.out.type.shape}")

    def function(self, x: np.ndarray) -> np.ndarray:
        """f(x), float64 to float64."""
        raise AssertionError(self.NAME)

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            y = self.function(given(operands[0]).astype(np.float64))
        return [np.asarray(y, np.float64).astype(self.out.type.dtype.numpy)]


@define_op("clip")
class Clip(Unary):
    """x limited to [low, high]; relu is [0, inf]. Quantised form: same scale on both sides, integers clamped."""

    low: float = attr(default=-math.inf)
    high: float = attr(default=math.inf)

    def function(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, self.low, self.high)


@define_op("leaky_relu")
class LeakyRelu(Unary):
    """x where x ≥ 0, else alpha·x."""

    alpha: float = attr(default=0.01)

    def function(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, self.alpha * x, x)


@define_op("elu")
class Elu(Unary):
    """x where x ≥ 0, else alpha·(eˣ − 1)."""

    alpha: float = attr(default=1.0)

    def function(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, self.alpha * np.expm1(np.minimum(x, 0)), x)


@define_op("selu")
class Selu(Unary):
    """gamma·x where x > 0, else gamma·alpha·(eˣ − 1)."""

    alpha: float = attr(default=1.6732632423543772)
    gamma: float = attr(default=1.0507009873554805)

    def function(self, x: np.ndarray) -> np.ndarray:
        return self.gamma * np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))


@define_op("hard_sigmoid")
class HardSigmoid(Unary):
    """clip(alpha·x + beta, 0, 1)."""

    alpha: float = attr(default=0.2)
    beta: float = attr(default=0.5)

    def function(self, x: np.ndarray) -> np.ndarray:
        return np.clip(self.alpha * x + self.beta, 0.0, 1.0)


@define_op("hard_swish")
class HardSwish(Unary):
    """x · clip(x/6 + 1/2, 0, 1)."""

    def function(self, x: np.ndarray) -> np.ndarray:
        return x * np.clip(x / 6 + 0.5, 0.0, 1.0)


@define_op("gelu")
class Gelu(Unary):
    """x·Φ(x), or its tanh approximation."""

    tanh: bool = attr(default=False)

    def function(self, x: np.ndarray) -> np.ndarray:
        if self.tanh:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


@define_op("softplus")
class Softplus(Unary):
    """log(1 + eˣ)."""

    def function(self, x: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, x)


@define_op("thresholded_relu")
class ThresholdedRelu(Unary):
    """x where x > alpha, else 0."""

    alpha: float = attr(default=1.0)

    def function(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > self.alpha, x, 0.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


_PLAIN: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "sigmoid": (_sigmoid, "1 / (1 + e⁻ˣ)."),
    "tanh": (np.tanh, "Hyperbolic tangent."),
    "exp": (np.exp, "eˣ."),
    "log": (np.log, "Natural logarithm."),
    "sqrt": (np.sqrt, "Square root."),
    "reciprocal": (np.reciprocal, "1 / x."),
    "erf": (_erf, "Error function."),
    "abs": (np.abs, "Magnitude."),
    "neg": (np.negative, "−x."),
    "floor": (np.floor, "Largest integer not above x."),
    "ceil": (np.ceil, "Smallest integer not below x."),
    "round": (np.rint, "Nearest integer, half to even."),
    "sign": (np.sign, "−1, 0 or 1."),
    "sin": (np.sin, "Sine."),
    "cos": (np.cos, "Cosine."),
    "tan": (np.tan, "Tangent."),
    "asin": (np.arcsin, "Inverse sine."),
    "acos": (np.arccos, "Inverse cosine."),
    "atan": (np.arctan, "Inverse tangent."),
    "sinh": (np.sinh, "Hyperbolic sine."),
    "cosh": (np.cosh, "Hyperbolic cosine."),
    "asinh": (np.arcsinh, "Inverse hyperbolic sine."),
    "acosh": (np.arccosh, "Inverse hyperbolic cosine."),
    "atanh": (np.arctanh, "Inverse hyperbolic tangent."),
    "softsign": (lambda x: x / (1 + np.abs(x)), "x / (1 + |x|)."),
    "silu": (lambda x: x * _sigmoid(x), "x · sigmoid(x)."),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), "x · tanh(softplus(x))."),
}


def _plain(name: str) -> type[Unary]:
    f, doc = _PLAIN[name]
    body = {"__doc__": doc, "__module__": __name__, "function": lambda self, x: f(x)}  # noqa: ARG005
    return define_op(name)(type(name.title(), (Unary,), body))


PLAIN_UNARY: dict[str, type[Unary]] = {name: _plain(name) for name in _PLAIN}
