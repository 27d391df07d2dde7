"""Output channels whose weights are next to nothing beside their bias or addend: those would leave i32, or vanish."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import numerics

from .matching import const_value
from .quanta import reach_of

ROOM = 1 << 26  # accumulator steps left for the rounding term and for a folded zero point
TARGET = 1 << 30  # where a rescaled bias ends up
LEAST = -60  # no finer than this: scales stay normal numbers
COARSE = 1 << 16  # a bias of fewer steps is rounded visibly in 16 bits, where no weight says how fine steps have to be
FINE = 1 << 24  # where the bias of such a dead channel ends up: 15 bits are left of it on bernoulli2


def strengthen(rw: Rewriter, op: Op, x: Value, weight: Value, bias: Value | None, addend: Value | None = None) -> Value:
    """`weight`, or integers of a larger scale for the channels whose bias or addend does not fit an i32 accumulator.

    A pruned or dead channel keeps a tiny scale (1e-20, say), so that bias / (s_in · s_w) passes 2^31 and would be cut
    off. With a scale 2^k larger its weights lose k bits, which is far below a step of any result that such a bias does
    not saturate. A dead channel with a large scale (1, as some quantisers write) gets a smaller one: its bias would be
    rounded to steps coarser than the result's.
    """
    axis = 1 if isinstance(op, ops.ConvTranspose2d) else 0
    biases = _biases(bias, addend)
    if biases is None or (axis == 1 and op.attrs["group"] != 1):
        return weight
    quant, ints = weight.type.quant, const_value(weight)
    assert quant is not None
    assert ints is not None
    assert x.type.quant is not None
    channels = weight.type.shape[axis]
    scale = np.resize(np.asarray(quant.scale, np.float64), channels)
    zero = np.resize(np.asarray(quant.zero_point, np.int64), channels)
    sums = np.abs(np.moveaxis(ints, axis, -1) - zero).reshape(-1, channels).sum(axis=0)
    added = 0.0 if addend is None else reach_of(addend.type)
    enough = _largest_result(op) + sums * scale * reach_of(x.type) + added  # a larger bias saturates all the same
    steps = (np.minimum(biases, enough) + added) / (x.type.quant.scale[0] * scale)
    weak = steps > numerics.I32_MAX - ROOM
    coarse = (sums == 0) & (steps > 0) & (steps < COARSE)
    if not (weak | coarse).any():
        return weight
    target = np.where(weak, TARGET, FINE)
    bits = np.ceil(np.log2(steps / target, where=weak | coarse, out=np.zeros(channels)))
    return _rescaled(rw, weight, ints, np.exp2(np.maximum(bits, LEAST)), scale, axis)


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


def _biases(bias: Value | None, addend: Value | None) -> np.ndarray | None:
    """The |bias| of each channel (or of all) in reals.

    None where nothing can be too large: integers in accumulator steps fit by what they are.
    """
    value = const_value(bias)
    if bias is None or value is None:
        return None if addend is None else np.zeros(1)
    if bias.type.dtype is DType.F32:
        return np.abs(value.astype(np.float64))
    return None if addend is None or bias.type.quant is None else np.abs(value * np.asarray(bias.type.quant.scale))


def _largest_result(op: Op) -> float:
    """The largest |real| that any quantisation of `op`'s result holds."""
    types = [user.out.type for user in op.results[0].users if isinstance(user, ops.Quantize)]
    return max((reach_of(t) for t in types if t.quant is not None and t.quant.is_per_tensor), default=math.inf)
