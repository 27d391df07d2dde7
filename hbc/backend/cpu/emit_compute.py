"""ONNX forms of the ops that compute on reals: products, pools, reductions, arithmetic, functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hbc.ir.core import Op
from hbc.ir.ops import (
    PLAIN_UNARY,
    Add,
    AvgPool,
    BatchNorm,
    Binary,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Div,
    Linear,
    Matmul,
    Maximum,
    MaxPool,
    Minimum,
    Mul,
    Pool,
    Pow,
    Reduce,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Sub,
    Unary,
)  # fmt: skip
from hbc.ir.ops.unary import Elu, Gelu, HardSigmoid, HardSwish, LeakyRelu, Selu, Softplus, ThresholdedRelu
from hbc.ir.types import DType

from .emitter import EmitRules, Emitter

RULES = EmitRules()
_NARROW = {DType.I8, DType.U8, DType.I16, DType.U16}  # integers that ONNX Runtime's arithmetic doesn't take


@RULES(Conv2d)
def conv(e: Emitter, op: Conv2d) -> str:
    y = e.node(
        "Conv", e.tensor(op.x), e.tensor(op.weight), e.tensor(op.bias), kernel_shape=op.weight.type.shape[2:],
        strides=op.strides, pads=op.pads, dilations=op.dilations, group=op.group,
    )  # fmt: skip
    return _finished(e, y, op)


@RULES(ConvTranspose2d)
def conv_transpose(e: Emitter, op: ConvTranspose2d) -> str:
    y = e.node(
        "ConvTranspose", e.tensor(op.x), e.tensor(op.weight), e.tensor(op.bias), kernel_shape=op.weight.type.shape[2:],
        strides=op.strides, pads=op.pads, dilations=op.dilations, group=op.group, output_padding=op.output_padding,
    )  # fmt: skip
    return e.clip(y, *op.clip)


@RULES(Linear)
def linear(e: Emitter, op: Linear) -> str:
    if op.x.type.rank == 2 and (op.bias is not None or e.opset >= 11):  # Gemm's bias is optional since opset 11
        return _finished(e, e.node("Gemm", e.tensor(op.x), e.tensor(op.weight), e.tensor(op.bias), transB=1), op)
    y = e.node("MatMul", e.tensor(op.x), e.node("Transpose", e.tensor(op.weight), perm=[1, 0]))
    if op.bias is not None:
        y = e.node("Add", y, e.tensor(op.bias))
    return _finished(e, y, op)


def _finished(e: Emitter, y: str, op: Conv2d | Linear) -> str:
    if op.addend is not None:
        y = e.node("Add", y, e.tensor(op.addend))
    return e.clip(y, *op.clip)


@RULES(Matmul)
def matmul(e: Emitter, op: Matmul) -> str:
    return e.clip(e.node("MatMul", e.tensor(op.lhs), e.tensor(op.rhs)), *op.clip)


@RULES(BatchNorm)
def batch_norm(e: Emitter, op: BatchNorm) -> str:
    shape = [1, -1] + [1] * (op.x.type.rank - 2)
    y = e.node("Mul", e.tensor(op.x), e.reshape(e.tensor(op.multiplier), shape))
    return e.clip(e.node("Add", y, e.reshape(e.tensor(op.offset), shape)), *op.clip)


# ---- elementwise

_BINARY: dict[type[Op], str] = {
    Add: "Add",
    Sub: "Sub",
    Mul: "Mul",
    Div: "Div",
    Pow: "Pow",
    Maximum: "Max",
    Minimum: "Min",
}


@RULES(*_BINARY)
def binary(e: Emitter, op: Binary) -> str:
    """Narrow integers go through i32; the cast back wraps as NumPy's arithmetic does."""
    dtype, operands = op.out.type.dtype, [e.tensor(op.lhs), e.tensor(op.rhs)]
    if dtype in _NARROW:
        operands = [e.cast(x, DType.I32) for x in operands]
    if isinstance(op, (Maximum, Minimum)) and dtype is not DType.F32 and e.opset < 12:
        raise e.error(f"before opset 12 {_BINARY[type(op)]} takes floats only, here {dtype.text}")
    y = e.node(_BINARY[type(op)], *operands)
    if dtype is DType.F32:
        return e.clip(y, *op.clip)
    return e.cast(y, dtype) if dtype in _NARROW else y


