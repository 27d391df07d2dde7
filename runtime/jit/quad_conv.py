"""Byte convolutions: the packing of their constants, and the loops around the tile function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..isa import Scheme
from ..types import DType
from .convolve import Operands, limited, run_length
from .emitter import I8, i64
from .finish import Finish, Weights
from .host import Dot, Host
from .offset import OFFSET, signed_byte
from .quad_finish import rounds
from .quad_plan import QuadPlan, bytes_per_row, is_list, segments_of, steps_of
from .quad_tail import gather_tail, split_tail
from .quad_tile import Tile, rows_of_parameters, tile_function
from .registry import KernelBuilder
from .window import Copy, Window, gather_rows, pixel_step

Array = npt.NDArray[Any]
WHOLE_IMAGE = 1 << 17  # bytes of gathered rows that stay in the L2 cache beside a panel


# ---- packing


def pack_quads(weight: Array, plan: QuadPlan, group: int, segments: int) -> Array:
    """Weights i8 [O, KH, KW, C/g] as panels [group, chunks, steps, vectors, lanes, 4], filled up by 0.

    Steps are those of each segment of each kernel row, then the tail's.
    """
    o, kh = weight.shape[:2]
    flat = weight.reshape(group, o // group, kh * segments, -1)
    last = flat[..., :0].reshape(group, o // group, 0)
    if plan.tail is not None:
        flat, last = split_tail(flat, plan.tail)
    flat = np.pad(flat, [(0, 0)] * 3 + [(0, -flat.shape[-1] % 4)])
    quads = np.concatenate([flat.reshape(group, o // group, -1), last], axis=2)
    words = np.ascontiguousarray(quads).view(np.int32)  # [group, channels, steps]: moved as words, four times as fast
    spread = _spread(np.moveaxis(words, 1, 0), plan)  # [chunks, vectors, lanes, group, steps]
    panels = np.ascontiguousarray(spread.transpose(3, 0, 4, 1, 2))
    return panels.view(np.int8).reshape(*panels.shape, 4)


def pack_parameters(plan: QuadPlan, host: Host, group: int, starts: Array, rows: list[Array], scheme: Scheme) -> Array:
    """[group, chunks, rows, vectors, lanes] i32: start values, then the finish's parameters per output channel.

    `rows` are multiplier, pre_shift, post_shift, then the addend's multiplier and shift, as far as there are any; each
    one entry or one per output channel; f32 keeps its bits.
    """
    per_channel = [np.broadcast_to(_words(r), group * plan.columns).reshape(group, plan.columns) for r in rows]
    first = _by_chunk(starts.astype(np.int32).reshape(group, plan.columns), plan)
    if not plan.packed:
        return np.ascontiguousarray(np.stack([first, *(_by_chunk(r, plan) for r in per_channel)], axis=2))
    mult, pre, post = per_channel[:3]
    post = np.where(mult == 0, 22, post) - 16 - rounds(scheme)  # nothing times anything stays nothing
    words = np.concatenate([_by_word(mult, plan), _by_word(_remaining(post, host), plan)], axis=2)
    added = [_by_chunk(r, plan) for r in per_channel[3:]]
    return np.ascontiguousarray(np.stack([first, _by_chunk(pre, plan), words, *added], axis=2))


def with_sum(parameters: Array, weights: Weights, host: Host) -> Array:
    """Packed parameters and two rows behind them: the weights of a sum as words, and its constant.

    x86 multiplies and adds words in pairs; AArch64 takes a vector of each weight.
    """
    own, other = weights.own, weights.other
    pairs = [(own, other), (own, other)] if host.x86 else [(own, own), (other, other)]
    rows = np.full((*parameters.shape[:2], 2, *parameters.shape[3:]), weights.constant, np.int32)
    for n in range(parameters.shape[3]):
        rows[:, :, 0, n] = np.array(pairs[n % 2], np.int16).view(np.int32)
    return np.concatenate([parameters, rows], axis=2)


def _remaining(post: Array, host: Host) -> Array:
    """What is left to do behind the product's upper half, given post shift − 16: see `quad_finish._scaled`."""
    if not host.x86:
        return np.minimum(post + 1, 15)  # of 16 bits, 15 and 16 leave the sign alone
    return post if host.lanes == 16 else 1 << (16 - post)


