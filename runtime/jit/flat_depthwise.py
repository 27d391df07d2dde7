"""Depthwise convolutions of bytes whose channels don't fill vectors: pixels side by side do.

With stride 1, output byte e of a row (pixel e / C, channel e mod C) is Σ over taps of w[tap, e mod C] · x[e + tap · C]:
channels don't matter but for which weights and parameters belong to a byte, and these repeat. So a row is cut into
blocks of four vectors' bytes, whatever pixels they hold, and each of the few ways in which channels can fall on a block
(`phases`) has packed weights of its own. Otherwise as quad_depthwise.py: bytes below each other are interleaved, one
i32 per channel. Two output rows are made of one interleaving, where four rows hold both their windows.

Blocks at the ends of a row, some of whose taps lie beside the image, are code of their own: bytes are loaded from
within the row and moved to where they belong, and filling comes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from .convolve import Operands, limited
from .emitter import I8, I64, PTR, Emitter, const, i64
from .finish import Finish, Rows
from .host import Dot, Host
from .loops import span
from .quad_depthwise import MOST_COLUMNS, MOST_ROWS, VECTORS, interleaved, store_rows, stored_fill
from .quad_finish import finish_packed
from .quad_plan import QuadPlan
from .quad_tile import dot4, rows_of_parameters
from .registry import KernelBuilder
from .window import Window

Array = npt.NDArray[Any]
MOST_PHASES = 16
WASTED = 1.25  # blocks of channels, of which the last one overlaps, over channels: from here on this way was faster


@dataclass(frozen=True)
class FlatPlan(QuadPlan):
    """`columns` are the channels; a tile is `tile_rows` output rows of `tile_columns` blocks."""

    phases: int = field(kw_only=True)  # ways in which channels fall on a block

    @property
    def chunks(self) -> int:
        """Packed blocks: each phase, and so many again that a tile's lie side by side wherever it begins."""
        return self.phases + self.tile_columns - 1

    def channels(self) -> list[list[int]]:
        """For every vector of every packed block, the channel in each lane."""
        return [[c % self.columns for c in row] for row in self.places()]

    def places(self) -> list[list[int]]:
        """The same as bytes of an endless row."""
        return [
            [chunk * self.width + 4 * self.vectors * (i // 4) + 4 * n + i % 4 for i in range(self.lanes)]
            for chunk in range(self.chunks)
            for n in range(self.vectors)
        ]


def takes_flat(window: Window, host: Host, *, fast: bool, offset: bool) -> bool:
    """True where this way serves, as `takes_depthwise`, and that one's blocks of channels would overlap much."""
    plain = window.outputs == window.channels == window.group and window.zero_point == 0
    stuffed = window.rows.stuffing > 1 or window.columns.stuffing > 1
    reach = (window.columns.kernel - 1) * window.columns.dilation + 1
    small = window.rows.kernel <= MOST_ROWS and reach <= MOST_COLUMNS
    able = host.x86 and host.lanes >= 8 and host.dot in {Dot.U8S8, Dot.PAIRS}
    if not (able and fast and offset and plain and small) or stuffed or window.columns.stride != 1:
        return False
    width = VECTORS * host.lanes
    row = window.columns.size * window.channels
    same = window.columns.out == window.columns.size  # rows of output are as long as those of input
    wasted = -(-window.channels // width) * width >= WASTED * window.channels
    return same and wasted and width <= row and _phases(window.channels, width) <= MOST_PHASES


def flat_plan(window: Window, host: Host) -> FlatPlan:
    """Two rows where one interleaving serves both; two blocks where registers hold their accumulators."""
    rows = window.rows
    together = rows.stride == rows.dilation == 1 and rows.kernel % 4 != 0 and rows.out > 1
    row = window.columns.size * window.channels
    blocks = 2 if host.registers == 32 and row >= 2 * VECTORS * host.lanes else 1
    return FlatPlan(
        window.channels, host.lanes, VECTORS, 2 if together else 1, blocks, in_place=True, flip=False, rows_outer=True,
        packed=True, prefetch=False, phases=_phases(window.channels, VECTORS * host.lanes),
    )  # fmt: skip


def pack_flat(weight: Array, plan: FlatPlan) -> Array:
    """Weights i8 [C, KH, KW, 1] as [packed blocks, output rows, KW, groups of 4 rows, vectors, lanes, 4].

    For the second output row they lie one row further down; rows filled up by 0.
    """
    c, kh, kw = weight.shape[:3]
    groups = -(-(kh + plan.tile_rows - 1) // 4)
    index = np.array(plan.channels()).reshape(plan.chunks, VECTORS, plan.lanes)
    packed = []
    for down in range(plan.tile_rows):
        rows = np.pad(weight.reshape(c, kh, kw), ((0, 0), (down, 4 * groups - kh - down), (0, 0)))
        packed.append(rows.reshape(c, groups, 4, kw)[index].transpose(0, 5, 3, 1, 2, 4))
    return np.ascontiguousarray(np.stack(packed, axis=1), np.int8)


def _phases(channels: int, width: int) -> int:
    return channels // math.gcd(channels, width)


# ---- loops


@dataclass(frozen=True)
class _Tile:
    """One tile function. Tap t reads `taps[t][0]` bytes behind the first one, and its bytes move `taps[t][1]` up."""

    rows: int
    blocks: int
    taps: tuple[tuple[int, int], ...]
    kernel_rows: int
    line: int  # bytes from an output row to the next
    lanes: int
    fill: int
    shifts: bool
    finish: Finish

    @property
    def width(self) -> int:
        """Bytes of a block."""
        return VECTORS * self.lanes


def convolve_flat(
    k: KernelBuilder, window: Window, plan: FlatPlan, finish: Finish, at: Operands, *, shifts: bool
) -> None:
    """Emit the whole kernel: items are output rows, or pairs of them, the last of which may overlap."""
    w = window
    row_bytes = w.columns.size * w.channels
    filling, table = k.scratch(limited(row_bytes + 64)), k.scratch(8 * (w.rows.kernel + plan.tile_rows - 1))
    per_image = -(-w.rows.out // plan.tile_rows)
    k.work(w.batch * per_image, w.work * 8)
    with k.when(k.b.icmp_signed("<", k.begin, k.end)):
        fill = const(I8, stored_fill(k, w))
        span(k, 0, row_bytes, plan.width, lambda i, n: k.store(k.splat(fill, n), filling, i))
    with k.loop(k.begin, k.end) as item:
        n, number = k.b.sdiv(item, i64(per_image)), k.b.srem(item, i64(per_image))
        oh = k.smin(k.b.mul(number, i64(plan.tile_rows)), i64(w.rows.out - plan.tile_rows))
        image = k.at(at.x, k.b.mul(n, i64(w.rows.size * row_bytes)))
        store_rows(k, w, image, oh, row_bytes, (filling, table), w.rows.kernel + plan.tile_rows - 1)
        first = k.b.mul(k.b.add(k.b.mul(n, i64(w.rows.out)), oh), i64(row_bytes))
        for start, count, tile in _tiles(k, w, plan, finish, shifts=shifts):
            with k.loop(0, count) as step:
                source = k.b.add(i64(start), k.b.mul(step, i64(tile.blocks * plan.width)))
                _call(k, w, plan, tile, at, (table, source, first))


def _call(
    k: KernelBuilder,
    w: Window,
    plan: FlatPlan,
    tile: _Tile,
    at: Operands,
    where: tuple[ir.Value, ir.Value, ir.Value],
) -> None:
    """The tile at byte `source` of a row whose first output byte is `first`."""
    table, source, first = where
    phase = _phase_of(k, w.channels, plan, source)
    size = rows_of_parameters(tile.finish, packed=True) * plan.width * 4
    parameters = k.at(at.parameters, k.b.mul(phase, i64(size)))
    weight = k.at(at.weight, k.b.mul(phase, i64(_weight_bytes(tile))))
    element = k.b.add(first, source)
    out = k.at(at.out, element)
    extra = out if tile.finish.beside is None else k.at(at.addend, element)
    k.call(_function(k, tile), table, source, weight, parameters, out, extra)


def _phase_of(k: KernelBuilder, channels: int, plan: FlatPlan, source: ir.Value) -> ir.Value:
    """The packed block whose channels are those of the bytes from `source` on."""
    if plan.phases == 1:
        return i64(0)
    unit = channels // plan.phases  # block p begins at channel p · width mod channels, a multiple of this
    inverse = pow(plan.width // unit, -1, plan.phases)
    part = k.b.udiv(k.b.urem(source, i64(channels)), i64(unit))
    return k.b.urem(k.b.mul(part, i64(inverse)), i64(plan.phases))


def _weight_bytes(tile: _Tile) -> int:
    """Of one packed block."""
    return tile.rows * len(tile.taps) * _groups(tile) * tile.width * 4


def _groups(tile: _Tile) -> int:
    return -(-(tile.kernel_rows + tile.rows - 1) // 4)


def _tiles(e: Emitter, w: Window, plan: FlatPlan, finish: Finish, *, shifts: bool) -> list[tuple[int, int, _Tile]]:
    """(first byte, how many behind each other, tile) over a row; the last block overlaps its neighbour."""
    row = w.columns.size * w.channels
    starts = [*range(0, row - plan.width + 1, plan.width)]
    if row % plan.width:
        starts.append(row - plan.width)
    found: list[tuple[int, int, _Tile]] = []

    def add(first: int, blocks: int, count: int) -> None:
        taps = tuple(_tap(w, plan.width, first, t) for t in range(w.columns.kernel))
        tile = _Tile(
            plan.tile_rows, blocks, taps, w.rows.kernel, row, plan.lanes, stored_fill(e, w), shifts, finish
        )  # fmt: skip
        found.append((first, count, tile))

    def inside(start: int) -> bool:
        return all(_tap(w, plan.width, start, t)[1] == 0 for t in range(w.columns.kernel))

    at = 0
    while at < len(starts):
        last = at
        while last < len(starts) and inside(starts[last]) and starts[last] == starts[at] + (last - at) * plan.width:
            last += 1
        whole, left = divmod(last - at, plan.tile_columns)
        if whole:
            add(starts[at], plan.tile_columns, whole)
        if left:
            add(starts[last - left], 1, left)
        if last == at:
            add(starts[at], 1, 1)
        at = max(last, at + 1)
    return found


def _tap(w: Window, width: int, start: int, tap: int) -> tuple[int, int]:
    """(where tap `tap` of the block from byte `start` on is loaded, from there; by how much its bytes move up)."""
    offset = (tap * w.columns.dilation - w.columns.pad) * w.channels
    last = w.columns.size * w.channels - width
    loaded = min(max(start + offset, 0), last)
    return loaded - start, loaded - (start + offset)


# ---- the tile


def _function(e: Emitter, tile: _Tile) -> ir.Function:
    """`void(ptr rows, i64 source, ptr weight, ptr parameters, ptr out, ptr addend)`; `source` is the tile's first byte
    within each row.
    """
    return e.helper(("depthwise_flat", tile), [PTR, I64, PTR, PTR, PTR, PTR], lambda inner: _emit(inner, tile))


def _emit(e: Emitter, tile: _Tile) -> None:
    table, source, weight, parameters, out, addend = e.args
    rows = [e.at(e.b.inttoptr(e.load(table, r, I64), PTR), source) for r in range(tile.kernel_rows + tile.rows - 1)]
    size = rows_of_parameters(tile.finish, packed=True) * tile.width * 4
    for block in range(tile.blocks):
        own = Rows(e, e.at(parameters, block * size), VECTORS, tile.lanes)
        acc = _sums(e, tile, rows, block, e.at(weight, block * _weight_bytes(tile)), own)
        places = [block * tile.width + r * tile.line for r in range(tile.rows)]
        finish_packed(e, tile.finish, own, acc, places, (out, addend), shifts=tile.shifts)


def _sums(
    e: Emitter, tile: _Tile, rows: list[ir.Value], block: int, weight: ir.Value, own: Rows
) -> list[list[ir.Value]]:
    """A block's accumulators, by output row."""
    first = [own.load(0, n) for n in range(VECTORS)]
    acc = [list(first) for _ in range(tile.rows)]
    groups, vector_bytes = _groups(tile), 4 * tile.lanes
    for number, (offset, up) in enumerate(tile.taps):
        for group in range(groups):
            loaded = [
                _moved(e, e.load(e.at(r, block * tile.width + offset), 0, I8, tile.width), up, tile.fill)
                for r in rows[4 * group : 4 * group + 4]
            ]
            quads = interleaved(e, loaded, tile.width)
            for r in range(tile.rows):
                base = ((r * len(tile.taps) + number) * groups + group) * VECTORS * vector_bytes
                for n in range(VECTORS):
                    w = e.load(e.at(weight, base + n * vector_bytes), 0, I8, vector_bytes)
                    acc[r][n] = dot4(e, acc[r][n], quads[n], w)
    return acc


def _moved(e: Emitter, x: ir.Value, up: int, fill: int) -> ir.Value:
    """Bytes of x moved `up` places up (down where negative), filling behind them."""
    count = x.type.count
    if up == 0:
        return x
    filling = const(x.type, fill)
    order = [i - up if 0 <= i - up < count else count for i in range(count)]
    return e.shuffle(x, order, filling)
