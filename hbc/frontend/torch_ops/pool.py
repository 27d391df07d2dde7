"""Pooling over windows and over parts of planes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import AvgPool, Linear, MaxPool, Pool, Reshape

from ..onnx_weights import reshaped, transposed
from ..torch_node import Results, TorchNode
from .registry import torch_op


@torch_op("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool2d_with_indices", "aten::max_pool1d_with_indices",
          "aten::quantized_max_pool2d")  # fmt: skip
def max_pool(n: TorchNode) -> Results:
    """The largest value of each window; its place isn't told."""
    y = _pooled(n, MaxPool, n.ints("dilation", _rank(n)))
    return [y, *[None] * (len(n.record.results) - 1)]


@torch_op("aten::avg_pool1d", "aten::avg_pool2d")
def avg_pool(n: TorchNode) -> Results:
    """The mean of each window; padded positions count unless told otherwise."""
    if n.has("divisor_override"):
        raise n.refuse("its divisor is given", "multiply by a constant instead of divisor_override")
    return _pooled(n, AvgPool, (1,) * _rank(n), count_include_pad=n.flag("count_include_pad", default=True))


def _rank(n: TorchNode) -> int:
    return 1 if "1d" in n.word else 2


def _pooled(n: TorchNode, cls: type[Pool], dilations: tuple[int, ...], **attrs: bool) -> Value:
    rank = _rank(n)
    kernel = n.ints("kernel_size", rank)
    strides, pads = n.ints("stride", rank) or kernel, n.ints("padding", rank) or (0,) * rank
    x = _plane(n, n.real(), rank)
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
          "aten::mkldnn_adaptive_avg_pool2d")  # fmt: skip
def adaptive_avg_pool(n: TorchNode) -> Results:
    """Even parts → avg_pool; parts of different sizes → a product with the shares."""
    rank = _rank(n)
    x = _plane(n, n.real(), rank)
    out = (*((1,) if rank == 1 else ()), *n.result.shape[-rank:])
    parts = [_parts(size, count) for size, count in zip(x.type.shape[2:], out, strict=True)]
    if all(_even(p) for p in parts):
        y = _even_pool(n, AvgPool, x, parts)
    else:
        y = x
        for order in (None, (0, 1, 3, 2)):  # along W, then along H
            y = y if order is None else transposed(n, y, order)
            axis = parts[1] if order is None else parts[0]
            y = n.op(Linear, y, n.const(_shares(axis)))
        y = transposed(n, y, (0, 1, 3, 2))
    return y if y.type.shape == n.result.shape else n.op(Reshape, y, shape=n.result.shape)


@torch_op("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d")
def adaptive_max_pool(n: TorchNode) -> Results:
    """Even parts → max_pool."""
    rank = _rank(n)
    x = _plane(n, n.real(), rank)
    out = (*((1,) if rank == 1 else ()), *n.result.shape[-rank:])
    parts = [_parts(size, count) for size, count in zip(x.type.shape[2:], out, strict=True)]
    if not all(_even(p) for p in parts):
        raise n.refuse(f"{x.type.shape[2:]} doesn't divide into {out}", "resize to a multiple first")
    y = _even_pool(n, MaxPool, x, parts)
    y = y if y.type.shape == n.result.shape else n.op(Reshape, y, shape=n.result.shape)
    return [y, *[None] * (len(n.record.results) - 1)]


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
