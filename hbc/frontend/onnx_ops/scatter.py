"""Elements picked and placed by known index tensors: one gather of the flattened tensor, which moves integers exactly.

What a scatter leaves and what it writes stand side by side first; then each element of the result is one of them. With
computed indices the nodes run on the CPU.
"""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Concat
from hbc.ir.types import DType

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_tensors import DTYPES
from ..onnx_weights import reshaped
from .pick import GATHER_LIMIT, taken
from .registry import onnx_op
from .shape import axis_of
from .volume import OUTSIDE, is_integral, picked

COMPUTED = "its indices are computed at run time"
TOO_MANY = f"it picks more than {GATHER_LIMIT} pieces"


@onnx_op("GatherElements")
def gather_elements(n: Node) -> Results:
    """y[i][j] = x[indices[i][j]][j] for axis 0."""
    x, indices = n.x(0), _indices(n, 1)
    if indices is None:
        return n.call(reason=COMPUTED)
    axis = axis_of(n, x.type.rank, 0)
    along = only_along(x, indices, axis)
    if along is not None and along.size <= GATHER_LIMIT:
        return taken(n, x, axis, along)
    if indices.size > GATHER_LIMIT:
        return n.call(reason=TOO_MANY)
    return reshaped(n, taken(n, flattened(n, x), 0, positions_of(n, x, indices, axis)), indices.shape)


@onnx_op("GatherND")
def gather_nd(n: Node) -> Results:
    """The last axis of `indices` names an element or a slice of x, behind `batch_dims` axes that both share."""
    x, indices = n.x(0), _indices(n, 1)
    if indices is None:
        return n.call(reason=COMPUTED)
    batch = n.integer("batch_dims")
    rows = _rows(n, x, indices, batch)
    if rows.size > GATHER_LIMIT:
        return n.call(reason=TOO_MANY)
    depth = batch + indices.shape[-1]
    inner = x.type.shape[depth:]
    slices = reshaped(n, x, (math.prod(x.type.shape[:depth]), math.prod(inner)))
    return reshaped(n, taken(n, slices, 0, rows), (*indices.shape[:-1], *inner))


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(n: Node) -> Results:
    """x, but y[indices[i][j]][j] = updates[i][j] for axis 0; the last of several writes stays."""
    x, indices, updates = n.x(0), _indices(n, 1), n.x(2)
    refused = _refusal(n, indices, x.type.elements)
    if indices is None or refused:
        return n.call(reason=refused)
    positions = positions_of(n, x, indices, axis_of(n, x.type.rank, 0))
    _require_updates(n, updates, indices.shape)
    return placed(n, flattened(n, x), flattened(n, updates), positions, x.type.shape)


@onnx_op("ScatterND")
def scatter_nd(n: Node) -> Results:
    """x, but the elements or slices that the last axis of `indices` names are those of `updates`."""
    x, indices, updates = n.x(0), _indices(n, 1), n.x(2)
    depth = 0 if indices is None else indices.shape[-1]
    count = math.prod(x.type.shape[:depth])
    refused = _refusal(n, indices, count)
    if indices is None or refused:
        return n.call(reason=refused)
    rows = _rows(n, x, indices, 0)
    _require_updates(n, updates, (*indices.shape[:-1], *x.type.shape[depth:]))
    inner = math.prod(x.type.shape[depth:])
    into, written = reshaped(n, x, (count, inner)), reshaped(n, updates, (rows.size, inner))
    return placed(n, into, written, rows, x.type.shape)


def _require_updates(n: Node, updates: Value, shape: tuple[int, ...]) -> None:
    if updates.type.shape != shape:
        why = f"they have shape {list(updates.type.shape)}, what the indices name has {list(shape)}"
        raise n.fail("the updates don't fit the indices", why=why, hint="export the model again")


def placed(n: Building, x: Value, updates: Value, rows: np.ndarray, shape: tuple[int, ...]) -> Value:
    """`x` with its row rows[i] replaced by row i of `updates`, as `shape`."""
    if updates.type.dtype is not x.type.dtype:
        raise n.fail("operands differ in type", why=f"{x.type.dtype.text} and {updates.type.dtype.text}")
    if updates.type.quant != x.type.quant or (x.type.quant is not None and x.type.quant.axis is not None):
        x, updates = n.stripped(x), n.stripped(updates)
    count = x.type.shape[0]
    source = np.arange(count)
    source[rows] = count + np.arange(rows.size)  # NumPy writes in order too
    both = n.op(Concat, x, updates, axis=0) if rows.size else x
    return reshaped(n, taken(n, both, 0, source), shape)


def _refusal(n: Node, indices: np.ndarray | None, pieces: int) -> str:
    """Why a scatter stays a call; empty where it doesn't."""
    if indices is None:
        return COMPUTED
    if n.text("reduction", "none") != "none":
        return f"it combines what it writes ({n.text('reduction')})"
    return TOO_MANY if pieces > GATHER_LIMIT else ""


