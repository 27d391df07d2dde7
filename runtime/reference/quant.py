"""Quantize, Dequantize, FlipSign, Requantize."""

from __future__ import annotations

import numpy as np

from .. import numerics
from ..isa import Dequantize, FlipSign, Quantize, Requantize, Shaped
from .common import Array, Operands, along, cast, centred, operand, requantize


def quantize(op: Quantize, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 2, D2."""
    x, scale, zero_point = (operand(ins, i) for i in range(3))
    scale, zero_point = along(scale, op.axis, x.ndim), along(zero_point, op.axis, x.ndim)
    return cast(numerics.quantize(x, scale, zero_point, op.rounding, op.clamp_min, op.clamp_max), out)


def dequantize(op: Dequantize, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 2: float32(q − zero_point) · scale."""
    x, scale, zero_point = (operand(ins, i) for i in range(3))
    scale, zero_point = along(scale, op.axis, x.ndim), along(zero_point, op.axis, x.ndim)
    return cast(numerics.dequantize(x, scale, zero_point), out)


def flip_sign(_op: FlipSign, ins: Operands, out: Shaped) -> Array:
    """The top bit of every element inverted."""
    x = operand(ins, 0)
    bits = x.view(np.dtype(f"u{x.itemsize}"))
    flipped: Array = bits ^ bits.dtype.type(1 << (8 * x.itemsize - 1))
    return flipped.view(out.dtype.numpy)


def requantize_tensor(op: Requantize, ins: Operands, out: Shaped) -> Array:
    """NUMERICS 5 (D12): the accumulator is x − x_zero_point."""
    return cast(requantize(op, centred(operand(ins, 0), op.x_zero_point), ins[1:4], op.axis), out)
