"""The two ways of convolving a `Window`: as a product of gathered rows with packed panels, and channel by channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..numerics import I16_MAX
from ..types import DType
from .emitter import I16, I32, I64, PTR, Emitter, element, i64, size_of
from .finish import Finish, finish
from .host import Host
from .registry import KernelBuilder
from .split_sum import Part, add_part, pack_parts, parts_of
from .tiles import TileShape, accumulate, add_product, choose_pixels, choose_shape, dot2, pack_panels, steps_of
from .window import Copy, Line, Window, copy_pixels, gather_rows, pixel_step

SCRATCH_LIMIT = 1 << 28  # bytes; no real layer comes near
_RUN = 1 << 14  # elements of one pointwise work item: half an L1 cache


@dataclass(frozen=True)
class Plan:
    """How a convolution runs; its packing variant."""

    depthwise: bool
    dynamic: bool  # the weights are no constant, and are packed at run time
    shape: TileShape
    parts: tuple[Part, ...] = ()  # of sums that may leave i32: split_sum.py

    @property
    def final(self) -> TileShape:
        """The shape of whole sums."""
        return replace(self.shape, wide=True) if self.parts else self.shape


def make_plan(window: Window, host: Host, *, wide: bool, dynamic: bool) -> Plan:
    """Channel by channel where every group has one input channel and too few output channels to fill a vector."""
    few = window.outputs < window.channels * host.lanes
    if window.is_depthwise and few and not dynamic:
        apart = not (host.x86 or wide)  # one load of bytes then fills four registers of products
        lanes = min(host.lanes * (4 if apart else 1), 1 << (window.outputs.bit_length() - 1))
        shape = TileShape(window.outputs, lanes, 1, wide, apart)
        return Plan(depthwise=True, dynamic=False, shape=shape)
    shape = choose_shape(window.outputs // window.group, host, wide=wide)
    return Plan(depthwise=False, dynamic=dynamic, shape=shape)


def in_parts(plan: Plan, window: Window, weight: npt.NDArray[Any], far: int, host: Host) -> Plan:
    """The plan for sums of constant weights [O, KH, KW, C/g] that may leave i32, |x| ≤ `far`: in parts, where they fit.

    The left operands have to fit i16.
    """
    if plan.depthwise or plan.dynamic or far > I16_MAX + 1:
        return plan
    shape = choose_shape(window.outputs // window.group, host, wide=False)
    parts = parts_of(weight, far, segments_of(window, plan))
    return Plan(depthwise=False, dynamic=False, shape=shape, parts=parts) if parts else plan


def pack_weight(weight: npt.NDArray[Any], window: Window, plan: Plan, host: Host) -> npt.NDArray[Any]:
    """Constant weights [O, KH, KW, C/g] in the order in which `convolve` reads them."""
    if plan.parts:
        return pack_parts(weight, plan.shape, window.group, segments_of(window, plan), plan.parts)
    if not plan.depthwise:
        return pack_panels(weight, plan.shape, window.group, segments_of(window, plan))
    o, kh, kw, _ = weight.shape
    words = np.moveaxis(weight.reshape(o, kh, kw).astype(np.int32), 0, -1)
    if _pairs_up(plan.shape, host):
        words &= 0xFFFF  # (weight, 0) against (x, its sign): one product per i32 lane
    kind = np.int16 if plan.shape.apart else np.int32
    return np.ascontiguousarray(np.moveaxis(plan.shape.spread(words), 2, 0), kind)


def segments_of(window: Window, plan: Plan) -> int:
    """1 where the taps of a kernel row lie side by side in scratch memory, else KW."""
    return 1 if window.columns.dilation == 1 and not plan.dynamic else window.columns.kernel


@dataclass(frozen=True)
class Operands:
    """Addresses of a convolution: image, packed weights, start values, parameters, result, addend (or result again)."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value
    parameters: ir.Value
    out: ir.Value
    addend: ir.Value


@dataclass(frozen=True)
class Spread:
    """Where results lie, in elements: the first one, then from pixel to pixel, row to row, batch entry to the next."""

    first: int
    pixel: int
    line: int
    image: int


