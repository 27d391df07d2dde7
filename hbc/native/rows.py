"""Chains of elementwise steps and reductions over rows of integers, one row after the other, in one kernel.

A softmax or a norm is such a chain. Its structure is compiled once; its numbers (multipliers, shifts, limits, tables)
are read at each call, so that nothing is compiled again where scales move. Arithmetic is that of
`hbc_runtime.jit.numerics`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from hbc_runtime.isa import Scheme
from hbc_runtime.jit import numerics
from hbc_runtime.jit.emitter import F32, I32, I64, PTR, Emitter, const, i64, lanes_of, vector
from hbc_runtime.numerics import I16_MAX, I32_MAX, I32_MIN

from .accumulators import integers
from .build import Native, function, gathered, lanes

REDUCES = frozenset({"largest", "smallest", "total"})
# Columns of the numbers, int64[steps, 5]: of a sum (lhs multiplier, rhs multiplier, shift), else (multiplier, shifts);
# the limits; of a table (address, first input, last input).
FIRST, SECOND, THIRD, LOW, HIGH, COLUMNS = range(6)


@dataclass(frozen=True)
class Step:
    """One value of a chain: `what` of earlier values, by their numbers in it. A `full` value has a number for each
    element of the row, others one for the row. `wide`: sums in i64, as they may leave i32.

    sum, product, total, largest, smallest, larger, smaller, clip, look; or `constant`, from outside.
    """

    what: str
    operands: tuple[int, ...]
    full: bool
    wide: bool = False
    scheme: Scheme = Scheme.NONE


@dataclass(frozen=True)
class Chain:
    """Value 0 is the operand (full); value k is steps[k − 1]; the last step, full, is the result."""

    steps: tuple[Step, ...]

    @functools.cached_property
    def levels(self) -> list[int]:
        """The loop over the row in which each value is made; of a reduction, or what follows from it, the loop before
        which it is known.
        """
        found = [0]
        for step in self.steps:
            level = max([found[i] for i in step.operands], default=0)
            found.append(level + (step.what in REDUCES))
        return found

    @functools.cached_property
    def kept(self) -> list[int]:
        """Full values that a later loop reads: rows of the scratch memory, in this order."""
        levels = self.levels
        read = {
            i
            for k, s in enumerate(self.steps, 1)
            for i in s.operands
            if i and self.is_full(i) and self._made(levels, k) > levels[i]
        }
        return sorted(i for i in read if self.steps[i - 1].what != "constant")

    def _made(self, levels: Sequence[int], k: int) -> int:
        """The loop in which step k is computed."""
        return levels[k] - (self.steps[k - 1].what in REDUCES)

    def is_full(self, i: int) -> bool:
        """True for a value of a number per element."""
        return i == 0 or self.steps[i - 1].full


@functools.cache
def runner(chain: Chain, *, keeps: bool) -> Native:
    """A function over rows: of (y, q, x, 1/scale, numbers, constants, periods, scratch, length, low, high, the result's
    scale, begin, end).

    It makes y f32 = clamp(q, low, high) · scale, and q f32 before that clamp where it `keeps` it; the last step's own
    limits are not applied. `constants`: addresses of int32[period, length], for each constant in order; row r reads row
    r mod period of them, or the first number of one that isn't full. `scratch`: int32[kept values, length].
    """
    return function("pppdppppiiidii", lambda e: _Rows(e, chain, keeps=keeps).emit())


class _Rows:
    """Writes the kernel of a chain."""

    def __init__(self, e: Emitter, chain: Chain, *, keeps: bool) -> None:
        self.e, self.chain, self.keeps = e, chain, keeps
        self.levels = chain.levels
        (self.y, self.q, self.x, inverse, self.numbers, constants, periods, self.scratch, self.length,
         low, high, scale, self.begin, self.end) = e.args  # fmt: skip
        self.inverse, self.scale = e.b.fptrunc(inverse, F32), e.b.fptrunc(scale, F32)
        self.limits = [e.b.trunc(v, I32) for v in (low, high)]
        places = [k for k, s in enumerate(chain.steps, 1) if s.what == "constant"]
        self.constants = {
            k: (e.b.inttoptr(e.load(constants, i, I64), PTR), e.load(periods, i, I64)) for i, k in enumerate(places)
        }
        self.fixed = {k: e.load(at, 0, I32) for k, (at, _) in self.constants.items() if not chain.steps[k - 1].full}
        self.loaded = {k: self._numbers(k) for k in range(1, len(chain.steps) + 1)}
        self.single: dict[int, ir.Value] = {}  # values of one number in this row
        self.base: ir.Value = i64(0)
        self.places: dict[int, ir.Value] = {}

    def _numbers(self, k: int) -> list[ir.Value]:
        """Step k's numbers, each as wide as its use."""
        step, e = self.chain.steps[k - 1], self.e
        raw = [e.load(self.numbers, (k - 1) * COLUMNS + c, I64) for c in range(COLUMNS)]
        if step.what == "look":
            return [e.b.inttoptr(raw[FIRST], PTR), *(e.b.trunc(v, I32) for v in raw[SECOND:])]
        wide = I64 if step.what == "sum" and step.wide else I32
        return [*(e.resize(v, wide) for v in raw[:LOW]), *(e.b.trunc(v, I32) for v in raw[LOW:])]

    def emit(self) -> None:
        """Row by row, loop by loop."""
        e = self.e
        with e.loop(self.begin, self.end) as row:
            self.base = e.b.mul(row, self.length)
            self.single = dict(self.fixed)
            self.places = {
                k: e.at(at, e.b.mul(e.b.srem(row, period), self.length), 4)
                for k, (at, period) in self.constants.items()
            }
            for level in range(self.levels[-1] + 1):
                self._loop(level)

    def _loop(self, level: int) -> None:
        """Known numbers of this level, then the loop that makes its full values and reductions."""
        chain, e = self.chain, self.e
        steps = list(enumerate(chain.steps, 1))
        for k, step in steps:
            if self.levels[k] == level and not step.full and step.what not in REDUCES | {"constant"}:
                self.single[k] = self._value(k, [self.single[i] for i in step.operands])
        reductions = [k for k, s in steps if s.what in REDUCES and self.levels[k] == level + 1]
        middle = e.b.mul(e.b.sdiv(self.length, i64(lanes())), i64(lanes()))
        states: list[list[ir.Value]] = []
        for n, start, stop in ((lanes(), i64(0), middle), (1, middle, self.length)):
            init: list[ir.Value] = [const(self._carrier(k), self._start(k), n) for k in reductions]
            body = functools.partial(self._body, level, n, reductions)
            states.append(e.fold(start, stop, init, body, step=n))
        for k, many, one in zip(reductions, *states, strict=True):
            self.single[k] = self._finished(k, self._joined(k, self._across(k, many), one))

    def _body(
        self, level: int, n: int, reductions: Sequence[int], i: ir.Value, state: list[ir.Value]
    ) -> list[ir.Value]:
        """Elements [i, i + n) of a loop; the reductions' new states."""
        chain, e = self.chain, self.e
        values: dict[int, ir.Value] = {}

        def value(k: int) -> ir.Value:
            if k not in values:
                values[k] = self._read(k, level, n, i, value)
            return values[k]

        for k in chain.kept:
            if self.levels[k] == level:
                e.store(value(k), self._slot(k), i)
        last = len(chain.steps)
        if self.levels[last] == level:
            self._finish(value(last), i, n)
        terms = [e.resize(value(chain.steps[k - 1].operands[0]), self._carrier(k)) for k in reductions]
        return [self._joined(k, s, x) for k, s, x in zip(reductions, state, terms, strict=True)]

    def _read(self, k: int, level: int, n: int, i: ir.Value, value: object) -> ir.Value:
        """Value k at elements [i, i + n): of this loop, an earlier one, or one for the row."""
        assert callable(value)
        e = self.e
        if k == 0:
            return integers(e, e.load(self.x, e.b.add(self.base, i), F32, n), self.inverse)
        step = self.chain.steps[k - 1]
        if not step.full:
            return e.splat(self.single[k], n)
        if step.what == "constant":
            return e.load(self.places[k], i, I32, n)
        if self.levels[k] < level:
            return e.load(self._slot(k), i, I32, n)
        found: ir.Value = self._value(k, [value(o) for o in step.operands])
        return found

    def _slot(self, k: int) -> ir.Value:
        return self.e.at(self.scratch, self.e.b.mul(i64(self.chain.kept.index(k)), self.length), 4)

    def _value(self, k: int, xs: Sequence[ir.Value]) -> ir.Value:
        """Step k, no reduction, of its operands."""
        step, e, n = self.chain.steps[k - 1], self.e, lanes_of(xs[0])
        given = self.loaded[k]
        if step.what in {"larger", "smaller"}:
            return (e.smax if step.what == "larger" else e.smin)(xs[0], xs[1])
        if step.what == "look":
            return self._looked_up(given, xs[0])
        if step.what == "clip":
            return self._within(k, xs[0])
        if step.what == "sum":
            return self._sum(k, xs)
        assert step.what == "product", step
        mult, pre, post = (e.splat(v, n) for v in given[:LOW])
        return self._within(
            k, numerics.requantize(e, e.b.mul(xs[0], xs[1]), step.scheme, mult, pre, post, 0, I32_MIN, I32_MAX)
        )

    def _within(self, k: int, value: ir.Value) -> ir.Value:
        """A step's limits; the last one's are the caller's."""
        if k == len(self.chain.steps):
            return value
        e, n = self.e, lanes_of(value)
        low, high = (e.splat(v, n) for v in self.loaded[k][LOW : HIGH + 1])
        return e.smin(e.smax(value, low), high)

    def _sum(self, k: int, xs: Sequence[ir.Value]) -> ir.Value:
        """D6: (a · ma + b · mb + half) >> shift."""
        e, n = self.e, lanes_of(xs[0])
        wide = I64 if self.chain.steps[k - 1].wide else I32
        ma, mb, shift = (e.splat(v, n) for v in self.loaded[k][:LOW])
        a, b = (e.b.mul(e.resize(x, wide), m) for x, m in zip(xs, (ma, mb), strict=True))
        total = numerics.round_shift_half_up(e, e.b.add(a, b), shift)
        if wide == I64:
            total = e.resize(numerics.saturate(e, total, I32_MIN, I32_MAX), I32)
        return self._within(k, total)

    def _looked_up(self, given: Sequence[ir.Value], x: ir.Value) -> ir.Value:
        e, n = self.e, lanes_of(x)
        at, first, last = given[FIRST], given[SECOND], given[THIRD]
        index = e.b.sub(e.smin(e.smax(x, e.splat(first, n)), e.splat(last, n)), e.splat(first, n))
        return gathered(e, at, index)

    # ---- reductions

    def _carrier(self, k: int) -> ir.Type:
        return I64 if self.chain.steps[k - 1].wide else I32

    def _start(self, k: int) -> int:
        return {"largest": -I16_MAX - 1, "smallest": I16_MAX, "total": 0}[self.chain.steps[k - 1].what]

    def _joined(self, k: int, a: ir.Value, b: ir.Value) -> ir.Value:
        what = self.chain.steps[k - 1].what
        return self.e.b.add(a, b) if what == "total" else (self.e.smax if what == "largest" else self.e.smin)(a, b)

    def _across(self, k: int, lanes_: ir.Value) -> ir.Value:
        """A vector's lanes as one."""
        ty, n = self._carrier(k), lanes_of(lanes_)
        name = {"largest": "smax", "smallest": "smin", "total": "add"}[self.chain.steps[k - 1].what]
        return self.e.intrinsic(f"llvm.vector.reduce.{name}.v{n}i{ty.width}", ty, lanes_)

    def _finished(self, k: int, acc: ir.Value) -> ir.Value:
        step = self.chain.steps[k - 1]
        if step.what != "total":
            return acc
        mult, pre, post = self.loaded[k][:LOW]
        return self._within(k, numerics.requantize(self.e, acc, step.scheme, mult, pre, post, 0, I32_MIN, I32_MAX))

    def _finish(self, q: ir.Value, i: ir.Value, n: int) -> None:
        e = self.e
        place = e.b.add(self.base, i)
        if self.keeps:
            e.store(e.b.sitofp(q, vector(F32, n)), self.q, place)
        q = e.smin(e.smax(q, e.splat(self.limits[0], n)), e.splat(self.limits[1], n))
        e.store(e.b.fmul(e.b.sitofp(q, vector(F32, n)), e.splat(self.scale, n)), self.y, place)