@RULES(Clip)
def clip(e: Emitter, op: Clip) -> str:
    dtype, x = op.x.type.dtype, e.tensor(op.x)
    if dtype is DType.F32:
        return e.clip(x, op.low, op.high)
    if not dtype.is_integer or e.opset < 12:
        raise e.error(f"Clip of {dtype.text} needs integers and opset 12")
    lo, hi = dtype.limits
    bounds = [int(np.clip(math.ceil(max(op.low, lo)), lo, hi)), int(np.clip(math.floor(min(op.high, hi)), lo, hi))]
    wide = DType.I32 if dtype in {DType.I16, DType.U16} else dtype
    x = x if wide is dtype else e.cast(x, wide)
    y = e.node("Clip", x, *(e.const(np.asarray(b, wide.numpy)) for b in bounds))
    return y if wide is dtype else e.cast(y, dtype)


# ---- functions of one variable

_ONNX_NAMES = {
    "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal",
    "erf": "Erf", "abs": "Abs", "neg": "Neg", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign",
    "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
    "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "softsign": "Softsign",
}  # fmt: skip
_WITH_ATTRS: dict[type[Op], str] = {
    LeakyRelu: "LeakyRelu", Elu: "Elu", Selu: "Selu", HardSigmoid: "HardSigmoid", ThresholdedRelu: "ThresholdedRelu",
    Softplus: "Softplus",
}  # fmt: skip


@RULES(*(PLAIN_UNARY[name] for name in _ONNX_NAMES))
def plain(e: Emitter, op: Unary) -> str:
    return e.node(_ONNX_NAMES[op.NAME], e.tensor(op.x))


@RULES(*_WITH_ATTRS)
def with_attributes(e: Emitter, op: Unary) -> str:
    attrs: dict[str, Any] = dict(op.attrs)
    return e.node(_WITH_ATTRS[type(op)], e.tensor(op.x), **attrs)


@RULES(PLAIN_UNARY["silu"])
def silu(e: Emitter, op: Unary) -> str:
    x = e.tensor(op.x)
    return e.node("Mul", x, e.node("Sigmoid", x))


@RULES(PLAIN_UNARY["mish"])
def mish(e: Emitter, op: Unary) -> str:
    x = e.tensor(op.x)
    return e.node("Mul", x, e.node("Tanh", e.node("Softplus", x)))


@RULES(HardSwish)
def hard_swish(e: Emitter, op: HardSwish) -> str:
    x = e.tensor(op.x)
    return e.node("Mul", x, e.node("HardSigmoid", x, alpha=1 / 6, beta=0.5))


