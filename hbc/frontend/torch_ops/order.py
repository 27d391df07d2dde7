"""The largest, the smallest, sorted: by ONNX Runtime's TopK, and what is counted against known bounds."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Greater, GreaterOrEqual, ReduceSum
from hbc.ir.types import DType, TensorType

from ..onnx_ops.pick import sliced
from ..onnx_weights import reshaped
from ..torch_calls import called, int64
from ..torch_node import Results, TorchNode
from .registry import torch_op


def ranked(
    n: TorchNode, x: Value, axis: int, count: int, *, largest: bool, ordered: bool = True
) -> tuple[Value, Value]:
    """The `count` largest (or smallest) along an axis and their places; of equal ones the first comes first."""
    if x.type.rank == 0:
        return x, int64(n, 0)
    shape = (*x.type.shape[:axis], count, *x.type.shape[axis + 1 :])
    types = [TensorType(shape, x.type.dtype), TensorType(shape, DType.I64)]
    values, places = called(
        n, "TopK", [x, int64(n, [count])], types, axis=axis, largest=int(largest), sorted=int(ordered)
    )
    return values, places


@torch_op("aten::topk")
def topk(n: TorchNode) -> Results:
    """The k largest or smallest along an axis and their places, on the CPU."""
    x = n.cast(n.x(), n.dtype)
    largest, ordered = n.flag("largest", default=True), n.flag("sorted", default=True)
    return ranked(n, x, n.axis("dim", x.type.rank, -1), n.integer("k"), largest=largest, ordered=ordered)


@torch_op("aten::sort", "aten::argsort", "aten::msort")
def sort(n: TorchNode) -> Results:
    """All elements along an axis in order, with their places; equal ones stay in order. On the CPU."""
    x = n.x()
    axis = 0 if n.word == "msort" else n.axis("dim", x.type.rank, -1)
    count = x.type.shape[axis] if x.type.rank else 1
    values, places = ranked(n, x, axis, count, largest=n.flag("descending"))
    return {"sort": [values, places], "argsort": [places], "msort": [values]}[n.word]


@torch_op("aten::kthvalue", "aten::median")
def kth(n: TorchNode) -> Results:
    """The k-th smallest along an axis and its place; the median is the lower of two. On the CPU."""
    x = n.cast(n.x(), n.dtype)
    if n.word == "median" and not n.has("dim"):
        x = reshaped(n, x, (x.type.elements,))
    axis = n.axis("dim", x.type.rank, -1)
    size = x.type.shape[axis] if x.type.rank else 1
    k = (size + 1) // 2 if n.word == "median" else n.integer("k")
    pair = ranked(n, x, axis, k, largest=False)
    last = [reshaped(n, sliced(n, v, axis, k - 1, 1) if v.type.rank else v, n.result.shape) for v in pair]
    return last[: len(n.record.results)]


@torch_op("aten::bucketize", "aten::searchsorted")
def bucketize(n: TorchNode) -> Results:
    """How many of the known, sorted bounds lie below each element, or not above it where `right`."""
    key, of = ("boundaries", 0) if n.word == "bucketize" else ("sorted_sequence", 1)
    bounds = n.known(key).reshape(-1) if n.shape(key)[:-1] == () else None
    if bounds is None or n.has("sorter"):
        raise n.refuse("it searches in several sequences, or by a sorter", "search in one sorted constant")
    right = n.flag("right") or n.arg("side") == "right"
    x = n.operand(of, DType.F32)
    column = reshaped(n, x, (*x.type.shape, 1))
    above = n.op(GreaterOrEqual if right else Greater, column, n.const(bounds.astype(np.float32)))
    count = n.op(ReduceSum, n.cast(above, DType.I32), axes=(x.type.rank,), keepdims=False)
    return n.cast(count, n.dtype)
