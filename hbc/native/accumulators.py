"""Accumulators to results: what stands behind the product of a convolution, linear layer or matrix product.

Integers lie in float tensors, as the products were computed: f32, f64, or the two halves of a product of 16 bits. Here
they become integers, are requantised by the executor's own arithmetic and come out as reals on the result's grid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from llvmlite import ir

from hbc_runtime.isa import Scheme
from hbc_runtime.jit import numerics
from hbc_runtime.jit.emitter import F32, F64, I32, I64, Emitter, const, i64, lanes_of, vector
from hbc_runtime.jit.loops import span
from hbc_runtime.numerics import I32_MAX, I32_MIN

from .build import Native, function, lanes


class Held(Enum):
    """How an accumulator lies in memory: one float, or a high (times 256) and a low part, each a float32."""

    F32 = "f32"
    F64 = "f64"
    SPLIT = "split"


class Along(Enum):
    """Where the channels are: one for all; planes of one channel each; the last axis."""

    NONE = "none"
    PLANES = "planes"
    LAST = "last"


@dataclass(frozen=True)
class Kind:
    """What a kernel is made for. `wide`: sums may leave i32. `added`: a tensor joins by D5 (NUMERICS 5)."""

    held: Held
    along: Along
    wide: bool
    added: bool
    scheme: Scheme = Scheme.NONE
    keeps: bool = False  # writes the integers before the clamp as well


# Rows of the parameters, int64[6, channels].
OFFSET, MULTIPLIER, PRE, POST, ADDEND, ADDEND_SHIFT = range(6)


@dataclass(frozen=True)
class _Sources:
    """Addresses, and the addend's 1/scale in a lane."""

    first: ir.Value
    second: ir.Value
    addend: ir.Value
    inverse: ir.Value


Parameters = Callable[[int], ir.Value]  # of a row and of one width, in lanes


def _accumulator(e: Emitter, kind: Kind, src: _Sources, i: ir.Value, n: int, row: Parameters) -> ir.Value:
    """Products, offset and addend of elements [i, i + n)."""
    wide = vector(I64 if kind.wide else I32, n)
    if kind.held is Held.SPLIT:
        high, low = (e.b.fptosi(e.load(s, i, F32, n), vector(I32, n)) for s in (src.first, src.second))
        acc = e.b.add(e.b.shl(e.resize(high, I64), const(I64, 8, n)), e.resize(low, I64))
    else:
        acc = e.b.fptosi(e.load(src.first, i, F32 if kind.held is Held.F32 else F64, n), wide)
    acc = e.b.add(acc, row(OFFSET))
    if kind.added:
        q = integers(e, e.load(src.addend, i, F32, n), src.inverse)
        more = numerics.addend_to_accumulator(e, q, 0, row(ADDEND), row(ADDEND_SHIFT))
        acc = e.b.add(acc, e.resize(more, I64 if kind.wide else I32))
    return acc


def integers(e: Emitter, x: ir.Value, inverse: ir.Value) -> ir.Value:
    """The integers, i32, of reals on a grid: to the nearest of x · (1/scale)."""
    n = lanes_of(x)
    return e.b.fptosi(e.overloaded("llvm.rint", e.b.fmul(x, e.splat(inverse, n))), vector(I32, n))


def _reader(e: Emitter, kind: Kind, table: ir.Value, channels: ir.Value, at: ir.Value, n: int) -> Parameters:
    """Parameters of the channel `at` in `n` lanes, or (along LAST) of the channels [at, at + n); each loaded once."""
    found: dict[int, ir.Value] = {}

    def row(index: int) -> ir.Value:
        if index not in found:
            place = e.b.add(e.b.mul(i64(index), channels), at)
            loaded = e.load(table, place, I64, n if kind.along is Along.LAST else 1)
            narrow = index in {MULTIPLIER, PRE, POST} or (index == OFFSET and not kind.wide)
            found[index] = e.resize(loaded, I32) if narrow else loaded
        value = found[index]
        return value if lanes_of(value) == n else e.splat(value, n)

    return row


