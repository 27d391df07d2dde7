"""Elementwise kernels of any number of operands that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ..program import Tensor
from .emitter import element, i64
from .loops import coordinates, elementwise, rows, span
from .offset import flipped, is_offset, load_as_stored, store_q
from .registry import KernelBuilder, Operands, operand

Combine = Callable[..., ir.Value]  # one value per operand, of equal lanes, to the result's integers
SHORT = 256  # elements of a row below which rows are done many at a time
BLOCK = 1024  # elements, about, of such a block of rows


@dataclass(frozen=True)
class Run:
    """Consecutive axes of a broadcast merged into one: its size, and which operands move along it."""

    size: int
    moves: tuple[bool, ...]


@dataclass(frozen=True)
class Groups:
    """A second way to combine: `lanes` elements as they are stored, to the result as it is stored."""

    lanes: int
    combine: Combine


def merge_axes(shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> list[Run]:
    """The fewest runs that describe the broadcast; axes of size 1 vanish, a last run is always there."""
    runs: list[Run] = []
    for *sides, size in zip(*shapes, out, strict=True):
        if size == 1:
            continue
        run = Run(size, tuple(d != 1 for d in sides))
        if runs and runs[-1].moves == run.moves:
            run = Run(runs.pop().size * size, run.moves)
        runs.append(run)
    return runs or [Run(1, (True,) * len(shapes))]


def broadcasting(
    k: KernelBuilder, ins: Operands, out: Tensor, combine: Combine, *, lanes: int = 0, groups: Groups | None = None
) -> None:
    """`combine` on vectors of all `ins`: one flat loop for equal shapes, else rows along the last run.

    Integers that it gives are extended or cut to the result's dtype. `lanes` are elements of a vector, by default two
    registers of i32. With `groups`, whole groups are combined by that, and `combine` does what is left of a row.
    """
    _Broadcast(k, ins, out, combine, groups, lanes or 2 * k.host.lanes).emit()


@dataclass(frozen=True)
class _Source:
    """Where an operand's elements of a row lie: from element `start` behind `base` on, or one value for all."""

    base: ir.Value
    start: ir.Value | int
    value: ir.Value | None = None  # as stored


