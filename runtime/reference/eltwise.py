"""Add, Mul, Maximum, Minimum, Clamp."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .. import numerics
from ..isa import Add, Clamp, Maximum, Minimum, Mul, Scheme, Shaped
from .common import Array, IntArray, Operands, cast, centred, operand, requantize


def add(op: Add, ins: Operands, out: Shaped) -> Array:
    """NUMERICS D6, or float32 step by step in scheme FLOAT."""
    a, b = centred(operand(ins, 0), op.lhs_zero_point), centred(operand(ins, 1), op.rhs_zero_point)
    if op.scheme is Scheme.FLOAT:
        total = a.astype(np.float32) * np.float32(op.lhs_scale) + b.astype(np.float32) * np.float32(op.rhs_scale)
        return _round_float(op, total, out)
    total_int = numerics.round_shift_half_up(a * op.lhs_multiplier + b * op.rhs_multiplier, op.shift)
    return cast(np.clip(total_int + op.zero_point, op.clamp_min, op.clamp_max), out)


def mul(op: Mul, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 5, or float32 step by step in scheme FLOAT."""
    a, b = centred(operand(ins, 0), op.lhs_zero_point), centred(operand(ins, 1), op.rhs_zero_point)
    if op.scheme is Scheme.FLOAT:
        lhs = a.astype(np.float32) * np.float32(op.lhs_scale)
        return _round_float(op, lhs * (b.astype(np.float32) * np.float32(op.rhs_scale)), out)
    return cast(requantize(op, _factor(a) * _factor(b), ins[2:5]), out)


def maximum(_op: Maximum, ins: Operands, out: Shaped) -> Array:
    """The larger of each pair."""
    return cast(np.maximum(operand(ins, 0), operand(ins, 1)), out)


def minimum(_op: Minimum, ins: Operands, out: Shaped) -> Array:
    """The smaller of each pair."""
    return cast(np.minimum(operand(ins, 0), operand(ins, 1)), out)


def clamp(op: Clamp, ins: Operands, out: Shaped) -> Array:
    """Limited to [clamp_min, clamp_max]."""
    return cast(np.clip(operand(ins, 0), op.clamp_min, op.clamp_max), out)


def _factor(x: IntArray) -> IntArray:
    """`x` limited to ±2^31, so that a product fits int64: beyond, any product but one by 0 saturates to i32 (D3)."""
    return np.clip(x, -(1 << 31), 1 << 31)


def _round_float(op: Add | Mul, real: npt.NDArray[np.float32], out: Shaped) -> Array:
    """nearbyint(real / out_scale) + zero_point, clamped; float32."""
    quotient: npt.NDArray[np.float32] = real / np.float32(op.out_scale)
    q = numerics.nearbyint_f32(quotient) + op.zero_point
    return cast(np.clip(q, op.clamp_min, op.clamp_max), out)
