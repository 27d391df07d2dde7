"""Ops that pick, join and surround elements."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Concat, Pad
from hbc.ir.types import DType

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_weights import reshaped
from .pick import GATHER_LIMIT, slice_op, sliced, taken
from .pool import per_tensor
from .registry import onnx_op
from .shape import axis_of

_REPEATS: dict[str, Literal["reflect", "edge", "wrap"]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@onnx_op("Concat")
def concat(n: Node) -> Results:
    """Operands joined; integers keep what they stand for where all stand for the same."""
    values = [n.x(i) for i in range(len(n.proto.input)) if n.has(i)]
    axis = axis_of(n, values[0].type.rank, 1 if n.version < 4 else 0)
    if len({v.type.dtype for v in values}) != 1:
        raise n.fail("operands differ in type", why=", ".join(sorted({v.type.dtype.text for v in values})))
    one = len({v.type.quant for v in values}) == 1
    if not one or (values[0].type.quant is not None and values[0].type.quant.axis == axis):
        values = [n.stripped(v) for v in values]
    filled = [v for v in values if v.type.shape[axis : axis + 1] != (0,)] or values[:1]
    return filled[0] if len(filled) == 1 else n.op(Concat, *filled, axis=axis)


@onnx_op("Split")
def split(n: Node) -> Results:
    """Equal parts, `num_outputs` parts with a smaller last one, or parts of given sizes: one slice each."""
    x = n.x(0)
    axis = axis_of(n, x.type.rank, 0)
    size, count = x.type.shape[axis], len(n.proto.output)
    sizes = n.known_integers(1) if n.has(1) else n.ints("split")
    if n.has(1) and sizes is None:
        return n.call()
    if sizes is None:
        part = -(-size // count)
        sizes = tuple(max(0, min(part, size - i * part)) for i in range(count))
    if len(sizes) != count or min(sizes) < 0 or sum(sizes) != size:
        raise n.fail(f"parts of {list(sizes)} don't make up {size}", why=f"{count} outputs along axis {axis}")
    results, start = [], 0
    for name, part in zip(n.proto.output, sizes, strict=True):
        if name:
            results.append(sliced(n, x, axis, start, part))
        start += part
    return results


@onnx_op("Slice")
def slice_(n: Node) -> Results:
    """Known bounds, as attributes (before opset 10) or operands; ends clamp, steps may be negative."""
    x = n.x(0)
    if n.version < 10:
        begins, ends, axes, steps = n.ints("starts"), n.ints("ends"), n.ints("axes"), None
    else:
        given = [n.known_integers(i) if n.has(i) else None for i in range(1, 5)]
        if any(v is None and n.has(i) for i, v in enumerate(given, 1)):
            return n.call()
        begins, ends, axes, steps = given
    if begins is None or ends is None:
        raise n.fail("the bounds of the slice are missing", hint="export the model again")
    axes = tuple(range(len(begins))) if axes is None else axes
    steps = (1,) * len(begins) if steps is None else steps
    if not len(begins) == len(ends) == len(axes) == len(steps):
        raise n.fail("starts, ends, axes and steps differ in length", hint="export the model again")
    starts, sizes, strides = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        if not -x.type.rank <= axis < x.type.rank or step == 0:
            raise n.fail(f"can't slice axis {axis} by step {step}", why=f"the input has rank {x.type.rank}")
        picked = range(x.type.shape[axis])[slice(begin, end, step)]  # Python clamps and counts as ONNX does
        starts[axis], sizes[axis], strides[axis] = (
            (picked.start if picked else 0),
            len(picked),
            (step if len(picked) > 1 else 1),
        )
    return slice_op(n, x, starts, sizes, strides)


@onnx_op("Gather")
def gather(n: Node) -> Results:
    """Known indices: a scalar drops the axis, more than one axis of indices become axes of the result."""
    x, indices = n.x(0), n.array(1)
    if indices is None or indices.dtype.kind != "i" or indices.size > GATHER_LIMIT:
        return n.call()
    if x.type.rank < 1:
        raise n.fail("a scalar has no axis to gather from")
    axis = axis_of(n, x.type.rank, 0)
    size = x.type.shape[axis]
    flat = [int(i) for i in indices.reshape(-1)]
    if any(not -size <= i < size for i in flat):
        raise n.fail("an index is out of range", why=f"axis {axis} has {size} entries", hint="export the model again")
    shape = (*x.type.shape[:axis], *indices.shape, *x.type.shape[axis + 1 :])
    return reshaped(n, taken(n, x, axis, [i % size for i in flat]), shape)


@onnx_op("Pad")
def pad(n: Node) -> Results:
    """A border of one known number, or of x's own elements (reflect, edge, wrap); negative pads crop."""
    mode = n.text("mode", "constant")
    x = n.x(0)
    if n.version < 11:
        pads, value = n.ints("pads"), n.number("value", 0.0)
    else:
        pads = n.known_integers(1)
        fill = n.array(2) if n.has(2) else np.zeros(())
        if pads is None or fill is None or (n.has(3) and n.known_integers(3) is None):
            return n.call(reason="its pads or its value are computed at run time", hint="export with static shapes")
        value = float(np.asarray(fill).reshape(-1)[0])
    full = _all_pads(n, pads or (), x.type.rank)
    if mode == "constant":
        return n.call() if x.type.dtype is DType.BOOL else padded(n, per_tensor(n, x), full, value)
    if mode not in _REPEATS:
        raise n.fail(f"attribute 'mode' is {mode!r}", hint="use constant, reflect, edge or wrap")
    if any(d + full[i] + full[x.type.rank + i] > GATHER_LIMIT for i, d in enumerate(x.type.shape)):
        return n.call(reason=f"an axis becomes longer than {GATHER_LIMIT}")
    return bordered(n, x, full, mode)


