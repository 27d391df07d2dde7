"""Sums that may leave i32 (D3), a part of the steps at a time: each part in i32, where it provably fits, then into i64.

How long a part may be follows from the weights themselves: |x| ≤ far, so a part's sum is at most far · Σ|w| over its
steps, for the output channel where that is largest. Weights of 16 bits are taken as 256 · high + low, two of 8, each
with parts of its own. The tile function of other sums then does nearly all of the work (tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..numerics import I32_MAX
from .emitter import I32, I64, PTR, Emitter, const, i64
from .tiles import TileShape, pack_panels

Array = npt.NDArray[Any]
HIGH = 8  # bits that the upper half of a weight is worth


@dataclass(frozen=True)
class Part:
    """Steps [first, first + steps) of every segment; of the weights' upper halves where `shift` is not 0."""

    first: int
    steps: int
    shift: int


def parts_of(weight: Array, far: int, segments: int) -> tuple[Part, ...]:
    """Parts for weights [O, KH, KW, C/g] and |x| ≤ `far`; none where a single step may leave i32."""
    found: list[Part] = []
    for shift, half in _halves(weight):
        sizes = np.abs(_by_step(half, segments).astype(np.int64)).sum(axis=(1, 2, 4))  # [O, steps]
        cuts = _cuts(np.cumsum(sizes, axis=1) * far)
        if not cuts:
            return ()
        found += [Part(a, b - a, shift) for a, b in zip([0, *cuts], cuts, strict=False)]
    return tuple(found)


def pack_parts(weight: Array, shape: TileShape, group: int, segments: int, parts: tuple[Part, ...]) -> Array:
    """The parts' panels [group, chunks, words], one part behind the other within a chunk: see `pack_panels`."""
    halves = dict(_halves(weight))
    panels = []
    for part in parts:
        taken = _by_step(halves[part.shift], segments)[:, :, :, part.first : part.first + part.steps]
        packed = pack_panels(taken.reshape(*taken.shape[:3], -1), shape, group, segments)
        panels.append(packed.reshape(group, shape.chunks, -1))
    return np.ascontiguousarray(np.concatenate(panels, axis=2))


def add_part(e: Emitter, shape: TileShape, part: Part, *, is_first: bool) -> ir.Function:
    """`void(ptr part, i64 pixels, ptr bias, ptr tile)`: tile[pixel, channel] (i64) + part (i32) · 2^shift.

    The first part is added to the bias (i64, one per channel) instead; `bias` isn't read otherwise.
    """
    key = ("add_part", shape.lanes, shape.vectors, part.shift, is_first)

    def emit(f: Emitter) -> None:
        own, pixels, bias, tile = f.args
        with f.loop(0, pixels) as pixel:
            words = f.b.mul(pixel, i64(shape.width))
            for v in range(shape.vectors):
                at = f.b.add(words, i64(v * shape.lanes))
                value = f.resize(f.load(own, at, I32, shape.lanes), I64)
                if part.shift:
                    value = f.b.shl(value, const(value.type, part.shift))
                source, index = (bias, v * shape.lanes) if is_first else (tile, at)
                before = f.load(source, index, I64, shape.lanes)
                f.store(f.b.add(before, value), tile, at)

    return e.helper(key, [PTR, I64, PTR, PTR], emit)


def _halves(weight: Array) -> list[tuple[int, Array]]:
    """(worth in bits, weights of at most 8 bits and sign): the weights themselves where they are bytes."""
    if weight.dtype == np.int8:
        return [(0, weight)]
    wide = weight.astype(np.int32)
    high = (wide + (1 << (HIGH - 1))) >> HIGH
    return [(0, wide - (high << HIGH)), (HIGH, high)]


def _by_step(weight: Array, segments: int) -> Array:
    """[O, KH, segments, steps, 2], filled up by 0."""
    flat = weight.reshape(*weight.shape[:2], segments, -1)
    flat = np.pad(flat, [(0, 0)] * 3 + [(0, flat.shape[3] % 2)])
    return flat.reshape(*flat.shape[:3], -1, 2)


def _cuts(bounds: Array) -> list[int]:
    """Where parts end, for bounds [O, steps] of the sums from the start on; empty where a step alone is too large.

    Parts are equally long, so that layers of one shape share their code where they need as many.
    """
    steps, before = bounds.shape[1], np.pad(bounds, ((0, 0), (1, 0)))
    if int(np.diff(before, axis=1).max(initial=0)) > I32_MAX:
        return []
    count = max(1, -(-int(bounds[:, -1].max(initial=0)) // I32_MAX))
    while True:
        size = -(-steps // count)
        ends = [*range(size, steps, size), steps]
        if int(np.diff(before[:, [0, *ends]], axis=1).max(initial=0)) <= I32_MAX:
            return ends
        count += 1