@RULES(Gelu)
def gelu(e: Emitter, op: Gelu) -> str:
    """½·x·(1 + erf(x/√2)), or the tanh form ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""
    x = e.tensor(op.x)

    def real(v: float) -> str:
        return e.const(np.float32(v))

    if op.tanh:
        cube = e.node("Mul", e.node("Mul", x, x), x)
        inner = e.node("Add", x, e.node("Mul", cube, real(0.044715)))
        gate = e.node("Tanh", e.node("Mul", inner, real(math.sqrt(2 / math.pi))))
    else:
        gate = e.node("Erf", e.node("Mul", x, real(1 / math.sqrt(2))))
    return e.node("Mul", e.node("Mul", x, real(0.5)), e.node("Add", gate, real(1.0)))


# ---- pools and reductions


def _end_pads(e: Emitter, op: Pool) -> tuple[list[int], list[int]]:
    """(pads that give exactly the op's window count, what lies beyond the declared ones): ceil mode made plain."""
    begins, ends, extra = [], [], []
    for i in range(2):
        size, kernel = op.x.type.shape[2 + i], op.dilations[i] * (op.kernel[i] - 1) + 1
        need = (op.out.type.shape[2 + i] - 1) * op.strides[i] + kernel - op.pads[i] - size
        end = max(need, 0)
        if (size + op.pads[i] + end - kernel) // op.strides[i] + 1 != op.out.type.shape[2 + i]:
            raise e.error(f"{op.out.type.shape} windows leave whole strides of the input unread")
        begins.append(op.pads[i])
        ends.append(end)
        extra.append(end - op.pads[2 + i])
    return [*begins, *ends], extra


def _check_dilations(e: Emitter, op: Pool, since: int) -> None:
    if set(op.dilations) != {1} and e.opset < since:
        raise e.error(f"dilated windows of this pool came with opset {since}")


def _padded(e: Emitter, x: str, pads: list[int], value: float) -> str:
    """[N,C,H,W] inside a border of `value`, f32."""
    full = [0, 0, pads[0], pads[1], 0, 0, pads[2], pads[3]]
    if e.opset < 11:
        return e.node("Pad", x, pads=full, value=value)
    return e.node("Pad", x, e.ints(full), e.const(np.float32(value)))


@RULES(MaxPool)
def max_pool(e: Emitter, op: MaxPool) -> str:
    """Integers that ONNX Runtime's kernel lacks go through f32, which holds 24 bits exactly."""
    _check_dilations(e, op, 10)
    dtype, x = op.x.type.dtype, e.tensor(op.x)
    native = dtype is DType.F32 or (dtype in {DType.I8, DType.U8} and e.opset >= 12)
    if not native and dtype not in _NARROW:
        raise e.error(f"MaxPool of {dtype.text} has no kernel")
    x = x if native else e.cast(x, DType.F32)
    pads, _ = _end_pads(e, op)
    if any(p >= k for p, k in zip(pads, (*op.kernel, *op.kernel), strict=True)):  # more than ONNX Runtime takes as pads
        if native and dtype is not DType.F32:
            x, native = e.cast(x, DType.F32), False
        x, pads = _padded(e, x, pads, -math.inf), [0, 0, 0, 0]
    dilations = op.dilations if set(op.dilations) != {1} else None
    y = e.node("MaxPool", x, kernel_shape=op.kernel, strides=op.strides, pads=pads, dilations=dilations)
    return y if native else e.cast(y, dtype)


@RULES(AvgPool)
def avg_pool(e: Emitter, op: AvgPool) -> str:
    """Where windows reach beyond the declared pads, or count them: the sum of a zero-padded input by its counts."""
    _check_dilations(e, op, 19)
    pads, extra = _end_pads(e, op)
    dilations = op.dilations if set(op.dilations) != {1} else None
    plain_ = all(v <= 0 for v in extra) and not (op.count_include_pad and any(pads))
    if plain_ and all(p < k for p, k in zip(pads, (*op.kernel, *op.kernel), strict=True)):
        return e.node(
            "AveragePool", e.tensor(op.x), kernel_shape=op.kernel, strides=op.strides, pads=pads, dilations=dilations
        )
    x = _padded(e, e.tensor(op.x), pads, 0.0) if any(pads) else e.tensor(op.x)
    y = e.node("AveragePool", x, kernel_shape=op.kernel, strides=op.strides, dilations=dilations)
    ratio = math.prod(op.kernel) / op.counts()
    return e.node("Mul", y, e.const(ratio.astype(np.float32)))


_REDUCE: dict[type[Op], tuple[str, int]] = {  # the opset in which `axes` became an operand
    ReduceMean: ("ReduceMean", 18), ReduceSum: ("ReduceSum", 13),
    ReduceMax: ("ReduceMax", 18), ReduceMin: ("ReduceMin", 18),
}  # fmt: skip


@RULES(*_REDUCE)
def reduction(e: Emitter, op: Reduce) -> str:
    name, since = _REDUCE[type(op)]
    dtype, x = op.x.type.dtype, e.tensor(op.x)
    native = dtype in {DType.F32, DType.I32, DType.I64}
    x = x if native else e.cast(x, DType.I32)
    keep = int(op.keepdims)
    y = (
        e.node(name, x, e.ints(op.axes), keepdims=keep)
        if e.opset >= since
        else e.node(name, x, axes=op.axes, keepdims=keep)
    )
    return y if native else e.cast(y, dtype)
