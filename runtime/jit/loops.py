"""Loop shapes that many kernels share."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .emitter import Emitter, i64
from .registry import KernelBuilder

BLOCK = 4096  # elements of one work item: large enough that handing it out costs nothing, small enough for the L1 cache


def elementwise(k: KernelBuilder, elements: int, lanes: int, body: Callable[[ir.Value, int], None]) -> None:
    """A kernel over `elements` flat elements. `body(i, n)` emits the code for elements [i, i + n).

    It is called twice: with n = `lanes` for the vector loop and n = 1 for the tail. One work item is BLOCK elements.
    """
    k.work(-(-elements // BLOCK))
    start = k.b.mul(k.begin, i64(BLOCK))
    stop = k.smin(k.b.mul(k.end, i64(BLOCK)), i64(elements))
    span(k, start, stop, lanes, body)


def span(
    e: Emitter, start: ir.Value | int, stop: ir.Value | int, lanes: int, body: Callable[[ir.Value, int], None]
) -> None:
    """`body(i, lanes)` for as many whole vectors as fit into [start, stop), then `body(i, 1)` for each element left."""
    first, last = i64(start), i64(stop)
    middle = first
    if lanes > 1:
        whole = e.b.sdiv(e.b.sub(last, first), i64(lanes))
        middle = e.b.add(first, e.b.mul(whole, i64(lanes)))
        with e.loop(first, middle, lanes) as i:
            body(i, lanes)
    with e.loop(middle, last) as i:
        body(i, 1)


def rows(k: KernelBuilder, count: int, body: Callable[[ir.Value], None], cost: int | None = None) -> None:
    """A kernel of `count` independent rows: `body(row)` for every row of the thread's share."""
    k.work(count, cost)
    with k.loop(k.begin, k.end) as row:
        body(row)


def coordinates(e: Emitter, flat: ir.Value, shape: tuple[int, ...]) -> list[ir.Value]:
    """The row-major multi-index of `flat` in `shape`; axes of size 1 give the constant 0."""
    index: list[ir.Value] = []
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if size == 1:
            index.append(i64(0))
        elif all(d == 1 for d in shape[:axis]):
            index.append(flat)
        else:
            index.append(e.b.urem(flat, i64(size)))
            flat = e.b.udiv(flat, i64(size))
    return index[::-1]
