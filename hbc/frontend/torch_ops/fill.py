"""Numbers written over a tensor, triangles cut out of one, and running sums."""

from __future__ import annotations

import numpy as np

from hbc.ir.ops import Linear, Where

from ..onnx_weights import transposed
from ..torch_calls import call_like
from ..torch_node import Results, TorchNode
from .registry import torch_op

LONGEST = 1 << 12  # of an axis that is summed up: the product has a matrix of its square


@torch_op("aten::fill", "aten::zero")
def fill(n: TorchNode) -> Results:
    """One number everywhere."""
    value = n.known(1).reshape(-1)[0] if n.word == "fill" else 0
    return n.const(np.full(n.result.shape, value, n.dtype.numpy))


@torch_op("aten::tril", "aten::triu")
def triangle(n: TorchNode) -> Results:
    """What is on and below a diagonal, or on and above it; zeros elsewhere."""
    mask = (np.tril if n.word == "tril" else np.triu)(np.ones(n.result.shape[-2:], np.bool_), n.integer("diagonal"))
    return n.op(Where, n.const(mask), n.cast(n.x(0), n.dtype), n.const(np.zeros((), n.dtype.numpy)))


@torch_op("aten::cumsum")
def cumsum(n: TorchNode) -> Results:
    """Running sums along an axis: a product with a triangle of ones; of integers on the CPU."""
    if not n.shape():
        return n.cast(n.x(), n.dtype)
    axis = n.axis("dim", len(n.shape()))
    size = n.shape()[axis]
    if not 0 < size <= LONGEST or n.result.dtype.is_integer:
        return call_like(n, "CumSum", [n.cast(n.x(0), n.dtype), n.const(np.asarray(axis, np.int64))])
    x = n.real(0)
    order = tuple(x.type.rank - 1 if i == axis else axis if i == x.type.rank - 1 else i for i in range(x.type.rank))
    y = n.op(Linear, transposed(n, x, order), n.const(np.tril(np.ones((size, size), np.float32))))
    return transposed(n, y, order)
