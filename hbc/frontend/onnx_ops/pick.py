"""Slices and gathers of one axis: what windows, borders and index lists become."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Gather, Slice

from ..building import Building

GATHER_LIMIT = 1 << 16  # indices that an op's attribute may hold; a larger table is looked up on the CPU


def sliced(n: Building, x: Value, axis: int, start: int, size: int) -> Value:
    """`size` indices along `axis` from `start`."""
    sizes = list(x.type.shape)
    starts = [0] * len(sizes)
    starts[axis], sizes[axis] = start, size
    return slice_op(n, x, starts, sizes, [1] * len(sizes))


def slice_op(n: Building, x: Value, starts: list[int], sizes: list[int], steps: list[int]) -> Value:
    """A slice, or `x` itself where nothing is left out."""
    if tuple(sizes) == x.type.shape and not any(starts) and set(steps) <= {1}:
        return x
    quant = x.type.quant
    if quant is not None and quant.axis is not None:
        whole = (starts[quant.axis], sizes[quant.axis], steps[quant.axis]) == (0, x.type.shape[quant.axis], 1)
        x = x if whole else n.stripped(x)
    return n.op(Slice, x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def taken(n: Building, x: Value, axis: int, indices: Sequence[int] | np.ndarray) -> Value:
    """x at `indices` (not negative) along `axis`: itself, a slice where they are evenly spaced, else a gather."""
    found = np.asarray(indices, np.int64).reshape(-1)
    steps = np.unique(np.diff(found))
    if found.size and steps.size < 2 and 0 not in steps:
        starts, sizes, strides = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
        starts[axis], sizes[axis], strides[axis] = int(found[0]), found.size, int(steps[0]) if steps.size else 1
        return slice_op(n, x, starts, sizes, strides)
    quant = x.type.quant
    x = n.stripped(x) if quant is not None and quant.axis == axis else x
    return n.op(Gather, x, axis=axis, indices=tuple(int(i) for i in found))
