"""Ops that give a tensor another shape: reshape and its kin, casts, constants."""

from __future__ import annotations

import math

import numpy as np

from hbc.diagnostics import NotTaken, UnknownSize
from hbc.ir.core import Value
from hbc.ir.ops import Cast, Expand
from hbc.ir.ops.shapes import broadcast
from hbc.ir.types import DType, Quant

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_quant import dequantized
from ..onnx_tensors import DTYPES, ELEM_TYPES, dtype_name
from ..onnx_weights import reshaped, transposed
from .activation import uncast
from .reduce import normal_axes
from .registry import onnx_op


@onnx_op("Reshape")
def reshape(n: Node) -> Results:
    """The shape operand must be known, or the result's shape be stated in the file."""
    x, wanted = n.x(0), n.known_integers(1)
    if wanted is None:
        stated = n.scope.declared.get(n.proto.output[0])
        if stated is None:
            why = f"{n.name(1)!r} is computed from data"
            what = "the shape to reshape to isn't known before running"
            raise n.fail(what, why=why, hint="export with static shapes", kind=UnknownSize)
        return reshaped(n, x, stated.shape)
    return reshaped(n, x, resolved_shape(n, x.type.shape, wanted))


def resolved_shape(n: Node, before: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """`wanted` with 0 (copy the size, unless `allowzero`) and one −1 (the rest) filled in."""
    copies = not n.integer("allowzero")
    if any(d == 0 and copies and i >= len(before) for i, d in enumerate(wanted)):
        raise n.fail(f"can't reshape {list(before)} to {list(wanted)}", why="a 0 stands where the input has no axis")
    shape = [before[i] if d == 0 and copies else d for i, d in enumerate(wanted)]
    total = math.prod(before)
    if shape.count(-1) == 1:
        rest = math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = total // rest if rest else 0
    if math.prod(shape) != total or min(shape, default=0) < 0:
        raise n.fail(f"can't reshape {list(before)} to {list(wanted)}", why=f"{total} elements don't fit")
    return tuple(shape)


@onnx_op("Flatten")
def flatten(n: Node) -> Results:
    """[…, …] → [prod(before axis), prod(from axis)]."""
    x, axis = n.x(0), n.integer("axis", 1)
    if not -x.type.rank <= axis <= x.type.rank:
        raise n.fail(f"axis {axis} is none of a tensor of rank {x.type.rank}")
    axis = axis + x.type.rank if axis < 0 else axis
    return reshaped(n, x, (math.prod(x.type.shape[:axis]), math.prod(x.type.shape[axis:])))


@onnx_op("Squeeze")
def squeeze(n: Node) -> Results:
    """Axes of size 1 go: the given ones, or all."""
    x, axes = n.x(0), n.ints("axes")
    if n.has(1):
        axes = n.known_integers(1)
        if axes is None:
            return n.call()
    ones = tuple(i for i, d in enumerate(x.type.shape) if d == 1)
    gone = ones if axes is None else normal_axes(n, axes, x.type.rank)
    if any(x.type.shape[a] != 1 for a in gone):
        raise n.fail(f"can't squeeze axes {list(gone)} of {list(x.type.shape)}", why="a squeezed axis has size 1")
    return reshaped(n, x, tuple(d for i, d in enumerate(x.type.shape) if i not in gone))


@onnx_op("Unsqueeze")
def unsqueeze(n: Node) -> Results:
    """New axes of size 1."""
    x, axes = n.x(0), n.ints("axes") if n.version < 13 else n.known_integers(1)
    if axes is None:
        return n.call()
    rank = x.type.rank + len(axes)
    new = normal_axes(n, axes, rank)
    rest = iter(x.type.shape)
    return reshaped(n, x, tuple(1 if i in new else next(rest) for i in range(rank)))


@onnx_op("Transpose")
def transpose(n: Node) -> Results:
    """Axes permuted; reversed where `perm` is not given."""
    x = n.x(0)
    perm = n.ints("perm") or tuple(reversed(range(x.type.rank)))
    if sorted(perm) != list(range(x.type.rank)):
        raise n.fail(f"perm {list(perm)} is no permutation of {x.type.rank} axes")
    return transposed(n, x, perm)


@onnx_op("Expand")
def expand(n: Node) -> Results:
    """Broadcast to the known shape, both ways."""
    x, shape = n.x(0), n.known_integers(1)
    if shape is None:
        return n.call()
    return expanded(n, x, broadcast(x.type.shape, shape))


def expanded(n: Building, x: Value, shape: tuple[int, ...]) -> Value:
    """`x` repeated to `shape`."""
    if shape == x.type.shape:
        return x
    keeps = (
        x.type.quant is None
        or x.type.quant.axis is None
        or x.type.shape[x.type.quant.axis] == shape[x.type.quant.axis - x.type.rank]
    )
    return n.op(Expand, x if keeps else n.stripped(x), shape=shape)


@onnx_op("Tile")
def tile(n: Node) -> Results:
    """Whole copies along each axis, one after the other: a new axis before it, expanded, merged; rank 3 at most."""
    x, repeats = n.x(0), n.known_integers(1)
    if repeats is None:
        return n.call()
    if len(repeats) != x.type.rank or min(repeats, default=1) < 0:
        raise n.fail(f"repeats {list(repeats)} don't fit a tensor of rank {x.type.rank}")
    shape = list(x.type.shape)
    for axis, count in enumerate(repeats):
        if count != 1:
            before, copied = math.prod(shape[:axis]), math.prod(shape[axis:])
            y = expanded(n, reshaped(n, x, (before, 1, copied)), (before, count, copied))
            shape[axis] *= count
            x = reshaped(n, y, tuple(shape))
    return x


@onnx_op("DepthToSpace")
def depth_to_space(n: Node) -> Results:
    """[N, C·b², H, W] → [N, C, H·b, W·b]; DCR reads the blocks from the front of the channels, CRD from the back."""
    x, b = n.x(0), n.integer("blocksize")
    if x.type.rank != 4 or b < 1 or x.type.shape[1] % (b * b):
        raise n.fail(f"blocks of {b} don't fit {list(x.type.shape)}")
    count, c, h, w = x.type.shape
    c //= b * b
    if n.text("mode", "DCR") == "CRD":
        y = transposed(n, reshaped(n, x, (count, c, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        y = transposed(n, reshaped(n, x, (count, b, b, c, h, w)), (0, 3, 4, 1, 5, 2))
    return reshaped(n, y, (count, c, h * b, w * b))


@onnx_op("SpaceToDepth")
def space_to_depth(n: Node) -> Results:
    """[N, C, H·b, W·b] → [N, C·b², H, W]."""
    x, b = n.x(0), n.integer("blocksize")
    if x.type.rank != 4 or b < 1 or x.type.shape[2] % b or x.type.shape[3] % b:
        raise n.fail(f"blocks of {b} don't fit {list(x.type.shape)}")
    count, c, h, w = x.type.shape
    perm = (0, 1, 3, 5, 2, 4) if n.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)  # the mode is opset 28's
    y = transposed(n, reshaped(n, x, (count, c, h // b, b, w // b, b)), perm)
    return reshaped(n, y, (count, c * b * b, h // b, w // b))


@onnx_op("Identity")
def identity(n: Node) -> Results:
    """Another name for the same tensor."""
    n.scope.alias(n.proto.output[0], n.name(0))
    return n.x(0)


@onnx_op("Dropout")
def dropout(n: Node) -> Results:
    """Inference form: nothing is dropped."""
    if n.wants(1) or (n.has(2) and n.array(2) is None) or (n.has(2) and np.asarray(n.array(2)).any()):
        return n.call()
    return n.x(0)


@onnx_op("Cast")
def cast(n: Node) -> Results:
    """To another dtype of numbers."""
    return _cast(n, n.integer("to"))


@onnx_op("CastLike")
def cast_like(n: Node) -> Results:
    """To the dtype of the second operand."""
    return _cast(n, n.scope.known(n.name(1)).elem_type)


def _cast(n: Node, elem_type: int) -> Value:
    if elem_type not in DTYPES:
        hint = "convert the model to float32 or to 8 and 16 bit integers"
        raise n.fail(f"a cast to {dtype_name(elem_type)} isn't taken", hint=hint, kind=NotTaken)
    dtype, x = DTYPES[elem_type], n.x(0)
    if x.type.quant == Quant((1.0,)) and dtype is DType.F32:  # an accumulator as ConvInteger gives it
        return dequantized(n, x, x.type.quant)
    back = uncast(n, x, dtype)
    if back is not None:
        return back
    x = n.stripped(x)
    if dtype in {DType.F16, DType.F64}:
        n.scope.wide[n.proto.output[0]] = dtype
        rounds = dtype is DType.F16 and n.scope.known(n.name(0)).elem_type != ELEM_TYPES[DType.F16]
        x = n.op(Cast, x, to=DType.F16) if rounds else x
        return x if x.type.dtype is DType.F32 else n.op(Cast, x, to=DType.F32)
    return x if x.type.dtype is dtype else n.op(Cast, x, to=dtype)


def axis_of(n: Node, rank: int, default: int) -> int:
    """The node's `axis`, counted from the front."""
    axis = n.integer("axis", default)
    if not -rank <= axis < rank:
        raise n.fail(f"axis {axis} is none of a tensor of rank {rank}", hint="export the model again")
    return axis % rank
