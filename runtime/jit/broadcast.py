"""Elementwise kernels of any number of operands that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ..program import Tensor
from .emitter import element, i64
from .loops import coordinates, elementwise, rows, span
from .offset import load_q, store_q
from .registry import KernelBuilder, Operands, operand

Combine = Callable[..., ir.Value]  # one value per operand, of equal lanes, to the result's integers
Body = Callable[[ir.Value, int], None]


@dataclass(frozen=True)
class Run:
    """Consecutive axes of a broadcast merged into one: its size, and which operands move along it."""

    size: int
    moves: tuple[bool, ...]


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


def broadcasting(k: KernelBuilder, ins: Operands, out: Tensor, combine: Combine) -> None:
    """`combine` on vectors of all `ins`: one flat loop for equal shapes, else rows along the last run.

    Integers that it gives are extended or cut to the result's dtype.
    """
    tensors = [operand(ins, i) for i in range(len(ins))]
    runs = merge_axes([t.shape for t in tensors], out.shape)
    lanes = 2 * k.host.lanes
    *outer, last = runs

    def read(j: int, at: ir.Value | int, n: int) -> ir.Value:
        return load_q(k, tensors[j], k.ins[j], at, n)

    def emit(starts: Sequence[ir.Value | int], scalars: Sequence[ir.Value | None], first: ir.Value | int) -> Body:
        def body(i: ir.Value, n: int) -> None:
            values = [
                k.splat(one, n) if one is not None else read(j, k.b.add(i64(starts[j]), i), n)
                for j, one in enumerate(scalars)
            ]
            y = combine(*values)
            y = y if out.dtype.is_float else k.resize(y, element(out.dtype))
            store_q(k, out, y, k.outs[0], k.b.add(i64(first), i))

        return body

    def row(r: ir.Value) -> None:
        starts = _starts(k, r, runs)
        scalars = [None if move else read(j, starts[j], 1) for j, move in enumerate(last.moves)]
        span(k, 0, last.size, lanes, emit(starts, scalars, k.b.mul(r, i64(last.size))))

    if outer:
        rows(k, math.prod(run.size for run in outer), row)
        return
    scalars = [None if move else read(j, 0, 1) for j, move in enumerate(last.moves)]
    elementwise(k, out.elements, lanes, emit((0,) * len(tensors), scalars, 0))


def _starts(k: KernelBuilder, row: ir.Value, runs: Sequence[Run]) -> list[ir.Value]:
    """The element offset of each operand where output row `row` (over all runs but the last) begins."""
    index = coordinates(k, row, tuple(run.size for run in runs[:-1]))
    starts = []
    for j in range(len(runs[0].moves)):
        stride = runs[-1].size if runs[-1].moves[j] else 1
        offset = i64(0)
        for axis in range(len(runs) - 2, -1, -1):
            if runs[axis].moves[j]:
                offset = k.b.add(offset, k.b.mul(index[axis], i64(stride)))
                stride *= runs[axis].size
        starts.append(offset)
    return starts
