"""Operators of `torch.ao`-converted models: real ops between what their operands and results stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, BatchNorm, Clip, Linear, Mul
from hbc.ir.ops.unary import PLAIN_UNARY, Elu, HardSwish, LeakyRelu
from hbc.ir.types import DType

from ..onnx_quant import dequantized_const
from ..torch_api import require_torch
from ..torch_node import Results, TorchNode, as_array
from ..torch_recorder import quant_of
from .conv import convolved, transposed_conv
from .move import joined
from .registry import torch_op


@dataclass(frozen=True)
class Packed:
    """What a packed parameter holds: a quantised weight, a float bias (torch.Tensors), a convolution's window."""

    weight: Any
    bias: Any
    attrs: dict[str, Any]


def _unpacked(n: TorchNode) -> Packed:
    """The packed parameters of a convolution or a linear layer."""
    ops = require_torch(n.scope.file).ops.quantized
    packed = next(a for a in n.args if hasattr(a, "_type"))
    kind = packed._type().qualified_name()  # noqa: SLF001 - there is no other way to tell them apart
    if "Linear" in kind:
        weight, bias = ops.linear_unpack(packed)
        return Packed(weight, bias, {})
    size = next((s for s in ("1d", "2d", "3d") if s in n.word), "2d")
    conv = "conv_transpose" if n.word.startswith("conv_transpose") else "conv"
    weight, bias = getattr(ops, f"{conv}{size}_unpack")(packed)
    plane = "3d" if size == "3d" else "2d"  # one-dimensional ones are packed as planes, and answer as such
    fields = ["stride", "padding", "dilation", *(["output_padding"] if conv == "conv_transpose" else [])]
    attrs: dict[str, Any] = {f: _last(getattr(ops, f"{conv}{plane}_{f}")(packed), weight.dim() - 2) for f in fields}
    return Packed(weight, bias, attrs | {"groups": getattr(ops, f"{conv}{plane}_groups")(packed)})


def _last(values: Any, count: int) -> tuple[int, ...]:
    return tuple(int(v) for v in values)[-count:]


def _with_window(n: TorchNode, packed: Packed) -> TorchNode:
    """The node with a convolution's window among its arguments, as a float convolution has them."""
    record = n.record
    args = {"qx": n.arg(0), **packed.attrs}
    return TorchNode(
        n.scope, type(record)(record.op, args, record.results, record.node, record.source, call=record.call)
    )


def _weight(n: TorchNode, packed: Packed) -> Value:
    quant = quant_of(packed.weight)
    assert quant is not None, n.record
    return dequantized_const(n, _name(n, "weight"), as_array(packed.weight), quant)


def _bias(n: TorchNode, packed: Packed) -> Value | None:
    return None if packed.bias is None else n.const(as_array(packed.bias).astype(np.float32))


def _name(n: TorchNode, what: str) -> str:
    path, _, _word = n.record.node.rpartition("/")
    return f"{path}.{what}" if path else f"{n.record.node}.{what}"


def _finished(n: TorchNode, y: Value) -> Value:
    """`_relu` in an operator's name: limited below by 0."""
    return n.op(Clip, y, low=0.0, high=math.inf) if "relu" in n.word.split("_") else y


@torch_op("quantized::conv1d", "quantized::conv1d_relu", "quantized::conv2d", "quantized::conv2d_relu",
          "quantized::conv3d", "quantized::conv3d_relu")  # fmt: skip
def conv(n: TorchNode) -> Results:
    """A convolution with packed parameters."""
    packed = _unpacked(n)
    y = convolved(_with_window(n, packed), n.real(0), _weight(n, packed), _bias(n, packed), packed.attrs["padding"])
    return _finished(n, y)


@torch_op("quantized::conv2d_add", "quantized::conv2d_add_relu")
def conv_add(n: TorchNode) -> Results:
    """A convolution and the tensor that is added to it."""
    packed = _unpacked(n)
    y = convolved(_with_window(n, packed), n.real(0), _weight(n, packed), _bias(n, packed), packed.attrs["padding"])
    return _finished(n, n.op(Add, y, n.real(1)))


