"""Elements picked by index tensors. Known indices become slices and gathers; computed ones are looked up on the CPU.

`x[rows, :, columns]` joins its index tensors to one: the indexed axes are brought side by side, merged, and indexed by
their common position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, Concat, Equal, Less, Mul, ReduceMax, ReduceMean, ReduceSum, Where
from hbc.ir.types import DType, TensorType

from ..onnx_ops.pick import GATHER_LIMIT, sliced, taken
from ..onnx_ops.scatter import COMPUTED, flattened, only_along, positions_of
from ..onnx_weights import reshaped, transposed
from ..torch_calls import as_index, call_like, called, int64
from ..torch_node import Results, TorchNode, as_array
from ..torch_records import Ref, Weight
from .registry import torch_op
from .shape import whole

Index = np.ndarray | Value  # known, or computed
_MASK = "it picks by a computed mask, and the number of elements depends on the data"
_USE_WHERE = "use torch.where, which keeps the size"


def index_of(n: TorchNode, arg: Ref | Weight) -> Index:
    """An index tensor: int64 where it is known."""
    tensor = arg.constant if isinstance(arg, Ref) else arg.tensor
    if tensor is None:
        assert isinstance(arg, Ref), arg
        return n.stripped(n.scope.value(arg))
    return as_array(tensor)


def looked_up(n: TorchNode, x: Value, axis: int, index: Index) -> Value:
    """x along `axis` at `index`, whose axes take the place of that one."""
    shape = x.type.shape
    if isinstance(index, np.ndarray) and index.size <= GATHER_LIMIT:
        found = np.where(index < 0, index + shape[axis], index)
        return reshaped(n, taken(n, x, axis, found), (*shape[:axis], *index.shape, *shape[axis + 1 :]))
    reason = COMPUTED if isinstance(index, Value) else f"it picks more than {GATHER_LIMIT} pieces"
    at = as_index(n, index) if isinstance(index, Value) else int64(n, index)
    x = n.stripped(x)
    result = TensorType((*shape[:axis], *at.type.shape, *shape[axis + 1 :]), x.type.dtype)
    return called(n, "Gather", [x, at], [result], reason=reason, axis=axis)[0]


@torch_op("aten::index_select")
def index_select(n: TorchNode) -> Results:
    """Indices along an axis."""
    index = index_of(n, n.arg("index"))
    x = n.x() if isinstance(index, Value) else whole(n)
    return looked_up(n, x, n.axis("dim", x.type.rank), index)


@torch_op("aten::embedding")
def embedding(n: TorchNode) -> Results:
    """Rows of a table."""
    index = index_of(n, n.arg("indices"))
    return looked_up(n, n.x("weight"), 0, index)


@torch_op("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(n: TorchNode) -> Results:
    """Rows of a table, and of each bag their sum, mean or maximum. Where a bag starts has to be known."""
    starts = n.array("offsets")
    if starts is None:
        raise n.refuse("its offsets are computed from the inputs", "give the indices as [bags, size], or fixed offsets")
    if n.integer("padding_idx", -1) >= 0:
        raise n.refuse("it leaves out a padding index", "give the padding a row of zeros, and no padding_idx")
    rows = looked_up(n, n.x("weight"), 0, index_of(n, n.arg("indices")))
    count, size = rows.type.shape
    if n.has("per_sample_weights"):
        rows = n.op(Mul, rows, reshaped(n, n.real("per_sample_weights"), (count, 1)))
    ends = [int(s) for s in starts.reshape(-1)]
    ends = ends if n.flag("include_last_offset") else [*ends, count]
    how = {0: ReduceSum, 1: ReduceMean, 2: ReduceMax}[n.integer("mode")]
    sizes = {b - a for a, b in pairwise(ends)}
    if len(sizes) == 1 and 0 not in sizes and ends[-1] - ends[0] == count:
        bags = reshaped(n, rows, (len(ends) - 1, sizes.pop(), size))
        y = n.op(how, bags, axes=(1,), keepdims=False)
    else:
        empty = n.const(np.zeros((1, size), np.float32))
        made = [
            n.op(how, sliced(n, rows, 0, a, b - a), axes=(0,), keepdims=True) if b > a else empty
            for a, b in pairwise(ends)
        ]
        y = made[0] if len(made) == 1 else n.op(Concat, *made, axis=0)
    return [y, *[None] * (len(n.record.results) - 1)]


@torch_op("aten::take")
def take(n: TorchNode) -> Results:
    """Elements of the flattened tensor."""
    index = index_of(n, n.arg("index"))
    x = n.x() if isinstance(index, Value) else whole(n)
    return looked_up(n, reshaped(n, x, (x.type.elements,)), 0, index)


@torch_op("aten::gather")
def gather(n: TorchNode) -> Results:
    """y[i][j] = x[index[i][j]][j] for dim 0."""
    index = index_of(n, n.arg("index"))
    x = n.x() if isinstance(index, Value) else whole(n)
    axis = n.axis("dim", x.type.rank)
    if isinstance(index, np.ndarray):
        along = only_along(x, index, axis)
        if along is not None and along.size <= GATHER_LIMIT:
            return taken(n, x, axis, along)
        if index.size <= GATHER_LIMIT:
            return reshaped(n, taken(n, flattened(n, x), 0, positions_of(n, x, index, axis)), index.shape)
    at = as_index(n, index) if isinstance(index, Value) else int64(n, index)
    return call_like(n, "GatherElements", [n.cast(n.x(), n.dtype), at], reason=COMPUTED, axis=axis)


@torch_op("aten::index")
def index(n: TorchNode) -> Results:
    """Index tensors, or known masks, along any axes at once."""
    given = n.arg("indices")
    places, found = unmasked(n, given)
    x = n.x() if any(isinstance(f, Value) for f in found) else whole(n)
    if len(places) == 1:
        return reshaped(n, looked_up(n, x, places[0], found[0]), n.result.shape)
    separate = _separate(n, x, places, found)
    if separate is not None:
        return separate
    parted = places != list(range(places[0], places[-1] + 1))
    first = 0 if parted else places[0]  # PyTorch puts the axes of parted index tensors in front
    rest = [i for i in range(x.type.rank) if i not in places]
    x = transposed(n, x, (*rest[:first], *places, *rest[first:]))
    shape, last = x.type.shape, first + len(places)
    joined = joined_index(n, shape[first:last], found)
    merged = reshaped(n, x, (*shape[:first], math.prod(shape[first:last]), *shape[last:]))
    return reshaped(n, looked_up(n, merged, first, joined), n.result.shape)


def _separate(n: TorchNode, x: Value, places: Sequence[int], found: Sequence[Index]) -> Value | None:
    """Neighbouring axes that span a grid, `x[:, :, rows[:, None], columns]`, one after the other; None for others."""
    known = [f for f in found if isinstance(f, np.ndarray)]
    if len(known) < len(found) or list(places) != list(range(places[0], places[-1] + 1)):
        return None
    grid = np.broadcast_shapes(*(a.shape for a in known))
    axes = [a for f in known for a, d in enumerate(f.shape, len(grid) - f.ndim) if d > 1]
    if len(set(axes)) < len(axes) or axes != sorted(axes) or any(f.size > GATHER_LIMIT for f in known):
        return None
    for axis, indices in zip(places, known, strict=True):
        x = looked_up(n, x, axis, indices.reshape(-1))
    return reshaped(n, x, n.result.shape)


def unmasked(n: TorchNode, given: Sequence[Ref | Weight | None]) -> tuple[list[int], list[Index]]:
    """The indexed axes and their indices; a known mask stands for the places where it holds."""
    places: list[int] = []
    found: list[Index] = []
    axis = 0
    for arg in given:
        if arg is None:
            axis += 1
            continue
        one = index_of(n, arg)
        if (one.type.dtype is DType.BOOL) if isinstance(one, Value) else False:
            raise n.refuse(_MASK, _USE_WHERE)
        parts: Sequence[Index] = np.nonzero(one) if isinstance(one, np.ndarray) and one.dtype == np.bool_ else [one]
        places += range(axis, axis + len(parts))
        found += parts
        axis += len(parts)
    return places, found


def joined_index(n: TorchNode, sizes: Sequence[int], found: Sequence[Index]) -> Index:
    """One index into the merged axes of `sizes`: Σ indexᵢ · (product of the sizes behind)."""
    total: Index = np.zeros((), np.int64)
    for i, (size, one) in enumerate(zip(sizes, found, strict=True)):
        stride = math.prod(sizes[i + 1 :])
        if isinstance(one, np.ndarray):
            part: Index = np.where(one < 0, one + size, one).astype(np.int64) * stride
        else:
            part = n.op(Mul, not_negative(n, as_index(n, one), size), int64(n, stride))
        total = _sum(n, total, part)
    return total


def not_negative(n: TorchNode, at: Value, size: int) -> Value:
    """Indices counted from the front."""
    return n.op(Where, n.op(Less, at, int64(n, 0)), n.op(Add, at, int64(n, size)), at)


def _sum(n: TorchNode, lhs: Index, rhs: Index) -> Index:
    if isinstance(lhs, np.ndarray) and isinstance(rhs, np.ndarray):
        return lhs + rhs
    if isinstance(lhs, np.ndarray) and not lhs.any() and lhs.ndim == 0:
        return rhs
    return n.op(Add, *(int64(n, v) if isinstance(v, np.ndarray) else v for v in (lhs, rhs)))


@torch_op("aten::one_hot")
def one_hot(n: TorchNode) -> Results:
    """1 at the index along a new last axis, 0 elsewhere."""
    if n.integer("num_classes", -1) < 0:
        raise n.refuse("the number of classes is taken from the data", "give num_classes")
    index = n.cast(n.x(0), DType.I64)
    column = reshaped(n, index, (*index.type.shape, 1))
    return n.cast(n.op(Equal, column, int64(n, np.arange(n.integer("num_classes")))), n.dtype)
