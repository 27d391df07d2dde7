"""Ops that give a tensor another shape. Integers keep what they stand for."""

from __future__ import annotations

import math

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Mul

from ..onnx_ops.pick import taken
from ..onnx_ops.shape import expanded
from ..onnx_weights import reshaped, transposed
from ..torch_node import Results, TorchNode
from ..torch_records import Ref
from .registry import torch_op


def whole(n: TorchNode, key: int | str = 0) -> Value:
    """A tensor as it is; where PyTorch quantised it, as the reals it stands for, to be quantised as the result is."""
    return n.x(key) if n.result.quant is not None else n.raw(key)


@torch_op("aten::view", "aten::reshape", "aten::flatten", "aten::unflatten", "aten::_unsafe_view", "aten::squeeze",
          "aten::unsqueeze", "aten::view_as", "aten::reshape_as", "aten::atleast_1d", "aten::_reshape_alias",
          "aten::view_copy")  # fmt: skip
def reshape(n: TorchNode) -> Results:
    """The same elements, in the shape that PyTorch gave them."""
    if isinstance(n.arg(0), Ref) and n.arg(0).dtype is not n.result.dtype:
        raise n.refuse("it reads the bytes as another dtype", "use .to(dtype)")
    return reshaped(n, whole(n), n.result.shape)


@torch_op("aten::permute", "aten::transpose", "aten::t", "aten::numpy_T", "aten::swapaxes", "aten::movedim",
          "aten::swapdims", "aten::adjoint", "aten::mT")  # fmt: skip
def permute(n: TorchNode) -> Results:
    """Axes in another order."""
    x = whole(n)
    return transposed(n, x, _order(n, x.type.rank))


def _order(n: TorchNode, rank: int) -> tuple[int, ...]:
    order = list(range(rank))
    if n.word == "permute":
        return tuple(d % rank for d in n.ints("dims"))
    if n.word == "numpy_T":
        return tuple(order[::-1])
    if n.word == "movedim":
        return _moved(n, rank)
    if rank < 2:
        return tuple(order)
    a, b = (
        (n.axis(1, rank), n.axis(2, rank)) if n.word in {"transpose", "swapaxes", "swapdims"} else (rank - 2, rank - 1)
    )
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def _moved(n: TorchNode, rank: int) -> tuple[int, ...]:
    source, target = ([a % rank for a in n.ints(i)] for i in (1, 2))
    rest = iter(a for a in range(rank) if a not in source)
    at = dict(zip(target, source, strict=True))
    return tuple(at[i] if i in at else next(rest) for i in range(rank))


@torch_op("aten::expand", "aten::expand_as", "aten::broadcast_to")
def expand(n: TorchNode) -> Results:
    """Repeated along axes of size 1, and new leading ones."""
    return expanded(n, whole(n), n.result.shape)


@torch_op("aten::repeat", "aten::tile")
def repeat(n: TorchNode) -> Results:
    """Whole copies along each axis, one after the other: a new axis before it, expanded, merged."""
    x, rank = whole(n), len(n.result.shape)
    x = reshaped(n, x, (*(1,) * (rank - x.type.rank), *x.type.shape))
    shape = list(x.type.shape)
    for axis, size in enumerate(n.result.shape):
        count = size // shape[axis] if shape[axis] else 1
        if count > 1:
            before, copied = math.prod(shape[:axis]), math.prod(shape[axis:])
            y = expanded(n, reshaped(n, x, (before, 1, copied)), (before, count, copied))
            shape[axis] *= count
            x = reshaped(n, y, tuple(shape))
    return x


@torch_op("aten::repeat_interleave")
def repeat_interleave(n: TorchNode) -> Results:
    """Each element several times in a row along an axis, or of the flattened tensor."""
    x, repeats = whole(n), n.known("repeats")
    x = x if n.has("dim") else reshaped(n, x, (x.type.elements,))
    if repeats.size != 1:
        axis = n.axis("dim", x.type.rank)
        return taken(n, x, axis, np.repeat(np.arange(x.type.shape[axis]), repeats.reshape(-1)))
    axis, count = n.axis("dim", x.type.rank), int(repeats.reshape(-1)[0])
    before, size, after = math.prod(x.type.shape[:axis]), x.type.shape[axis], math.prod(x.type.shape[axis + 1 :])
    y = expanded(n, reshaped(n, x, (before * size, 1, after)), (before * size, count, after))
    return reshaped(n, y, n.result.shape)


@torch_op("aten::pixel_shuffle")
def pixel_shuffle(n: TorchNode) -> Results:
    """[N, C·r², H, W] → [N, C, H·r, W·r]."""
    x, r = whole(n), n.integer("upscale_factor")
    count, c, h, w = x.type.shape
    y = transposed(n, reshaped(n, x, (count, c // (r * r), r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return reshaped(n, y, n.result.shape)


@torch_op("aten::diag_embed")
def diag_embed(n: TorchNode) -> Results:
    """The last axis on a diagonal of new matrices, zeros elsewhere: a product with a mask."""
    x, shape = n.cast(n.x(), n.dtype), n.result.shape
    first, second = (n.axis(name, len(shape), d) for name, d in (("dim1", -2), ("dim2", -1)))
    if (first, second) != (len(shape) - 2, len(shape) - 1) or n.integer("offset"):
        raise n.refuse("its diagonal isn't the main one of the last two axes", "move the axes by transpose")
    mask = n.const(np.eye(shape[-1], dtype=n.dtype.numpy))
    return n.op(Mul, reshaped(n, x, (*shape[:-1], 1)), mask)


@torch_op("aten::pixel_unshuffle")
def pixel_unshuffle(n: TorchNode) -> Results:
    """[N, C, H·r, W·r] → [N, C·r², H, W]."""
    x, r = whole(n), n.integer("downscale_factor")
    count, c, h, w = x.type.shape
    y = transposed(n, reshaped(n, x, (count, c, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return reshaped(n, y, n.result.shape)


@torch_op("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(n: TorchNode) -> Results:
    """Channels of each group taken in turn."""
    x, groups = whole(n), n.integer("groups")
    count, c, *rest = x.type.shape
    y = transposed(n, reshaped(n, x, (count, groups, c // groups, math.prod(rest))), (0, 2, 1, 3))
    return reshaped(n, y, n.result.shape)


@torch_op(
    "aten::contiguous",
    "aten::clone",
    "aten::detach",
    "aten::alias",
    "aten::lift_fresh_copy",
    "aten::positive",
    "aten::real",
)
def same(n: TorchNode) -> Results:
    """The tensor itself."""
    return whole(n)


@torch_op("aten::dropout", "aten::feature_dropout", "aten::native_dropout", "aten::alpha_dropout")
def dropout(n: TorchNode) -> Results:
    """Nothing, once a model is trained: those that drop are refused."""
    raise n.refuse(
        "the model is in training mode and drops values at random", "call model.eval() before torch.jit.trace"
    )


@torch_op("aten::copy")
def copy(n: TorchNode) -> Results:
    """What is written over a tensor, in its shape and dtype."""
    return expanded(n, n.cast(n.x("src"), n.dtype), n.result.shape)
