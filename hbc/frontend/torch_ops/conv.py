"""Convolutions and matrix products."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, Conv2d, ConvTranspose2d, Linear, Mul, ReduceSum, Reshape

from ..onnx_ops.conv import multiply
from ..onnx_ops.window import Window
from ..onnx_weights import is_weight, require_finite, reshaped, transposed
from ..torch_node import Results, TorchNode
from .registry import torch_op
from .volume import convolved_volume, transposed_volume


@torch_op("aten::_convolution", "aten::convolution")
def convolution(n: TorchNode) -> Results:
    """Any convolution of 1 to 3 spatial axes, transposed or not; of 3 in reals on the CPU."""
    rank = len(n.shape("weight")) - 2
    pads = n.ints("padding", rank)
    if n.arg("transposed"):
        return transposed_conv(n, n.real("input"), n.real("weight"), bias_of(n), pads, n.ints("output_padding", rank))
    return convolved(n, n.real("input"), n.real("weight"), bias_of(n), pads)


@torch_op("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::_convolution_mode")
def conv(n: TorchNode) -> Results:
    """conv1d to conv3d; their padding may be `same` or `valid`. 3-D ones of reals run on the CPU."""
    rank = len(n.shape("weight")) - 2
    padding = n.arg("padding")
    pads = _named_pads(n, padding, rank) if isinstance(padding, str) else n.ints("padding", rank)
    return convolved(n, n.real("input"), n.real("weight"), bias_of(n), pads)


@torch_op("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")
def conv_transpose(n: TorchNode) -> Results:
    """conv_transpose1d to conv_transpose3d; 3-D ones of reals run on the CPU."""
    rank = len(n.shape("weight")) - 2
    extra = n.ints("output_padding", rank)
    return transposed_conv(n, n.real("input"), n.real("weight"), bias_of(n), n.ints("padding", rank), extra)


def bias_of(n: TorchNode) -> Value | None:
    """The operand `bias`, where there is one."""
    return n.real("bias") if n.has("bias") else None


def _named_pads(n: TorchNode, padding: str, rank: int) -> tuple[int, ...]:
    """Begins and ends of `same` (the odd one goes to the end) and `valid`."""
    if padding == "valid":
        return (0,) * rank
    kernel, dilations = n.shape("weight")[2:], n.ints("dilation", rank)
    totals = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    return (*(t // 2 for t in totals), *(t - t // 2 for t in totals))


def convolved(n: TorchNode, x: Value, weight: Value, bias: Value | None, pads: tuple[int, ...]) -> Value:
    """conv2d by the node's stride, dilation and groups; `pads`: one per axis, or begins, then ends."""
    require_finite(n, weight, bias)
    rank = weight.type.rank - 2
    pads = pads if len(pads) == 2 * rank else (*pads, *pads)
    strides, dilations = n.ints("stride", rank), n.ints("dilation", rank)
    x, batched = _batched(n, x, rank)
    if rank == 3:
        w = Window(weight.type.shape[2:], strides, pads, dilations)
        return _as_result(n, convolved_volume(n, x, weight, bias, w, n.integer("groups", 1)), rank, batched)
    if rank == 1:
        x, weight = _lifted(n, x), _lifted(n, weight)
        strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
    y = n.op(Conv2d, x, weight, bias, strides=strides, pads=pads, dilations=dilations, group=n.integer("groups", 1))
    return _as_result(n, y, rank, batched)


def transposed_conv(
    n: TorchNode, x: Value, weight: Value, bias: Value | None, pads: tuple[int, ...], extra: tuple[int, ...]
) -> Value:
    """conv_transpose2d by the node's stride, dilation and groups."""
    require_finite(n, weight, bias)
    rank = weight.type.rank - 2
    strides, dilations = n.ints("stride", rank), n.ints("dilation", rank)
    pads, extra = (*pads, *pads), extra or (0,) * rank
    x, batched = _batched(n, x, rank)
    if rank == 3:
        w = Window(weight.type.shape[2:], strides, pads, dilations)
        return _as_result(n, transposed_volume(n, x, weight, bias, w, extra, n.integer("groups", 1)), rank, batched)
    if rank == 1:
        x, weight = _lifted(n, x), _lifted(n, weight)
        strides, dilations, pads, extra = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1]), (0, *extra)
    y = n.op(
        ConvTranspose2d, x, weight, bias,
        strides=strides, pads=pads, dilations=dilations, output_padding=extra, group=n.integer("groups", 1),
    )  # fmt: skip
    return _as_result(n, y, rank, batched)


