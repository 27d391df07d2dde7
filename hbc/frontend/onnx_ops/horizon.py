"""The vendor's own ONNX (domain `horizon`): calibrated models become float ops between quantize and dequantize,
quantized models become `bpu.*` ops with exactly the integers that the file holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.diagnostics import BadQuantization, NotTaken
from hbc.ir.core import Op, Value
from hbc.ir.define import OP_TABLE
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import isa, numerics

from ..onnx_node import Node, Results
from ..onnx_quant import dequantized, dequantized_const, quantized
from .registry import onnx_op
from .window import read_window

DOMAIN = "horizon"
_BITS = {8: DType.I8, 16: DType.I16}
_QTYPES = {"int8": DType.I8, "int16": DType.I16}


@onnx_op("HzCalibration", domain=DOMAIN)
def calibration(n: Node) -> Results:
    """An activation: quantize and dequantize. A constant: int8 weights by their channels' scales, then dequantize."""
    if n.text("switch", "ON") != "ON":
        n.scope.alias(n.proto.output[0], n.name(0))
        return n.x(0)
    scales = n.floats("scales") or ()
    array = n.scope.array(n.name(0))
    least = 0.0 if array is not None and len(scales) > 1 and max(scales) > 0 else 1e-45  # 0: a channel of zeros
    if not scales or not all(np.isfinite(s) and s >= least for s in scales):
        raise n.fail(
            f"the calibration's scales are {list(scales)[:4]}", hint="calibrate the model again", kind=BadQuantization
        )
    dtype = _QTYPES.get(n.text("qtype", "int8"))
    if dtype is None:
        raise n.fail(
            f"the calibration type {n.text('qtype')!r} isn't taken", hint="calibrate to int8 or int16", kind=NotTaken
        )
    if array is not None and dtype is DType.I8:
        return _weights(n, array, scales)
    if len(scales) != 1:
        raise n.fail(
            f"an activation has {len(scales)} scales", why="the BPU scales activations per tensor", kind=BadQuantization
        )
    quant = Quant.per_tensor(scales[0])
    return dequantized(n, quantized(n, n.x(0), quant, dtype), quant)


def _weights(n: Node, array: np.ndarray, scales: Sequence[float]) -> Value:
    axis = n.integer("axis", 0)
    if not 0 <= axis < max(array.ndim, 1) or len(scales) not in {1, *array.shape[axis : axis + 1]}:
        raise n.fail(
            f"{len(scales)} scales don't fit a constant of shape {list(array.shape)}",
            why=f"axis {axis}",
            kind=BadQuantization,
        )
    shape = [-1 if i == axis else 1 for i in range(array.ndim)] if len(scales) > 1 else []
    usable = np.asarray([s or 1.0 for s in scales], np.float32)
    values = numerics.quantize_weight(array, usable.reshape(shape))
    quant = Quant(tuple(float(np.float32(s)) for s in scales), (0,), axis if len(scales) > 1 else None)
    return dequantized_const(n, n.name(0), np.asarray(values), quant)


@onnx_op("HzQuantize", domain=DOMAIN)
def quantize(n: Node) -> Results:
    """x, y_scale[1] → quantize to 8 or 16 bits."""
    dtype, quant = _BITS.get(n.integer("bits", 8)), _scales(n, 1)
    if dtype is None:
        what = f"a quantisation to {n.integer('bits')} bits isn't taken"
        raise n.fail(what, why="the BPU has 8 and 16 bit activations")
    return quantized(n, n.x(0), quant, dtype)


@onnx_op("HzDequantize", domain=DOMAIN)
def dequantize(n: Node) -> Results:
    """x, x_scale[1|C] → dequantize; the scale is this node's, whatever made x."""
    return dequantized(n, n.x(0), _scales(n, 1))


def _scales(n: Node, index: int) -> Quant:
    array = n.array(index)
    if array is None or array.dtype.kind != "f":
        raise n.fail(
            f"input {index} (the scale) is no float constant", hint="export the model again", kind=BadQuantization
        )
    flat = array.astype(np.float32).reshape(-1)
    if not flat.size or not np.isfinite(flat).all() or flat.min() <= 0:
        raise n.fail(
            f"input {index} (the scale) holds a value that is no positive number",
            hint="calibrate the model again",
            kind=BadQuantization,
        )
    shape, axis = n.x(0).type.shape, n.integer("axis", 1)
    if flat.size == 1:
        return Quant((float(flat[0]),))
    if not -len(shape) <= axis < len(shape) or shape[axis] != flat.size:
        raise n.fail(
            f"{flat.size} scales don't fit a tensor of shape {list(shape)}", why=f"axis {axis}", kind=BadQuantization
        )
    return Quant(tuple(float(s) for s in flat), (0,), axis % len(shape))


