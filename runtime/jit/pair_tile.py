"""The inner loop of byte convolutions on x86 without a dot product of four: `vpmaddubsw`, made exact (`pair_dot.py`).

Where the weights allow, the i16 of several steps are added before the one `vpmaddwd`: `pair_pack.py` proves per weight
that no such sum leaves i16, and moves the weights that would break it to a list of further steps, done at the end.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from llvmlite import ir

from .emitter import I8, I32, I64, PTR, Emitter
from .finish import Rows
from .pair_dot import add_words, multiply_bytes
from .quad_tile import ARGS, Tile, finish_tile

HEAD = 8  # bytes before the first entry of a list of further steps, which hold their number; and before each entry


@dataclass(frozen=True)
class PairTile(Tile):
    """As `Tile`; `merge` steps share one `vpmaddwd`. A segment is `groups` (none, or some) of them and `tail` steps."""

    merge: int
    tail: int
    groups: bool
    signed: bool  # the left bytes may be negative


def pair_function(e: Emitter, tile: PairTile) -> ir.Function:
    """As `tile_function`, but `steps` counts groups of `merge` steps, and `ahead` is the address of the further steps.

    These are an i64 that counts them, then per step an i64, how many bytes behind `left` it reads, and its weights.
    """
    return e.helper(("pair_tile", tile), [*ARGS[:-1], PTR], lambda inner: _emit(inner, tile))


def _emit(e: Emitter, tile: PairTile) -> None:
    left, panel, rows, row_bytes, segments, segment_bytes, groups, parameters, starts, out, addend, further = e.args
    own = Rows(e, parameters, tile.vectors, tile.lanes)
    first = [own.load(0, n) for n in range(tile.vectors)]
    pixels = tile.pixels

    def per_row(row: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        base = e.at(left, e.b.mul(row, row_bytes))

        def per_segment(s: ir.Value, inner: list[ir.Value]) -> list[ir.Value]:
            now = [e.at(base, e.b.mul(s, segment_bytes)), *inner]
            if tile.groups:
                now = e.fold(0, groups, now, lambda _, v: _steps(e, tile, tile.merge, v), nonempty=True)
            if tile.tail:
                now = _steps(e, tile, tile.tail, now)
            return now[1:]

        return e.fold(0, segments, state, per_segment, nonempty=True)

    _, *acc = e.fold(0, rows, [panel, *(first * len(pixels))], per_row, nonempty=True)
    acc = _further(e, tile, left, further, acc)
    finish_tile(e, tile, own, acc, (starts, out, addend))


def _further(e: Emitter, tile: PairTile, left: ir.Value, further: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
    """The listed steps, one by one, each where it reads."""
    size = HEAD + 4 * tile.lanes * tile.vectors

    def one(_: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        entry, *inner = state
        at = e.at(left, e.load(entry, 0, I64))
        _, _, *after = _steps(e, tile, 1, [at, e.at(entry, HEAD), *inner])
        return [e.at(entry, size), *after]

    _, *after = e.fold(0, e.load(further, 0, I64), [e.at(further, HEAD), *acc], one)
    return after


def _steps(e: Emitter, tile: PairTile, count: int, state: list[ir.Value]) -> list[ir.Value]:
    """`count` steps that share one `vpmaddwd`; state is (left, panel, accumulators by pixel then vector)."""
    at, weights, *acc = state
    size = 4 * tile.lanes
    right = [
        [e.load(weights, (j * tile.vectors + n) * size, I8, size) for n in range(tile.vectors)] for j in range(count)
    ]
    after = []
    for p, (offset, _) in enumerate(tile.pixels):
        quads = [_broadcast(e, e.at(at, offset + 4 * j), tile.lanes) for j in range(count)]
        for n in range(tile.vectors):
            pairs = [multiply_bytes(e, x, w[n], signed=tile.signed) for x, w in zip(quads, right, strict=True)]
            words = functools.reduce(e.b.add, pairs)
            old = acc[p * tile.vectors + n]
            after.append(add_words(e, old, words))
    return [e.at(at, 4 * count), e.at(weights, size * tile.vectors * count), *after]


def _broadcast(e: Emitter, address: ir.Value, lanes: int) -> ir.Value:
    return e.b.bitcast(e.splat(e.load(address, 0, I32), lanes), ir.VectorType(I8, 4 * lanes))