def _indices(n: Node, operand: int) -> np.ndarray | None:
    found = n.array(operand)
    return None if found is None or found.dtype.kind != "i" else found.astype(np.int64)


def flattened(n: Building, x: Value) -> Value:
    return reshaped(n, x, (x.type.elements,))


def _inside(n: Building, indices: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Indices counted from the front; FrontendError where one is out of range."""
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise n.fail("an index is out of range", why=f"axis {axis} has {size} entries", hint="export the model again")
    return np.where(indices < 0, indices + size, indices)


def only_along(x: Value, indices: np.ndarray, axis: int) -> np.ndarray | None:
    """The indices along `axis`, where they are the same at every place of the other axes, all of which they span."""
    shape, size = x.type.shape, x.type.shape[axis]
    if indices.size == 0 or indices.shape != (*shape[:axis], *indices.shape[axis : axis + 1], *shape[axis + 1 :]):
        return None
    first = indices[tuple(slice(None) if i == axis else slice(1) for i in range(indices.ndim))]
    same = np.array_equal(np.broadcast_to(first, indices.shape), indices)
    if not same or not -size <= first.min() <= first.max() < size:
        return None
    return np.where(first < 0, first + size, first).reshape(-1)


def positions_of(n: Building, x: Value, indices: np.ndarray, axis: int) -> np.ndarray:
    """For each index the position of its element in the flattened x."""
    shape = x.type.shape
    if indices.ndim != len(shape) or any(i != axis and s > shape[i] for i, s in enumerate(indices.shape)):
        raise n.fail("indices don't fit the input", why=f"shapes {list(indices.shape)} and {list(shape)}, axis {axis}")
    counted: np.ndarray = _inside(n, indices, shape[axis], axis)
    places = [counted if i == axis else p for i, p in enumerate(np.indices(indices.shape))]
    return np.asarray(np.ravel_multi_index(places, shape)).reshape(-1)


def _rows(n: Node, x: Value, indices: np.ndarray, batch: int) -> np.ndarray:
    """The slices that `indices` names, counted over x's leading axes."""
    shape, deep = x.type.shape, indices.shape[-1]
    if not (0 <= batch < indices.ndim and batch + deep <= len(shape) and indices.shape[:batch] == shape[:batch]):
        raise n.fail(
            "indices don't fit the input", why=f"shapes {list(indices.shape)} and {list(shape)}, batch {batch}"
        )
    count = math.prod(shape[:batch])
    listed = indices.reshape(count, math.prod(indices.shape[batch:-1]), deep)
    rows = np.broadcast_to(np.arange(count)[:, None], listed.shape[:2])
    for i in range(deep):
        size = shape[batch + i]
        rows = rows * size + _inside(n, listed[..., i], size, batch + i)
    return rows.reshape(-1)


@onnx_op("Compress")
def compress(n: Node) -> Results:
    """The entries whose known condition is true, along an axis or of the flattened input."""
    x, condition = n.x(0), n.array(1)
    if condition is None:
        return n.call(reason="its condition is computed at run time")
    axis = axis_of(n, x.type.rank, 0) if "axis" in n.attributes else 0
    x = x if "axis" in n.attributes else flattened(n, x)
    kept = np.flatnonzero(condition.reshape(-1))
    if kept.size and kept[-1] >= x.type.shape[axis]:
        raise n.fail("the condition is longer than the input", why=f"axis {axis} has {x.type.shape[axis]} entries")
    return n.call(reason=TOO_MANY) if kept.size > GATHER_LIMIT else taken(n, x, axis, kept)


@onnx_op("Trilu")
def trilu(n: Node) -> Results:
    """The part of each matrix on one side of a known diagonal, zeros on the other."""
    x, k = n.x(0), n.known_integers(1) if n.has(1) else (0,)
    if k is None or x.type.rank < 2 or not (x.type.dtype.is_integer or is_integral(x)):
        return n.call()
    x = n.stripped(x)
    *lead, rows, columns = x.type.shape
    if rows * columns > GATHER_LIMIT:
        return n.call(reason=TOO_MANY)
    kept = np.ones((rows, columns), bool)
    kept = np.triu(kept, k[0]) if n.integer("upper", 1) else np.tril(kept, k[0])
    places = np.where(kept.reshape(-1), np.arange(rows * columns), OUTSIDE)
    matrix = reshaped(n, x, (math.prod(lead), rows * columns))
    return reshaped(n, picked(n, matrix, 1, places), (*lead, rows, columns))


@onnx_op("EyeLike")
def eye_like(n: Node) -> Results:
    """Ones on the k-th diagonal: it asks for the input's shape only."""
    t = n.x(0).type
    elem_type = n.integer("dtype") or n.scope.known(n.name(0)).elem_type
    if t.rank != 2 or elem_type not in DTYPES:
        return n.call()
    dtype = DTYPES[elem_type]
    if dtype in {DType.F16, DType.F64}:
        n.scope.wide[n.proto.output[0]] = dtype
    return n.const(np.eye(t.shape[0], t.shape[1], n.integer("k")).astype(dtype.numpy))
