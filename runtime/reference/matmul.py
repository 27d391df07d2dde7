"""Matmul, and the exact integer product that the convolutions share."""

from __future__ import annotations

import numpy as np

from ..isa import Matmul, Shaped
from .common import Array, IntArray, Operands, cast, centred, operand, requantize


def matmul(op: Matmul, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 3, 4."""
    acc = exact_matmul(centred(operand(ins, 0), op.lhs_zero_point), centred(operand(ins, 1), op.rhs_zero_point))
    if ins[2] is not None:
        acc = acc + ins[2]
    return cast(requantize(op, acc, ins[3:6]), out)


def exact_matmul(lhs: IntArray, rhs: IntArray) -> IntArray:
    """lhs @ rhs in int64.

    Float64 adds integers exactly, in any order, as long as every partial sum stays below 2^53; where the largest
    possible sum does, its (much faster) product is the integer one. Otherwise the product is taken in int64.
    """
    if lhs.size == 0 or rhs.size == 0:
        return lhs @ rhs
    bound = int(np.abs(lhs).max()) * int(np.abs(rhs).max()) * lhs.shape[-1]
    if bound < 1 << 53:
        return (lhs.astype(np.float64) @ rhs.astype(np.float64)).astype(np.int64)
    return lhs @ rhs
