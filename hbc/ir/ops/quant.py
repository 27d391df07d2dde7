"""Constants and the ops between reals and integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc_runtime import numerics

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import DType, Quant, TensorType
from .shapes import given


def per_axis(values: Sequence[float], axis: int | None, rank: int, dtype: type[np.generic]) -> np.ndarray:
    """`values` shaped to broadcast along `axis` of a tensor of `rank` axes."""
    a = np.asarray(values, dtype)
    return a.reshape(()) if axis is None else a.reshape([-1 if i == axis else 1 for i in range(rank)])


def quant_arrays(quant: Quant, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """(float32 scales, int64 zero points), shaped to broadcast."""
    return (
        per_axis(quant.scale, quant.axis, rank, np.float32),
        per_axis(quant.zero_point, quant.axis, rank, np.int64),
    )


@define_op("const")
class Const(Op):
    """A constant tensor.

    (C1) `value` has the result's shape and dtype.
    """

    value: np.ndarray = attr()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.value.shape, DType.of(self.value.dtype))]

    def verify(self) -> None:
        t, value = self.out.type, self.value
        same = value.shape == t.shape and DType.of(value.dtype) is t.dtype
        self.require(same, "C1", f"value is {value.dtype}{value.shape}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [self.value]


@define_op("quantize")
class Quantize(Op):
    """f32 → integers by the result's scale: `clamp(round(x / scale) + zero_point)`; rounding by march (NUMERICS 2).

    (C1) `x` is f32.  (C2) the result is quantised, of the same shape.  (C3) `narrow` leaves out the lowest integer.
    """

    x: Value = operand()
    narrow: bool = attr(default=False)

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, DType.I8)]

    def verify(self) -> None:
        self.require(self.x.type.dtype is DType.F32, "C1", f"x is {self.x.type.dtype.text}")
        t = self.out.type
        fits = t.quant is not None and t.shape == self.x.type.shape and t.dtype.is_integer
        self.require(fits, "C2", f"result is {t}")

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer of the result."""
        lo, hi = self.out.type.dtype.limits
        return (lo + 1 if self.narrow else lo), hi

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        t = self.out.type
        assert t.quant is not None
        scale, zp = quant_arrays(t.quant, t.rank)
        return [numerics.quantize(given(operands[0]), scale, zp, sem.rounding, *self.limits).astype(t.dtype.numpy)]


@define_op("dequantize")
class Dequantize(Op):
    """Integers → f32 by the operand's scale: `float32(q − zero_point) · scale`.

    (C1) `x` is quantised.
    """

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [self.x.type.as_float()]

    def verify(self) -> None:
        self.require(self.x.type.quant is not None, "C1", f"x is {self.x.type}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        t = self.x.type
        assert t.quant is not None
        return [numerics.dequantize(given(operands[0]), *quant_arrays(t.quant, t.rank))]


@define_op("requantize")
class Requantize(Op):
    """Integers of one scale → integers of another (NUMERICS 4, form B; D12).

    (C1) operand and result are quantised, of one shape.
    """

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [self.x.type]

    def verify(self) -> None:
        a, b = self.x.type, self.out.type
        self.require(a.quant is not None and b.quant is not None and a.shape == b.shape, "C1", f"{a} to {b}")


@define_op("flip_sign")
class FlipSign(Op):
    """u8 ↔ i8 or u16 ↔ i16 by flipping the top bit; reals stay, the zero point moves by half the range.

    (C1) the dtypes are such a pair.  (C2) zero points differ by half the range.
    """

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [flip_type(self.x.type)]

    def verify(self) -> None:
        self.require(self.x.type.dtype in FLIPPED, "C1", f"x is {self.x.type.dtype.text}")
        self.require(self.out.type == flip_type(self.x.type), "C2", f"result is {self.out.type}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [flip_array(given(operands[0]))]


FLIPPED = {DType.U8: DType.I8, DType.I8: DType.U8, DType.U16: DType.I16, DType.I16: DType.U16}


def flip_type(t: TensorType) -> TensorType:
    """The type of the same reals after the top bit is flipped."""
    half = 1 << (8 * t.dtype.size - 1)
    shift = half if t.dtype.is_signed else -half
    q = t.quant
    moved = None if q is None else Quant(q.scale, tuple(z + shift for z in q.zero_point), q.axis)
    return TensorType(t.shape, FLIPPED[t.dtype], moved)


def flip_array(x: np.ndarray) -> np.ndarray:
    """The top bit of every element flipped, seen as the other signedness."""
    other = FLIPPED[DType.of(x.dtype)].numpy
    unsigned = x.view(x.dtype if x.dtype.kind == "u" else other)
    return np.asarray(unsigned ^ unsigned.dtype.type(1 << (8 * x.dtype.itemsize - 1))).view(other)


@define_op("reinterpret")
class Reinterpret(Op):
    """The same integers read by another quantisation (or by none): a DequantizeLinear with its own idea of the scale.

    (C1) shape and dtype stay.
    """

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, self.x.type.dtype)]

    def verify(self) -> None:
        a, b = self.x.type, self.out.type
        self.require(a.shape == b.shape and a.dtype is b.dtype, "C1", f"{a} to {b}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [given(operands[0])]


@define_op("cast")
class Cast(Op):
    """Another dtype for plain (not quantised) numbers, as ONNX Cast; the result's type says which.

    (C1) neither side is quantised.
    """

    x: Value = operand()
    to: DType = attr()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, DType(self.to))]

    def verify(self) -> None:
        self.require(self.x.type.quant is None and self.out.type.quant is None, "C1", "a quantised side")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        return [given(operands[0]).astype(self.out.type.dtype.numpy)]
