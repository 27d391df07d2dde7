"""ONNX forms of the ops that move elements, change their type, or stand between reals and integers."""

from __future__ import annotations

import numpy as np

from hbc.ir.ops import (
    Cast,
    Concat,
    Const,
    Dequantize,
    Expand,
    FlipSign,
    Gather,
    GridSample,
    Lut,
    Pad,
    Quantize,
    Reinterpret,
    Reshape,
    ResizeLinear,
    ResizeNearest,
    Slice,
    Transpose,
)  # fmt: skip
from hbc.ir.ops.quant import quant_arrays
from hbc.ir.types import DType

from .emitter import EmitRules, Emitter

RULES = EmitRules()
_FAR = -(1 << 62)  # an end before the first element, for slices that walk down to it


@RULES(Const)
def const(e: Emitter, op: Const) -> str:
    return e.const(op.value)


@RULES(Reshape)
def reshape(e: Emitter, op: Reshape) -> str:
    return e.reshape(e.tensor(op.x), op.shape)


@RULES(Transpose)
def transpose(e: Emitter, op: Transpose) -> str:
    return e.node("Transpose", e.tensor(op.x), perm=op.perm)


@RULES(Slice)
def slice_(e: Emitter, op: Slice) -> str:
    """Bounds as operands since opset 10; before, where steps had no place, strided axes are gathered."""
    shape, x = op.x.type.shape, e.tensor(op.x)
    axes = [i for i, d in enumerate(shape) if (op.starts[i], op.sizes[i], op.steps[i]) != (0, d, 1)]
    if not axes:
        return e.node("Identity", x)
    if e.opset < 10:
        for i in axes:
            x = e.node("Gather", x, e.ints([op.starts[i] + k * op.steps[i] for k in range(op.sizes[i])]), axis=i)
        return x
    ends = []
    for i in axes:
        last = op.starts[i] + (op.sizes[i] - 1) * op.steps[i]
        end = last + (1 if op.steps[i] > 0 else -1)
        ends.append(op.starts[i] if op.sizes[i] == 0 else end if end >= 0 else _FAR)
    starts, steps = [op.starts[i] for i in axes], [op.steps[i] for i in axes]
    return e.node("Slice", x, e.ints(starts), e.ints(ends), e.ints(axes), e.ints(steps))


@RULES(Pad)
def pad(e: Emitter, op: Pad) -> str:
    dtype, x = op.x.type.dtype, e.tensor(op.x)
    if e.opset < 11:
        if dtype is not DType.F32:
            raise e.error(f"before opset 11 Pad takes floats only, here {dtype.text}")
        return e.node("Pad", x, pads=op.pads, value=float(op.value))
    wide = DType.I32 if dtype in {DType.I16, DType.U16} else dtype
    x = x if wide is dtype else e.cast(x, wide)
    y = e.node("Pad", x, e.ints(op.pads), e.const(np.asarray(op.fill, wide.numpy)))
    return y if wide is dtype else e.cast(y, dtype)


@RULES(Expand)
def expand(e: Emitter, op: Expand) -> str:
    return e.node("Expand", e.tensor(op.x), e.ints(op.shape))


@RULES(Gather)
def gather(e: Emitter, op: Gather) -> str:
    return e.node("Gather", e.tensor(op.x), e.ints(op.indices), axis=op.axis)


@RULES(Concat)
def concat(e: Emitter, op: Concat) -> str:
    return e.node("Concat", *(e.tensor(x) for x in op.xs), axis=op.axis)


@RULES(ResizeNearest)
def resize_nearest(e: Emitter, op: ResizeNearest) -> str:
    rows = e.node("Gather", e.tensor(op.x), e.ints(op.rows), axis=2)
    return e.node("Gather", rows, e.ints(op.columns), axis=3)


