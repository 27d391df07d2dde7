"""Ops of truth values and positions: comparisons, logic, where, arg_max. They do no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from hbc_runtime.isa import Comparison as Relation
from hbc_runtime.isa import Junction

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import DType, TensorType
from .shapes import broadcast, given


class Truth(Op):
    """Base of the ops whose result is a bool per element."""

    def verify(self) -> None:
        t = self.out.type
        ok = t.shape == self.infer()[0].shape and t.dtype is DType.BOOL and t.quant is None
        self.require(ok, "C1", f"result is {t}")

    def require_bools(self) -> None:
        """C2 of logic: every operand is bool."""
        dtypes = [v.type.dtype.text for v in self.operands if v is not None]
        self.require(set(dtypes) == {"bool"}, "C2", f"operands are {' and '.join(dtypes)}")


class TruthOfPair(Truth):
    """Base of the comparisons and of the logic of two values: a bool for each pair of elements."""

    FUNCTION: ClassVar[np.ufunc]

    lhs: Value = operand()
    rhs: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(broadcast(self.lhs.type.shape, self.rhs.type.shape), DType.BOOL)]

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        a, b = map(given, operands)
        return [np.asarray(type(self).FUNCTION(a, b))]


class Comparison(TruthOfPair):
    """Base of the comparisons.

    (C1) the result has the broadcast shape, and is bool.  (C2) both operands have one dtype and one quantisation.
    """

    RELATION: ClassVar[Relation]

    def verify(self) -> None:
        super().verify()
        a, b = self.lhs.type, self.rhs.type
        self.require(a.dtype is b.dtype and a.quant == b.quant, "C2", f"{a} and {b}")


@define_op("equal")
class Equal(Comparison):
    """lhs = rhs; also of bools."""

    FUNCTION = np.equal
    RELATION = Relation.EQUAL


@define_op("less")
class Less(Comparison):
    """lhs < rhs."""

    FUNCTION = np.less
    RELATION = Relation.LESS


@define_op("less_or_equal")
class LessOrEqual(Comparison):
    """lhs ≤ rhs."""

    FUNCTION = np.less_equal
    RELATION = Relation.LESS_OR_EQUAL


@define_op("greater")
class Greater(Comparison):
    """lhs > rhs."""

    FUNCTION = np.greater
    RELATION = Relation.GREATER


@define_op("greater_or_equal")
class GreaterOrEqual(Comparison):
    """lhs ≥ rhs."""

    FUNCTION = np.greater_equal
    RELATION = Relation.GREATER_OR_EQUAL


class Logical(TruthOfPair):
    """Base of the functions of two truth values.

    (C1) the result has the broadcast shape, and is bool.  (C2) operands are bools.
    """

    JUNCTION: ClassVar[Junction]

    def verify(self) -> None:
        super().verify()
        self.require_bools()


@define_op("logical_and")
class LogicalAnd(Logical):
    """True where both are."""

    FUNCTION = np.logical_and
    JUNCTION = Junction.AND


@define_op("logical_or")
class LogicalOr(Logical):
    """True where one or both are."""

    FUNCTION = np.logical_or
    JUNCTION = Junction.OR


@define_op("logical_xor")
class LogicalXor(Logical):
    """True where one is and the other isn't."""

    FUNCTION = np.logical_xor
    JUNCTION = Junction.XOR


@define_op("logical_not")
class LogicalNot(Truth):
    """True where x isn't.

    (C1) the result has x's shape, and is bool.  (C2) x is bool.
    """

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, DType.BOOL)]

    def verify(self) -> None:
        super().verify()
        self.require_bools()

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [np.logical_not(given(operands[0]))]


@define_op("where")
class Where(Op):
    """lhs where `condition` holds, else rhs, broadcasting. Quantised form: all of one scale, integers chosen.

    (C1) the result has the broadcast shape.  (C2) `condition` is bool.  (C3) lhs, rhs and result are all quantised or
    none is; those that are not have one dtype.
    """

    condition: Value = operand()
    lhs: Value = operand()
    rhs: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        shape = broadcast(self.condition.type.shape, self.lhs.type.shape, self.rhs.type.shape)
        return [TensorType(shape, self.lhs.type.dtype, self.lhs.type.quant)]

    def verify(self) -> None:
        self.require(self.out.type.shape == self.infer()[0].shape, "C1", f"result is {self.out.type.shape}")
        self.require(self.condition.type.dtype is DType.BOOL, "C2", f"it is {self.condition.type.dtype.text}")
        types = [self.lhs.type, self.rhs.type, self.out.type]
        plain = [t for t in types if t.quant is None]
        fits = not plain or (len(plain) == 3 and len({t.dtype for t in plain}) == 1)
        self.require(fits, "C3", ", ".join(map(str, types)))

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [np.where(*map(given, operands))]


class ArgExtremum(Op):
    """Base of the positions along one axis, counted from 0.

    Of equal values the first one counts, or the last one with `select_last`. Of quantised integers it is that of the
    reals: one scale for all of `x` keeps their order.

    (C1) `axis` is an axis of `x` that has elements.  (C2) the result is i32 or i64.
    """

    FUNCTION: ClassVar[Callable[..., np.ndarray]]

    x: Value = operand()
    axis: int = attr()
    keepdims: bool = attr(default=True)
    select_last: bool = attr(default=False)

    def infer(self) -> Sequence[TensorType]:
        shape = self.x.type.shape
        kept = tuple(1 if i == self.axis else d for i, d in enumerate(shape) if self.keepdims or i != self.axis)
        return [TensorType(kept, DType.I64)]

    def verify(self) -> None:
        shape, t = self.x.type.shape, self.out.type
        self.require(0 <= self.axis < len(shape) and shape[self.axis] > 0, "C1", f"axis {self.axis} of {shape}")
        ok = t.dtype in {DType.I32, DType.I64} and t.quant is None and t.shape == self.infer()[0].shape
        self.require(ok, "C2", f"result is {t}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0])
        first = type(self).FUNCTION
        if self.select_last:
            y = x.shape[self.axis] - 1 - first(np.flip(x, self.axis), axis=self.axis, keepdims=self.keepdims)
        else:
            y = first(x, axis=self.axis, keepdims=self.keepdims)
        return [np.asarray(y).astype(self.out.type.dtype.numpy)]


@define_op("arg_max")
class ArgMax(ArgExtremum):
    """The position of the largest value along `axis`."""

    FUNCTION = np.argmax


@define_op("arg_min")
class ArgMin(ArgExtremum):
    """The position of the smallest value along `axis`."""

    FUNCTION = np.argmin