@dataclass(frozen=True)
class Convolution:
    """One kernel's worth of constants, for the emitting functions below."""

    window: Window
    plan: Plan
    finish: Finish
    x: DType
    out: DType
    addend: DType | None
    flip: bool = False  # x is stored as q + 128
    spread: Spread | None = None

    @property
    def places(self) -> Spread:
        """Where results lie: densely, where nothing else is said."""
        w = self.window
        line = w.columns.out * w.outputs
        return self.spread or Spread(0, w.outputs, line, w.rows.out * line)


def convolve(k: KernelBuilder, c: Convolution, at: Operands, pack: Any = None) -> None:
    """Emit the whole kernel. `pack(chunk, to)` emits the packing of dynamic weights."""
    if c.plan.depthwise:
        _depthwise(k, c, at)
    elif c.window.is_pointwise:
        _pointwise(k, c, at, pack)
    else:
        _general(k, c, at, pack)


# ---- rows by panels


def _general(k: KernelBuilder, c: Convolution, at: Operands, pack: Any) -> None:
    """Items are (chunk of channels, output row), chunk outermost so that its panel stays in the cache."""
    w, line, copy = c.window, Line.of(c.window.columns), _panel_copy(c)
    row_bytes = line.pixels * copy.pixel * size_of(copy.to)
    rows = k.scratch(limited(w.rows.kernel * row_bytes + 64))
    tiles = _Tiles(k, c, at, w.columns.out)
    panels = _Panels(k, c, at, pack)
    lines = w.batch * w.rows.out
    k.work(panels.count * lines, w.work)
    with k.loop(k.begin, k.end) as item:
        chunk, row = k.b.sdiv(item, i64(lines)), k.b.srem(item, i64(lines))
        group = k.b.sdiv(chunk, i64(c.plan.shape.chunks))
        n, oh = k.b.sdiv(row, i64(w.rows.out)), k.b.srem(row, i64(w.rows.out))
        first = k.b.add(k.b.mul(n, i64(w.rows.size * w.columns.size * copy.pitch)), k.b.mul(group, i64(copy.taken)))
        gather_rows(k, w, copy, k.at(at.x, first, copy.source.size), oh, rows)
        panel = panels.get(chunk, k.b.or_(k.b.icmp_signed("==", row, i64(0)), k.b.icmp_signed("==", item, k.begin)))
        places = c.places
        start = k.b.add(k.b.mul(n, i64(places.image)), k.b.mul(oh, i64(places.line)))
        tiles.emit(rows, row_bytes, chunk, panel, k.b.add(start, i64(places.first)))


