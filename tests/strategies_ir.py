"""Hypothesis strategies for the IR: types, constants, and modules: of any ops (`modules`), or that run (`runnable`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from hbc.ir import ops
from hbc.ir.builder import Builder, make_op
from hbc.ir.core import Graph, Module, Op, Placement, Value
from hbc.ir.dense import PRINTED_SEEDS, seeded
from hbc.ir.kinds import ANY_SIZE, Kind, attr_kinds
from hbc.ir.location import FileLoc, FusedLoc, Loc, NodeLoc
from hbc.ir.types import DYNAMIC, DType, Quant, TensorType, f32

DTYPES = st.sampled_from(list(DType))
SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
TEXT = st.text(max_size=12)
NAMES = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_.$-]{0,6}", fullmatch=True), TEXT, st.sampled_from(["x", "x_1", "_", "12", ""])
)
F32 = st.floats(width=32, min_value=2.0**-40, max_value=2.0**40)
INTS = st.integers(-(1 << 63), (1 << 64) - 1)
FLOATS = st.floats() | st.sampled_from([math.inf, -math.inf, math.nan, -0.0, 0.1, 1e22])


# ---- types and constants


@st.composite
def quants(draw: st.DrawFn, shape: tuple[int, ...]) -> Quant | None:
    """Scales that are float32, and sometimes ones that are not."""
    axes = [i for i, d in enumerate(shape) if d > 0]
    scale = F32 | st.floats(1e-9, 1e9)
    zero_point = st.integers(-(1 << 31), 1 << 31)
    match draw(st.sampled_from(["none", "tensor", "channel"])):
        case "tensor":
            return Quant((draw(scale),), (draw(zero_point),))
        case "channel" if axes:
            axis = draw(st.sampled_from(axes))
            n = shape[axis]
            scales = draw(st.lists(scale, min_size=n, max_size=n))
            return Quant(tuple(scales), tuple(draw(st.lists(zero_point, min_size=n, max_size=n))), axis)
    return None


@st.composite
def types(draw: st.DrawFn) -> TensorType:
    shape = draw(SHAPES)
    return TensorType(shape, draw(DTYPES), draw(quants(shape)))


@st.composite
def arrays(draw: st.DrawFn, t: TensorType) -> np.ndarray:
    """Any bits, equal elements, or seeded ones."""
    match draw(st.sampled_from(["bits", "splat", "seed"])):
        case "seed":
            return seeded(draw(st.integers(0, PRINTED_SEEDS + 50)), t.shape, t.dtype)
        case "splat":
            raw = draw(st.binary(min_size=t.dtype.size, max_size=t.dtype.size)) * t.elements
        case _:
            raw = draw(st.binary(min_size=t.nbytes, max_size=t.nbytes))
    if t.dtype is DType.BOOL:
        raw = bytes(b & 1 for b in raw)
    return np.frombuffer(raw, t.dtype.numpy).reshape(t.shape)


# ---- modules of any ops: well formed, rarely verified


def attr_values(kind: Kind) -> st.SearchStrategy[object]:
    one = {int: INTS, float: FLOATS, bool: st.booleans(), str: TEXT}.get(kind.base)
    if one is None:
        one = st.sampled_from(list(kind.members.values())) if kind.members else INTS | FLOATS | TEXT
    if kind.size is None:
        return one
    low, high = (0, 4) if kind.size == ANY_SIZE else (kind.size, kind.size)
    return st.lists(one, min_size=low, max_size=high).map(tuple)


@st.composite
def any_op(draw: st.DrawFn, values: list[Value], cls: type[Op] | None = None) -> Op:
    """An op with operands among `values`, attributes of their kinds, and results of any type."""
    cls = cls or draw(st.sampled_from(list(ops.TABLE.values())))
    operands: list[Value | None] = []
    for spec in cls.OPERANDS:
        count = draw(st.integers(0, 3)) if spec.variadic else 1
        for _ in range(count):
            missing = spec.optional and draw(st.booleans())
            operands.append(None if missing else draw(st.sampled_from(values)))
    count = draw(st.integers(0, 3)) if cls in ops.CALLS else 1
    results = [draw(types()) for _ in range(count)]
    if cls is ops.CallGraph:
        results = [t.with_shape(tuple(draw(st.sampled_from([d, DYNAMIC])) for d in t.shape)) for t in results]
    attrs: dict[str, object] = {}
    for spec in cls.ATTRS:
        kind = attr_kinds(cls)[spec.name]
        if kind.base is np.ndarray:
            attrs[spec.name] = draw(arrays(results[0]))
        elif spec.required or draw(st.booleans()):
            attrs[spec.name] = draw(attr_values(kind))
    op = make_op(cls, operands, attrs, draw(locs()), results, [draw(st.none() | NAMES) for _ in results])
    for r in op.results:
        r.offset = draw(st.none() | st.integers(0, 1 << 40))
    op.placement = draw(st.none() | PLACEMENTS)
    return op


PLACEMENTS = st.builds(Placement, st.sampled_from(["bpu", "host", "cpu"]), TEXT, st.integers(0, 99))
NODE_LOCS = st.builds(NodeLoc, TEXT, TEXT, TEXT)
FILE_LOCS = st.builds(FileLoc, TEXT)


def locs() -> st.SearchStrategy[Loc]:
    parts = st.lists(NODE_LOCS | FILE_LOCS, min_size=1, max_size=3).map(tuple)
    return NODE_LOCS | FILE_LOCS | parts.map(FusedLoc)


@st.composite
def modules(draw: st.DrawFn, max_ops: int = 6) -> Module:
    """Modules with every feature of the text: most would not verify."""
    graph = Graph(draw(NAMES))
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        graph.add_arg(name, draw(types())).offset = draw(st.none() | st.integers(0, 64))
    values = list(graph.args)
    for _ in range(draw(st.integers(0, max_ops))):
        graph.ops.append(draw(any_op(values)))
        values += graph.ops[-1].results
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        graph.add_output(name, draw(st.sampled_from(values)))
    graph.arena_size = draw(st.none() | st.integers(0, 1 << 40))
    metadata = draw(st.dictionaries(TEXT, TEXT, max_size=2))
    march = draw(st.sampled_from(["nash-e", "bayes-e"]) | TEXT)
    return Module(graph, draw(NAMES), march, draw(st.sampled_from(["bpu", "onnx"])), metadata)


# ---- modules that compute: float [1, C, H, W] throughout, every op verifies

Maker = Callable[[st.DrawFn, Builder, list[Value]], Value]


def _unary(draw: st.DrawFn, build: Builder, values: list[Value]) -> Value:
    cls = draw(st.sampled_from([ops.Clip, ops.TABLE["leaky_relu"], ops.TABLE["sigmoid"], ops.TABLE["abs"]]))
    low = {"low": draw(st.sampled_from([-1.0, 0.0]))} if cls is ops.Clip else {}
    return build.op(cls, draw(st.sampled_from(values)), loc=_here(build), **low).out


def _binary(draw: st.DrawFn, build: Builder, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    same = [v for v in values if v.type == x.type]
    cls = draw(st.sampled_from([ops.Add, ops.Sub, ops.Mul, ops.Maximum]))
    return build.op(cls, x, draw(st.sampled_from(same)), loc=_here(build)).out


def _conv(draw: st.DrawFn, build: Builder, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    k = draw(st.sampled_from([1, 3]))
    weight = _const(draw, build, (draw(st.integers(1, 4)), x.type.shape[1], k, k))
    bias = _const(draw, build, weight.type.shape[:1]) if draw(st.booleans()) else None
    pads = (k // 2,) * 4
    return build.op(ops.Conv2d, x, weight, bias, pads=pads, loc=_here(build)).out


def _move(draw: st.DrawFn, build: Builder, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    perm = draw(st.permutations([1, 2, 3]))
    return build.op(ops.Transpose, x, perm=(0, *perm), loc=_here(build)).out


def _concat(draw: st.DrawFn, build: Builder, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    fitting = [v for v in values if v.type.shape[2:] == x.type.shape[2:]]
    return build.op(ops.Concat, x, draw(st.sampled_from(fitting)), axis=1, loc=_here(build)).out


def _round_trip(draw: st.DrawFn, build: Builder, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    quant = Quant.per_tensor(draw(st.sampled_from([0.0625, 0.03, 0.5])), draw(st.sampled_from([0, -7])))
    q = build.op(ops.Quantize, x, type=TensorType(x.type.shape, DType.I8, quant), loc=_here(build)).out
    return build.op(ops.Dequantize, q, loc=_here(build)).out


def _const(draw: st.DrawFn, build: Builder, shape: tuple[int, ...]) -> Value:
    return build.op(ops.Const, value=seeded(draw(st.integers(0, 9)), shape, DType.F32), loc=_here(build)).out


def _here(build: Builder) -> NodeLoc:
    return NodeLoc(f"node{len(build.graph.ops)}")


MAKERS: tuple[Maker, ...] = (_unary, _binary, _conv, _move, _concat, _round_trip)


@st.composite
def runnable(draw: st.DrawFn, max_ops: int = 8) -> Module:
    """Modules that verify and that the interpreter runs."""
    graph = Graph()
    build = Builder(graph)
    sizes = st.integers(1, 4)
    values = [graph.add_arg(f"in{i}", f32(1, *(draw(sizes) for _ in range(3)))) for i in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, max_ops))):
        made = draw(st.sampled_from(MAKERS))(draw, build, values)
        if made.type.elements <= 512:
            values.append(made)
    graph.add_output("out0", values[-1])
    graph.add_output("out1", draw(st.sampled_from(values)))
    return Module(graph)