def _walk(e: Emitter, kind: Kind, sizes: Sequence[ir.Value], body: Callable[[ir.Value, int, Parameters], None]) -> None:
    """`body(i, n, parameters)` over the items [begin, end): elements, planes or rows. `sizes`: table, channels, inner,
    begin, end.
    """
    table, channels, inner, begin, end = sizes
    if kind.along is Along.NONE:
        readers = {n: _reader(e, kind, table, channels, i64(0), n) for n in (lanes(), 1)}
        for reader in readers.values():
            _load_all(kind, reader)
        span(e, begin, end, lanes(), lambda i, n: body(i, n, readers[n]))
    elif kind.along is Along.PLANES:
        with e.loop(begin, end) as plane:
            channel = e.b.urem(plane, channels)
            readers = {n: _reader(e, kind, table, channels, channel, n) for n in (lanes(), 1)}
            for reader in readers.values():
                _load_all(kind, reader)
            start = e.b.mul(plane, inner)
            span(e, start, e.b.add(start, inner), lanes(), lambda i, n: body(i, n, readers[n]))
    else:
        with e.loop(begin, end) as line:
            start = e.b.mul(line, channels)

            def at(c: ir.Value, n: int) -> None:
                body(e.b.add(start, c), n, _reader(e, kind, table, channels, c, n))

            span(e, 0, channels, lanes(), at)


def _load_all(kind: Kind, reader: Parameters) -> None:
    """Load what the kind uses, before the loop that uses it."""
    used = [OFFSET, *([MULTIPLIER, PRE, POST] if kind.scheme is not Scheme.NONE else [])]
    for index in used + ([ADDEND, ADDEND_SHIFT] if kind.added else []):
        reader(index)


@functools.cache
def finisher(kind: Kind) -> Native:
    """A function (y, q, first, second, addend, table, scales, channels, inner, low, high, 1/addend scale, begin, end).

    It makes y f32 = clamp(q, low, high) · scale of the accumulators, by the scheme; q f32 (where the kind keeps it) is
    the integers before the clamp. `table` int64[6, channels]; `scales` f32: one per channel for Scheme.NONE, else one.
    """

    def emit(e: Emitter) -> None:
        y, kept, first, second, addend, table, scales, channels, inner, low, high, inverse, begin, end = e.args
        src = _Sources(first, second, addend, e.b.fptrunc(inverse, F32))
        per_channel = kind.scheme is Scheme.NONE
        one = None if per_channel else e.load(scales, 0, F32)
        ends = [e.b.trunc(v, I32) for v in (low, high)]

        def body(i: ir.Value, n: int, row: Parameters) -> None:
            acc = _accumulator(e, kind, src, i, n, row)
            mult, pre, post = (None if per_channel else row(r) for r in (MULTIPLIER, PRE, POST))
            q = numerics.requantize(e, acc, kind.scheme, mult, pre, post, 0, I32_MIN, I32_MAX)
            if kind.keeps:
                e.store(e.b.sitofp(q, vector(F32, n)), kept, i)
            q = e.smin(e.smax(q, e.splat(ends[0], n)), e.splat(ends[1], n))
            scale = e.splat(one, n) if one is not None else _scale_at(e, kind, scales, i, n, channels, inner)
            e.store(e.b.fmul(e.b.sitofp(q, vector(F32, n)), scale), y, i)

        _walk(e, kind, (table, channels, inner, begin, end), body)

    return function("pppppppiiiidii", emit)


def _scale_at(
    e: Emitter, kind: Kind, scales: ir.Value, i: ir.Value, n: int, channels: ir.Value, inner: ir.Value
) -> ir.Value:
    if kind.along is Along.NONE:
        return e.splat(e.load(scales, 0, F32), n)
    if kind.along is Along.LAST:
        return e.load(scales, e.b.urem(i, channels), F32, n)
    return e.splat(e.load(scales, e.b.urem(e.b.udiv(i, inner), channels), F32), n)


@functools.cache
def ranger(kind: Kind) -> Native:
    """A function (out, first, second, addend, table, channels, inner, 1/addend scale, begin, end).

    It finds the least and largest accumulators, f64: along NONE in out[2]; PLANES in out[2 · plane] and behind; LAST,
    whose items are channels and `inner` rows, in out[2 · channel] and behind.
    """
    return function("pppppiidii", lambda e: _Ranges(e, kind).emit())


