"""What the reference rules share: reading operands and bringing accumulators into the result's range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import numerics
from ..isa import Requantizing, Shaped

Array = npt.NDArray[Any]
Operands = Sequence[Array | None]
IntArray = numerics.IntArray


def operand(ins: Operands, index: int) -> Array:
    """The operand at `index`, which the instruction's `check` has found to be there."""
    x = ins[index]
    assert x is not None, index
    return x


def along(param: Array, axis: int, rank: int) -> Array:
    """`param` (one entry, or one per index of `axis`) shaped to broadcast against a tensor of `rank` axes."""
    if param.size == 1:
        return param.reshape([1] * rank)
    return param.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def centred(x: Array, zero_point: int) -> IntArray:
    """x − zero_point in int64."""
    return x.astype(np.int64) - zero_point


def requantize(op: Requantizing, acc: IntArray, params: Operands, axis: int = -1) -> IntArray:
    """`acc` by the instruction's scheme; `params` are multiplier, pre_shift and post_shift, per index of `axis`."""
    mult, pre, post = (None if p is None else along(p, axis, acc.ndim) for p in params)
    return numerics.requantize(acc, op.scheme, mult, pre, post, op.zero_point, op.clamp_min, op.clamp_max)


def cast(x: Array, out: Shaped) -> Array:
    """`x`, whose values fit, as a new dense array of the result's dtype."""
    return x.astype(out.dtype.numpy, order="C")
