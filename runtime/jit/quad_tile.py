"""The inner loop of byte convolutions: a tile of accumulators in registers, finished without leaving them."""

from __future__ import annotations

from dataclasses import dataclass, field

from llvmlite import ir

from .emitter import I8, I32, I64, PTR, Body, Emitter, lanes_of
from .finish import Finish, Rows
from .host import Dot
from .pair_dot import dot4_by_pairs
from .quad_finish import finish_packed, finish_vector, parameter_rows

_DOT = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256", 4: "llvm.x86.avx512.vpdpbusd.128"}


@dataclass(frozen=True)
class Tile:
    """One tile function: pixel (r, c) reads `r · line + c · step` bytes behind the first, and writes likewise."""

    rows: int
    columns: int
    vectors: int
    lanes: int
    used: int
    line: int
    step: int
    out_line: int  # elements
    out_step: int
    packed: bool
    shifts: bool  # any pre-shift is not 0
    prefetch: bool
    terms: bool  # `addend` holds an i32 per pixel, which joins all its accumulators
    finish: Finish
    tail_rows: int = field(default=0, kw_only=True)  # quad_tail.py

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """(bytes behind the first input pixel, elements behind the first output pixel) of each pixel."""
        return [
            (r * self.line + c * self.step, r * self.out_line + c * self.out_step)
            for r in range(self.rows)
            for c in range(self.columns)
        ]


ARGS = [PTR, PTR, I64, I64, I64, I64, I64, PTR, PTR, PTR, PTR, I64]


def tile_function(e: Emitter, tile: Tile) -> ir.Function:
    """`void(left, panel, i64 rows, i64 row_bytes, i64 segments, i64 segment_bytes, i64 steps, parameters, starts, out,
    addend, i64 ahead)`: acc = start + Σ over rows, segments and steps of four products; results to `out`.

    Behind the last row come the tail rows, one step of each. `starts` are the elements, behind `out`, at which each
    vector of channels starts (i64 each; not read where packed). `ahead` is how many bytes behind the panel the next one
    lies, which is fetched meanwhile.
    """
    return e.helper(("tile", tile), ARGS, lambda inner: _emit(inner, tile))


