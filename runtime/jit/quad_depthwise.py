"""Depthwise convolutions of bytes by dot products of four: the four are taps below each other, of one channel.

For a block of channels (four vectors) and an input column, the bytes of up to four rows are interleaved into one i32
per channel, once, and serve every output pixel whose window holds that column. Interleaving bytes orders channels just
as packing results puts them back, so nothing is permuted. Rows above and below the image are a row of filling; columns
beside it are constants, known when the code is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from . import x86
from .convolve import Operands, limited
from .emitter import I8, I16, I64, PTR, Emitter, const, i64
from .finish import Finish, Rows
from .host import Dot, Host
from .loops import span
from .offset import OFFSET, signed_byte
from .quad_finish import finish_packed
from .quad_plan import QuadPlan
from .quad_tile import dot4, rows_of_parameters
from .registry import KernelBuilder
from .window import Axis, Window

Array = npt.NDArray[Any]
MOST_ROWS = 16  # of a kernel
FEW_ITEMS = 32  # below this many rows, items are parts of rows: threads cannot share seven rows evenly
MOST_COLUMNS = 32  # that a window reaches over, dilation counted: its code is written out column by column
VECTORS = 4


def takes_depthwise(window: Window, host: Host, *, fast: bool, offset: bool) -> bool:
    """True where this way serves: results by the fast finish, bytes as the dot product wants them, one channel each.

    `offset`: they are unsigned, as q + 128 or, without an instruction for the four, as q that is known not to be < 0.
    """
    plain = window.outputs == window.channels == window.group and window.zero_point == 0
    stuffed = window.rows.stuffing > 1 or window.columns.stuffing > 1
    wide = window.channels >= VECTORS * min(8, host.lanes)
    reach = (window.columns.kernel - 1) * window.columns.dilation + 1
    small = window.rows.kernel <= MOST_ROWS and reach <= MOST_COLUMNS and window.columns.stride <= MOST_COLUMNS
    unsigned = host.dot in {Dot.U8S8, Dot.PAIRS}
    able = host.lanes >= 8 if unsigned else host.dot is Dot.S8S8
    return able and fast and offset == unsigned and plain and not stuffed and wide and small


def depthwise_plan(window: Window, host: Host) -> QuadPlan:
    """Blocks of four vectors; shorter vectors where there are few channels."""
    lanes = host.lanes if window.channels >= VECTORS * host.lanes else 8
    columns = min(window.columns.out, 4 if host.registers == 32 else 2)
    return QuadPlan(
        window.channels, lanes, VECTORS, 1, columns, in_place=True, flip=False, rows_outer=True, packed=True,
        prefetch=False,
    )  # fmt: skip


def pack_depthwise(weight: Array, plan: QuadPlan) -> Array:
    """Weights i8 [C, KH, KW, 1] as [blocks, KW, ⌈KH/4⌉, vectors, lanes, 4]; rows filled up by 0."""
    c, kh, kw = weight.shape[:3]
    rows = np.pad(weight.reshape(c, kh, kw), ((0, 0), (0, -kh % 4), (0, 0)))
    quads = rows.reshape(c, -1, 4, kw)  # [C, groups, 4, KW]
    index = np.array(plan.channels()).reshape(plan.chunks, VECTORS, plan.lanes)
    return np.ascontiguousarray(quads[index].transpose(0, 5, 3, 1, 2, 4), np.int8)


@dataclass(frozen=True)
class _Tile:
    """One tile function: `columns` output pixels side by side; input columns in [low, high) lie in the image."""

    columns: int
    axis: Axis
    kernel_rows: int
    channels: int
    lanes: int
    low: int
    high: int
    fill: int
    shifts: bool
    finish: Finish


def convolve_depthwise(
    k: KernelBuilder, window: Window, plan: QuadPlan, finish: Finish, at: Operands, *, shifts: bool
) -> None:
    """Emit the whole kernel: items are output rows, or parts of their channels where rows are few."""
    w = window
    row_bytes = w.columns.size * w.channels
    filling = k.scratch(limited(row_bytes + 64))
    table = k.scratch(8 * w.rows.kernel)
    cuts = min(plan.chunks, max(1, FEW_ITEMS // (w.batch * w.rows.out)))
    k.work(w.batch * w.rows.out * cuts, w.work * 8)
    with k.when(k.b.icmp_signed("<", k.begin, k.end)):
        fill = const(I8, stored_fill(k, w))
        span(k, 0, row_bytes, 4 * plan.lanes, lambda i, n: k.store(k.splat(fill, n), filling, i))
    with k.loop(k.begin, k.end) as item:
        row, cut = k.b.sdiv(item, i64(cuts)), k.b.srem(item, i64(cuts))
        n, oh = k.b.sdiv(row, i64(w.rows.out)), k.b.srem(row, i64(w.rows.out))
        image = k.at(at.x, k.b.mul(n, i64(w.rows.size * row_bytes)))
        store_rows(k, w, image, oh, row_bytes, (filling, table), w.rows.kernel)
        first = k.b.mul(row, i64(w.columns.out))
        low, high = (k.b.sdiv(k.b.mul(c, i64(plan.chunks)), i64(cuts)) for c in (cut, k.b.add(cut, i64(1))))
        with k.loop(low, high) as block:
            channel = k.smin(k.b.mul(block, i64(plan.width)), i64(w.channels - plan.width))
            weight = k.at(at.weight, k.b.mul(block, i64(w.columns.kernel * -(-w.rows.kernel // 4) * plan.width * 4)))
            size = rows_of_parameters(finish, packed=True) * plan.width * 4
            parameters = k.at(at.parameters, k.b.mul(block, i64(size)))
            for start, stop, tile in _tiles(k, w, plan, finish, shifts=shifts):
                function = _function(k, tile)
                step = plan.tile_columns

                with k.loop(0, (stop - start) // step) as number:
                    pixel = k.b.add(i64(start), k.b.mul(number, i64(step)))
                    left = k.b.sub(k.b.mul(pixel, i64(w.columns.stride)), i64(w.columns.pad))
                    source = k.b.add(k.b.mul(left, i64(w.channels)), channel)
                    element = k.b.add(k.b.mul(k.b.add(first, pixel), i64(w.channels)), channel)
                    extra = k.at(at.out, element) if finish.beside is None else k.at(at.addend, element)
                    k.call(function, table, source, weight, parameters, k.at(at.out, element), extra)


def stored_fill(e: Emitter, w: Window) -> int:
    """The byte of what stands beside the image."""
    return signed_byte(w.fill + OFFSET) if e.host.dot is Dot.U8S8 else w.fill


def store_rows(
    k: KernelBuilder, w: Window, image: ir.Value, oh: ir.Value, row_bytes: int, memory: tuple[ir.Value, ir.Value],
    count: int,
) -> None:  # fmt: skip
    """The address of each of `count` kernel rows' input row, or of the filling, to the table."""
    filling, table = memory
    top = k.b.sub(k.b.mul(oh, i64(w.rows.stride)), i64(w.rows.pad))
    for tap in range(count):
        row = k.b.add(top, i64(tap * w.rows.dilation))
        inside = k.b.icmp_unsigned("<", row, i64(w.rows.size))
        real = k.at(image, k.b.mul(row, i64(row_bytes)))
        address = k.b.ptrtoint(k.b.select(inside, real, filling), I64)
        k.store(address, table, tap)


