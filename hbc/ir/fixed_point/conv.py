"""Convolutions, linear layers and matrix products in integers (NUMERICS 3 to 6)."""

from __future__ import annotations

import numpy as np

from hbc_runtime import isa, numerics
from hbc_runtime.isa import Scheme

from ..core import Value
from ..ops.conv import Conv2d, ConvTranspose2d, Linear, Matmul
from ..ops.misc import BatchNorm
from ..semantics import Semantics
from ..types import DType, TensorType
from .core import NHWC, Arrays, Fixed, Ref, View, pair, signed
from .params import (
    Parameters,
    choose_scheme,
    is_integral_accumulator,
    multipliers,
    quant_of,
    result_fields,
    scalar_scale,
    scalar_zero_point,
    shared,
)


def centred_weight(w: np.ndarray, t: TensorType, axis: int) -> np.ndarray:
    """weight − zero point as i8 where it fits, else i16 (D1); `axis` is where per-channel zero points run."""
    q = quant_of(t)
    zp = np.asarray(q.zero_point, np.int64)
    if q.axis is not None:
        zp = zp.reshape([-1 if i == axis else 1 for i in range(w.ndim)])
    centred = w.astype(np.int64) - zp
    fits = centred.size == 0 or (centred.min() >= -128 and centred.max() <= 127)
    return centred.astype(np.int8 if fits else np.int16)


def accumulator_scale(x: TensorType, w: TensorType, channels: int) -> np.ndarray:
    """s_in · s_w per output channel, in float64 from the model's float32 scales."""
    scale = scalar_scale(x) * np.asarray(quant_of(w).scale, np.float64)
    return np.resize(scale, channels) if len(scale) != channels else scale


def accumulator_bias(bias: Value | None, value: np.ndarray | None, acc_scale: np.ndarray) -> np.ndarray:
    """The bias in accumulator steps, int64, zero where there is none.

    Integers already in these steps are kept as they are.
    """
    if bias is None or value is None:
        return np.zeros(len(acc_scale), np.int64)
    if bias.type.dtype is DType.I32:
        q = bias.type.quant
        if q is None:
            return value.astype(np.int64)
        scale = np.asarray(q.scale, np.float32)
        if not any(q.zero_point) and np.array_equal(acc_scale.astype(np.float32), np.resize(scale, len(acc_scale))):
            return value.astype(np.int64)
        value = numerics.dequantize(value, scale, np.asarray(q.zero_point))
    return numerics.bias_to_accumulator(value, acc_scale)


def stored_bias(bias: np.ndarray, sem: Semantics) -> np.ndarray:
    """What the march keeps of a bias: i32, or on bernoulli2 an i16 value with a left shift."""
    if sem.bias_is_16_bit:
        stored, shift = numerics.bias_b_scale(bias)
        bias = stored << shift
    return np.clip(bias, numerics.I32_MIN, numerics.I32_MAX).astype(np.int32)


def onnx_ratio(x: TensorType, w: TensorType, out: TensorType, channels: int) -> np.ndarray:
    """s_in · s_w / s_out step by step in float32, as ONNX Runtime's QLinear kernels round it."""
    scale = np.float32(scalar_scale(x)) * np.asarray(quant_of(w).scale, np.float32)
    return np.resize(scale / np.float32(scalar_scale(out)), channels)


def _epilogue(
    x: TensorType, w: TensorType, out: TensorType, channels: int, sem: Semantics
) -> tuple[Scheme, Parameters, np.ndarray]:
    """(scheme, parameters, rounding terms) of a weighted op."""
    acc_scale = accumulator_scale(x, w, channels)
    if is_integral_accumulator(acc_scale, out):
        return Scheme.NONE, (None, None, None), np.zeros(channels, np.int64)
    scheme = choose_scheme(out, sem, bias=True)
    ratio = onnx_ratio(x, w, out, channels) if scheme is Scheme.FLOAT else acc_scale / scalar_scale(out)
    params, rounding = multipliers(ratio, scheme, scalar_zero_point(out))
    return scheme, shared(params), rounding