@RULES(ResizeLinear)
def resize_linear(e: Emitter, op: ResizeLinear) -> str:
    """Both neighbours gathered and blended: exact for every coordinate mode in every opset."""
    y = e.tensor(op.x)
    for i in range(2):
        p = op.positions(i)
        low = np.floor(p).astype(np.int64)
        high = np.minimum(low + 1, op.x.type.shape[2 + i] - 1)
        weight = (p - low).astype(np.float32).reshape((-1, 1) if i == 0 else (-1,))
        below, above = (e.node("Gather", y, e.const(index), axis=2 + i) for index in (low, high))
        y = e.node("Add", e.node("Mul", below, e.const(1 - weight)), e.node("Mul", above, e.const(weight)))
    return y


@RULES(GridSample)
def grid_sample(e: Emitter, op: GridSample) -> str:
    """ONNX's own operator, which came with opset 16 and says `linear` since opset 20."""
    if e.opset < 16:
        raise e.error("GridSample came with opset 16")
    mode = "nearest" if op.nearest else "bilinear" if e.opset < 20 else "linear"
    padding = "border" if op.border else "zeros"
    grid = e.tensor(op.grid)
    if op.pixels:
        gain, offset = op.normalising()
        grid = e.node("Add", e.node("Mul", grid, e.const(gain)), e.const(offset))
    return e.node(
        "GridSample", e.tensor(op.x), grid, mode=mode, padding_mode=padding,
        align_corners=int(op.align_corners),
    )  # fmt: skip


@RULES(Cast)
def cast(e: Emitter, op: Cast) -> str:
    return e.cast(e.tensor(op.x), op.out.type.dtype)


@RULES(Reinterpret)
def reinterpret(e: Emitter, op: Reinterpret) -> str:
    return e.node("Identity", e.tensor(op.x))


@RULES(FlipSign)
def flip_sign(e: Emitter, op: FlipSign) -> str:
    """±128 (±32768) in i32."""
    dtype = op.x.type.dtype
    half = 1 << (8 * dtype.size - 1)
    shifted = e.node("Add", e.cast(e.tensor(op.x), DType.I32), e.const(np.int32(half if dtype.is_signed else -half)))
    return e.cast(shifted, op.out.type.dtype)


@RULES(Lut)
def lut(e: Emitter, op: Lut) -> str:
    """table[x + 128]."""
    index = e.node("Add", e.cast(e.tensor(op.x), DType.I32), e.const(np.int32(128)))
    return e.node("Gather", e.tensor(op.table), index, axis=0)


@RULES(Dequantize)
def dequantize(e: Emitter, op: Dequantize) -> str:
    """f32(q − zero_point) · scale, spelt out: DequantizeLinear takes some dtypes in some opsets only."""
    t = op.x.type
    assert t.quant is not None, op
    scale, zero = quant_arrays(t.quant, t.rank)
    x = e.tensor(op.x)
    if zero.any():
        x = e.node("Sub", e.cast(x, DType.I32), e.const(zero.astype(np.int32)))
    return e.node("Mul", e.cast(x, DType.F32), e.const(scale))


@RULES(Quantize)
def quantize(e: Emitter, op: Quantize) -> str:
    """clip(round(x / scale) + zero_point), spelt out; half to even, as ONNX rounds."""
    t = op.out.type
    assert t.quant is not None, op
    scale, zero = quant_arrays(t.quant, t.rank)
    y = e.node("Round", e.node("Div", e.tensor(op.x), e.const(scale)))
    if zero.any():
        y = e.node("Add", y, e.const(zero.astype(np.float32)))
    lo, hi = op.limits
    if t.dtype.size > 2:  # f32 can't name the largest i32: saturate in f64
        y = e.cast(y, DType.F64)
        y = e.node("Min", e.node("Max", y, e.const(np.float64(lo))), e.const(np.float64(hi)))
        return e.cast(y, t.dtype)
    return e.cast(e.node("Clip", y, e.const(np.float32(lo)), e.const(np.float32(hi))), t.dtype)
