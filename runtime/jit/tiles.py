"""The inner loops of conv and matmul: a tile of pixels × channels whose accumulators stay in registers.

A tile is `pixels` rows of the left matrix by `vectors` vectors of output channels. The left matrix is i16 (i32 in wide
mode) in scratch memory, `step` bytes from pixel to pixel; the right one is packed in panels, one panel per chunk of
`vectors · lanes` channels, in the order in which the loops read it. Where channels do not fill the last vector, it
moves back and overlaps its neighbour: both compute the same values, and storing twice is harmless.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from . import x86
from .emitter import I16, I32, I64, PTR, Body, Emitter, const, i64
from .host import Host

_WIDE_PIXELS = 4  # a wide accumulator takes two registers per vector


@dataclass(frozen=True)
class ChannelCut:
    """How the output channels of one group are cut into vectors, and vectors into chunks."""

    columns: int  # output channels of a group
    lanes: int
    vectors: int

    @property
    def width(self) -> int:
        """Channels of one chunk, overlaps and unused lanes included."""
        return self.vectors * self.lanes

    @property
    def chunks(self) -> int:
        """How many chunks cover the columns."""
        return -(-self.columns // self.width)

    @property
    def used(self) -> int:
        """How many lanes of a vector hold channels: all, unless there are fewer channels than lanes."""
        return min(self.columns, self.lanes)

    @property
    def last(self) -> int:
        """The channel at which the last vector starts."""
        return max(0, self.columns - self.lanes)


@dataclass(frozen=True)
class TileShape(ChannelCut):
    """A cut, and the accumulators' type."""

    wide: bool  # i64 accumulators, for sums that may leave i32 (D3)
    apart: bool = False  # weights of a step: all first elements of a vector, then all second ones, not in pairs

    @property
    def accumulator(self) -> ir.IntType:
        """Type of one accumulator."""
        return I64 if self.wide else I32

    def tile_bytes(self, pixels: int) -> int:
        """Memory of the accumulators of one tile."""
        return pixels * self.width * (8 if self.wide else 4)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`values` [..., columns] arranged as [..., chunks, width]; unused lanes are 0."""
        starts = np.minimum(np.arange(self.chunks * self.vectors) * self.lanes, self.last)
        index = (starts[:, None] + np.arange(self.lanes)).reshape(self.chunks, self.width)
        return np.where(index < self.columns, values[..., np.minimum(index, self.columns - 1)], 0).astype(values.dtype)


def choose_shape(columns: int, host: Host, *, wide: bool) -> TileShape:
    """The vectors per chunk that waste the fewest lanes; of equals, the most."""
    blocks = -(-columns // host.lanes)
    most = 1 if wide else min(blocks, 4 if host.registers == 32 else 2)
    vectors = min(range(1, most + 1), key=lambda v: (-(-blocks // v) * (v + 0.2), -v))
    return TileShape(columns, host.lanes, vectors, wide, apart=not (host.x86 or wide))


def choose_pixels(pixels: int, shape: TileShape, host: Host) -> int:
    """Pixels per tile for a row of `pixels`: few wasted, many per load of a panel, all accumulators in registers."""
    if shape.wide:
        return min(pixels, _WIDE_PIXELS)
    if shape.apart:  # a register per pixel besides: see _steps_by_lane
        most = min(14, (host.registers - 2 - shape.vectors) // (shape.vectors + 1), pixels)
    else:
        most = min(14, (host.registers - 4 - shape.vectors) // shape.vectors, pixels)

    def cost(t: int) -> float:  # per step of the inner loop, in instructions
        return math.ceil(pixels / t) * (t * shape.vectors + 0.5 * (t + shape.vectors) + 1.5)

    return min(range(1, most + 1), key=lambda t: (cost(t), -t))


def pack_panels(weight: npt.NDArray[Any], shape: TileShape, group: int, segments: int) -> npt.NDArray[Any]:
    """Weights [O, KH, KW, C] as panels [group, chunks, KH, segments, steps, width(, 2)], in `accumulate`'s order.

    Where pairs lie apart, they are [vectors, 2, lanes] instead of [width, 2].

    A segment is what lies side by side in the left matrix: KW·C elements where `segments` is 1, C where it is KW.
    A step is a pair of elements, i16, the odd one filled up with 0; in wide mode one element, i32.
    """
    o, kh = weight.shape[:2]
    flat = weight.reshape(group, o // group, kh, segments, -1)
    spread = shape.spread(np.moveaxis(flat, 1, -1))  # [group, KH, segments, elements, chunks, width]
    panels = np.moveaxis(spread, 4, 1)
    if shape.wide:
        return np.ascontiguousarray(panels, np.int32)
    if panels.shape[4] % 2:
        panels = np.concatenate([panels, np.zeros_like(panels[:, :, :, :, :1])], axis=4)
    pairs = panels.reshape(*panels.shape[:4], -1, 2, shape.width)
    if shape.apart:
        halves = pairs.reshape(*pairs.shape[:6], shape.vectors, shape.lanes)
        return np.ascontiguousarray(np.moveaxis(halves, 5, 6), np.int16)
    return np.ascontiguousarray(np.moveaxis(pairs, 5, 6), np.int16)


def steps_of(elements: int, shape: TileShape) -> int:
    """Inner-loop steps for a segment of `elements`."""
    return elements if shape.wide else -(-elements // 2)


def accumulate(e: Emitter, shape: TileShape, pixels: int, step: int, *, bare: bool = False) -> ir.Function:
    """`void(left, panel, i64 rows, i64 row_bytes, i64 segments, i64 segment_bytes, i64 steps, bias, tile)`.

    tile[pixel, channel] = bias[channel] + Σ over rows, segments and steps of left · panel; `step` is the bytes from
    one pixel to the next. One step is 4 bytes of `left`: a pair of i16, or (wide) one i32. `bare` leaves the bias out.
    """
    key = ("accumulate", shape.lanes, shape.vectors, shape.wide, pixels, step, bare)
    args = [PTR, PTR, I64, I64, I64, I64, I64, PTR, PTR]
    return e.helper(key, args, lambda inner: _emit_accumulate(inner, shape, (pixels, step), bare=bare))


def _emit_accumulate(e: Emitter, shape: TileShape, size: tuple[int, int], *, bare: bool) -> None:
    left, panel, rows, row_bytes, segments, segment_bytes, steps, bias, tile = e.args
    pixels, step = size
    if bare:
        first: list[ir.Value] = [const(shape.accumulator, 0, shape.lanes)] * shape.vectors
    else:
        first = [e.load(bias, v * shape.lanes, shape.accumulator, shape.lanes) for v in range(shape.vectors)]

    def inner(_: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        return _step(e, shape, pixels, step, state)

    def segment(start: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        if shape.apart:
            return _steps_by_lane(e, shape, (pixels, step), steps, [start, *state])
        _, *after = e.fold(0, steps, [start, *state], inner, nonempty=True)
        return after

    def per_row(row: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        base = e.at(left, e.b.mul(row, row_bytes))

        def per_segment(s: ir.Value, inner_state: list[ir.Value]) -> list[ir.Value]:
            return segment(e.at(base, e.b.mul(s, segment_bytes)), inner_state)

        return e.fold(0, segments, state, per_segment, nonempty=True)

    _, *accumulators = e.fold(0, rows, [panel, *(first * pixels)], per_row, nonempty=True)
    for i, value in enumerate(accumulators):
        e.store(value, tile, i * shape.lanes)


def _step(e: Emitter, shape: TileShape, pixels: int, step: int, state: list[ir.Value]) -> list[ir.Value]:
    """One step of the inner loop; state is (left, panel, accumulators by pixel then vector)."""
    left, panel, *acc = state
    size = shape.lanes * 4
    if shape.wide:
        right = [e.resize(e.load(panel, v * shape.lanes, I32, shape.lanes), I64) for v in range(shape.vectors)]
    else:
        right = [e.load(e.at(panel, v * size), 0, I16, 2 * shape.lanes) for v in range(shape.vectors)]
    after = []
    for p in range(pixels):
        x = e.load(e.at(left, p * step), 0, I32)
        if shape.wide:
            broadcast = e.splat(e.b.sext(x, I64), shape.lanes)
        else:
            broadcast = e.b.bitcast(e.splat(x, shape.lanes), ir.VectorType(I16, 2 * shape.lanes))
        for v in range(shape.vectors):
            old = acc[p * shape.vectors + v]
            new = e.b.add(old, e.b.mul(broadcast, right[v])) if shape.wide else dot2(e, old, broadcast, right[v])
            after.append(new)
    return [e.at(left, 4), e.at(panel, size * shape.vectors), *after]


def dot2(e: Emitter, acc: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """x86: acc[i] + x[2i]·y[2i] + x[2i+1]·y[2i+1], modulo 2^32, for i16 vectors of twice acc's lanes.

    One vpdpwssd with VNNI, vpmaddwd and vpaddd on others.
    """
    return e.b.add(acc, x86.multiply_add(e, x, y))


def _steps_by_lane(
    e: Emitter, shape: TileShape, tile: tuple[int, int], steps: ir.Value, state: list[ir.Value]
) -> list[ir.Value]:
    """`steps` steps, four at a time, then one by one, of a `tile` (pixels, bytes from one to the next).

    For AArch64's smlal, which multiplies half a vector by one lane and widens: one load of 16 bytes serves four steps
    of a pixel. Returns the state without the left address.
    """
    pixels, apart = tile
    size, vectors = shape.lanes * 4, shape.vectors

    def several(count: int) -> Body:
        def body(_: ir.Value, now: list[ir.Value]) -> list[ir.Value]:
            at, panel, *acc = now
            left = [e.load(e.at(at, p * apart), 0, I16, 2 * count) for p in range(pixels)]
            for k in range(count):
                right = [e.load(e.at(panel, (k * vectors + v) * size), 0, I16, 2 * shape.lanes) for v in range(vectors)]
                for p, v, half in itertools.product(range(pixels), range(vectors), (0, 1)):
                    x = e.shuffle(left[p], [2 * k + half] * shape.lanes)
                    i = p * vectors + v
                    acc[i] = add_product(e, acc[i], x, part_of(e, right[v], half, shape.lanes))
            return [e.at(at, 4 * count), e.at(panel, count * size * vectors), *acc]

        return body

    state = e.fold(0, e.b.lshr(steps, i64(2)), state, several(4))
    _, *after = e.fold(0, e.b.and_(steps, i64(3)), state, several(1))
    return after


def part_of(e: Emitter, x: ir.Value, number: int, lanes: int) -> ir.Value:
    """Lanes [number · lanes, (number + 1) · lanes) of a vector."""
    return e.shuffle(x, range(number * lanes, (number + 1) * lanes))


def add_product(e: Emitter, acc: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """acc + x · y in i32, modulo 2^32, of i16 lanes: one smlal on AArch64."""
    return e.b.add(acc, e.b.mul(e.b.sext(x, acc.type), e.b.sext(y, acc.type)))


def vector_start(e: Emitter, shape: TileShape, chunk: ir.Value | int, v: int) -> ir.Value:
    """The channel, within its group, at which vector `v` of chunk `chunk` starts."""
    at = e.b.add(e.b.mul(i64(chunk), i64(shape.width)), i64(v * shape.lanes))
    return e.smin(at, i64(shape.last))