class _Ranges:
    """Writes a ranger."""

    def __init__(self, e: Emitter, kind: Kind) -> None:
        self.e, self.kind = e, kind
        self.out, first, second, addend, self.table, self.channels, self.inner, inverse, self.begin, self.end = e.args
        self.src = _Sources(first, second, addend, e.b.fptrunc(inverse, F32))
        self.scalar = I64 if kind.wide else I32

    def emit(self) -> None:
        """By where the channels are."""
        e = self.e
        if self.kind.along is Along.NONE:
            self._put(self._line(self.begin, self.end, i64(0)), i64(0))
        elif self.kind.along is Along.PLANES:
            with e.loop(self.begin, self.end) as plane:
                start = e.b.mul(plane, self.inner)
                channel = e.b.urem(plane, self.channels)
                self._put(self._line(start, e.b.add(start, self.inner), channel), plane)
        else:
            span(e, self.begin, self.end, lanes(), self._columns)

    def _reader(self, channel: ir.Value, n: int) -> Parameters:
        row = _reader(self.e, self.kind, self.table, self.channels, channel, n)
        _load_all(self.kind, row)
        return row

    def _fold(
        self, start: ir.Value, stop: ir.Value, n: int, row: Parameters, at: Callable[[ir.Value], ir.Value], step: int
    ) -> list[ir.Value]:
        """The least and the largest of the accumulators `at` k, in lanes."""
        e, edge = self.e, (1 << (self.scalar.width - 1)) - 1

        def body(k: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            acc = _accumulator(e, self.kind, self.src, at(k), n, row)
            return [e.smin(state[0], acc), e.smax(state[1], acc)]

        return e.fold(start, stop, [const(self.scalar, edge, n), const(self.scalar, -edge - 1, n)], body, step=step)

    def _line(self, start: ir.Value, stop: ir.Value, channel: ir.Value) -> list[ir.Value]:
        """Over neighbours of one channel: whole vectors, then what is left."""
        e, count = self.e, lanes()
        middle = e.b.add(start, e.b.mul(e.b.sdiv(e.b.sub(stop, start), i64(count)), i64(count)))
        many, one = self._reader(channel, count), self._reader(channel, 1)
        most = _reduced(e, self._fold(start, middle, count, many, lambda k: k, count))
        rest = self._fold(middle, stop, 1, one, lambda k: k, 1)
        return [e.smin(most[0], rest[0]), e.smax(most[1], rest[1])]

    def _columns(self, c: ir.Value, n: int) -> None:
        """Channels [c, c + n) of the last axis, over all rows."""
        e = self.e
        row = self._reader(c, n)
        found = self._fold(i64(0), self.inner, n, row, lambda k: e.b.add(e.b.mul(k, self.channels), c), 1)
        for lane in range(n):
            ends = found if n == 1 else [e.b.extract_element(v, ir.Constant(I32, lane)) for v in found]
            self._put(ends, e.b.add(c, i64(lane)))

    def _put(self, found: Sequence[ir.Value], place: ir.Value) -> None:
        for j, v in enumerate(found):
            self.e.store(self.e.b.sitofp(v, F64), self.out, self.e.b.add(self.e.b.mul(place, i64(2)), i64(j)))


def _reduced(e: Emitter, found: Sequence[ir.Value]) -> list[ir.Value]:
    """The least and the largest of all lanes."""
    n = lanes_of(found[0])
    ty = found[0].type.element
    names = [f"llvm.vector.reduce.{w}.v{n}i{ty.width}" for w in ("smin", "smax")]
    return [e.intrinsic(name, ty, v) for name, v in zip(names, found, strict=True)]


@functools.cache
def unpacker(held: Held) -> Native:
    """A function (first, second, x, 1/scale, begin, end): the integers of reals on a grid as f32; SPLIT: halves of 8
    bits, q = 256 · first + second.
    """

    def emit(e: Emitter) -> None:
        first, second, x, inverse, begin, end = e.args
        factor = e.b.fptrunc(inverse, F32)

        def body(i: ir.Value, n: int) -> None:
            if held is Held.SPLIT:
                q = integers(e, e.load(x, i, F32, n), factor)
                high, low = e.b.ashr(q, const(I32, 8, n)), e.b.and_(q, const(I32, 255, n))
                e.store(e.b.sitofp(high, vector(F32, n)), first, i)
                e.store(e.b.sitofp(low, vector(F32, n)), second, i)
            else:
                scaled = e.b.fmul(e.load(x, i, F32, n), e.splat(factor, n))
                whole = e.overloaded("llvm.rint", scaled)
                e.store(whole if held is Held.F32 else e.b.fpext(whole, vector(F64, n)), first, i)

        span(e, begin, end, lanes(), body)

    return function("pppdii", emit)


def table(channels: int) -> np.ndarray:
    """Parameters of that many channels, all 0."""
    return np.zeros((6, channels), np.int64)