def _all_pads(n: Node, pads: tuple[int, ...], rank: int) -> list[int]:
    """Begins then ends for every axis."""
    axes = n.known_integers(3) if n.has(3) else None
    places = list(range(rank)) if axes is None else [a % rank for a in axes if -rank <= a < rank]
    if len(pads) != 2 * len(places) or (axes is not None and len(places) < len(axes)):
        raise n.fail(f"pads {list(pads)} don't fit a tensor of rank {rank}", hint="export the model again")
    full = [0] * (2 * rank)
    for i, axis in enumerate(places):
        full[axis], full[rank + axis] = pads[i], pads[len(places) + i]
    return full


def bordered(n: Building, x: Value, pads: list[int], mode: str) -> Value:
    """`x` cropped where pads are negative, then between copies of its own elements, axis by axis."""
    rank = x.type.rank
    x, pads = _cropped(n, x, pads)
    for axis, size in enumerate(x.type.shape):
        border = (pads[axis], pads[rank + axis])
        if size == 0 and any(border):
            raise n.fail(f"there is nothing to repeat along axis {axis}", why=f"the input is {list(x.type.shape)}")
        if any(border):
            x = taken(n, x, axis, np.pad(np.arange(size), border, mode=_REPEATS[mode]))
    return x


def _cropped(n: Building, x: Value, pads: list[int]) -> tuple[Value, list[int]]:
    """`x` without what negative pads cut off, and the pads that are left."""
    rank = x.type.rank
    if min(pads, default=0) >= 0:
        return x, pads
    starts = [max(0, -p) for p in pads[:rank]]
    sizes = [d - a - max(0, -p) for d, a, p in zip(x.type.shape, starts, pads[rank:], strict=True)]
    if min(sizes) < 0:
        raise n.fail("negative pads leave nothing of the input", why=f"pads {pads} on {list(x.type.shape)}")
    return slice_op(n, x, starts, sizes, [1] * rank), [max(0, p) for p in pads]


def padded(n: Building, x: Value, pads: list[int], value: float) -> Value:
    """`x` cropped where pads are negative, then inside a border of `value` in x's own numbers."""
    x, pads = _cropped(n, x, pads)
    if not any(pads):
        return x
    quant = x.type.quant
    real = value if quant is None else (value - quant.zero_point[0]) * quant.scale[0]
    return n.op(Pad, x, pads=tuple(pads), value=real)
