"""What several passes ask of quantised types and of errors in their quanta, and the one way from reals to i16."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import DType, TensorType

LIMITS = {DType.I8: 2.0, DType.I16: 256.0}  # quanta that a result may be off at worst: of i16, about a step of 8 bits
ROUNDED = 0.53  # quanta that the last rounding may be off (docs/numerics.md, forms B and wide)
TOP = 32767  # of i16 with zero point 0


def is_activation(t: TensorType) -> bool:
    """True for what an instruction makes of activations: i8 or i16 of one scale."""
    return t.dtype in LIMITS and t.quant is not None and t.quant.is_per_tensor


def scale_of(t: TensorType) -> float:
    """The scale of a tensor that has one."""
    assert t.quant is not None
    return t.quant.scale[0]


def reach_of(t: TensorType) -> float:
    """The largest magnitude of the reals that a type of one scale holds."""
    assert t.quant is not None
    zero = t.quant.zero_point[0]
    return scale_of(t) * max(abs(limit - zero) for limit in t.dtype.limits)


def sixteen_bits(reals: np.ndarray) -> tuple[np.ndarray, float]:
    """Finite reals as i16 of their own range, half to even, and the scale; 1 where they are too small to have one."""
    array = np.asarray(reals, np.float64)
    scale = float(np.float32(np.abs(array).max(initial=0.0) / TOP)) or 1.0
    return np.asarray(np.clip(np.rint(array / scale), -TOP, TOP), np.int16), scale