def _batched(n: TorchNode, x: Value, rank: int) -> tuple[Value, bool]:
    """[C,…] as [1,C,…]."""
    if x.type.rank == rank + 2:
        return x, True
    return reshaped(n, x, (1, *x.type.shape)), False


def _lifted(n: TorchNode, value: Value) -> Value:
    """[A,B,L] → [A,B,1,L]."""
    a, b, size = value.type.shape
    return reshaped(n, value, (a, b, 1, size))


def _as_result(n: TorchNode, y: Value, rank: int, batched: bool) -> Value:  # noqa: FBT001
    if rank > 1 and batched:
        return y
    return n.op(Reshape, y, shape=n.result.shape)


@torch_op("aten::linear")
def linear(n: TorchNode) -> Results:
    """x · weightᵀ + bias."""
    return weighted(n, n.real(0), n.real("weight"), bias_of(n))


def weighted(n: TorchNode, x: Value, weight: Value, bias: Value | None) -> Value:
    """linear where the weight is one, else a matmul and an add."""
    require_finite(n, weight, bias)
    if is_weight(weight) and weight.type.rank == 2 and (bias is None or bias.type.rank == 1):
        return n.op(Linear, x, weight, bias)
    order = (*range(weight.type.rank - 2), weight.type.rank - 1, weight.type.rank - 2)
    y = multiply(n, x, transposed(n, weight, order))
    return y if bias is None else n.op(Add, y, bias)


@torch_op("aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "quantized::matmul")
def matmul(n: TorchNode) -> Results:
    """A matrix product by NumPy's rules; with a weight it is linear."""
    return multiply(n, n.real(0), n.real(1))


@torch_op("aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::addmv")
def add_product(n: TorchNode) -> Results:
    """beta·self + alpha·(mat1 · mat2), summed over the batch by addbmm."""
    beta, alpha = n.number("beta", 1.0), n.number("alpha", 1.0)
    bias, a, b = n.real(0), n.real(1), n.real(2)
    if (beta, alpha) == (1.0, 1.0) and is_weight(b) and b.type.rank == 2 and bias.type.shape == b.type.shape[1:]:
        return n.op(Linear, a, transposed(n, b, (1, 0)), bias)
    y = multiply(n, a, b)
    y = _times(n, n.op(ReduceSum, y, axes=(0,), keepdims=False) if n.word == "addbmm" else y, alpha)
    return y if beta == 0 else n.op(Add, y, _times(n, bias, beta))


def _times(n: TorchNode, x: Value, factor: float) -> Value:
    return x if factor == 1.0 else n.op(Mul, x, n.const(np.float32(factor)))


@torch_op("aten::bilinear")
def bilinear(n: TorchNode) -> Results:
    """y[k] = Σ x1[i] · weight[k, i, j] · x2[j] + bias: a product with the weight, then one with x2."""
    x, other, weight = n.real(0), n.real(1), n.real("weight")
    k, i, j = weight.type.shape
    lead = x.type.shape[:-1]
    flat = reshaped(n, transposed(n, weight, (0, 2, 1)), (k * j, i))
    rows = reshaped(n, weighted(n, x, flat, None), (*lead, k, j))
    y = n.op(Mul, rows, reshaped(n, other, (*lead, 1, j)))
    y = n.op(ReduceSum, y, axes=(len(lead) + 1,), keepdims=False)
    bias = bias_of(n)
    return y if bias is None else n.op(Add, y, bias)
