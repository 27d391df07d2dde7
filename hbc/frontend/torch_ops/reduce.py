"""Reductions over axes."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import (
    PLAIN_UNARY,
    ArgMax,
    ArgMin,
    Maximum,
    Minimum,
    Mul,
    Reduce,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Reshape,
    Sub,
)
from hbc.ir.types import DType

from ..torch_node import Results, TorchNode
from .registry import torch_op

_CLASSES: dict[str, type[Reduce]] = {"mean": ReduceMean, "sum": ReduceSum, "amax": ReduceMax, "amin": ReduceMin}


@torch_op(*(f"aten::{name}" for name in _CLASSES))
def reduction(n: TorchNode) -> Results:
    """Over the given axes, or over all."""
    x = n.cast(n.x(), n.dtype)
    axes = n.axes("dim", x.type.rank)
    return _reduced(n, _CLASSES[n.word], x, axes, keep=n.flag("keepdim"))


def _reduced(n: TorchNode, cls: type[Reduce], x: Value, axes: tuple[int, ...], *, keep: bool) -> Value:
    return n.op(cls, x, axes=axes, keepdims=keep) if x.type.rank else x


@torch_op("aten::max", "aten::min")
def extreme(n: TorchNode) -> Results:
    """Of all elements; along one axis, with its place; or of two tensors."""
    largest = n.word == "max"
    if n.has("other"):
        return n.op(Maximum if largest else Minimum, *n.pair(0, "other"))
    x = n.cast(n.x(), n.dtype)
    cls: type[Reduce] = ReduceMax if largest else ReduceMin
    if not n.has("dim"):
        return _reduced(n, cls, x, tuple(range(x.type.rank)), keep=False)
    axis, keep = n.axis("dim", x.type.rank), n.flag("keepdim")
    place = n.op(ArgMax if largest else ArgMin, x, axis=axis, keepdims=keep)
    return [n.op(cls, x, axes=(axis,), keepdims=keep), place]


@torch_op("aten::any", "aten::all")
def truth(n: TorchNode) -> Results:
    """Whether one holds, or every one: the largest or the smallest of 0 and 1."""
    x = n.cast(n.cast(n.x(), DType.BOOL), DType.I32)
    cls: type[Reduce] = ReduceMax if n.word == "any" else ReduceMin
    return n.cast(_reduced(n, cls, x, n.axes("dim", x.type.rank), keep=n.flag("keepdim")), DType.BOOL)


@torch_op("aten::argmax", "aten::argmin")
def arg_extreme(n: TorchNode) -> Results:
    """The place of the largest or smallest along an axis, or among all elements."""
    x = n.x()
    cls = ArgMax if n.word == "argmax" else ArgMin
    if n.has("dim"):
        return n.op(cls, x, axis=n.axis("dim", x.type.rank), keepdims=n.flag("keepdim"))
    y = n.op(cls, n.op(Reshape, x, shape=(x.type.elements,)), axis=0, keepdims=False)
    return y if y.type.shape == n.result.shape else n.op(Reshape, y, shape=n.result.shape)


@torch_op("aten::var", "aten::std")
def spread(n: TorchNode) -> Results:
    """The mean of squared distances from the mean, by Bessel's correction unless told otherwise; its root."""
    x = n.real()
    axes, keep = n.axes("dim", x.type.rank), n.flag("keepdim")
    correction = n.number("correction", 1.0) if n.flag("unbiased", default=True) else 0.0
    count = int(np.prod([x.type.shape[a] for a in axes]))
    if count <= correction:
        raise n.refuse(f"it divides {count} distances by {count - correction:g}")
    d = n.op(Sub, x, n.op(ReduceMean, x, axes=axes, keepdims=True))
    y = n.op(ReduceMean, n.op(Mul, d, d), axes=axes, keepdims=keep)
    y = y if not correction else n.op(Mul, y, n.const(np.float32(count / (count - correction))))
    return y if n.word == "var" else n.op(PLAIN_UNARY["sqrt"], y)


@torch_op("aten::linalg_vector_norm", "aten::norm", "aten::frobenius_norm")
def vector_norm(n: TorchNode) -> Results:
    """√Σx² or Σ|x| over axes."""
    x, order = n.real(), n.number("ord" if n.has("ord") else "p", 2.0)
    axes, keep = n.axes("dim", x.type.rank), n.flag("keepdim")
    if order == 1.0:
        return _reduced(n, ReduceSum, n.op(PLAIN_UNARY["abs"], x), axes, keep=keep)
    if order != 2.0:
        raise n.refuse(f"its order is {order:g}", "use order 1 or 2")
    return n.op(PLAIN_UNARY["sqrt"], _reduced(n, ReduceSum, n.op(Mul, x, x), axes, keep=keep))
