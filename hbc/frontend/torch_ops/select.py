"""Ops that pick elements."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value

from ..onnx_ops.pick import GATHER_LIMIT, slice_op, sliced, taken
from ..onnx_weights import reshaped
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


@torch_op("aten::index_select")
def index_select(n: TorchNode) -> Results:
    """Known indices along an axis."""
    x = whole(n)
    return taken(
        n, x, n.axis("dim", x.type.rank), _indices(n, n.known("index"), x.type.shape[n.axis("dim", x.type.rank)])
    )


@torch_op("aten::index")
def index(n: TorchNode) -> Results:
    """Known indices, or a known mask, along one axis."""
    x = whole(n)
    given = n.arg("indices")
    places = [i for i, a in enumerate(given) if a is not None]
    if len(places) != 1:
        return _index_grid(n, x, places)
    (axis,) = places
    found = _constant_index(n, given[axis])
    if found.dtype == np.bool_ and found.ndim != 1:
        raise n.refuse("it picks by a mask of several axes", "use torch.where")
    flat = np.flatnonzero(found) if found.dtype == np.bool_ else found
    return reshaped(n, taken(n, x, axis, _indices(n, flat, x.type.shape[axis])), n.result.shape)


def _index_grid(n: TorchNode, x: Value, places: list[int]) -> Value:
    """Several neighbouring axes, each by indices of its own: `x[:, :, rows[:, None], columns]`."""
    found = [_constant_index(n, n.arg("indices")[i]) for i in places]
    grid = np.broadcast_shapes(*(a.shape for a in found))
    axes = [[i for i, d in enumerate(a.shape, len(grid) - a.ndim) if d > 1] for a in found]
    apart = [a for each in axes for a in each]
    if places != list(range(places[0], places[-1] + 1)) or len(set(apart)) < len(apart) or apart != sorted(apart):
        raise n.refuse(f"it indexes {len(places)} axes by tensors at once", "index one axis, or use slices")
    for axis, indices in zip(places, found, strict=True):
        x = taken(n, x, axis, _indices(n, indices, x.type.shape[axis]))
    return reshaped(n, x, n.result.shape)


def _constant_index(n: TorchNode, arg: object) -> np.ndarray:
    tensor = getattr(arg, "constant", None) if hasattr(arg, "constant") else getattr(arg, "tensor", None)
    if tensor is None:
        raise n.refuse("its indices are computed from the inputs", "make them a constant of the model")
    return np.asarray(tensor.cpu().numpy())


def _indices(n: TorchNode, found: np.ndarray, size: int) -> np.ndarray:
    if found.size > GATHER_LIMIT:
        raise n.refuse(f"it has more than {GATHER_LIMIT} indices")
    return np.where(found < 0, found + size, found).reshape(-1)


@torch_op("aten::flip")
def flip(n: TorchNode) -> Results:
    """Axes read backwards."""
    x = whole(n)
    for axis in n.axes("dims", x.type.rank):
        x = taken(n, x, axis, np.arange(x.type.shape[axis])[::-1])
    return x
