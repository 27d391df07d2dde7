"""Ops that move elements, and those that know their result when compiling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.differential.quantised import Scaled

from .draw import Build, Draw, OpCase, Shape, longs

Move = Callable[[Draw, OpCase, str, Shape], str]


def moved(move: Move, low: int = 1, high: int = 5) -> Build:
    def build(d: Draw) -> OpCase:
        """One scale, so that nothing is rounded."""
        case, by, shape = OpCase(), d.far(), d.shape(low, high)
        return case.result(move(d, case, d.activation(case, shape, by), shape), by)

    return build


def concat(d: Draw) -> OpCase:
    """One to four parts of one scale, a constant among them now and then."""
    case, by, shape = OpCase(), d.far(), d.shape()
    axis = d.axis(len(shape))
    parts = []
    for i in range(d.int(1, 4)):
        own = [d.int(1, 4) if a == axis % len(shape) else s for a, s in enumerate(shape)]
        q = d.data(by, own)
        reals = (q.astype(np.float32) - np.float32(by.zero)) * np.float32(by.scale)
        parts.append(case.const(reals) if i and d.int(0, 3) == 0 else case.activation(q, by))
    return case.result(case.op("Concat", *parts, axis=axis), by)


def split(d: Draw) -> OpCase:
    """Sizes that are given, or a number of parts of which the last is smaller; every part an output."""
    case, by, shape = OpCase(), d.far(), d.shape()
    axis = d.axis(len(shape))
    size, parts = shape[axis], d.int(1, shape[axis])
    names = [f"part{i}" for i in range(parts)]
    x = d.activation(case, shape, by)
    even = -(-size // parts)
    if d.flag() and even * (parts - 1) < size:
        case.op("Split", x, out=names, axis=axis, num_outputs=parts)
    else:
        sizes = [1] * (parts - 1)
        case.op("Split", x, longs(case, [*sizes, size - parts + 1]), out=names, axis=axis)
    for i, name in enumerate(names):
        case.result(name, by, out=f"y{i}")
    return case


def slice_(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    """Some axes, steps of either sign, bounds from either end and beyond them; at least one element stays."""
    axes = [a for a in range(len(shape)) if d.flag()] or [0]
    starts, ends, steps = [], [], []
    for a in axes:
        low = d.int(0, shape[a] - 1)
        high = d.int(low, shape[a] - 1)
        if d.flag():
            steps.append(d.int(1, 3))
            starts.append(low - shape[a] * d.int(0, 1))
            ends.append(high + 1 if d.flag() else 1 << 40)
        else:
            steps.append(-d.int(1, 3))
            starts.append(high if d.flag() else 1 << 40)
            ends.append(low - 1 if low else -(1 << 40))
    return c.op("Slice", x, *(longs(c, v) for v in (starts, ends, [a - len(shape) * d.int(0, 1) for a in axes], steps)))


def gather(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    """A scalar, a list or a matrix of positions, counted from either end."""
    axis = d.axis(len(shape))
    positions = d.rng().integers(-shape[axis], shape[axis], d.of((), (1,), (3,), (2, 2)))
    return c.op("Gather", x, c.const(np.asarray(positions, d.of(np.int32, np.int64))), axis=axis)


def pad(d: Draw) -> OpCase:
    """All modes; a number of the result's scale or none; negative pads crop."""
    case, by, shape = OpCase(), d.far(), d.shape(1, 4)
    mode = d.of("constant", "constant", "reflect", "edge", "wrap")
    most = [s - 1 if mode in {"reflect", "wrap"} else 3 for s in shape]
    pads = [d.int(0, m) for m in (*most, *most)]
    if mode == "constant" and shape[0] > 2:
        pads[0] = -1
    value = []
    if mode == "constant" and d.flag():
        info = np.iinfo(by.dtype)
        value = [case.const(np.float32((d.int(info.min, info.max) - int(by.zero)) * np.float32(by.scale)))]
    x = d.activation(case, shape, by)
    return case.result(case.op("Pad", x, longs(case, pads), *value, mode=mode), by)


