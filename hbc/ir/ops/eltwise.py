"""Elementwise ops of two operands, with NumPy broadcasting. `clip` limits the result in real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType
from .shapes import NO_CLIP, broadcast, given


class Binary(Op):
    """Base of the elementwise ops.

    (C1) the result has the broadcast shape.
    """

    FUNCTION: ClassVar[np.ufunc]

    lhs: Value = operand()
    rhs: Value = operand()
    clip: tuple[float, float] = attr(default=NO_CLIP)

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(broadcast(self.lhs.type.shape, self.rhs.type.shape), self.lhs.type.dtype)]

    def verify(self) -> None:
        self.require(self.out.type.shape == self.infer()[0].shape, "C1", f"result is {self.out.type.shape}")

    @classmethod
    def apply(cls, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The function on reals (float64), or on plain integers."""
        return cls.FUNCTION(a, b)

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        a, b = map(given, operands)
        t = self.out.type
        if t.dtype.is_integer:
            return [self.apply(a, b).astype(t.dtype.numpy)]
        with np.errstate(all="ignore"):
            y = self.apply(a.astype(np.float64), b.astype(np.float64))
        return [np.clip(y, *self.clip).astype(t.dtype.numpy)]


@define_op("add")
class Add(Binary):
    """lhs + rhs."""

    FUNCTION = np.add


@define_op("sub")
class Sub(Binary):
    """lhs − rhs."""

    FUNCTION = np.subtract


@define_op("mul")
class Mul(Binary):
    """lhs · rhs."""

    FUNCTION = np.multiply


@define_op("div")
class Div(Binary):
    """lhs / rhs; plain integers divide towards zero, as in ONNX.

    `divisor`: the least and the largest integer that a quantised `rhs` may hold, where the model says so; () where what
    makes it says so.
    """

    divisor: tuple[int, ...] = attr(default=())

    @classmethod
    def apply(cls, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "f":
            return np.divide(a, b)
        quotient = np.abs(a) // np.abs(b)
        return np.sign(a) * np.sign(b) * quotient


@define_op("pow")
class Pow(Binary):
    """lhs ** rhs."""

    FUNCTION = np.power


@define_op("maximum")
class Maximum(Binary):
    """The larger of lhs and rhs."""

    FUNCTION = np.maximum


@define_op("minimum")
class Minimum(Binary):
    """The smaller of lhs and rhs."""

    FUNCTION = np.minimum
