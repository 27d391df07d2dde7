"""Convolutions of bytes by dot products of four (vpdpbusd and its kin): whether, and how the work is cut.

The left bytes of x86's instruction are unsigned, so that an activation q enters as q + 128: tensors are stored that way
inside a run (`offset.py`), or flipped on their way to scratch memory. What the 128 adds, 128 · Σw per output channel,
is taken off the accumulator's start value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .host import Dot, Host
from .quad_tail import Tail, tail_of
from .tiles import ChannelCut
from .window import Line, Window, pixel_step

SMALL_WEIGHTS = 700_000  # bytes that stay in the L2 cache: rows outermost; larger weights: panels outermost
PREFETCHED = 100_000  # bytes of weights from which a panel comes from afar, and the next one is fetched ahead
MOST_TILES = 64  # tiles per panel up to which fetching ahead pays


@dataclass(frozen=True)
class QuadPlan(ChannelCut):
    """The cut of one convolution: a tile is `tile_rows` × `tile_columns` output pixels by `vectors` of channels."""

    tile_rows: int
    tile_columns: int
    in_place: bool  # windows are read from the tensor itself, not from gathered rows
    flip: bool  # bytes are signed and become q + 128 when they are gathered
    rows_outer: bool
    packed: bool  # channels are interleaved as the packing instructions of the fast finish want them
    prefetch: bool
    tail: Tail | None = field(default=None, kw_only=True)  # what is left of kernel rows is done together

    def channels(self) -> list[list[int]]:
        """For every vector of every chunk, the channel in each lane; beyond the last channel for unused lanes."""
        found = []
        for chunk in range(self.chunks):
            for n in range(self.vectors):
                if self.packed:
                    base = min(chunk * self.width, self.columns - self.width)
                    row = [base + 4 * self.vectors * (i // 4) + 4 * n + i % 4 for i in range(self.lanes)]
                else:
                    start = min((chunk * self.vectors + n) * self.lanes, self.last)
                    row = [start + i for i in range(self.lanes)]
                found.append(row)
        return found


def segments_of(window: Window) -> int:
    """1 where the taps of a kernel row lie side by side, else one segment per tap."""
    return 1 if window.columns.dilation == 1 else window.columns.kernel


def steps_of(elements: int) -> int:
    """Inner-loop steps of a segment of `elements` bytes."""
    return -(-elements // 4)


def reads_in_place(window: Window, host: Host, *, offset: bool) -> bool:
    """True where every tap of every window lies in the tensor, and its bytes are as the dot product wants them."""
    if offset != (host.dot is Dot.U8S8):
        return False
    line = Line.of(window.columns)
    whole = line.first == 0 and line.count == line.pixels
    rows = window.rows
    inside = rows.pad == 0 and (rows.out - 1) * rows.stride + (rows.kernel - 1) * rows.dilation < rows.size
    return whole and inside and rows.stuffing == window.columns.stuffing == 1 and _fills_steps(window)


def _segment_bytes(window: Window) -> int:
    return window.columns.kernel // segments_of(window) * (window.channels // window.group)


def _fills_steps(window: Window) -> bool:
    """True where a segment's bytes lie side by side in the tensor, and no step reads beyond them."""
    together = window.group == 1 or window.columns.kernel == 1 or window.columns.dilation > 1
    return together and _segment_bytes(window) % 4 == 0


def is_list(window: Window, plan: QuadPlan) -> bool:
    """True where all output pixels of the batch form one list: a 1×1 convolution that reads in place, stride 1."""
    return plan.in_place and window.is_pointwise


