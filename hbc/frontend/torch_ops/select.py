"""Ops that pick elements."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Mul, ReduceSum, Sub

from ..onnx_ops.pick import slice_op, sliced, taken
from ..onnx_weights import reshaped, transposed
from ..torch_node import Results, TorchNode
from .registry import torch_op
from .shape import whole


@torch_op("aten::slice")
def slice_(n: TorchNode) -> Results:
    """start, end and step along one axis, as Python counts."""
    x = whole(n)
    axis = n.axis("dim", x.type.rank)
    picked = range(x.type.shape[axis])[slice(n.arg("start"), n.arg("end"), n.integer("step", 1))]
    starts, sizes, steps = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    starts[axis], sizes[axis], steps[axis] = (picked.start if picked else 0), len(picked), picked.step
    return slice_op(n, x, starts, sizes, steps if len(picked) > 1 else [1] * x.type.rank)


@torch_op("aten::select")
def select(n: TorchNode) -> Results:
    """One index of an axis, which goes."""
    x = whole(n)
    axis = n.axis("dim", x.type.rank)
    return reshaped(n, sliced(n, x, axis, n.integer("index") % x.type.shape[axis], 1), n.result.shape)


@torch_op("aten::narrow")
def narrow(n: TorchNode) -> Results:
    """`length` indices of an axis."""
    x = whole(n)
    axis = n.axis("dim", x.type.rank)
    return sliced(n, x, axis, int(n.known("start")) % max(x.type.shape[axis], 1), n.integer("length"))


@torch_op("aten::split", "aten::split_with_sizes", "aten::chunk", "aten::tensor_split", "aten::unsafe_split",
          "aten::unsafe_chunk", "aten::split_copy", "aten::split_with_sizes_copy")  # fmt: skip
def split(n: TorchNode) -> Results:
    """A slice per part, of the sizes that PyTorch gave them."""
    x = whole(n)
    axis = n.axis("dim", x.type.rank)
    starts = np.cumsum([0, *(r.shape[axis] for r in n.record.results)])
    return [sliced(n, x, axis, int(s), r.shape[axis]) for s, r in zip(starts, n.record.results, strict=False)]


@torch_op("aten::unbind")
def unbind(n: TorchNode) -> Results:
    """A tensor per index of an axis, which goes."""
    x = whole(n)
    axis = n.axis("dim", x.type.rank)
    return [reshaped(n, sliced(n, x, axis, i, 1), r.shape) for i, r in enumerate(n.record.results)]


@torch_op("aten::flip")
def flip(n: TorchNode) -> Results:
    """Axes read backwards."""
    x = whole(n)
    for axis in n.axes("dims", x.type.rank):
        x = taken(n, x, axis, np.arange(x.type.shape[axis])[::-1])
    return x


@torch_op("aten::unfold")
def unfold(n: TorchNode) -> Results:
    """Windows of `size` along an axis, which become the last axis: a gather of what each window sees."""
    x = whole(n)
    axis, size, step = n.axis("dimension", x.type.rank), n.integer("size"), n.integer("step", 1)
    count = n.result.shape[axis]
    seen = np.arange(count)[:, None] * step + np.arange(size)
    rank, before, after = x.type.rank, x.type.shape[:axis], x.type.shape[axis + 1 :]
    y = reshaped(n, taken(n, x, axis, seen), (*before, count, size, *after))
    return transposed(n, y, (*(i for i in range(rank + 1) if i != axis + 1), axis + 1))


@torch_op("aten::diagonal", "aten::linalg_diagonal")
def diagonal(n: TorchNode) -> Results:
    """The elements on one diagonal of each matrix, along a new last axis."""
    return diagonals(
        n, whole(n), n.integer("offset"), n.axis("dim1", len(n.shape()), 0), n.axis("dim2", len(n.shape()), 1)
    )


def diagonals(n: TorchNode, x: Value, offset: int, first: int, second: int) -> Value:
    """x's diagonal over two axes, which go; behind the others it is the last one."""
    rest = [i for i in range(x.type.rank) if i not in {first, second}]
    lead = tuple(x.type.shape[i] for i in rest)
    rows, columns = x.type.shape[first], x.type.shape[second]
    x = reshaped(n, transposed(n, x, (*rest, first, second)), (*lead, rows * columns))
    i = np.arange(max(0, min(rows + min(offset, 0), columns - max(offset, 0))))
    return taken(n, x, len(lead), (i - min(offset, 0)) * columns + i + max(offset, 0))


@torch_op("aten::trace")
def trace(n: TorchNode) -> Results:
    """The sum of a matrix's diagonal."""
    return n.op(ReduceSum, diagonals(n, n.cast(n.x(), n.dtype), 0, 0, 1), axes=(0,), keepdims=False)


@torch_op("aten::linalg_cross")
def cross(n: TorchNode) -> Results:
    """The product of vectors of three along an axis: x[1, 2, 0] · y[2, 0, 1] − x[2, 0, 1] · y[1, 2, 0]."""
    x, y = n.pair()
    axis = n.axis("dim", x.type.rank, -1)
    turns = ([1, 2, 0], [2, 0, 1])
    (x1, x2), (y1, y2) = ([taken(n, v, axis, t) for t in turns] for v in (x, y))
    return n.op(Sub, n.op(Mul, x1, y2), n.op(Mul, x2, y1))


@torch_op("aten::cross")
def cross_of_old(n: TorchNode) -> Results:
    """As linalg_cross, along the first axis of three where none is given."""
    if not n.has("dim"):
        raise n.refuse("it finds its axis itself", "give dim")
    return cross(n)
