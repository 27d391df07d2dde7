"""Types of the IR: frozen values.

`DType` and `Quant` are the runtime's own, so that the two sides cannot drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hbc_runtime.types import DYNAMIC, DType, Layout, Quant, holds

__all__ = ["DYNAMIC", "DType", "Layout", "Quant", "TensorType", "f32", "remap_axis"]


@dataclass(frozen=True)
class TensorType:
    """Shape, element type, and (for integers that stand for reals) how they do. `quant` None: plain numbers.

    A size may be DYNAMIC in the results of a `call_graph` that the graph returns, and nowhere else.
    """

    shape: tuple[int, ...]
    dtype: DType
    quant: Quant | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_dynamic(self) -> bool:
        """True where a size is known only once the model has run."""
        return DYNAMIC in self.shape

    @property
    def elements(self) -> int:
        """Number of elements. Raises ValueError where a size is dynamic."""
        if self.is_dynamic:
            msg = f"how many elements {self} has is known only once the model has run"
            raise ValueError(msg)
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this type. Raises ValueError where a size is dynamic."""
        return self.elements * self.dtype.size

    def holds(self, array: np.ndarray) -> bool:
        """True where `array` has the type's dtype, rank and static sizes."""
        return holds(self.shape, self.dtype, array)

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