def _emit(e: Emitter, tile: Tile) -> None:
    left, panel, rows, row_bytes, segments, segment_bytes, steps, parameters, starts, out, addend, ahead = e.args
    own = Rows(e, parameters, tile.vectors, tile.lanes)
    first = [own.load(0, n) for n in range(tile.vectors)]
    pixels = tile.pixels
    by_lane = e.host.dot is Dot.S8S8
    zero = ir.Constant(I64, 0)

    def step(_: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        at, weights, *acc = state
        size = 4 * tile.lanes
        right = [e.load(weights, n * size, I8, size) for n in range(tile.vectors)]
        if tile.prefetch:
            for n in range(tile.vectors):
                _fetch(e, e.at(e.at(weights, ahead), n * size))
        after = []
        for p, (offset, _out) in enumerate(pixels):
            x = e.splat(e.load(e.at(at, offset), 0, I32), tile.lanes)
            quads = e.b.bitcast(x, ir.VectorType(I8, size))
            own = acc[p * tile.vectors : (p + 1) * tile.vectors]
            after += [dot4(e, a, quads, w) for a, w in zip(own, right, strict=True)]
        return [e.at(at, 4), e.at(weights, size * tile.vectors), *after]

    def per_row(row: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        base = e.at(left, e.b.mul(row, row_bytes))

        def per_segment(s: ir.Value, inner: list[ir.Value]) -> list[ir.Value]:
            state = [e.at(base, e.b.mul(s, segment_bytes)), *inner]
            if by_lane:
                return _steps_by_lane(e, tile, steps, state)
            _, *after = e.fold(0, steps, state, step, nonempty=True)
            return after

        return e.fold(0, segments, state, per_segment, nonempty=True)

    terms = [e.splat(e.load(addend, p, I32), tile.lanes) for p in range(len(pixels))] if tile.terms else []
    start = [e.b.add(f, t) for t in terms for f in first] or first * len(pixels)
    state = e.fold(0, rows, [panel, *start], per_row, nonempty=True)
    for j in range(tile.tail_rows):
        _, *state = step(zero, [e.at(left, e.b.mul(e.b.add(rows, ir.Constant(I64, j)), row_bytes)), *state])
    _, *acc = state
    finish_tile(e, tile, own, acc, (starts, out, addend))


def finish_tile(
    e: Emitter, tile: Tile, own: Rows, acc: list[ir.Value], at: tuple[ir.Value, ir.Value, ir.Value]
) -> None:
    """Accumulators, by pixel and then by vector, to results; `at` are the arguments starts, out and addend."""
    starts, out, addend = at
    by_pixel = [acc[i : i + tile.vectors] for i in range(0, len(acc), tile.vectors)]
    places = [o for _, o in tile.pixels]
    if tile.packed:
        finish_packed(e, tile.finish, own, by_pixel, places, (out, addend), shifts=tile.shifts)
        return
    firsts = [e.load(starts, n, I64) for n in range(tile.vectors)]
    for values, place in zip(by_pixel, places, strict=True):
        for n, value in enumerate(values):
            finish_vector(
                e, tile.finish, own, value, (n, tile.used), (out, addend, e.b.add(firsts[n], ir.Constant(I64, place)))
            )


def _steps_by_lane(e: Emitter, tile: Tile, steps: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
    """`steps` steps, four at a time, then two, then one; returns the state without the left address.

    AArch64's dot product multiplies by one 32-bit lane of a register, so that one load of 16 bytes serves four steps of
    a pixel. A load that fills all lanes with 4 bytes takes a slot of the vector unit besides.
    """
    size = 4 * tile.lanes

    def several(count: int) -> Body:
        def body(_: ir.Value, now: list[ir.Value]) -> list[ir.Value]:
            at, weights, *acc = now
            left = [e.load(e.at(at, offset), 0, I32, count) for offset, _out in tile.pixels]
            for lane in range(count):
                right = [e.load(weights, (lane * tile.vectors + n) * size, I8, size) for n in range(tile.vectors)]
                for p, x in enumerate(left):
                    quads = e.b.bitcast(_in_all_lanes(e, x, lane), ir.VectorType(I8, size))
                    for n, w in enumerate(right):
                        i = p * tile.vectors + n
                        acc[i] = dot4(e, acc[i], w, quads)
            return [e.at(at, 4 * count), e.at(weights, count * size * tile.vectors), *acc]

        return body

    one, two = ir.Constant(I64, 1), ir.Constant(I64, 2)
    state = e.fold(0, e.b.lshr(steps, two), state, several(4))
    state = e.fold(0, e.b.and_(e.b.lshr(steps, one), one), state, several(2))
    _, *after = e.fold(0, e.b.and_(steps, one), state, several(1))
    return after


def _in_all_lanes(e: Emitter, x: ir.Value, lane: int) -> ir.Value:
    """One lane of two or four in all four; a scalar in all four."""
    if lanes_of(x) == 1:
        return e.splat(x, 4)
    return e.shuffle(x, [lane] * 4)


def dot4(e: Emitter, acc: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """acc[i] + Σ over j < 4 of x[4i+j] · y[4i+j], modulo 2^32; x is unsigned where the host's dot product is U8S8.

    Where it is PAIRS, x has to lie in [0, 127].
    """
    lanes = lanes_of(acc)
    if e.host.dot is Dot.PAIRS:
        return dot4_by_pairs(e, acc, x, y)
    if e.host.dot is Dot.U8S8 and e.host.x86:
        return e.intrinsic(_DOT[lanes], acc.type, acc, x, y)
    if e.host.dot is Dot.S8S8 and lanes == 4:
        return e.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, acc, x, y)
    raise AssertionError((e.host, lanes))


def _fetch(e: Emitter, address: ir.Value) -> None:
    three = [ir.Constant(I32, v) for v in (0, 2, 1)]  # a read, into L2, of data
    e.intrinsic("llvm.prefetch.p0", ir.VoidType(), address, *three)


def rows_of_parameters(finish: Finish, *, packed: bool) -> int:
    """How many i32 vectors of parameters a channel vector has, the start values among them."""
    return 1 + parameter_rows(finish, packed=packed)