def _addend(
    addend: Value | None, ref: Ref, acc_scale: np.ndarray, out: TensorType, scheme: Scheme
) -> tuple[tuple[Ref | np.ndarray | None, ...], dict[str, object]]:
    """The fused second operand (D5): operands and attributes."""
    if addend is None:
        return (None, None, None), {}
    t = signed(addend.type)
    fields: dict[str, object] = {"addend_zero_point": scalar_zero_point(t)}
    if scheme is Scheme.FLOAT:
        ratio = np.float32(scalar_scale(t)) / np.float32(scalar_scale(out))
        return (ref, np.array([ratio], np.float32), None), fields
    rows = [numerics.addend_params(float(scalar_scale(t) / s)) if s > 0 else (0, 0) for s in acc_scale]
    mult, shift, _ = shared((np.array([r[0] for r in rows], np.int16), np.array([r[1] for r in rows], np.int8), None))
    return (ref, mult, shift), fields


def conv2d(op: Conv2d, sem: Semantics, arrays: Arrays) -> Fixed:
    """conv2d → Conv2d in NHWC: zero point of x folded into the bias, padding with it."""
    x, w, out = signed(op.x.type), op.weight.type, signed(op.out.type)
    weight = _constant(arrays[1])
    channels = weight.shape[0]
    ints = centred_weight(weight, w, 0).transpose(0, 2, 3, 1)
    return _weighted(
        op, sem, arrays, x, out, ints, channels, View.NHWC,
        strides=op.strides, pads=op.pads, dilations=op.dilations, group=op.group, pad_value=scalar_zero_point(x),
    )  # fmt: skip


def linear(op: Linear, sem: Semantics, arrays: Arrays) -> Fixed:
    """linear → a 1×1 Conv2d over rows."""
    ints = centred_weight(_constant(arrays[1]), op.weight.type, 0)[:, None, None, :]
    x, out = signed(op.x.type), signed(op.out.type)
    return _weighted(op, sem, arrays, x, out, ints, len(ints), View.ROWS, pad_value=scalar_zero_point(x))


def _weighted(
    op: Conv2d | Linear,
    sem: Semantics,
    arrays: Arrays,
    x: TensorType,
    out: TensorType,
    ints: np.ndarray,
    channels: int,
    view: View,
    **fields: object,
) -> Fixed:
    acc_scale = accumulator_scale(x, op.weight.type, channels)
    scheme, params, rounding = _epilogue(x, op.weight.type, out, channels, sem)
    column_sums = ints.astype(np.int64).sum(axis=(1, 2, 3))
    bias = accumulator_bias(op.bias, arrays[2], acc_scale) - scalar_zero_point(x) * column_sums + rounding
    addend, more = _addend(op.addend, Ref(3, view), acc_scale, out, scheme)
    fields |= result_fields(out, scheme, op.clip) | more
    return Fixed(isa.Conv2d, (Ref(0, view), ints, stored_bias(bias, sem), *params, *addend), fields, Ref(0, view))


