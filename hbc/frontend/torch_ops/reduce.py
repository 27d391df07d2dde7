"""Reductions over axes."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import (
    PLAIN_UNARY,
    ArgMax,
    ArgMin,
    Greater,
    Maximum,
    Minimum,
    Mul,
    Pow,
    Reduce,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
    Reshape,
    Sub,
)
from hbc.ir.types import DType

from ..torch_calls import call_like
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
    return _spread(n, squared=n.word == "var")


def _spread(n: TorchNode, *, squared: bool) -> Value:
    x = n.real()
    axes, keep = n.axes("dim", x.type.rank), n.flag("keepdim")
    correction = n.number("correction", 1.0) if n.flag("unbiased", default=True) else 0.0
    count = int(np.prod([x.type.shape[a] for a in axes]))
    if count <= correction:
        raise n.refuse(f"it divides {count} distances by {count - correction:g}")
    d = n.op(Sub, x, n.op(ReduceMean, x, axes=axes, keepdims=True))
    y = n.op(ReduceMean, n.op(Mul, d, d), axes=axes, keepdims=keep)
    y = y if not correction else n.op(Mul, y, n.const(np.float32(count / (count - correction))))
    return y if squared else n.op(PLAIN_UNARY["sqrt"], y)


@torch_op("aten::var_mean", "aten::std_mean")
def spread_and_mean(n: TorchNode) -> Results:
    """Variance or standard deviation, and the mean."""
    x = n.real()
    mean = _reduced(n, ReduceMean, x, n.axes("dim", x.type.rank), keep=n.flag("keepdim"))
    return [_spread(n, squared="var" in n.word), mean]


@torch_op("aten::prod")
def prod(n: TorchNode) -> Results:
    """The product along an axis, or of all elements. On the CPU."""
    x = n.cast(n.x(), n.dtype)
    x = x if n.has("dim") else n.op(Reshape, x, shape=(x.type.elements,))
    if not x.type.rank:
        return x
    axis = n.const(np.asarray([n.axis("dim", x.type.rank)], np.int64))
    return call_like(n, "ReduceProd", [x, axis], keepdims=int(n.flag("keepdim")))


@torch_op("aten::dist", "aten::cdist", "aten::_cdist_forward")
def distance(n: TorchNode) -> Results:
    """The norm of a difference: of two tensors, or of every row of one and every row of the other."""
    x, y = n.real(0), n.real(1)
    if n.word == "dist":
        d = n.op(Sub, x, y)
        return _norm(n, d, n.number("p", 2.0), tuple(range(d.type.rank)), keep=False)
    rows, columns = (n.op(Reshape, v, shape=(*v.type.shape[:-2], *s)) for v, s in (
        (x, (x.type.shape[-2], 1, x.type.shape[-1])), (y, (1, *y.type.shape[-2:]))))  # fmt: skip
    d = n.op(Sub, rows, columns)
    return _norm(n, d, n.number("p", 2.0), (d.type.rank - 1,), keep=False)


@torch_op("aten::linalg_vector_norm", "aten::norm", "aten::frobenius_norm")
def vector_norm(n: TorchNode) -> Results:
    """(Σ|x|ᵖ)^(1/p) over axes; the largest or smallest magnitude for p = ±∞, the number of others than 0 for p = 0."""
    x, order = n.real(), n.number("ord" if n.has("ord") else "p", 2.0)
    return _norm(n, x, order, n.axes("dim", x.type.rank), keep=n.flag("keepdim"))


def _norm(n: TorchNode, x: Value, order: float, axes: tuple[int, ...], *, keep: bool) -> Value:
    if order == 2.0:
        return n.op(PLAIN_UNARY["sqrt"], _reduced(n, ReduceSum, n.op(Mul, x, x), axes, keep=keep))
    size = n.op(PLAIN_UNARY["abs"], x)
    if math.isinf(order):
        return _reduced(n, ReduceMax if order > 0 else ReduceMin, size, axes, keep=keep)
    if order == 1.0:
        return _reduced(n, ReduceSum, size, axes, keep=keep)
    if order == 0.0:
        return _reduced(n, ReduceSum, n.cast(n.op(Greater, size, n.const(np.float32(0))), DType.F32), axes, keep=keep)
    total = _reduced(n, ReduceSum, n.op(Pow, size, n.const(np.float32(order))), axes, keep=keep)
    return n.op(Pow, total, n.const(np.float32(1 / order)))
