"""Ops that join elements and surround them."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Concat

from ..onnx_ops.move import bordered, padded
from ..onnx_ops.pick import GATHER_LIMIT, sliced, taken
from ..onnx_weights import reshaped
from ..torch_node import Results, TorchNode
from .registry import torch_op
from .shape import whole

_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@torch_op("aten::cat", "aten::concat", "aten::concatenate")
def cat(n: TorchNode) -> Results:
    """Operands joined along an axis; empty ones don't count."""
    return joined(n, n.many(0), n.integer("dim"))


@torch_op("aten::stack")
def stack(n: TorchNode) -> Results:
    """Operands joined along a new axis."""
    rank = len(n.result.shape)
    axis = n.axis("dim", rank)
    shape = tuple(1 if i == axis else d for i, d in enumerate(n.result.shape))
    return joined(n, [reshaped(n, v, shape) for v in n.many(0)], axis)


def joined(n: TorchNode, values: list[Value], axis: int) -> Value:
    """concat, or the one operand that there is."""
    filled = [v for v in values if v.type.elements] or values[:1]
    return filled[0] if len(filled) == 1 else n.op(Concat, *filled, axis=axis % filled[0].type.rank)


@torch_op("aten::pad", "aten::constant_pad_nd")
def pad(n: TorchNode) -> Results:
    """A border of one number, or of the tensor's own elements; negative pads crop."""
    mode = str(n.arg("mode", "constant"))
    if mode == "constant":
        return padded(n, n.cast(n.x(), n.dtype), _pads(n), n.number("value", 0.0))
    return _repeated(n, _MODES[mode])


@torch_op("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(n: TorchNode) -> Results:
    """A border of mirrored elements."""
    return _repeated(n, "reflect")


@torch_op("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(n: TorchNode) -> Results:
    """A border of the outer elements."""
    return _repeated(n, "edge")


def _repeated(n: TorchNode, mode: str) -> Value:
    if any(d > GATHER_LIMIT for d in n.result.shape):
        raise n.refuse(f"an axis becomes longer than {GATHER_LIMIT}")
    return bordered(n, whole(n), _pads(n), mode)


def _pads(n: TorchNode) -> list[int]:
    """Begins, then ends of every axis; PyTorch lists pairs from the last axis on."""
    given, rank = n.ints("pad") or n.ints("padding"), len(n.result.shape)
    begins, ends = [0] * rank, [0] * rank
    for i in range(len(given) // 2):
        begins[rank - 1 - i], ends[rank - 1 - i] = given[2 * i], given[2 * i + 1]
    return [*begins, *ends]


@torch_op("aten::roll")
def roll(n: TorchNode) -> Results:
    """Each axis cut in two and joined the other way round."""
    x = whole(n)
    dims = n.ints("dims")
    if not dims:  # of the flattened tensor
        x, dims = reshaped(n, x, (x.type.elements,)), (0,)
    for shift, dim in zip(n.ints("shifts"), dims, strict=True):
        axis = dim % x.type.rank
        size = x.type.shape[axis]
        cut = -shift % size
        if cut:
            x = joined(n, [sliced(n, x, axis, cut, size - cut), sliced(n, x, axis, 0, cut)], axis)
    return reshaped(n, x, n.result.shape)


@torch_op("aten::slice_scatter")
def slice_scatter(n: TorchNode) -> Results:
    """`self` with `src` in place of a slice: what is before, `src`, what is behind."""
    x, src = n.cast(n.x(0), n.dtype), n.cast(n.x(1), n.dtype)
    axis = n.axis("dim", x.type.rank)
    picked = range(x.type.shape[axis])[slice(n.arg("start"), n.arg("end"), n.integer("step", 1))]
    if picked.step != 1 and picked:
        return _interleaved(n, x, src, axis, picked)
    return _replaced(n, x, src, axis, picked.start, len(picked))


@torch_op("aten::select_scatter")
def select_scatter(n: TorchNode) -> Results:
    """`self` with `src` at one index."""
    x, src = n.cast(n.x(0), n.dtype), n.cast(n.x(1), n.dtype)
    axis = n.axis("dim", x.type.rank)
    one = tuple(1 if i == axis else d for i, d in enumerate(x.type.shape))
    return _replaced(n, x, reshaped(n, src, one), axis, n.integer("index") % x.type.shape[axis], 1)


def _interleaved(n: TorchNode, x: Value, src: Value, axis: int, picked: range) -> Value:
    """`x` with `src` at every few indices: a gather of both, one behind the other."""
    size = x.type.shape[axis]
    source = np.arange(size)
    source[list(picked)] = size + np.arange(len(picked))
    return taken(n, joined(n, [x, src], axis), axis, source)


def _replaced(n: TorchNode, x: Value, src: Value, axis: int, start: int, count: int) -> Value:
    if not count:
        return x
    size = x.type.shape[axis]
    parts = [sliced(n, x, axis, 0, start)] if start else []
    parts.append(src)
    if start + count < size:
        parts.append(sliced(n, x, axis, start + count, size - start - count))
    return joined(n, parts, axis)