def conv_transpose2d(op: ConvTranspose2d, sem: Semantics, arrays: Arrays) -> Fixed:
    """conv_transpose2d → ConvTranspose2d in NHWC with output-channel-major weights."""
    x, out = signed(op.x.type), signed(op.out.type)
    weight = _constant(arrays[1])
    c, og, kh, kw = weight.shape
    g, channels = op.group, og * op.group
    ints = centred_weight(weight, op.weight.type, 1)
    ints = ints.reshape(g, c // g, og, kh, kw).transpose(0, 2, 3, 4, 1).reshape(channels, kh, kw, c // g)
    scheme, params, rounding = _epilogue(x, op.weight.type, out, channels, sem)
    bias = accumulator_bias(op.bias, arrays[2], accumulator_scale(x, op.weight.type, channels)) + rounding
    fields: dict[str, object] = {
        "strides": op.strides, "pads": op.pads, "dilations": op.dilations, "output_padding": op.output_padding,
        "group": g, "x_zero_point": scalar_zero_point(x),
    }  # fmt: skip
    fields |= result_fields(out, scheme, op.clip)
    return Fixed(isa.ConvTranspose2d, (NHWC, ints, stored_bias(bias, sem), *params), fields, NHWC)


_BATCH_NORM_OFFSET = 1 << 30  # accumulator steps that an offset may take: as many again are left for x


def batch_norm(op: BatchNorm, sem: Semantics, arrays: Arrays) -> Fixed:
    """batch_norm → a depthwise 1×1 Conv2d.

    Its weights are ±127 and its scales carry the multiplier, as the vendor does for averages; smaller ones, or 0, where
    the offset would leave 32 bits in steps so fine.
    """
    x, out = signed(op.x.type), signed(op.out.type)
    factor, offset = (_constant(a).astype(np.float64) for a in arrays[1:3])
    channels = len(factor)
    steps = scalar_scale(x) * np.abs(factor)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # of offsets that are 0
        weight = np.where(offset != 0, np.floor(_BATCH_NORM_OFFSET * steps / np.abs(offset)), 127).clip(0, 127)
    ints = (weight * np.sign(factor)).astype(np.int8).reshape(channels, 1, 1, 1)
    acc_scale = np.where(weight > 0, steps / np.maximum(weight, 1), 0.0)
    scheme = choose_scheme(out, sem, bias=True)
    params, rounding = multipliers(acc_scale / scalar_scale(out), scheme, scalar_zero_point(out))
    steps = np.where(acc_scale > 0, acc_scale, scalar_scale(out) / 2**15)  # a zero multiplier leaves the offset alone
    bias = numerics.bias_to_accumulator(offset, steps)
    bias = bias - scalar_zero_point(x) * ints.astype(np.int64).sum(axis=(1, 2, 3)) + rounding
    if np.any(acc_scale == 0):
        params, bias = _constant_channels(params, bias, acc_scale == 0, scheme, scalar_zero_point(out))
    fields: dict[str, object] = {"group": channels, "pad_value": scalar_zero_point(x)}
    fields |= result_fields(out, scheme, op.clip)
    operands = (NHWC, ints, stored_bias(bias, sem), *shared(params), None, None, None)
    return Fixed(isa.Conv2d, operands, fields, NHWC)


def _constant_channels(
    params: Parameters, bias: np.ndarray, dead: np.ndarray, scheme: Scheme, zero_point: int
) -> tuple[Parameters, np.ndarray]:
    """Channels whose factor is 0: weights are 0, the bias alone (in steps of s_out/2^15) gives the value."""
    one, rounding = multipliers(np.array([2.0**-15]), scheme, zero_point)

    def cut(p: np.ndarray | None, o: np.ndarray | None) -> np.ndarray | None:
        return None if p is None or o is None else np.where(dead, o[0], p).astype(p.dtype)

    mult, pre, post = map(cut, params, one)
    return (mult, pre, post), np.where(dead, bias + rounding[0], bias)


def matmul(op: Matmul, sem: Semantics, arrays: Arrays) -> Fixed:
    """matmul → Matmul, form B (NUMERICS 4); a constant right side may have a scale per column."""
    a, b, out = signed(op.lhs.type), signed(op.rhs.type), signed(op.out.type)
    scheme = choose_scheme(out, sem, bias=False)
    columns = len(quant_of(b).scale)
    acc_scale = accumulator_scale(a, b, columns)
    params: Parameters = (None, None, None)
    if is_integral_accumulator(acc_scale, out):
        scheme = Scheme.NONE
    else:
        ratio = onnx_ratio(a, b, out, columns) if scheme is Scheme.FLOAT else acc_scale / scalar_scale(out)
        params = shared(multipliers(ratio, scheme, scalar_zero_point(out))[0])
    fields: dict[str, object] = {"lhs_zero_point": scalar_zero_point(a), "rhs_zero_point": quant_of(b).zero_point[0]}
    fields |= result_fields(out, scheme, op.clip)
    return Fixed(isa.Matmul, (*pair(op), None, *params), fields, Ref(0, View.RESHAPE, op.out.type.shape))


def _constant(x: np.ndarray | None) -> np.ndarray:
    if x is None:
        msg = "a weighted op needs constant weights"
        raise LookupError(msg)
    return x