def _tiles(
    k: KernelBuilder, w: Window, plan: QuadPlan, finish: Finish, *, shifts: bool
) -> list[tuple[int, int, _Tile]]:
    """(start, stop, tile): runs of tiles of one kind, over all output columns; the last one overlaps its neighbour."""
    axis, columns = w.columns, plan.tile_columns
    starts = [*range(0, axis.out - columns + 1, columns)]
    if starts[-1] + columns < axis.out:
        starts.append(axis.out - columns)
    found: list[tuple[int, int, _Tile]] = []
    for start in starts:
        left = start * axis.stride - axis.pad
        reach = (columns - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
        low, high = min(reach, max(0, -left)), max(0, min(reach, axis.size - left))
        tile = _Tile(
            columns, axis, w.rows.kernel, w.channels, plan.lanes, low, max(low, high), stored_fill(k, w), shifts, finish
        )  # fmt: skip
        if found and found[-1][2] == tile and found[-1][1] == start:
            found[-1] = (found[-1][0], start + columns, tile)
        else:
            found.append((start, start + columns, tile))
    return found


def _function(e: Emitter, tile: _Tile) -> ir.Function:
    """`void(ptr rows, i64 source, ptr weight, ptr parameters, ptr out, ptr addend)`; `source` is the byte, behind the
    start of each row, of the first channel of the tile's first input column, which may lie before the row.
    """
    axis = tile.axis
    key = (
        "depthwise_quads", tile.columns, axis.stride, axis.kernel, axis.dilation, tile.kernel_rows, tile.channels,
        tile.lanes, tile.low, tile.high, tile.fill, tile.shifts, tile.finish,
    )  # fmt: skip
    return e.helper(key, [PTR, I64, PTR, PTR, PTR, PTR], lambda inner: _emit(inner, tile))


def _emit(e: Emitter, tile: _Tile) -> None:
    table, source, weight, parameters, out, addend = e.args
    own, axis = Rows(e, parameters, VECTORS, tile.lanes), tile.axis
    first = [own.load(0, n) for n in range(VECTORS)]
    acc = [list(first) for _ in range(tile.columns)]
    rows = [e.at(e.b.inttoptr(e.load(table, r, I64), PTR), source) for r in range(tile.kernel_rows)]
    groups = -(-tile.kernel_rows // 4)
    vector_bytes = 4 * tile.lanes
    for column in range((tile.columns - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1):
        users = [
            (pixel, tap)
            for pixel in range(tile.columns)
            for tap in range(axis.kernel)
            if pixel * axis.stride + tap * axis.dilation == column
        ]
        if not users:
            continue
        for group in range(groups):
            quads = _column(e, tile, rows[4 * group : 4 * group + 4], column)
            for pixel, tap in users:
                base = e.at(weight, ((tap * groups + group) * VECTORS) * vector_bytes)
                for n in range(VECTORS):
                    w = e.load(base, n * vector_bytes, I8, vector_bytes)
                    acc[pixel][n] = dot4(e, acc[pixel][n], quads[n], w)
    places = [pixel * tile.channels for pixel in range(tile.columns)]
    finish_packed(e, tile.finish, own, acc, places, (out, addend), shifts=tile.shifts)


def _column(e: Emitter, tile: _Tile, rows: list[ir.Value], column: int) -> list[ir.Value]:
    """Up to four rows of one input column: for each vector of channels, four bytes per channel."""
    count = 4 * tile.lanes
    if not tile.low <= column < tile.high:
        return [const(ir.VectorType(I8, count), tile.fill)] * VECTORS
    loaded: list[ir.Value] = [e.load(e.at(r, column * tile.channels), 0, I8, count) for r in rows]
    return interleaved(e, loaded, count)


def interleaved(e: Emitter, loaded: list[ir.Value], count: int) -> list[ir.Value]:
    """Up to four rows of `count` bytes → four vectors of four bytes for each of them, one per row, 0 where none is."""
    zero = ir.Constant(ir.VectorType(I8, count), None)
    loaded = loaded + [zero] * (4 - len(loaded))
    pairs = [x86.interleave(e, loaded[0], loaded[1]), x86.interleave(e, loaded[2], loaded[3])]
    quads = []
    for half in (0, 1):
        words = [e.b.bitcast(p[half], ir.VectorType(I16, count // 2)) for p in pairs]
        quads += [e.b.bitcast(q, zero.type) for q in x86.interleave(e, words[0], words[1])]
    return quads