@onnx_op("HzSQuantizedConv", domain=DOMAIN)
def quantized_conv(n: Node) -> Results:
    """x [N,H,W,C], weight [O,KH,KW,C/g], bias i32[O], its left shifts i8[O] → bpu.conv2d, form A or the accumulator."""
    if len(n.proto.input) > 4:
        raise n.fail("a fused addition isn't taken yet", why=f"the node has {len(n.proto.input)} inputs", kind=NotTaken)
    _require_nhwc(n)
    x, weight = n.x(0), n.x(1)
    if x.type.rank != 4 or weight.type.rank != 4:
        raise n.fail("input and weight must have rank 4", why=f"{list(x.type.shape)} and {list(weight.type.shape)}")
    w = read_window(n, x.type.shape[1:3], weight.type.shape[1:3])
    channels, relu = weight.type.shape[0], _relu(n)
    dtype = _accumulator_or_i8(n, relu=relu)
    lo, hi = dtype.limits
    size = tuple(
        _count(d, w.kernel[i], w.strides[i], w.pads[i] + w.pads[2 + i], w.dilations[i])
        for i, d in enumerate(x.type.shape[1:3])
    )
    names = (("scale", np.int16), ("right_shift", np.int8), ("out_shift", np.int8))
    wide = dtype is DType.I32
    parameters = [None if wide else _channels(n, name, channels, width) for name, width in names]
    return n.op(
        _instruction("conv2d"),
        x,
        weight,
        _bias(n, channels),
        *parameters,
        type=TensorType((x.type.shape[0], *size, channels), dtype),
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        group=n.integer("group", 1),
        scheme=isa.Scheme.NONE if wide else isa.Scheme.FORM_A,
        clamp_min=0 if relu else lo,
        clamp_max=hi,
    )


def _accumulator_or_i8(n: Node, *, relu: bool) -> DType:
    bits = n.integer("output_bit", 8)
    wide = bits == 32 or bool(n.integer("high_precision_output"))
    if not wide and bits != 8:
        raise n.fail(
            f"an output of {bits} bits isn't taken", why="no file is known that shows its arithmetic", kind=NotTaken
        )
    if wide and relu:
        raise n.fail(
            "a relu on the accumulator isn't taken",
            why="a high-precision output has no fused activation",
            kind=NotTaken,
        )
    return DType.I32 if wide else DType.I8


@onnx_op("HzSQuantizedGlobalAveragePool", domain=DOMAIN)
def quantized_average(n: Node) -> Results:
    """x [N,H,W,C] → bpu.avg_pool over the whole plane, form B; the file's parameters are the same for every channel."""
    _require_nhwc(n)
    x = n.x(0)
    if x.type.rank != 4 or n.integer("output_bit", 8) != 8:
        raise n.fail(
            "this average isn't taken",
            why=f"rank {x.type.rank}, {n.integer('output_bit', 8)} bit output",
            kind=NotTaken,
        )
    if n.text("rounding_method", "ROUND") != "ROUND":
        raise n.fail(f"the rounding method {n.text('rounding_method')!r} isn't taken", hint="use ROUND", kind=NotTaken)
    lo, hi = DType.I8.limits
    batch, h, w, channels = x.type.shape
    names = (("output_scale", np.int16), ("accu_right_shift", np.int8), ("output_right_shift", np.int8))
    return n.op(
        _instruction("avg_pool"), x, *(_channels(n, name, 1, dtype) for name, dtype in names),
        type=TensorType((batch, 1, 1, channels), DType.I8), kernel=(h, w), strides=(1, 1),
        scheme=isa.Scheme.FORM_B, clamp_min=lo, clamp_max=hi,
    )  # fmt: skip


def _instruction(name: str) -> type[Op]:
    return OP_TABLE[f"bpu.{name}"]


def _count(size: int, kernel: int, stride: int, pads: int, dilation: int) -> int:
    return (size + pads - dilation * (kernel - 1) - 1) // stride + 1


def _relu(n: Node) -> bool:
    activation = n.text("activation", "")
    if activation not in {"", "relu"}:
        raise n.fail(
            f"the fused activation {activation!r} isn't taken",
            hint="export the calibrated model instead",
            kind=NotTaken,
        )
    return activation == "relu"


def _require_nhwc(n: Node) -> None:
    if n.text("data_format", "NHWC") != "NHWC":
        raise n.fail(
            f"the data format {n.text('data_format')!r} isn't taken", why="quantized models are NHWC", kind=NotTaken
        )


def _channels(n: Node, name: str, channels: int, dtype: type[np.integer]) -> Value:
    """A per-channel attribute as a constant; with one channel asked for, all entries must be the same."""
    values = n.ints(name)
    if values is None:
        raise n.fail(f"attribute {name!r} is missing", hint="export the model again")
    info = np.iinfo(dtype)
    if min(values, default=0) < info.min or max(values, default=0) > info.max:
        raise n.fail(f"attribute {name!r} holds a value beyond {info.dtype}", hint="export the model again")
    if channels == 1 and len(set(values)) > 1:
        raise n.fail(f"attribute {name!r} differs between channels", why="an average has one multiplier")
    array = np.asarray(values[:1] if channels == 1 else values, dtype)
    if array.size != channels:
        raise n.fail(
            f"attribute {name!r} has {array.size} entries for {channels} channels", hint="export the model again"
        )
    return n.const(array)


def _bias(n: Node, channels: int) -> Value | None:
    """bias << b_scale, as the accumulator adds it."""
    if not n.has(2) or not n.integer("use_bias", 1):
        return None
    stored, shift = n.array(2), n.array(3) if n.has(3) else np.zeros(1, np.int64)
    if stored is None or shift is None or stored.shape != (channels,) or shift.size not in {1, channels}:
        raise n.fail("the bias and its shifts don't fit the weight", why=f"{channels} output channels")
    wide = stored.astype(np.int64) << np.clip(shift.astype(np.int64).reshape(-1), 0, 31)
    if np.abs(wide).max(initial=0) >= 1 << 31:
        raise n.fail("a shifted bias is beyond 32 bits", hint="export the model again")
    return n.const(wide.astype(np.int32))
