"""What the readers of inputs share: the input's face, and the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from hbc.diagnostics import BadSamples, HbcError
from hbc_runtime.types import DType

Array = npt.NDArray[Any]
Sample = dict[str, Array]


class SampleError(HbcError):
    """A file of inputs cannot be read, or holds no inputs of the model."""

    FAMILY = BadSamples


class Input(Protocol):
    """An input to fill; `hbc_runtime.program.TensorInfo` is one."""

    @property
    def name(self) -> str:
        """The model's own name for it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its whole shape."""

    @property
    def dtype(self) -> DType:
        """Its element type."""


def listing(inputs: Sequence[Input]) -> str:
    """`the model takes 'x' f32[1, 3, 8, 8]`."""
    return f"the model takes {', '.join(f'{i.name!r} {i.dtype.text}{list(i.shape)}' for i in inputs)}"