def _pointwise(k: KernelBuilder, c: Convolution, at: Operands, pack: Any) -> None:
    """1×1: the pixels of all rows and batch entries are one list; an item is a run of it. The last run overlaps."""
    w, copy = c.window, _panel_copy(c)
    total = w.batch * w.rows.out * w.columns.out
    run = run_length(total, copy.pixel, choose_pixels(total, c.plan.shape, k.host))
    row_bytes = run * copy.pixel * size_of(copy.to)
    rows = k.scratch(limited(row_bytes + 64))
    tiles = _Tiles(k, c, at, run)
    panels = _Panels(k, c, at, pack)
    runs = -(-total // run)
    k.work(panels.count * runs, w.work)
    with k.loop(k.begin, k.end) as item:
        chunk, number = k.b.sdiv(item, i64(runs)), k.b.srem(item, i64(runs))
        group = k.b.sdiv(chunk, i64(c.plan.shape.chunks))
        pixel = k.smin(k.b.mul(number, i64(run)), i64(total - run))
        source = k.b.add(k.b.mul(pixel, i64(copy.pitch)), k.b.mul(group, i64(copy.taken)))
        copy_pixels(k, copy, k.at(at.x, source, copy.source.size), rows, run)
        panel = panels.get(chunk, k.b.or_(k.b.icmp_signed("==", number, i64(0)), k.b.icmp_signed("==", item, k.begin)))
        tiles.emit(rows, row_bytes, chunk, panel, k.b.mul(pixel, i64(w.outputs)))


def run_length(total: int, pixel: int, tile: int) -> int:
    """Pixels of a run: few enough for the cache, chosen so that tiles overlap little; all of them where they fit."""
    most = max(1, min(total // tile, _RUN // (pixel * tile)))
    choices = [n * tile for n in range(1, most + 1)]
    if total * pixel <= _RUN:
        choices.append(total)
    return min(choices, key=lambda run: (-(-total // run) * (-(-run // tile) + 0.1), -run))


def _panel_copy(c: Convolution) -> Copy:
    w = c.window
    to = I32 if c.plan.shape.wide else I16
    return Copy(c.x, to, w.zero_point, w.fill, w.channels, w.channels // w.group, flip=c.flip)


class _Panels:
    """The packed weights of each chunk: constant, or packed here when a thread comes to a new chunk."""

    def __init__(self, k: KernelBuilder, c: Convolution, at: Operands, pack: Any) -> None:
        w, shape = c.window, c.plan.shape
        segments = segments_of(w, c.plan)
        self.k, self.weight, self.pack = k, at.weight, pack
        self.elements = w.columns.kernel * w.channels // w.group // segments
        self.count = w.group * shape.chunks
        steps = sum(p.steps for p in c.plan.parts) or steps_of(self.elements, shape)
        self.nbytes = w.rows.kernel * segments * steps * shape.width * 4
        self.memory = k.scratch(limited(self.nbytes)) if c.plan.dynamic else None

    def get(self, chunk: ir.Value, is_new: ir.Value) -> ir.Value:
        """The address of the panel of `chunk`."""
        if self.memory is None:
            return self.k.at(self.weight, self.k.b.mul(chunk, i64(self.nbytes)))
        with self.k.when(is_new):
            self.pack(chunk, self.memory)
        return self.memory


class _Tiles:
    """The tiles of one run of `pixels` output pixels that lie side by side; the last tile overlaps its neighbour."""

    def __init__(self, k: KernelBuilder, c: Convolution, at: Operands, pixels: int) -> None:
        self.k, self.c, self.at, self.pixels = k, c, at, pixels
        self.tile = choose_pixels(pixels, c.plan.shape, k.host)
        self.memory = k.scratch(c.plan.final.tile_bytes(self.tile))
        self.part = k.scratch(c.plan.shape.tile_bytes(self.tile)) if c.plan.parts else self.memory

    def emit(self, rows: ir.Value, row_bytes: int, chunk: ir.Value, panel: ir.Value, first: ir.Value) -> None:
        """Compute `pixels` output pixels for the channels of `chunk` from the gathered `rows`: from element `first`."""
        k, w, shape = self.k, self.c.window, self.c.plan.shape
        copy, segments = _panel_copy(self.c), segments_of(w, self.c.plan)
        pixel_bytes = copy.pixel * size_of(copy.to)
        step = pixel_step(w) * pixel_bytes
        steps = steps_of(w.columns.kernel * copy.pixel // segments, shape)
        extent = w.rows.kernel, row_bytes, segments, w.columns.dilation * pixel_bytes
        bias = k.at(self.at.bias, k.b.mul(chunk, i64(self.c.plan.final.tile_bytes(1))))
        parameters = k.at(self.at.parameters, k.b.mul(chunk, i64(self.c.finish.rows * shape.width * 4)))
        group, within = k.b.sdiv(chunk, i64(shape.chunks)), k.b.srem(chunk, i64(shape.chunks))
        channel, columns = k.b.mul(within, i64(shape.width)), k.b.mul(group, i64(shape.columns))
        with k.loop(0, -(-self.pixels // self.tile)) as number:
            pixel = k.smin(k.b.mul(number, i64(self.tile)), i64(self.pixels - self.tile))
            left = k.at(rows, k.b.mul(pixel, i64(step)))
            if self.c.plan.parts:
                self.accumulate_parts(left, panel, step, extent, bias)
            else:
                k.call(accumulate(k, shape, self.tile, step), left, panel, *extent, steps, bias, self.memory)
            element_at = k.b.add(k.b.add(first, k.b.mul(pixel, i64(self.c.places.pixel))), columns)
            call_finish(k, self.c, self.at, (self.memory, self.tile, parameters), element_at, channel)

    def accumulate_parts(
        self, left: ir.Value, panel: ir.Value, step: int, extent: tuple[int, int, int, int], bias: ir.Value
    ) -> None:
        """One part of the sums after the other: see split_sum.py."""
        k, plan = self.k, self.c.plan
        segments = extent[0] * extent[2]
        function = accumulate(k, plan.shape, self.tile, step, bare=True)
        for number, part in enumerate(plan.parts):
            k.call(function, k.at(left, 4 * part.first), panel, *extent, part.steps, bias, self.part)
            k.call(add_part(k, plan.shape, part, is_first=number == 0), self.part, self.tile, bias, self.memory)
            panel = k.at(panel, segments * part.steps * plan.shape.width * 4)


def call_finish(
    k: KernelBuilder,
    c: Convolution,
    at: Operands,
    tile: tuple[ir.Value, int, ir.Value],
    element_at: ir.Value,
    channel: ir.Value | int,
) -> None:
    """Finish a tile (memory, pixels, parameters) into the result from element `element_at` on."""
    out = k.at(at.out, element_at, c.out.size)
    addend = out if c.addend is None else k.at(at.addend, element_at, c.addend.size)
    memory, pixels, parameters = tile
    k.call(finish(k, c.plan.final, c.finish), memory, pixels, parameters, out, addend, channel, c.places.pixel)


def limited(nbytes: int) -> int:
    """`nbytes`, or ValueError where that is more scratch memory than any real layer needs."""
    if nbytes > SCRATCH_LIMIT:
        msg = f"one row of it needs {nbytes >> 20} MiB of scratch memory; the limit is {SCRATCH_LIMIT >> 20}"
        raise ValueError(msg)
    return nbytes


# ---- channel by channel


def _depthwise(k: KernelBuilder, c: Convolution, at: Operands) -> None:
    """Items are output rows; vectors run along the channels, so that a tap is one load, one weight, one product."""
    w, shape = c.window, c.plan.shape
    line, copy = Line.of(w.columns), _depthwise_copy(c)
    pixel_bytes = copy.pixel * size_of(copy.to)
    row_bytes = line.pixels * pixel_bytes
    in_place = _reads_in_place(c, line)
    rows = None if in_place else k.scratch(limited(w.rows.kernel * row_bytes + 64))
    k.work(w.batch * w.rows.out, w.work * 8)
    tile = min(w.columns.out, 8, max(1, 16 * k.host.lanes // shape.lanes))
    memory = k.scratch(shape.tile_bytes(tile))
    with k.loop(k.begin, k.end) as row:
        n, oh = k.b.sdiv(row, i64(w.rows.out)), k.b.srem(row, i64(w.rows.out))
        image = k.at(at.x, k.b.mul(n, i64(w.rows.size * w.columns.size * w.channels)), c.x.size)
        stride = w.rows.dilation * row_bytes
        source = k.at(image, k.b.mul(oh, i64(w.rows.stride * row_bytes)))
        if rows is not None:
            gather_rows(k, w, copy, image, oh, rows)
            source, stride = rows, row_bytes
        with k.loop(0, -(-w.columns.out // tile)) as number:
            pixel = k.smin(k.b.mul(number, i64(tile)), i64(w.columns.out - tile))
            left = k.at(source, k.b.mul(pixel, i64(pixel_step(w) * pixel_bytes)))
            first = k.b.mul(k.b.add(k.b.mul(row, i64(w.columns.out)), pixel), i64(w.outputs))
            _depthwise_tile(k, c, at, (left, stride, copy), (memory, tile), first)


def _depthwise_tile(
    k: KernelBuilder,
    c: Convolution,
    at: Operands,
    source: tuple[ir.Value, int, Copy],
    tile: tuple[ir.Value, int],
    first: ir.Value,
) -> None:
    """All channels of a tile of pixels."""
    w, shape = c.window, c.plan.shape
    (left, stride, copy), (memory, pixels) = source, tile
    pixel_bytes = copy.pixel * size_of(copy.to)
    taps = _depthwise_accumulate(k, c, copy.to, pixels, pixel_step(w) * pixel_bytes)
    weight_bytes = w.rows.kernel * w.columns.kernel * shape.width * (2 if shape.apart else 4)
    with k.loop(0, shape.chunks) as chunk:
        channel = k.smin(k.b.mul(chunk, i64(shape.width)), i64(shape.last))
        weight = k.at(at.weight, k.b.mul(chunk, i64(weight_bytes)))
        bias = k.at(at.bias, k.b.mul(chunk, i64(shape.tile_bytes(1))))
        parameters = k.at(at.parameters, k.b.mul(chunk, i64(c.finish.rows * shape.width * 4)))
        x = k.at(left, channel, size_of(copy.to))
        extent = w.rows.kernel, stride, w.columns.kernel, w.columns.dilation * pixel_bytes
        k.call(taps, x, weight, *extent, bias, memory)
        call_finish(k, c, at, (memory, pixels, parameters), first, channel)


def _depthwise_copy(c: Convolution) -> Copy:
    w = c.window
    to = element(c.x)
    if w.zero_point:  # the difference needs a wider type
        to = I16 if c.x is DType.I8 else I32
    return Copy(c.x, to, w.zero_point, w.fill, w.channels, w.channels, w.outputs // w.channels, flip=c.flip)


def _reads_in_place(c: Convolution, line: Line) -> bool:
    """True where scratch rows would be the input's own rows."""
    w = c.window
    whole = line.first == 0 and line.count == line.pixels == w.columns.size and w.columns.stuffing == 1
    last = (w.rows.out - 1) * w.rows.stride + (w.rows.kernel - 1) * w.rows.dilation
    inside = w.rows.pad == 0 and w.rows.stuffing == 1 and last < w.rows.size
    return whole and inside and w.outputs == w.channels and w.zero_point == 0 and not c.flip


def _pairs_up(shape: TileShape, host: Host) -> bool:
    return host.x86 and not shape.wide and shape.lanes == host.lanes


def _depthwise_accumulate(e: Emitter, c: Convolution, x: ir.Type, pixels: int, step: int) -> ir.Function:
    """`void(ptr x, ptr weight, i64 rows, i64 row_bytes, i64 taps, i64 tap_bytes, ptr bias, ptr tile)`.

    For one channel vector: tile[pixel, channel] = bias[channel] + Σ over the window of x · weight.
    """
    shape = c.plan.shape
    key = ("depthwise", shape.lanes, shape.wide, str(x), pixels, step)

    def emit(f: Emitter) -> None:
        left, weight, rows, row_bytes, taps, tap_bytes, bias, tile = f.args
        init = f.load(bias, 0, shape.accumulator, shape.lanes)

        def per_row(row: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            base = f.at(left, f.b.mul(row, row_bytes))

            def per_tap(tap: ir.Value, inner: list[ir.Value]) -> list[ir.Value]:
                return _tap(f, shape, x, (pixels, step), f.at(base, f.b.mul(tap, tap_bytes)), inner)

            return f.fold(0, taps, state, per_tap, nonempty=True)

        _, *accumulators = f.fold(0, rows, [weight, *[init] * pixels], per_row, nonempty=True)
        for i, value in enumerate(accumulators):
            f.store(value, tile, i * shape.lanes)

    return e.helper(key, [PTR, PTR, I64, I64, I64, I64, PTR, PTR], emit)


def _tap(
    e: Emitter, shape: TileShape, x: ir.Type, tile: tuple[int, int], base: ir.Value, state: list[ir.Value]
) -> list[ir.Value]:
    """One kernel position for every pixel of the tile; state is (weight address, accumulators)."""
    weight, *acc = state
    pixels, step = tile
    narrow = I16 if shape.apart else I32
    w = e.load(weight, 0, narrow, shape.lanes)
    after = []
    for p in range(pixels):
        value = e.resize(e.load(e.at(base, p * step), 0, x, shape.lanes), narrow)
        if shape.apart:
            after.append(add_product(e, acc[p], value, w))
        elif _pairs_up(shape, e.host):
            pairs = ir.VectorType(I16, 2 * shape.lanes)
            after.append(dot2(e, acc[p], e.b.bitcast(value, pairs), e.b.bitcast(w, pairs)))
        else:
            product = e.b.mul(e.resize(value, shape.accumulator), e.resize(w, shape.accumulator))
            after.append(e.b.add(acc[p], product))
    return [e.at(weight, shape.lanes * size_of(narrow)), *after]
