"""Types of the IR: frozen values.

`DType` and `Quant` are the runtime's own, so that the two sides cannot drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hbc_runtime.types import DType, Layout, Quant

__all__ = ["DType", "Layout", "Quant", "TensorType", "f32", "remap_axis"]


@dataclass(frozen=True)
class TensorType:
    """Shape, element type, and (for integers that stand for reals) how they do. `quant` None: plain numbers."""

    shape: tuple[int, ...]
    dtype: DType
    quant: Quant | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this type."""
        return self.elements * self.dtype.size

    @property
    def is_quantized(self) -> bool:
        """True for integers that stand for reals."""
        return self.quant is not None

    def __str__(self) -> str:
        from .printer import print_type

        return print_type(self)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """The same dtype and quantisation under another shape."""
        return replace(self, shape=shape)

    def as_float(self) -> TensorType:
        """f32 of the same shape."""
        return TensorType(self.shape, DType.F32)


def f32(*shape: int) -> TensorType:
    """A float32 tensor type."""
    return TensorType(shape, DType.F32)


def remap_axis(quant: Quant | None, mapping: dict[int, int]) -> Quant | None:
    """`quant` with its axis moved by `mapping`; KeyError where a per-channel axis has no image."""
    if quant is None or quant.axis is None:
        return quant
    return replace(quant, axis=mapping[quant.axis])