def least_post_shift(host: Host, scheme: Scheme) -> int:
    """The smallest post shift that the fast finish can do: see quad_finish."""
    if not host.x86:
        return 15 + rounds(scheme)
    return (16 if host.lanes == 16 else 18) + rounds(scheme)


def _words(row: Array) -> Array:
    return row.view(np.int32) if row.dtype == np.float32 else row.astype(np.int32)


def _spread(values: Array, plan: QuadPlan) -> Array:
    """`values` [channels, …] → [chunks, vectors, lanes, …]; unused lanes hold 0."""
    index = np.array(plan.channels()).reshape(plan.chunks, plan.vectors, plan.lanes)
    if plan.columns % plan.width == 0:  # every lane holds a channel
        return values[index]
    taken = values[np.minimum(index, plan.columns - 1)]
    inside = (index < plan.columns).reshape(*index.shape, *([1] * (values.ndim - 1)))
    return np.where(inside, taken, 0).astype(values.dtype)


def _by_chunk(values: Array, plan: QuadPlan) -> Array:
    """[group, channels] → [group, chunks, vectors, lanes]."""
    return np.moveaxis(_spread(values.T, plan), 3, 0)


def _by_word(values: Array, plan: QuadPlan) -> Array:
    """[group, channels] → i16 words in the order of packed accumulators: [group, chunks, vectors / 2, lanes] i32.

    A pack of two vectors puts, within each 128 bits, four words of the one before four of the other.
    """
    spread = _by_chunk(values, plan).astype(np.int16)
    group, chunks, vectors, lanes = spread.shape
    parts = spread.reshape(group, chunks, vectors // 2, 2, lanes // 4, 4)
    packed = np.ascontiguousarray(np.moveaxis(parts, 3, 4))
    return packed.reshape(group, chunks, vectors // 2, 2 * lanes).view(np.int32)


# ---- loops


@dataclass(frozen=True)
class QuadConvolution:
    """One kernel's worth of facts."""

    window: Window
    plan: QuadPlan
    finish: Finish
    shifts: bool


def convolve_quads(k: KernelBuilder, c: QuadConvolution, at: Operands) -> None:
    """Emit the whole kernel."""
    loops = QuadLoops(k, c, at)
    if is_list(c.window, c.plan):
        loops.over_list()
    else:
        loops.over_rows()


class QuadLoops:
    """The loops around the tile function; a subclass may have tiles of its own."""

    def __init__(self, k: KernelBuilder, c: QuadConvolution, at: Operands) -> None:
        self.k, self.c, self.at, self.w, self.plan = k, c, at, c.window, c.plan
        self.taken = self.w.channels // self.w.group
        self.pitch = self.w.channels if self.plan.in_place else self.taken  # bytes from pixel to pixel
        self.segments = segments_of(self.w)
        self.tail = tail = self.plan.tail
        self.steps = steps_of(self.w.columns.kernel // self.segments * self.taken if tail is None else tail.start)
        self.row_bytes = bytes_per_row(self.w, self.plan)
        steps = self.w.rows.kernel * self.segments * self.steps + (0 if tail is None else tail.steps)
        self.panel_bytes = steps * self.plan.width * 4
        rows = rows_of_parameters(c.finish, packed=self.plan.packed)
        self.parameter_bytes = rows * self.plan.width * 4
        self.starts = None if self.plan.packed else k.scratch(8 * self.plan.vectors)

    # -- the two ways through the output

    def over_list(self) -> None:
        """Every output pixel is a pixel of one list; an item is a run of them, the last run overlaps."""
        k, plan = self.k, self.plan
        total = self.w.batch * self.w.rows.out * self.w.columns.out
        run = run_length(total, self.taken, plan.tile_columns)
        runs = -(-total // run)
        panels = self.w.group * plan.chunks

        def one(panel: ir.Value, number: ir.Value) -> None:
            pixel = k.smin(k.b.mul(number, i64(run)), i64(total - run))
            group, _ = self.place(panel)
            source = k.b.add(k.b.mul(pixel, i64(self.pitch)), k.b.mul(group, i64(self.taken)))
            self.tiles(k.at(self.at.x, source), pixel, panel, (1, run))

        self.loop(panels, runs, one)

    def over_rows(self) -> None:
        """An item is `plan.tile_rows` output rows of one image; what is left of an image is done row by row."""
        k, w, plan = self.k, self.w, self.plan
        per_image = -(-w.rows.out // plan.tile_rows)
        taps = w.rows.kernel + (plan.tile_rows - 1) * w.rows.stride
        outer_group = plan.rows_outer and w.group == 1
        every = self.rows_of_image() if not outer_group else 0
        rows = None if plan.in_place else k.scratch(limited(self.gathered_bytes(every or taps)))

        def source(n: ir.Value, oh: ir.Value, group: ir.Value) -> ir.Value:
            first = k.b.add(k.b.mul(n, i64(w.rows.size * w.columns.size * w.channels)), k.b.mul(group, i64(self.taken)))
            image = k.at(self.at.x, first)
            if rows is None:
                return k.at(image, k.b.mul(oh, i64(w.rows.stride * w.columns.size * w.channels)))
            gather_rows(k, w, self.copy(), image, oh, rows, taps)
            if self.tail is not None:
                gather_tail(k, self.tail, rows, self.row_bytes, (w.columns.out, pixel_step(w) * self.taken))
            return rows

        def split(number: ir.Value) -> tuple[ir.Value, ir.Value]:
            return k.b.sdiv(number, i64(per_image)), k.b.mul(k.b.srem(number, i64(per_image)), i64(plan.tile_rows))

        def blocks(left: ir.Value, n: ir.Value, oh: ir.Value, panel: ir.Value) -> None:
            first = k.b.mul(k.b.add(k.b.mul(n, i64(w.rows.out)), oh), i64(w.columns.out))
            if w.rows.out % plan.tile_rows == 0:
                self.tiles(left, first, panel, (plan.tile_rows, w.columns.out))
                return
            whole = k.b.icmp_signed("<=", k.b.add(oh, i64(plan.tile_rows)), i64(w.rows.out))
            with k.b.if_else(whole) as (then, otherwise):
                with then:
                    self.tiles(left, first, panel, (plan.tile_rows, w.columns.out))
                with otherwise:
                    self.tiles(left, first, panel, (1, w.columns.out))

        def one(panel: ir.Value, number: ir.Value) -> None:
            n, oh = split(number)
            if not every or rows is None:
                blocks(source(n, oh, self.place(panel)[0]), n, oh, panel)
                return
            with k.when(k.b.or_(k.b.icmp_signed("==", oh, i64(0)), self.is_first(panel, number, w.batch * per_image))):
                image = k.at(self.at.x, k.b.mul(n, i64(w.rows.size * w.columns.size * w.channels)))
                gather_rows(k, w, self.copy(), image, i64(0), rows, every)
            blocks(k.at(rows, k.b.mul(oh, i64(w.rows.stride * self.row_bytes))), n, oh, panel)

        if not outer_group:
            self.loop(w.group * plan.chunks, w.batch * per_image, one)
            return
        k.work(w.batch * per_image, w.work)
        with k.loop(k.begin, k.end) as number:  # rows are gathered once for all panels
            n, oh = split(number)
            left = source(n, oh, i64(0))
            with k.loop(0, plan.chunks) as panel:
                blocks(left, n, oh, panel)

    def rows_of_image(self) -> int:
        """How many gathered rows an image has, where all of them are kept while panels change; else 0."""
        w, plan = self.w, self.plan
        apart = max(w.rows.dilation, w.rows.stuffing, w.group) > 1
        if plan.in_place or plan.rows_outer or apart or self.tail is not None:
            return 0
        count = (w.rows.out - 1) * w.rows.stride + w.rows.kernel
        return count if count * self.row_bytes <= WHOLE_IMAGE else 0

    def is_first(self, panel: ir.Value, number: ir.Value, numbers: int) -> ir.Value:
        """True for this thread's first item."""
        k = self.k
        return k.b.icmp_signed("==", k.b.add(k.b.mul(panel, i64(numbers)), number), k.begin)

    def gathered_bytes(self, taps: int) -> int:
        """Scratch memory for `taps` input rows, and for tail rows, whose writing may pass their end."""
        if self.tail is None:
            return taps * self.row_bytes + 64
        return (taps + self.tail.steps) * self.row_bytes + 128 + pixel_step(self.w) * self.taken

    def loop(self, panels: int, numbers: int, one: Any) -> None:
        """Items (panel, number), the panel outermost unless the weights are small."""
        k = self.k
        k.work(panels * numbers, self.w.work)
        with k.loop(k.begin, k.end) as item:
            inner = panels if self.plan.rows_outer else numbers
            outer, within = k.b.sdiv(item, i64(inner)), k.b.srem(item, i64(inner))
            one(*((within, outer) if self.plan.rows_outer else (outer, within)))

    def place(self, panel: ir.Value) -> tuple[ir.Value, ir.Value]:
        """(group, chunk within it) of a panel."""
        if self.w.group == 1:
            return i64(0), panel
        return self.k.b.sdiv(panel, i64(self.plan.chunks)), self.k.b.srem(panel, i64(self.plan.chunks))

    def copy(self) -> Copy:
        """How rows are gathered."""
        w = self.w
        stored = w.fill + w.zero_point + (OFFSET if self.k.host.dot is Dot.U8S8 else 0)
        return Copy(DType.I8, I8, 0, signed_byte(stored), w.channels, self.taken, flip=self.plan.flip)

    # -- tiles

    def tiles(self, left: ir.Value, first: ir.Value, panel: ir.Value, size: tuple[int, int]) -> None:
        """All tiles of a block of output pixels whose first is number `first`; the last tile of a row overlaps."""
        k, w, plan = self.k, self.w, self.plan
        rows, width = size
        columns = min(plan.tile_columns, width)
        tile = self.tile(rows, columns)
        function = tile_function(k, tile)
        panel_at = self.panel_at(panel)
        parameters, starts, channel = self.of_panel(panel)
        with k.loop(0, -(-width // columns)) as number:
            pixel = k.smin(k.b.mul(number, i64(columns)), i64(width - columns))
            source = k.at(left, k.b.mul(pixel, i64(tile.step)))
            element = k.b.add(k.b.mul(k.b.add(first, pixel), i64(w.outputs)), channel)
            out = k.at(self.at.out, element, self.c.finish.out.size)
            extra = self.beside(out, element, pixel)
            extent = w.rows.kernel, self.row_bytes, self.segments, w.columns.dilation * self.pitch, self.steps
            k.call(function, source, panel_at, *extent, parameters, starts, out, extra, self.panel_bytes)

    def panel_at(self, panel: ir.Value) -> ir.Value:
        """The address of a panel's weights."""
        return self.k.at(self.at.weight, self.k.b.mul(panel, i64(self.panel_bytes)))

    def beside(self, out: ir.Value, element: ir.Value, pixel: ir.Value) -> ir.Value:
        """What is read beside the accumulators of the tile from `pixel` of a block on; `out` where there is nothing."""
        dtype = self.c.finish.beside
        return out if dtype is None else self.k.at(self.at.addend, element, dtype.size)

    def of_panel(self, panel: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The addresses of a panel's parameters and of its vectors' starts, and the channel that these count from."""
        k, w, plan = self.k, self.w, self.plan
        group, chunk = self.place(panel)
        parameters = k.at(self.at.parameters, k.b.mul(panel, i64(self.parameter_bytes)))
        channel = k.b.mul(group, i64(w.outputs // w.group))
        if plan.packed:
            channel = k.b.add(channel, k.smin(k.b.mul(chunk, i64(plan.width)), i64(plan.columns - plan.width)))
        if self.starts is None:
            return parameters, parameters, channel  # starts are not read where packed
        self.store_starts(chunk, self.starts)
        return parameters, self.starts, channel

    def tile(self, rows: int, columns: int) -> Tile:
        """The tile function's key."""
        w, plan = self.w, self.plan
        step = (w.columns.stride if plan.in_place else pixel_step(w)) * self.pitch
        line = self.row_bytes * w.rows.stride
        if plan.in_place:
            line = w.rows.stride * w.columns.size * w.channels
        return Tile(
            rows, columns, plan.vectors, plan.lanes, plan.used, line if rows > 1 else 0, step,
            w.columns.out * w.outputs if rows > 1 else 0, w.outputs, plan.packed, self.c.shifts, plan.prefetch,
            terms=False, finish=self.c.finish, tail_rows=0 if self.tail is None else self.tail.steps,
        )  # fmt: skip

    def store_starts(self, chunk: ir.Value, to: ir.Value) -> None:
        """Where, within the group, each vector of the chunk starts."""
        k, plan = self.k, self.plan
        for n in range(plan.vectors):
            start = k.b.mul(k.b.add(k.b.mul(chunk, i64(plan.vectors)), i64(n)), i64(plan.lanes))
            k.store(k.smin(start, i64(plan.last)), to, n)
