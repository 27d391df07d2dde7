"""Elements written by index tensors. Known indices become one gather of both tensors; computed ones run on the CPU.

What stays and what is written stand side by side first; then each element of the result is one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, Where
from hbc.ir.types import DType

from ..onnx_ops.pick import GATHER_LIMIT, slice_op
from ..onnx_ops.scatter import COMPUTED, flattened, placed, positions_of
from ..onnx_ops.shape import expanded
from ..onnx_weights import reshaped, transposed
from ..torch_calls import as_index, called, int64
from ..torch_node import Results, TorchNode
from .lookup import Index, index_of, joined_index, not_negative, unmasked
from .registry import torch_op

_REDUCTIONS = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}


@torch_op("aten::scatter", "aten::scatter_add", "aten::scatter_reduce")
def scatter(n: TorchNode) -> Results:
    """x, but y[index[i][j]][j] = src[i][j] for dim 0; or what is there and src combined."""
    x, index = n.cast(n.x(0), n.dtype), index_of(n, n.arg("index"))
    axis, how = n.axis("dim", x.type.rank), _reduction(n)
    shape = index.type.shape if isinstance(index, Value) else index.shape
    src = _source(n, shape)
    known = isinstance(index, np.ndarray) and how == "none" and x.type.elements <= GATHER_LIMIT
    if known and x.type.rank:
        assert isinstance(index, np.ndarray)
        return placed(n, flattened(n, x), flattened(n, src), positions_of(n, x, index, axis), x.type.shape)
    at = as_index(n, index) if isinstance(index, Value) else int64(n, index)
    reason = COMPUTED if how == "none" else f"it combines what it writes ({how})"
    return called(n, "ScatterElements", [x, at, src], [x.type], reason=reason, axis=axis, reduction=how)


def _reduction(n: TorchNode) -> str:
    if n.word == "scatter_add":
        return "add"
    stated = n.arg("reduce")
    how = "none" if stated is None else _REDUCTIONS.get(str(stated), "")
    if not how or not n.flag("include_self", default=True):
        raise n.refuse(f"it combines by {stated!r}, include_self={n.flag('include_self', default=True)}",
                       "use sum, prod, amax or amin, with include_self")  # fmt: skip
    return how


def _source(n: TorchNode, shape: tuple[int, ...]) -> Value:
    """What is written: as much of `src` as there are indices, or one number."""
    if n.has("value"):
        return expanded(n, n.operand("value", n.dtype), shape)
    src = n.cast(n.x("src"), n.dtype)
    if src.type.shape == shape:
        return src
    return slice_op(n, src, [0] * len(shape), list(shape), [1] * len(shape))


@torch_op("aten::diagonal_scatter")
def diagonal_scatter(n: TorchNode) -> Results:
    """x with `src` on one diagonal of each matrix."""
    x, src = n.cast(n.x(0), n.dtype), n.cast(n.x("src"), n.dtype)
    places = np.arange(x.type.elements).reshape(x.type.shape)
    ends = (n.axis("dim1", x.type.rank, 0), n.axis("dim2", x.type.rank, 1))
    at = np.diagonal(places, n.integer("offset"), *ends).reshape(-1)
    if x.type.elements > GATHER_LIMIT:
        column = int64(n, at.reshape(-1))
        y = called(n, "ScatterElements", [flattened(n, x), column, flattened(n, src)], [flattened(n, x).type], axis=0)
        return reshaped(n, y[0], x.type.shape)
    return placed(n, flattened(n, x), flattened(n, src), at, x.type.shape)


@torch_op("aten::index_add", "aten::index_copy", "aten::index_fill")
def index_write(n: TorchNode) -> Results:
    """x with rows of `source`, or a number, written or added at indices along an axis."""
    x, index = n.cast(n.x(0), n.dtype), index_of(n, n.arg("index"))
    axis = n.axis("dim", x.type.rank)
    count = (index.type.elements if isinstance(index, Value) else index.size) if x.type.rank else 1
    shape = (*x.type.shape[:axis], count, *x.type.shape[axis + 1 :])
    if n.word == "index_fill":
        source = expanded(n, n.operand("value", n.dtype), shape)
    else:
        source = n.cast(n.x("source"), n.dtype)
    if n.word == "index_add" and n.number("alpha", 1.0) != 1.0:
        raise n.refuse(f"its alpha is {n.number('alpha')}", "multiply what it adds")
    index = reshaped(n, index, (count,)) if isinstance(index, Value) else index.reshape(-1)
    return _written(n, x, [axis], [index], source, adds=n.word == "index_add")


@torch_op("aten::index_put", "aten::_unsafe_index_put")
def index_put(n: TorchNode) -> Results:
    """x with values written, or added, at index tensors or where a mask holds."""
    x, adds = n.cast(n.x(0), n.dtype), n.flag("accumulate")
    values = n.cast(n.x("values"), n.dtype)
    masked = _mask_put(n, x, values)
    if masked is not None:
        return masked
    places, found = unmasked(n, n.arg("indices"))
    grid = np.broadcast_shapes(*(f.type.shape if isinstance(f, Value) else f.shape for f in found))
    rest = [i for i in range(x.type.rank) if i not in places]
    parted = places != list(range(places[0], places[-1] + 1))
    first = 0 if parted else places[0]
    ends = tuple(x.type.shape[i] for i in rest)
    values = expanded(n, values, (*ends[:first], *grid, *ends[first:]))
    lead, taken_by = len(ends[:first]), len(grid)
    order = (*range(lead, lead + taken_by), *range(lead), *range(lead + taken_by, values.type.rank))
    source = reshaped(n, transposed(n, values, order), (math.prod(grid), *ends))
    return _written_in_front(n, x, places, found, source, adds=adds)


def _mask_put(n: TorchNode, x: Value, values: Value) -> Value | None:
    """One number where a computed mask over the leading axes holds; None for other indices."""
    (first, *others) = n.arg("indices")
    mask = None if first is None else index_of(n, first)
    if not isinstance(mask, Value) or mask.type.dtype is not DType.BOOL:
        return None
    if any(o is not None for o in others) or values.type.elements != 1:
        raise n.refuse("it writes several values where a computed mask holds", "write them by torch.where")
    shape = (*mask.type.shape, *(1,) * (x.type.rank - mask.type.rank))
    number = reshaped(n, values, ())
    return n.op(Where, reshaped(n, mask, shape), n.op(Add, x, number) if n.flag("accumulate") else number, x)


def _written(
    n: TorchNode, x: Value, places: list[int], found: Sequence[Index], source: Value, *, adds: bool
) -> Results:
    """As `_written_in_front`, of a source that has the rows where x has the axis."""
    (axis,) = places
    order = (axis, *(i for i in range(x.type.rank) if i != axis))
    return _written_in_front(n, x, places, found, transposed(n, source, order), adds=adds)


def _written_in_front(
    n: TorchNode, x: Value, places: list[int], found: Sequence[Index], source: Value, *, adds: bool
) -> Results:
    """x with row i of `source` [rows, other axes] at the i-th position of the indexed axes."""
    order = (*places, *(i for i in range(x.type.rank) if i not in places))
    moved = transposed(n, x, order)
    sizes, rest = moved.type.shape[: len(places)], moved.type.shape[len(places) :]
    at = joined_index(n, sizes, found)
    rows = reshaped(n, moved, (math.prod(sizes), math.prod(rest)))
    source = reshaped(n, source, (source.type.shape[0], math.prod(rest)))
    if isinstance(at, np.ndarray) and not adds and rows.type.shape[0] <= GATHER_LIMIT:
        whole = np.broadcast_to(at, (source.type.shape[0],)) if at.ndim == 0 else at.reshape(-1)
        y = placed(n, rows, source, whole, moved.type.shape)
    else:
        y = _scatter_rows(n, rows, at, source, adds=adds)
        y = reshaped(n, y, moved.type.shape)
    return transposed(n, y, tuple(order.index(i) for i in range(len(order))))


def _scatter_rows(n: TorchNode, rows: Value, at: Index, source: Value, *, adds: bool) -> Value:
    count = source.type.shape[0]
    column = int64(n, at.reshape(count, 1)) if isinstance(at, np.ndarray) else reshaped(n, at, (count, 1))
    if not isinstance(at, np.ndarray):
        column = not_negative(n, column, rows.type.shape[0])
    reason = "it adds up what it writes" if adds else COMPUTED
    return called(
        n, "ScatterND", [rows, column, source], [rows.type], reason=reason, reduction="add" if adds else "none"
    )[0]
