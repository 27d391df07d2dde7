"""Checks a memory plan. It shares no code with the planner, so that one mistake cannot hide in both."""

from __future__ import annotations

import math

from hbc.diagnostics import BadPlan, PassError
from hbc.ir.core import Graph, Module, Op, Value

ALIGNMENT = 64  # bytes: the arena's promise to the kernels (hbc_runtime.program.ALIGN), restated on purpose


def plan_is_sound(module: Module) -> None:
    """PassError, naming the values, unless every plan obligation holds.

    Every value between ops has an offset or shares one, and nothing else has; offsets are aligned and inside the arena;
    two values that are alive at one step share no byte, except that a reshape that stays in place is its operand.
    """
    graph = module.graph
    if graph.arena_size is None:
        msg = f"graph {graph.name!r} has no memory plan: run plan-memory"
        raise PassError(BadPlan(title=msg))
    clock = _clock(graph)
    _check_who_has_a_place(graph, clock)
    _check_bounds(graph, graph.arena_size)
    _check_no_overlap(graph, clock)


def _clock(graph: Graph) -> list[int]:
    """The moment of every op by its position; a run of ops of one CPU segment is one moment (constants don't run)."""
    moments, now, running = [], 0, None
    for op in graph.ops:
        if op.NAME != "const":
            place = op.placement
            segment = place.segment if place is not None and place.device == "cpu" else None
            now += 0 if segment is not None and segment == running else 1
            running = segment
        moments.append(now)
    return moments


def _check_who_has_a_place(graph: Graph, clock: list[int]) -> None:
    when = dict(zip(graph.ops, clock, strict=True))
    for value in (*graph.args, *(o.value for o in graph.outputs)):
        if value.offset is not None:
            msg = f"{_name(value)} is the caller's array, but the plan gives it offset {value.offset}"
            raise PassError(BadPlan(title=msg))
    for op in graph.ops:
        for value in op.results:
            if value.offset is None and _must_have_one(op, value, when):
                msg = f"{_name(value)} has no place in the arena"
                raise PassError(BadPlan(title=msg))


def _must_have_one(op: Op, value: Value, when: dict[Op, int]) -> bool:
    if op.NAME == "const" or any(use.op is None for use in value.uses):
        return False
    if op.placement is not None and op.placement.device == "cpu":
        return any(use.op is not None and when[use.op] != when[op] for use in value.uses)
    if op.NAME == "bpu.reshape":  # in place over an argument or a returned value: these have no offset
        (source,) = op.operands
        return source is None or source.offset is not None or (source.op is not None and source.op.NAME == "const")
    return True


def _check_bounds(graph: Graph, arena: int) -> None:
    for op in graph.ops:
        for value in op.results:
            if value.offset is None:
                continue
            size = math.prod(value.type.shape) * value.type.dtype.size
            if value.offset % ALIGNMENT:
                msg = f"{_name(value)} has offset {value.offset}, not a multiple of {ALIGNMENT}"
                raise PassError(BadPlan(title=msg))
            if value.offset < 0 or value.offset + size > arena:
                msg = f"{_name(value)} takes bytes {value.offset} to {value.offset + size} of an arena of {arena}"
                raise PassError(BadPlan(title=msg))


def _check_no_overlap(graph: Graph, clock: list[int]) -> None:
    """Walk over time with the list of what is alive; each newcomer is compared with all of it."""
    end = _ends(graph, clock)
    origin: dict[Value, Value] = {}  # of a value that a chain of reshapes left in place
    alive: list[Value] = []
    for op, now in zip(graph.ops, clock, strict=True):
        alive = [v for v in alive if end[v] >= now]
        for new in op.results:
            if new.offset is None or new.type.nbytes == 0:
                continue
            origin[new] = _origin(op, new, origin)
            for old in alive:
                if _overlap(old, new) and origin[old] is not origin[new]:
                    msg = f"{_name(old)} and {_name(new)} are alive together and share bytes of the arena"
                    raise PassError(BadPlan(title=msg))
            alive.append(new)


def _ends(graph: Graph, clock: list[int]) -> dict[Value, int]:
    """The last moment at which each value's bytes are read, or made."""
    when = dict(zip(graph.ops, clock, strict=True))
    end: dict[Value, int] = {}
    for op in reversed(graph.ops):
        for value in op.results:
            reads = [when[use.op] for use in value.uses if use.op is not None]
            end[value] = max([when[op], *reads])
    return end


def _overlap(a: Value, b: Value) -> bool:
    assert a.offset is not None
    assert b.offset is not None
    return a.offset < b.offset + b.type.nbytes and b.offset < a.offset + a.type.nbytes


def _origin(op: Op, new: Value, origin: dict[Value, Value]) -> Value:
    """Whose bytes `new` may share: its own, or those of the operand that a reshape left exactly in place."""
    source = op.operands[0] if op.NAME == "bpu.reshape" else None
    in_place = source is not None and source in origin and source.offset == new.offset
    return origin[source] if in_place and source is not None else new


def _name(value: Value) -> str:
    op = value.op
    if op is None:
        return f"argument {value.name!r}"
    label = f"{value.name!r}, " if value.name else ""
    return f"{label}result {value.index} of {op.NAME} ({op.node!r}),"
