"""Shape arithmetic and window gathering shared by the op classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np


def window_size(size: int, kernel: int, stride: int, pads: int, dilation: int, *, ceil_mode: bool = False) -> int:
    """Output size of a sliding window, ONNX's formula; in ceil mode the last window starts inside the input or its begin pad."""
    span = size + pads - dilation * (kernel - 1) - 1
    return (-(-span // stride) if ceil_mode else span // stride) + 1


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcast shape; ValueError where the shapes don't fit."""
    return tuple(np.broadcast_shapes(*shapes))


def taps(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every position of a kernel, row-major."""
    return product(*map(range, kernel))


def strided(x: np.ndarray, starts: Sequence[int], counts: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """`x[..., start : start + count·step : step, ...]` on the last axes."""
    index = tuple(
        slice(start, start + (count - 1) * step + 1, step)
        for start, count, step in zip(starts, counts, steps, strict=True)
    )
    return x[(..., *index)]