def reshape(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    """0 copies a size, −1 is the rest."""
    cut = d.int(0, len(shape))
    kept = [0 if d.flag() else s for s in shape[:cut]]
    return c.op("Reshape", x, longs(c, [*kept, -1] if d.flag() or not kept else [*kept, 1, -1]))


def flatten(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    return c.op("Flatten", x, axis=d.int(-len(shape), len(shape)))


def squeeze(d: Draw) -> OpCase:
    """The axes of size 1: some of them, or all where none is named."""
    case, by = OpCase(), d.far()
    shape = tuple(d.of(1, 1, 2, 3) for _ in range(d.int(1, 6)))
    axes = [a for a, s in enumerate(shape) if s == 1 and d.flag()]
    named = [longs(case, [a - len(shape) * d.int(0, 1) for a in axes])] if axes else []
    return case.result(case.op("Squeeze", d.activation(case, shape, by), *named), by)


def unsqueeze(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    rank = len(shape) + d.int(1, 3)
    axes = sorted(d.rng().choice(rank, rank - len(shape), replace=False))
    return c.op("Unsqueeze", x, longs(c, [int(a) - rank * d.int(0, 1) for a in axes]))


def expand(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    """Both ways: sizes of 1 on either side, more axes, fewer."""
    target = [d.int(1, 3) if s == 1 else d.of(1, s) for s in shape]
    return c.op("Expand", x, longs(c, d.ints(d.int(0, 2), 1, 3) + target if d.flag() else target[d.int(0, 1) :]))


def tile(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    return c.op("Tile", x, longs(c, d.ints(len(shape), 1, 3)))


def transpose(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    attrs = {"perm": [int(p) for p in d.rng().permutation(len(shape))]} if shape and d.flag() else {}
    return c.op("Transpose", x, **attrs)


def depth(d: Draw) -> OpCase:
    case, by, block = OpCase(), d.far(), d.int(1, 3)
    shape = (d.int(1, 2), block * block * d.int(1, 3), d.int(1, 4), d.int(1, 4))
    return case.result(
        case.op("DepthToSpace", d.activation(case, shape, by), blocksize=block, mode=d.of("DCR", "CRD")), by
    )


def space(d: Draw) -> OpCase:
    case, by, block = OpCase(), d.far(), d.int(1, 3)
    shape = (d.int(1, 2), d.int(1, 3), block * d.int(1, 3), block * d.int(1, 3))
    return case.result(case.op("SpaceToDepth", d.activation(case, shape, by), blocksize=block), by)


def identity(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    return c.op("Identity", x)


def dropout(d: Draw, c: OpCase, x: str, shape: Shape) -> str:
    """Not training, said or not."""
    more = [c.const(d.real(0, 0.9)), *([c.const(np.bool_(False))] if d.flag() else [])] if d.flag() else []
    return c.op("Dropout", x, *more)


# ---- known when compiling


def added(d: Draw, case: OpCase, shape: Shape, constant: str, by: Scaled) -> OpCase:
    """x and what the op under test made, on either side of an addition."""
    x = d.activation(case, shape, by)
    return case.result(case.op("Add", *((x, constant) if d.flag() else (constant, x))), d.like(by, 2))


def constant(d: Draw) -> OpCase:
    """Every attribute that holds numbers."""
    case, by, shape = OpCase(), d.far(), d.shape()
    values = d.reals(d.of((), shape[-1:], shape))
    if values.ndim == 0:
        c = case.op("Constant", value_float=float(values))
    elif values.ndim == 1 and d.flag():
        c = case.op("Constant", value_floats=[float(v) for v in values])
    else:
        c = case.op("Constant", value=numpy_helper.from_array(values))
    return added(d, case, shape, c, by)


def constant_of_shape(d: Draw) -> OpCase:
    case, by, shape = OpCase(), d.far(), d.shape()
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [float(d.real(-2, 2))])
    attrs = {"value": value} if d.flag() else {}
    return added(d, case, shape, case.op("ConstantOfShape", longs(case, d.of(shape, shape[-1:], ())), **attrs), by)


def shape_of(d: Draw) -> OpCase:
    """The sizes of an activation as a result, and as the target of a reshape."""
    case, by, shape = OpCase(), d.far(), d.shape(1, 4)
    x = d.activation(case, shape, by)
    attrs = {"start": d.axis(len(shape))} if d.flag() else {}
    case.op("Shape", x, out="sizes", **attrs)
    case.output("sizes", dtype=np.int64)
    target = case.op("Concat", longs(case, -1), case.op("Shape", x, start=-1), axis=0)
    return case.result(case.op("Reshape", x, target), by)


def conditional(d: Draw) -> OpCase:
    """A condition that is constant or follows from shapes: one branch is all there is."""
    case, by, shape = OpCase(), d.far(), d.shape()
    x = d.activation(case, shape, by)
    branches = {}
    for name, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        node = helper.make_node(op, [x], [f"{op}:out"], op)
        value = helper.make_tensor_value_info(f"{op}:out", TensorProto.FLOAT, shape)
        branches[name] = helper.make_graph([node], name, [], [value])
    if d.flag():
        condition = case.const(np.bool_(d.flag()))
    else:
        rank = case.op("Size", case.op("Shape", x))
        condition = case.op("Equal", rank, case.const(np.int64(d.int(1, 4))))
    return case.result(case.op("If", condition, **branches), d.like(by))


MOVES: dict[str, Build] = {
    "Concat": concat, "Split": split, "Slice": moved(slice_), "Gather": moved(gather), "Pad": pad,
    "Reshape": moved(reshape), "Flatten": moved(flatten), "Squeeze": squeeze, "Unsqueeze": moved(unsqueeze, 0),
    "Expand": moved(expand), "Tile": moved(tile), "Transpose": moved(transpose, 0, 6), "DepthToSpace": depth,
    "SpaceToDepth": space, "Identity": moved(identity, 0), "Dropout": moved(dropout, 0), "Constant": constant,
    "ConstantOfShape": constant_of_shape, "Shape": shape_of, "If": conditional,
}  # fmt: skip
