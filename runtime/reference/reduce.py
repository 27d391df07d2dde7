"""ReduceSum, ReduceMax, ReduceMin."""

from __future__ import annotations

import numpy as np

from ..isa import ReduceMax, ReduceMin, ReduceSum, Shaped
from .common import Array, Operands, cast, centred, operand, requantize


def reduce_sum(op: ReduceSum, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 3 and 4, one multiplier for the whole tensor."""
    acc = centred(operand(ins, 0), op.x_zero_point).sum(axis=op.axes, keepdims=True)
    return cast(requantize(op, acc, ins[1:4]), out)


def reduce_max(op: ReduceMax, ins: Operands, out: Shaped) -> Array:
    """Largest over `axes`."""
    return cast(np.max(operand(ins, 0), axis=op.axes, keepdims=True), out)


def reduce_min(op: ReduceMin, ins: Operands, out: Shaped) -> Array:
    """Smallest over `axes`."""
    return cast(np.min(operand(ins, 0), axis=op.axes, keepdims=True), out)