class _Broadcast:
    def __init__(
        self, k: KernelBuilder, ins: Operands, out: Tensor, combine: Combine, groups: Groups | None, lanes: int
    ) -> None:
        self.k, self.out, self.combine, self.groups = k, out, combine, groups
        self.lanes = lanes if groups is None else groups.lanes
        self.tensors = [operand(ins, i) for i in range(len(ins))]
        self.runs = merge_axes([t.shape for t in self.tensors], out.shape)

    def emit(self) -> None:
        """The kernel."""
        *outer, last = self.runs
        if not outer:
            body = self.body(self.sources([0] * len(self.tensors), last), 0)
            elementwise(self.k, self.out.elements, self.lanes, body)
        elif last.size < SHORT:
            self.in_blocks()
        else:
            rows(self.k, math.prod(run.size for run in outer), self.row)

    def row(self, r: ir.Value) -> None:
        """One row along the last run."""
        k, last = self.k, self.runs[-1]
        sources = self.sources(_starts(k, r, self.runs[:-1], last.moves, last.size), last)
        span(k, 0, last.size, self.lanes, self.body(sources, k.b.mul(r, i64(last.size))))

    def sources(self, starts: Sequence[ir.Value | int], run: Run) -> list[_Source]:
        """The operands of a row that starts at these elements."""
        k = self.k
        found = []
        for j, (start, moves) in enumerate(zip(starts, run.moves, strict=True)):
            value = None if moves else load_as_stored(k, self.tensors[j], k.ins[j], start, 1)
            found.append(_Source(k.ins[j], start, value))
        return found

    def body(self, sources: Sequence[_Source], first: ir.Value | int) -> Callable[[ir.Value, int], None]:
        """What does elements [i, i + n) of a row whose result starts at element `first`."""
        k = self.k

        def body(i: ir.Value, n: int) -> None:
            stored = [
                k.splat(s.value, n)
                if s.value is not None
                else load_as_stored(k, t, s.base, k.b.add(i64(s.start), i), n)
                for s, t in zip(sources, self.tensors, strict=True)
            ]
            to = k.b.add(i64(first), i)
            if self.groups is not None and n == self.lanes > 1:
                k.store(self.groups.combine(*stored), k.outs[0], to)
                return
            y = self.combine(*(flipped(k, x) if is_offset(t) else x for x, t in zip(stored, self.tensors, strict=True)))
            y = y if self.out.dtype.is_float else k.resize(y, element(self.out.dtype))
            store_q(k, self.out, y, k.outs[0], to)

        return body

    # -- many short rows at a time

    def in_blocks(self) -> None:
        """Blocks of rows of the last run but one: operands that stand still in one of the two are written out first."""
        k, (*outer, middle, last) = self.k, self.runs
        whole = self.lanes // math.gcd(last.size, self.lanes)  # rows whose elements fill vectors
        count = min(middle.size, -(-BLOCK // (last.size * whole)) * whole)
        blocks = -(-middle.size // count)
        scratch = {
            j: k.scratch(count * last.size * t.dtype.size)
            for j, t in enumerate(self.tensors)
            if middle.moves[j] != last.moves[j]
        }
        k.work(math.prod(run.size for run in outer) * blocks)
        with k.loop(k.begin, k.end) as item:
            entry, number = k.b.udiv(item, i64(blocks)), k.b.urem(item, i64(blocks))
            first = k.b.mul(number, i64(count))
            size = k.smin(i64(count), k.b.sub(i64(middle.size), first))
            block = Run(middle.size * last.size, tuple(a or b for a, b in zip(middle.moves, last.moves, strict=True)))
            starts = []
            for j, start in enumerate(_starts(k, entry, outer, block.moves, 1)):
                inner = (middle.size if middle.moves[j] else 1) * (last.size if last.moves[j] else 1)
                step = last.size if last.moves[j] else 1
                at = k.b.mul(start, i64(inner)) if block.moves[j] else start
                starts.append(k.b.add(at, k.b.mul(first, i64(step))) if middle.moves[j] else at)
            sources = self.sources(starts, block)
            fresh = k.b.or_(k.b.icmp_signed("==", number, i64(0)), k.b.icmp_signed("==", item, k.begin))
            for j, room in scratch.items():
                self.write_out(j, sources[j], room, size, (middle.moves[j], fresh, count))
                sources[j] = _Source(room, 0)
            out = k.b.mul(k.b.add(k.b.mul(entry, i64(middle.size)), first), i64(last.size))
            span(k, 0, k.b.mul(size, i64(last.size)), self.lanes, self.body(sources, out))

    def write_out(
        self, j: int, source: _Source, room: ir.Value, size: ir.Value, what: tuple[bool, ir.Value, int]
    ) -> None:
        """Operand j of a block, element for element: one row `count` times, or each of `size` elements along a row."""
        k, dtype, length = self.k, self.tensors[j].dtype, self.runs[-1].size
        by_row, fresh, count = what
        start = k.at(source.base, source.start, dtype.size)
        if by_row:
            with k.loop(0, size) as r:
                value = k.load(start, r, element(dtype))
                to = k.at(room, k.b.mul(r, i64(length)), dtype.size)
                span(k, 0, length, min(self.lanes, 1 << (length.bit_length() - 1)), _filler(k, value, to))
            return
        with k.when(fresh), k.loop(0, count) as r:
            to = k.at(room, k.b.mul(r, i64(length)), dtype.size)
            lanes = min(self.lanes, 1 << (length.bit_length() - 1))
            span(k, 0, length, lanes, lambda i, n: k.store(k.load(start, i, element(dtype), n), to, i))


def _filler(k: KernelBuilder, value: ir.Value, to: ir.Value) -> Callable[[ir.Value, int], None]:
    return lambda i, n: k.store(k.splat(value, n), to, i)


def _starts(k: KernelBuilder, row: ir.Value, outer: Sequence[Run], moves: Sequence[bool], size: int) -> list[ir.Value]:
    """The element offset of each operand where row `row` over the runs `outer` begins; a row has `size` elements."""
    index = coordinates(k, row, tuple(run.size for run in outer))
    starts = []
    for j, moving in enumerate(moves):
        stride = size if moving else 1
        offset = i64(0)
        for axis in range(len(outer) - 1, -1, -1):
            if outer[axis].moves[j]:
                offset = k.b.add(offset, k.b.mul(index[axis], i64(stride)))
                stride *= outer[axis].size
        starts.append(offset)
    return starts
