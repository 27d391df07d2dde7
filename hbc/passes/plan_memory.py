"""Gives every value between ops its place in one arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.ops import BPU_OPS, Const
from hbc_runtime import isa
from hbc_runtime.program import ALIGN

from .base import Pass, Target

CONV, ADD = BPU_OPS[isa.Conv2d], BPU_OPS[isa.Add]
ALIASING: type[Op] = BPU_OPS[isa.Reshape]  # moves no bytes: its result may be its operand's bytes


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Set `Value.offset` of what lives in the arena, and `Graph.arena_size`.

        %a = bpu.lut %x           offset 0
        %b = bpu.reshape %a       offset 0      (%a's own bytes)
        %c = bpu.clamp %b         offset 4096
        return %c                               (the caller's array)

    A value is alive from the step that makes it to the last step that reads it, both included; what a convolution reads
    lives on through an addition right behind it, which the runtime may do in the same pass over memory. Each op is a
    step; a CPU segment is one step, and only what crosses its border needs a place. Arguments, constants and returned
    values lie elsewhere and get no offset. A `bpu.reshape` shares its operand's bytes, in the arena or in a caller's
    array, unless its result is returned or its operand is a constant (then it copies); `storage_root` says whose bytes
    a value has.
    The largest value (or that of most bytes × steps, whichever order needs less) is placed first, in the tightest gap.
    """

    name: ClassVar[str] = "plan-memory"

    def run(self, module: Module, target: Target) -> int:
        graph = module.graph
        lives = lifetimes(graph)
        clear_plan(graph)
        offsets = min((place(lives, order) for order in ORDERS), key=lambda offsets: arena_size(lives, offsets))
        for value in members(graph):
            root = storage_root(value)
            if root in offsets:
                value.offset = offsets[root]
        graph.arena_size = arena_size(lives, offsets)
        return len(lives)


@dataclass(frozen=True)
class Lifetime:
    """The steps `first` to `last` (included) in which `root` and its aliases hold `size` bytes (whole ALIGNs)."""

    root: Value
    first: int
    last: int
    size: int


def storage_root(value: Value) -> Value:
    """The value whose bytes `value` is read from: itself, or what a chain of aliasing reshapes started from."""
    while not value.is_output and isinstance(value.owner, ALIASING):
        operand = value.owner.operands[0]
        assert operand is not None
        if isinstance(operand.owner, Const):
            break  # the container holds no result among the constants
        value = operand
    return value


def members(graph: Graph) -> Iterator[Value]:
    """Every result of every op, in order."""
    return (r for op in graph.ops for r in op.results)


def clear_plan(graph: Graph) -> None:
    """Forget an earlier plan."""
    for value in (*graph.args, *members(graph)):
        value.offset = None
    graph.arena_size = None


def steps(graph: Graph) -> dict[Op, int]:
    """The step of every op: neighbours in one CPU segment share theirs. Constants don't run, so they part nothing."""
    numbers: dict[Op, int] = {}
    step, open_segment = -1, -1
    for op in graph.ops:
        if isinstance(op, Const):
            numbers[op] = step
            continue
        segment = op.placement.segment if op.placement is not None and op.placement.device == "cpu" else -1
        if segment < 0 or segment != open_segment:
            step += 1
        open_segment = segment
        numbers[op] = step
    return numbers


def lifetimes(graph: Graph) -> list[Lifetime]:
    """The lifetime of everything that needs the arena, in the order in which it is made."""
    at = steps(graph)
    run = [op for op in graph.ops if not isinstance(op, Const)]
    held: dict[Op, int] = {op: at[after] for op, after in pairwise(run) if isinstance(op, CONV) and _adds(after, op)}
    spans: dict[Value, tuple[int, int]] = {}
    for value in members(graph):
        root = storage_root(value)
        if not needs_arena(root, at):
            continue
        assert root.op is not None
        first, last = spans.get(root, (at[root.op], at[root.op]))
        spans[root] = first, max([last, *(held.get(u, at[u]) for u in value.users)])
    return [Lifetime(v, first, last, -(-v.type.nbytes // ALIGN) * ALIGN) for v, (first, last) in spans.items()]


def _adds(op: Op, conv: Op) -> bool:
    return isinstance(op, ADD) and conv.out in op.operands


def needs_arena(root: Value, at: dict[Op, int]) -> bool:
    """True unless `root` is an argument, a constant, a returned value, or never leaves its CPU segment."""
    op = root.op
    if op is None or isinstance(op, Const) or root.is_output:
        return False
    on_cpu = op.placement is not None and op.placement.device == "cpu"
    return not on_cpu or any(at[u] != at[op] for u in root.users)


ORDERS: tuple[Callable[[Lifetime], int], ...] = (
    lambda live: live.size,
    lambda live: live.size * (live.last - live.first + 1),
)


def place(lives: list[Lifetime], weight: Callable[[Lifetime], int]) -> dict[Value, int]:
    """An offset for every root: the weightiest first, each in the tightest gap between those it lives with."""
    order = sorted(range(len(lives)), key=lambda i: (-weight(lives[i]), lives[i].first, i))
    first, last, begin, end = (np.zeros(len(lives), np.int64) for _ in range(4))
    offsets: dict[Value, int] = {}
    for n, i in enumerate(order):
        live = lives[i]
        meets = (first[:n] <= live.last) & (last[:n] >= live.first)
        offset = tightest_gap(begin[:n][meets], end[:n][meets], live.size)
        first[n], last[n], begin[n], end[n] = live.first, live.last, offset, offset + live.size
        offsets[live.root] = offset
    return offsets


def arena_size(lives: list[Lifetime], offsets: dict[Value, int]) -> int:
    """Bytes up to the end of the last value."""
    return max((offsets[live.root] + live.size for live in lives), default=0)


def tightest_gap(begin: np.ndarray, end: np.ndarray, size: int) -> int:
    """The offset of the smallest gap of at least `size` bytes between the intervals, or the end of the last of them."""
    if not len(begin):
        return 0
    order = np.argsort(begin, kind="stable")
    tops = np.maximum.accumulate(end[order])
    lows = np.concatenate(([0], tops[:-1]))
    gaps = begin[order] - lows
    fits = gaps >= max(size, 1)
    if not fits.any():
        return int(tops[-1])
    return int(lows[fits][np.argmin(gaps[fits])])
