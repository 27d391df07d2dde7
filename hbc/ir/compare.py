"""When two modules are the same: equal ops in equal order with equal names, whatever objects they are made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .core import Module, Op, Value
from .kinds import plain_attrs
from .naming import value_names
from .types import Quant, TensorType

Fact = tuple[str, object]


def modules_equal(a: Module, b: Module, *, locs: bool = False) -> bool:
    """True where `a` and `b` differ in nothing: names, types, attributes, constants (bit for bit), placement, offsets.

    Names count as they are printed, so that two hints `x` equal `x` and `x_1`. Locations count with `locs`.
    """
    return first_difference(a, b, locs=locs) is None


def first_difference(a: Module, b: Module, *, locs: bool = False) -> str | None:
    """The first place where `a` and `b` differ, in words, or None."""
    theirs = _facts(b, locs=locs)
    for name, mine in _facts(a, locs=locs):
        other, value = next(theirs, ("the end", None))
        if name != other:
            return f"{name} against {other}"
        if mine != value:
            return f"{name}: {mine!r:.200} against {value!r:.200}"
    rest = next(theirs, None)
    return None if rest is None else f"the end against {rest[0]}"


def _facts(module: Module, *, locs: bool) -> Iterator[Fact]:
    g = module.graph
    names = value_names(g)
    yield "module", (module.name, module.march, module.arith, module.metadata)
    yield "graph", (g.name, g.arena_size)
    for i, arg in enumerate(g.args):
        yield f"argument {i}", _value(arg, names)
    for i, op in enumerate(g.ops):
        for what, fact in _op_facts(op, names, locs=locs):
            yield f"op {i} {op.NAME}: {what}", fact
    for i, out in enumerate(g.outputs):
        yield f"output {i}", (out.name, names.get(out.value))


def _op_facts(op: Op, names: dict[Value, str | int], *, locs: bool) -> Iterator[Fact]:
    operands = [None if v is None else names.get(v, "not in the graph") for v in op.operands]
    while operands and operands[-1] is None:
        operands.pop()
    yield "class", type(op)
    yield "operands", operands
    for name, value in plain_attrs(op).items():
        yield name, _exact(value)
    for i, r in enumerate(op.results):
        yield f"result {i}", _value(r, names)
    yield "placement", op.placement
    if locs:
        yield "location", op.loc


def _value(value: Value, names: dict[Value, str | int]) -> object:
    return names[value], _type(value.type), value.offset


def _type(t: TensorType) -> object:
    return t.shape, t.dtype, None if t.quant is None else _quant(t.quant)


def _quant(q: Quant) -> object:
    return tuple(s.hex() for s in q.scale), q.zero_point, q.axis


def _exact(value: object) -> object:
    """Something that is equal where the bits are: −0.0 is not 0.0, a NaN is itself."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(_exact(v) for v in value)
    return float.hex(value) if isinstance(value, float) else (type(value), value)
