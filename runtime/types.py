"""The small values that both sides of the container speak of: dtypes, layouts, quantisation."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

DYNAMIC = -1  # in a shape: a size that is known only once the model has run


class DType(enum.IntEnum):
    """Element type of a tensor. The numbers are the container's; never renumber."""

    I8 = 0
    U8 = 1
    I16 = 2
    U16 = 3
    I32 = 4
    U32 = 5
    I64 = 6
    U64 = 7
    F16 = 8
    F32 = 9
    F64 = 10
    BOOL = 11

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of the same name."""
        return _NUMPY[self]

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _NUMPY[self].itemsize

    @property
    def text(self) -> str:
        """The short name used in `.hbir` and reports: `i8`, `f32`, `bool`."""
        return self.name.lower()

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, False for floats and bool."""
        return self <= DType.U64

    @property
    def is_float(self) -> bool:
        """True for f16, f32 and f64."""
        return DType.F16 <= self <= DType.F64

    @property
    def is_signed(self) -> bool:
        """True for signed integers."""
        return self in {DType.I8, DType.I16, DType.I32, DType.I64}

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of an integer dtype."""
        return _LIMITS[self]

    @staticmethod
    def of(dtype: object) -> DType:
        """The DType of a numpy dtype (or anything `np.dtype` takes); KeyError where there is none."""
        return _FROM_NUMPY[np.dtype(dtype)]  # type: ignore[call-overload]

    @staticmethod
    def parse(text: str) -> DType:
        """The DType named `i8`, `f32`, …; KeyError where there is none."""
        return DType[text.upper()]


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.I8: np.dtype(np.int8), DType.U8: np.dtype(np.uint8), DType.I16: np.dtype(np.int16),
    DType.U16: np.dtype(np.uint16), DType.I32: np.dtype(np.int32), DType.U32: np.dtype(np.uint32),
    DType.I64: np.dtype(np.int64), DType.U64: np.dtype(np.uint64), DType.F16: np.dtype(np.float16),
    DType.F32: np.dtype(np.float32), DType.F64: np.dtype(np.float64), DType.BOOL: np.dtype(np.bool_),
}  # fmt: skip
_FROM_NUMPY = {v: k for k, v in _NUMPY.items()}
_LIMITS = {k: (int(np.iinfo(v).min), int(np.iinfo(v).max)) for k, v in _NUMPY.items() if v.kind in "iu"}


def holds(shape: tuple[int, ...], dtype: DType, array: np.ndarray) -> bool:
    """True where `array` has the dtype, the rank and the static sizes; a DYNAMIC size stands for any."""
    sizes = zip(shape, array.shape, strict=False)
    return array.dtype == dtype.numpy and array.ndim == len(shape) and all(d in {DYNAMIC, n} for d, n in sizes)


class Layout(enum.IntEnum):
    """How a rank-4 tensor's axes are ordered; ANY for other ranks."""

    ANY = 0
    NCHW = 1
    NHWC = 2


@dataclass(frozen=True)
class Quant:
    """How integers stand for reals: `real = scale · (q − zero_point)`.

    `scale` holds float32 values (as Python floats); one entry per tensor, or one per index of `axis`.
    `zero_point` has as many entries as `scale`. `axis` is None for per-tensor.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...] = (0,)
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.zero_point) != len(self.scale):
            if len(self.zero_point) != 1:
                msg = f"{len(self.scale)} scales but {len(self.zero_point)} zero points"
                raise ValueError(msg)
            object.__setattr__(self, "zero_point", self.zero_point * len(self.scale))
        if self.axis is None and len(self.scale) != 1:
            msg = f"a per-tensor quantisation has one scale, not {len(self.scale)}"
            raise ValueError(msg)

    @staticmethod
    def per_tensor(scale: float, zero_point: int = 0) -> Quant:
        """One scale and zero point for the whole tensor; `scale` is rounded to float32."""
        return Quant((float(np.float32(scale)),), (int(zero_point),))

    @property
    def is_per_tensor(self) -> bool:
        """True where one scale serves the whole tensor."""
        return self.axis is None

    @property
    def is_symmetric(self) -> bool:
        """True where every zero point is 0."""
        return not any(self.zero_point)
