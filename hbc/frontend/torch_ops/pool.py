"""Pooling over windows and over parts of planes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import AvgPool, Concat, Linear, MaxPool, Mul, Pool, ReduceMax, ReduceMean, Reshape, Sub
from hbc.ir.types import DType, TensorType

from ..onnx_ops.pick import sliced, taken
from ..onnx_ops.window import Window
from ..onnx_weights import reshaped, transposed
from ..torch_calls import as_index, called, int64
from ..torch_node import Results, TorchNode
from .registry import torch_op
from .volume import pooled_volume

PLACES = "the places of the largest values are read"
MOST_PARTS = 64  # of different sizes along an axis: each is an op of its own


@torch_op("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool2d_with_indices", "aten::max_pool1d_with_indices",
          "aten::quantized_max_pool2d", "aten::max_pool3d", "aten::max_pool3d_with_indices")  # fmt: skip
def max_pool(n: TorchNode) -> Results:
    """The largest value of each window; where its place is read, too, on the CPU."""
    if len(n.record.results) > 1 and n.reads_result(1):
        return _with_places(n)
    y = _pooled(n, MaxPool, n.ints("dilation", _rank(n)))
    return [y, *[None] * (len(n.record.results) - 1)]


def _with_places(n: TorchNode) -> Results:
    """Values and places by one call: PyTorch counts places within a plane, ONNX over the whole tensor."""
    rank = _rank(n)
    kernel = n.ints("kernel_size", rank)
    strides, pads = n.ints("stride", rank) or kernel, n.ints("padding", rank) or (0,) * rank
    x = n.real()
    x = reshaped(n, x, x.type.shape if x.type.rank == rank + 2 else (1, *x.type.shape))
    shape = (*x.type.shape[:2], *n.result.shape[-rank:])
    y, places = called(
        n, "MaxPool", [x], [TensorType(shape, DType.F32), TensorType(shape, DType.I64)], reason=PLACES,
        kernel_shape=kernel, strides=strides, pads=(*pads, *pads), dilations=n.ints("dilation", rank) or (1,) * rank,
        ceil_mode=int(n.flag("ceil_mode")),
    )  # fmt: skip
    count, channels, *plane = x.type.shape
    before = np.arange(count * channels).reshape(count, channels, *(1,) * rank) * math.prod(plane)
    places = n.op(Sub, places, int64(n, before))
    return [reshaped(n, y, n.result.shape), reshaped(n, places, n.result.shape)]


@torch_op("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(n: TorchNode) -> Results:
    """Zeros, with each value at its place: a scatter into every plane."""
    x, places, shape = n.real(0), n.x(1), n.result.shape
    rank = _rank(n)
    planes, whole = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    values = reshaped(n, x, (planes, x.type.elements // planes))
    zeros = n.const(np.zeros((planes, whole), np.float32))
    operands = [zeros, as_index(n, reshaped(n, places, values.type.shape)), values]
    y = called(n, "ScatterElements", operands, [zeros.type], reason="its places are computed at run time", axis=1)[0]
    return reshaped(n, y, shape)


@torch_op("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
def avg_pool(n: TorchNode) -> Results:
    """The mean of each window; padded positions count unless told otherwise. 3-D ones of reals run on the CPU."""
    if not n.has("divisor_override"):
        return _pooled(n, AvgPool, (1,) * _rank(n), count_include_pad=n.flag("count_include_pad", default=True))
    if n.flag("ceil_mode"):
        raise n.refuse("its divisor is given, and its last windows may reach out", "leave out ceil_mode")
    y = _pooled(n, AvgPool, (1,) * _rank(n), count_include_pad=True)
    factor = math.prod(n.ints("kernel_size", _rank(n))) / n.integer("divisor_override")
    return n.op(Mul, y, n.const(np.float32(factor)))


def _rank(n: TorchNode) -> int:
    return next(rank for rank in (1, 2, 3) if f"{rank}d" in n.word)


def _pooled(n: TorchNode, cls: type[Pool], dilations: tuple[int, ...], **attrs: bool) -> Value:
    rank = _rank(n)
    kernel = n.ints("kernel_size", rank)
    strides, pads = n.ints("stride", rank) or kernel, n.ints("padding", rank) or (0,) * rank
    x = _plane(n, n.real(), rank)
    if rank == 3:
        w = Window(kernel, strides, (*pads, *pads), dilations or (1,) * rank)
        y = pooled_volume(n, cls, x, w, include_pad=attrs.get("count_include_pad", True))
        return reshaped(n, y, n.result.shape)
    if rank == 1:
        kernel, strides, pads, dilations = (1, *kernel), (1, *strides), (0, *pads), (1, *dilations)
    shape = (*x.type.shape[:2], *((1,) if rank == 1 else ()), *n.result.shape[-rank:])
    y = n.op(
        cls, x, type=n.typed(shape, x), kernel=kernel, strides=strides, pads=(*pads, *pads), dilations=dilations,
        **attrs,
    )  # fmt: skip
    return y if y.type.shape == n.result.shape else n.op(Reshape, y, shape=n.result.shape)


def _plane(n: TorchNode, x: Value, rank: int) -> Value:
    """x as [N,C,H,W], with H = 1 for one spatial axis, N = 1 for none."""
    shape = x.type.shape if x.type.rank == rank + 2 else (1, *x.type.shape)
    return reshaped(n, x, (*shape[:2], *((1,) if rank == 1 else ()), *shape[2:]))


@torch_op("aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d",
          "aten::mkldnn_adaptive_avg_pool2d", "aten::adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d")  # fmt: skip
def adaptive_avg_pool(n: TorchNode) -> Results:
    """Even parts → avg_pool; parts of different sizes, and of volumes → a product with the shares."""
    rank = _rank(n)
    x, parts = _spread(n, _plane(n, n.real(), rank), rank)
    if rank == 3 and all(len(p) == 1 for p in parts):
        return reshaped(n, n.op(ReduceMean, x, axes=(2, 3, 4), keepdims=True), n.result.shape)
    if rank < 3 and all(_even(p) for p in parts):
        y = _even_pool(n, AvgPool, x, parts)
    else:
        y = x
        for axis in reversed(range(2, x.type.rank)):
            order = tuple({axis: x.type.rank - 1, x.type.rank - 1: axis}.get(i, i) for i in range(x.type.rank))
            y = transposed(n, n.op(Linear, transposed(n, y, order), n.const(_shares(parts[axis - 2]))), order)
    return reshaped(n, y, n.result.shape)


@torch_op("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(n: TorchNode) -> Results:
    """Even parts → max_pool; parts of different sizes, and of volumes → the largest of each slice."""
    rank = _rank(n)
    x, parts = _spread(n, _plane(n, n.real(), rank), rank)
    if rank < 3 and all(_even(p) for p in parts):
        y = _even_pool(n, MaxPool, x, parts)
    else:
        y = x
        for axis, along in enumerate(parts, 2):
            y = _largest_parts(n, y, axis, along)
    return [reshaped(n, y, n.result.shape), *[None] * (len(n.record.results) - 1)]


def _largest_parts(n: TorchNode, x: Value, axis: int, parts: list[tuple[int, int]]) -> Value:
    if len(parts) > MOST_PARTS:
        raise n.refuse(f"it has {len(parts)} parts of different sizes", "resize to a multiple first")
    if all(end - start == 1 for start, end in parts):
        return x
    made = [
        n.op(ReduceMax, sliced(n, x, axis, start, end - start), axes=(axis,), keepdims=True) for start, end in parts
    ]
    return made[0] if len(made) == 1 else n.op(Concat, *made, axis=axis)


def _spread(n: TorchNode, x: Value, rank: int) -> tuple[Value, list[list[tuple[int, int]]]]:
    """x and the parts along its spatial axes; where these are single positions, they are picked at once.

    So it is where a result is larger than its operand: each position stands in several places.
    """
    parts = _all_parts(n, x, rank)
    for i, along in enumerate(parts):
        if len(along) > x.type.shape[2 + i] and all(end - start == 1 for start, end in along):
            x = taken(n, x, 2 + i, [start for start, _ in along])
            parts[i] = [(j, j + 1) for j in range(len(along))]
    return x, parts


def _all_parts(n: TorchNode, x: Value, rank: int) -> list[list[tuple[int, int]]]:
    """The parts along each spatial axis of [N,C,…]."""
    out = (*((1,) if rank == 1 else ()), *n.result.shape[-rank:])
    return [_parts(size, count) for size, count in zip(x.type.shape[2:], out, strict=True)]


def _parts(size: int, count: int) -> list[tuple[int, int]]:
    """(start, end) of each part: from ⌊i·size/count⌋ to ⌈(i + 1)·size/count⌉, as PyTorch divides."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _even(parts: list[tuple[int, int]]) -> bool:
    sizes = {end - start for start, end in parts}
    steps = {b[0] - a[0] for a, b in pairwise(parts)}
    return len(sizes) == 1 and len(steps) <= 1


def _even_pool(n: TorchNode, cls: type[Pool], x: Value, parts: list[list[tuple[int, int]]]) -> Value:
    kernel = tuple(p[0][1] - p[0][0] for p in parts)
    strides = tuple(p[1][0] - p[0][0] if len(p) > 1 else k for p, k in zip(parts, kernel, strict=True))
    return n.op(cls, x, kernel=kernel, strides=strides)


def _shares(parts: list[tuple[int, int]]) -> np.ndarray:
    """[count, size]: 1/length of its part for every position in it."""
    shares = np.zeros((len(parts), parts[-1][1]), np.float32)
    for i, (start, end) in enumerate(parts):
        shares[i, start:end] = 1 / (end - start)
    return shares
