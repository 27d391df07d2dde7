"""Tables of 16-bit integers as the compiler divides them, at every step of a training: `hbc.passes.segments` in machine
code, which tests hold to that. It keeps the results within a reach alone, as no table is emitted.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from llvmlite import ir

from hbc_runtime.jit.emitter import F64, I32, I64, PTR, VOID, Emitter, const, i64, lanes_of, vector
from hbc_runtime.jit.loops import span

from .build import Native, function, gathered, lanes

SEGMENTS, ENTRIES = 64, 64  # NUMERICS 7 [F]
INPUTS = 65536
DEEPEST = 10  # halvings after which a cell is one input
State = list[ir.Value]
_FAR = 2.0**40  # as `numerics.lut_table`
_memory = threading.local()


class Curve(Enum):
    """Functions whose values are computed here as well, by operations that round as NumPy's do."""

    GIVEN = 0
    INVERSE = 1  # 1/v
    INVERSE_ROOT = 2  # 1/√v


@dataclass(frozen=True)
class Known:
    """A curve of v = q · step, taken at `low` where v is below it, and also where v < `since`."""

    curve: Curve
    step: float
    low: float
    since: float


def table(
    reals: np.ndarray | Known, first: int, count: int, reach: tuple[int, int], scale: float
) -> tuple[np.ndarray, float]:
    """(the table's results for the inputs of `reach`, int32; its largest distance from the function there, in reals).

    `reals`, float64, are the function's values at `count` inputs from `first` on, or say what they are: of the reach
    (i16, both ends), and of 1024 inputs on each side of it or as many as there are up to 32768.
    """
    if not hasattr(_memory, "values"):
        _memory.values, _memory.rows = np.zeros(INPUTS + 1, np.int32), np.zeros(4 * SEGMENTS, np.int64)
        _memory.reals = np.zeros(INPUTS + 1)
    low, high = reach[0] + INPUTS // 2, reach[1] + INPUTS // 2
    result, error = np.empty(high - low + 1, np.int32), np.empty(1)
    known = reals if isinstance(reals, Known) else Known(Curve.GIVEN, 0.0, 0.0, 0.0)
    given = _memory.reals if isinstance(reals, Known) else reals
    places = [a.ctypes.data for a in (given, _memory.values, _memory.rows, result, error)]
    numbers = (known.step, known.low, known.since)
    _divider(known.curve)(*places, first + INPUTS // 2, count, low, high, scale, *numbers)
    return result, float(error[0])


@functools.cache
def _divider(curve: Curve) -> Native:
    return function("pppppiiiidddd", lambda e: _emit(e, curve))


def _emit(e: Emitter, curve: Curve) -> None:
    reals, values, rows, result, error, first, count, low, high, scale, step, least, since = e.args
    if curve is not Curve.GIVEN:
        _compute(e, curve, reals, e.b.sub(first, i64(INPUTS // 2)), count, (step, least, since))
    _round(e, reals, e.at(values, first, 4), count, scale)
    segments = _divide(e, values, rows, low, high)
    with e.loop(0, segments) as s:
        level, index = (e.load(rows, e.b.add(s, i64(part * SEGMENTS)), I64) for part in (2, 3))

        def put(place: ir.Value, value: ir.Value, mask: ir.Value | None, state: State) -> State:
            if mask is None:
                e.store(value, result, e.b.sub(place, low))
                return state
            at, n = e.at(result, e.b.sub(place, low), 4), lanes()
            store = ir.FunctionType(VOID, [value.type, PTR, I32, mask.type])
            name = f"llvm.masked.store.v{n}i32.p0"
            fn = e.module.globals.get(name) or ir.Function(e.module, store, name)
            e.b.call(fn, [value, at, ir.Constant(I32, 4), mask])
            return state

        _folded(e, values, (level, index), (low, high), [], put)
    _measure(e, e.at(reals, e.b.sub(low, first), 8), result, e.b.add(e.b.sub(high, low), i64(1)), scale, error)


def _compute(
    e: Emitter, curve: Curve, reals: ir.Value, first: ir.Value, count: ir.Value, numbers: tuple[ir.Value, ...]
) -> None:
    """The function's values."""
    step, least, since = numbers

    def value(v: ir.Value) -> ir.Value:
        root = e.overloaded("llvm.sqrt", v) if curve is Curve.INVERSE_ROOT else v
        return e.b.fdiv(const(v.type, 1.0), root)

    lowest = value(least)

    def body(i: ir.Value, n: int) -> None:
        q = e.splat(e.b.add(first, i), n)
        if n > 1:
            q = e.b.add(q, ir.Constant(vector(I64, n), list(range(n))))
        v = e.b.fmul(e.b.sitofp(q, vector(F64, n)), e.splat(step, n))
        y = value(e.overloaded("llvm.maxnum", v, e.splat(least, n)))
        below = e.b.fcmp_ordered("<", v, e.splat(since, n))
        e.store(e.b.select(below, e.splat(lowest, n), y), reals, i)

    span(e, 0, count, lanes(), body)


def _round(e: Emitter, reals: ir.Value, values: ir.Value, count: ir.Value, scale: ir.Value) -> None:
    """D7: floor(y + 1/2) within 16 bits; NaN counts as 0."""

    def body(i: ir.Value, n: int) -> None:
        y = e.b.fdiv(e.load(reals, i, F64, n), e.splat(scale, n))
        y = e.b.select(e.b.fcmp_unordered("uno", y, y), const(F64, 0.0, n), y)
        for limit in (_FAR, 32767.0):
            y = e.overloaded(
                "llvm.maxnum",
                e.overloaded("llvm.minnum", y, const(F64, limit, n)),
                const(F64, -limit - (limit < _FAR), n),
            )
            if limit == _FAR:
                y = e.overloaded("llvm.floor", e.b.fadd(y, const(F64, 0.5, n)))
        e.store(e.b.fptosi(y, vector(I32, n)), values, i)

    span(e, 0, count, lanes(), body)


def _divide(e: Emitter, values: ir.Value, rows: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    """`segments.divide`: the rows, [largest error, sum of errors, level, index] of 64 each; how many there are."""
    judge = e.helper(("judge",), [PTR, *[I64] * 4, PTR, I64], _judge)
    e.call(judge, values, 0, 0, low, high, rows, 0)

    def grow(_: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        count = state[0]
        best, largest, level, index = _worst(e, rows, count)
        errs = e.b.icmp_signed(">", largest, i64(0))
        with e.when(errs):
            deeper, left = e.b.add(level, i64(1)), e.b.shl(index, i64(1))
            e.call(judge, values, deeper, left, low, high, rows, best)
            e.call(judge, values, deeper, e.b.add(left, i64(1)), low, high, rows, count)
        return [e.b.add(count, e.b.zext(errs, I64))]

    return e.fold(1, SEGMENTS, [i64(1)], grow, nonempty=True)[0]


def _worst(e: Emitter, rows: ir.Value, count: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """(slot, largest error, level, index) of the row that is halved next."""

    def read(slot: ir.Value) -> list[ir.Value]:
        return [e.load(rows, e.b.add(slot, i64(part * SEGMENTS)), I64) for part in range(4)]

    def look(slot: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        new, old = read(slot), state[1:]
        better: ir.Value = ir.Constant(ir.IntType(1), 0)
        for a, b, sign in reversed(list(zip(new, old, (">", ">", "<", "<"), strict=True))):
            better = e.b.or_(e.b.icmp_signed(sign, a, b), e.b.and_(e.b.icmp_signed("==", a, b), better))
        return [e.b.select(better, a, b) for a, b in zip([slot, *new], state, strict=True)]

    slot, largest, _, level, index = e.fold(1, count, [i64(0), *read(i64(0))], look)
    return slot, largest, level, index


def _judge(e: Emitter) -> None:
    """Write a row: the errors of the segment (level, index) within the reach."""
    values, level, index, low, high, rows, slot = e.args
    n = lanes()
    states = e.b.alloca(I64, 2)
    zero = i64(0)
    e.store(zero, states, 0)
    e.store(zero, states, 1)
    with e.when(e.b.icmp_signed("<", level, i64(DEEPEST))):
        start: State = [const(I32, 0, n), const(I32, 0, n), const(I32, 0), const(I32, 0)]

        def differ(place: ir.Value, value: ir.Value, mask: ir.Value | None, state: State) -> State:
            off = e.b.sub(value, e.load(values, place, I32, lanes_of(value)))
            off = e.smax(off, e.b.sub(const(off.type, 0), off))
            if mask is not None:
                off = e.b.select(mask, off, const(off.type, 0))
            k = 2 if value.type == I32 else 0
            state[k : k + 2] = [e.smax(state[k], off), e.b.add(state[k + 1], off)]
            return state

        most, total, last, rest = _folded(e, values, (level, index), (low, high), start, differ)
        most = e.intrinsic(f"llvm.vector.reduce.smax.v{n}i32", I32, most)
        wide = e.b.sext(total, vector(I64, n))
        total = e.intrinsic(f"llvm.vector.reduce.add.v{n}i64", I64, wide)
        e.store(e.b.sext(e.smax(most, last), I64), states, 0)
        e.store(e.b.add(total, e.b.sext(rest, I64)), states, 1)
    for part, v in enumerate((e.load(states, 0, I64), e.load(states, 1, I64), level, index)):
        e.store(v, rows, e.b.add(slot, i64(part * SEGMENTS)))


Body = Callable[[ir.Value, ir.Value, "ir.Value | None", State], State]


def _folded(
    e: Emitter,
    values: ir.Value,
    segment: tuple[ir.Value, ir.Value],
    reach: tuple[ir.Value, ir.Value],
    state: State,
    body: Body,
) -> State:
    """`state = body(place, interpolated value, which lanes, state)` for the inputs of a segment within the reach (D8).

    Cells of many inputs one after the other; of small ones, several in a vector.
    """
    level, index = segment
    shift = e.b.sub(i64(DEEPEST), level)
    start = e.b.shl(index, e.b.add(shift, i64(6)))  # 64 = 2^6 cells
    narrow = e.b.trunc(shift, I32)
    cells = _Cells(values, start, shift, narrow, e.b.ashr(e.b.shl(const(I32, 1), narrow), const(I32, 1)), reach)
    wide = e.b.icmp_signed(">=", e.b.shl(i64(1), shift), i64(lanes()))
    none = i64(0)
    found = _by_cell(e, cells, e.b.select(wide, i64(ENTRIES), none), state, body)
    return _by_vector(e, cells, e.b.select(wide, none, e.b.shl(i64(ENTRIES), shift)), found, body)


@dataclass(frozen=True)
class _Cells:
    """A segment: where its values lie, its first input, log2 of a cell's inputs (i64, i32), half of them, the reach."""

    values: ir.Value
    start: ir.Value
    shift: ir.Value
    narrow: ir.Value
    half: ir.Value
    reach: tuple[ir.Value, ir.Value]


def _by_cell(e: Emitter, cells: _Cells, count: ir.Value, state: State, body: Body) -> State:
    start, shift, reach = cells.start, cells.shift, cells.reach
    begin = e.smax(i64(0), e.b.ashr(e.b.sub(reach[0], start), shift))
    end = e.smin(count, e.b.add(e.b.ashr(e.b.sub(reach[1], start), shift), i64(1)))
    size = e.b.shl(i64(1), shift)

    def cell(c: ir.Value, outer: State) -> State:
        place = e.b.add(start, e.b.shl(c, shift))
        entry, after = (e.load(cells.values, p, I32) for p in (place, e.b.add(place, size)))
        first = e.smax(i64(0), e.b.sub(reach[0], place))
        last = e.smin(size, e.b.sub(e.b.add(reach[1], i64(1)), place))

        def inner(n: int) -> Callable[[ir.Value, State], State]:
            step, offset, base, by = (e.splat(v, n) for v in (e.b.sub(after, entry), cells.half, entry, cells.narrow))

            def at(j: ir.Value, s: State) -> State:
                along = e.splat(e.b.trunc(j, I32), n)
                if n > 1:
                    along = e.b.add(along, _iota(n))
                value = e.b.add(e.b.ashr(e.b.add(e.b.mul(step, along), offset), by), base)
                return body(e.b.add(place, j), value, None, list(s))

            return at

        many = lanes()
        room = e.smax(i64(0), e.b.sub(last, first))
        middle = e.b.add(first, e.b.mul(e.b.sdiv(room, i64(many)), i64(many)))
        return e.fold(middle, last, e.fold(first, middle, outer, inner(many), step=many), inner(1))

    return e.fold(begin, end, state, cell)


def _by_vector(e: Emitter, cells: _Cells, width: ir.Value, state: State, body: Body) -> State:
    n = lanes()
    stop = e.b.add(cells.start, width)
    low, high = (e.splat(e.b.trunc(v, I32), n) for v in cells.reach)
    size = e.splat(e.b.shl(const(I32, 1), cells.narrow), n)
    by, half = e.splat(cells.narrow, n), e.splat(cells.half, n)

    def at(p: ir.Value, s: State) -> State:
        place = e.b.add(e.splat(e.b.trunc(p, I32), n), _iota(n))
        along = e.b.and_(place, e.b.sub(size, const(I32, 1, n)))
        first = e.b.sub(place, along)
        entry, after = (gathered(e, cells.values, x) for x in (first, e.b.add(first, size)))
        value = e.b.add(e.b.ashr(e.b.add(e.b.mul(e.b.sub(after, entry), along), half), by), entry)
        inside = e.b.and_(e.b.icmp_signed(">=", place, low), e.b.icmp_signed("<=", place, high))
        return body(p, value, inside, list(s))

    return e.fold(cells.start, stop, state, at, step=n)


def _iota(n: int) -> ir.Constant:
    return ir.Constant(vector(I32, n), list(range(n)))


def _measure(e: Emitter, reals: ir.Value, result: ir.Value, count: ir.Value, scale: ir.Value, error: ir.Value) -> None:
    """The largest distance; NaN where one is."""
    n = lanes()

    def body(k: int) -> Callable[[ir.Value, State], State]:
        def at(i: ir.Value, state: State) -> State:
            real = e.b.fmul(e.b.sitofp(e.load(result, i, I32, k), vector(F64, k)), e.splat(scale, k))
            off = e.overloaded("llvm.fabs", e.b.fsub(real, e.load(reals, i, F64, k)))
            return [e.overloaded("llvm.maximum", state[0], off)]

        return at

    middle = e.b.mul(e.b.sdiv(count, i64(n)), i64(n))
    most = e.fold(0, middle, [const(F64, 0.0, n)], body(n), step=n)[0]
    found = e.intrinsic(f"llvm.vector.reduce.fmaximum.v{n}f64", F64, most)
    e.store(e.fold(middle, count, [found], body(1))[0], error, 0)