@torch_op("quantized::conv_transpose1d", "quantized::conv_transpose2d", "quantized::conv_transpose3d")
def conv_transpose(n: TorchNode) -> Results:
    """A transposed convolution with packed parameters."""
    packed = _unpacked(n)
    a = packed.attrs
    weight, bias = _weight(n, packed), _bias(n, packed)
    return transposed_conv(_with_window(n, packed), n.real(0), weight, bias, a["padding"], a["output_padding"])


@torch_op("quantized::linear", "quantized::linear_relu")
def linear(n: TorchNode) -> Results:
    """x · weightᵀ + bias with packed parameters."""
    packed = _unpacked(n)
    return _finished(n, n.op(Linear, n.real(0), _weight(n, packed), _bias(n, packed)))


@torch_op("quantized::linear_tanh", "quantized::linear_leaky_relu")
def linear_with_activation(n: TorchNode) -> Results:
    """A linear layer with what is fused behind it."""
    packed = _unpacked(n)
    y = n.op(Linear, n.real(0), _weight(n, packed), _bias(n, packed))
    return (
        n.op(PLAIN_UNARY["tanh"], y)
        if n.word == "linear_tanh"
        else n.op(LeakyRelu, y, alpha=n.number("negative_slope", 0.01))
    )


@torch_op("quantized::sigmoid")
def sigmoid(n: TorchNode) -> Results:
    """1 / (1 + e⁻ˣ)."""
    return n.op(PLAIN_UNARY["sigmoid"], n.real(0))


@torch_op("quantized::add", "quantized::add_relu", "quantized::add_scalar", "quantized::add_scalar_relu")
def add(n: TorchNode) -> Results:
    """lhs + rhs."""
    return _finished(n, n.op(Add, n.real(0), n.operand(1, DType.F32)))


@torch_op("quantized::mul", "quantized::mul_relu", "quantized::mul_scalar", "quantized::mul_scalar_relu")
def mul(n: TorchNode) -> Results:
    """lhs · rhs."""
    return _finished(n, n.op(Mul, n.real(0), n.operand(1, DType.F32)))


@torch_op("quantized::cat", "quantized::cat_relu")
def cat(n: TorchNode) -> Results:
    """Operands joined, then in the result's scale."""
    return _finished(n, joined(n, n.many(0), n.integer("dim")))


@torch_op("quantized::hardswish")
def hardswish(n: TorchNode) -> Results:
    """x · relu6(x + 3) / 6."""
    return n.op(HardSwish, n.real(0))


@torch_op("quantized::leaky_relu")
def leaky_relu(n: TorchNode) -> Results:
    """x, below 0 times the slope."""
    return n.op(LeakyRelu, n.real(0), alpha=n.number("negative_slope", 0.01))


@torch_op("quantized::elu")
def elu(n: TorchNode) -> Results:
    """x, below 0 alpha·(eˣ − 1)."""
    return n.op(Elu, n.real(0), alpha=n.number("alpha", 1.0))


@torch_op("quantized::relu6")
def relu6(n: TorchNode) -> Results:
    """x in [0, 6]."""
    return n.op(Clip, n.real(0), low=0.0, high=6.0)


@torch_op("quantized::batch_norm1d", "quantized::batch_norm2d", "quantized::batch_norm2d_relu")
def batch_norm(n: TorchNode) -> Results:
    """Inference form, as of reals."""
    mean, variance = n.known("mean").astype(np.float64), n.known("var").astype(np.float64)
    weight = n.known("weight").astype(np.float64) if n.has("weight") else np.ones_like(mean)
    bias = n.known("bias").astype(np.float64) if n.has("bias") else np.zeros_like(mean)
    multiplier = weight / np.sqrt(variance + n.number("eps", 1e-5))
    offset = bias - mean * multiplier
    consts = (n.const(multiplier.astype(np.float32)), n.const(offset.astype(np.float32)))
    return _finished(n, n.op(BatchNorm, n.real(0), *consts))
