"""Shape arithmetic, window gathering and other small things that the op classes share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

NO_CLIP = (-math.inf, math.inf)


def given(x: np.ndarray | None) -> np.ndarray:
    """An operand that is not optional."""
    assert x is not None
    return x


def window_size(size: int, kernel: int, stride: int, pads: int, dilation: int, *, ceil_mode: bool = False) -> int:
    """Output size of a sliding window, ONNX's formula.

    In ceil mode the last window starts inside the input or its begin pad.
    """
    span = size + pads - dilation * (kernel - 1) - 1
    return (-(-span // stride) if ceil_mode else span // stride) + 1


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcast shape; ValueError where the shapes don't fit."""
    return tuple(np.broadcast_shapes(*shapes))


def along_channels(values: np.ndarray, rank: int) -> np.ndarray:
    """One value per channel, shaped to broadcast along axis 1 of a tensor of `rank` axes."""
    return values.reshape([1, -1] + [1] * (rank - 2))


def taps(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every position of a kernel, row-major."""
    return product(*map(range, kernel))


def strided(x: np.ndarray, starts: Sequence[int], counts: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """`x[..., start : start + count·step : step, ...]` on the last axes."""
    rows = zip(starts, counts, steps, strict=True)
    index: tuple[Any, ...] = (..., *(slice(start, start + (n - 1) * step + 1, step) for start, n, step in rows))
    return x[index]