def make_quad_plan(window: Window, host: Host, weights: int, *, fast: bool, offset: bool) -> QuadPlan:
    """The cut with the least estimated time.

    `weights` are bytes; `fast`: results are 8 bits by form A; `offset`: the image is stored as q + 128.
    """
    outputs = window.outputs // window.group
    in_place = reads_in_place(window, host, offset=offset)
    one_list = in_place and window.is_pointwise
    height = 1 if one_list else window.rows.out
    width = window.batch * window.rows.out * window.columns.out if one_list else window.columns.out
    steps = window.rows.kernel * segments_of(window) * steps_of(_segment_bytes(window))
    tail = None if in_place else _tail(window, host)
    shape = _Shape(outputs, height, width, steps, 0 if tail is None else tail.rows - tail.steps, fast=fast)
    best = min(
        (_cost(host, shape, v, r, c), -v * r * c, v, r, c)
        for v in range(1, 5)
        for r in (1, 2)
        for c in range(1, 31)
        if _fits(host, outputs, (height, width), v, r, c) and (r == 1 or window.rows.dilation == 1)
    )
    vectors, rows, columns = best[2:]
    lines = -(-height // rows) * -(-width // columns)
    return QuadPlan(
        outputs, host.lanes, vectors, rows, columns, in_place,
        flip=not in_place and not offset and host.dot is Dot.U8S8,
        rows_outer=weights <= SMALL_WEIGHTS,
        packed=fast and _packs(host, outputs, vectors),
        prefetch=weights >= PREFETCHED and lines <= MOST_TILES and host.x86,
        tail=tail if rows == 1 else None,
    )  # fmt: skip


def _tail(window: Window, host: Host) -> Tail | None:
    if host.dot is not Dot.U8S8 or segments_of(window) > 1:
        return None
    step = pixel_step(window) * (window.channels // window.group)
    return tail_of(window.rows.kernel, _segment_bytes(window), step)


def _packs(host: Host, outputs: int, vectors: int) -> bool:
    able = (host.x86 and host.lanes >= 8) or host.dot is Dot.S8S8
    return able and vectors in {2, 4} and outputs >= vectors * host.lanes


def _fits(host: Host, outputs: int, size: tuple[int, int], vectors: int, rows: int, columns: int) -> bool:
    pixels = rows * columns
    left = pixels + 1 if host.dot is Dot.S8S8 else 1  # a register per pixel, or one for all: quad_tile.py
    registers = vectors * pixels + vectors + left <= host.registers
    wanted = vectors <= max(1, -(-outputs // host.lanes)) and rows <= size[0] and columns <= size[1]
    return registers and wanted and (rows == 1 or columns == size[1])  # two rows only where one is short


@dataclass(frozen=True)
class _Shape:
    """What tiles have to cover: `outputs` channels of `height` × `width` pixels, `steps` of four products each.

    A tile of one row does with `saved` fewer.
    """

    outputs: int
    height: int
    width: int
    steps: int
    saved: int
    fast: bool  # results are 8 bits by form A


def _cost(host: Host, shape: _Shape, vectors: int, rows: int, columns: int) -> float:
    """Estimated cycles of everything: two dot products, and two loads, a cycle; each waits four.

    What a tile costs beyond its steps was fitted to measured layers.
    """
    pixels = rows * columns
    chunks = -(-shape.outputs // (vectors * host.lanes))
    tiles = -(-shape.width // columns) * chunks
    each = 0.25 if host.dot is Dot.S8S8 else 1  # loads of one pixel: quad_tile.py
    finish = 0.8 if shape.fast and _packs(host, shape.outputs, vectors) else 2.0  # per pixel and vector

    def tile(count: int) -> float:
        step = max(count * vectors / 2, (each * count + vectors) / 2 + 0.5, 4.5) + 0.6
        return (shape.steps - (shape.saved if rows == 1 else 0)) * step + 12 + finish * count * vectors

    return tiles * (shape.height // rows * tile(pixels) + (shape.height % rows) * tile(columns))


def bytes_per_row(window: Window, plan: QuadPlan) -> int:
    """Bytes from one row of the left matrix to the next: of the tensor, or of gathered rows."""
    if plan.in_place:
        return window.columns.size * window.channels * window.rows.dilation
    return Line.of(window.columns).pixels * (window.channels // window.group)
