"""Output channels whose weights are next to nothing beside their bias: the bias would leave i32."""

from __future__ import annotations

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import numerics

from .matching import const_value

ROOM = 1 << 26  # accumulator steps left for the rounding term and for a folded zero point
TARGET = 1 << 30  # where a rescaled bias ends up


def strengthen(rw: Rewriter, op: Op, x: Value, weight: Value, bias: Value | None) -> Value:
    """`weight`, or integers of a larger scale for the channels whose bias does not fit an i32 accumulator.

    A pruned or dead channel keeps a tiny scale (1e-20, say), so that bias / (s_in · s_w) passes 2^31 and would be cut
    off. With a scale 2^k larger its weights lose k bits, which is far below a step of any result that such a bias does
    not saturate.
    """
    reals = None if bias is None else _reals(bias)
    axis = 1 if isinstance(op, ops.ConvTranspose2d) else 0
    if reals is None or (axis == 1 and op.attrs["group"] != 1):
        return weight
    quant, ints = weight.type.quant, const_value(weight)
    assert quant is not None
    assert ints is not None
    assert x.type.quant is not None
    channels = weight.type.shape[axis]
    scale = np.resize(np.asarray(quant.scale, np.float64), channels)
    steps = np.abs(reals.astype(np.float64)) / (x.type.quant.scale[0] * scale)
    weak = steps > numerics.I32_MAX - ROOM
    if not weak.any():
        return weight
    bits = np.where(weak, np.ceil(np.log2(steps / TARGET, where=weak, out=np.zeros(channels))), 0)
    return _rescaled(rw, weight, ints, np.exp2(bits), scale, axis)


def _rescaled(rw: Rewriter, weight: Value, ints: np.ndarray, factor: np.ndarray, scale: np.ndarray, axis: int) -> Value:
    quant = weight.type.quant
    assert quant is not None
    shape = [-1 if i == axis else 1 for i in range(ints.ndim)]
    zero = np.resize(np.asarray(quant.zero_point, np.int64), len(scale))
    centred = numerics.round_half_away((ints - zero.reshape(shape)) / factor.reshape(shape)).astype(np.int64)
    lo, hi = weight.type.dtype.limits
    value = np.clip(centred + zero.reshape(shape), lo, hi).astype(ints.dtype)
    scales = tuple(float(s) for s in np.float32(scale * factor))
    t = TensorType(value.shape, weight.type.dtype, Quant(scales, tuple(int(z) for z in zero), axis))
    return rw.op(ops.Const, value=value, type=t, name=weight.name).out


def _reals(bias: Value) -> np.ndarray | None:
    """A bias given in reals; None for i32 in accumulator steps, which fit by what they are."""
    value = const_value(bias)
    return value if value is not None and bias.type.dtype is DType.F32 else None
