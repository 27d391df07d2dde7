"""The parts of a composite as training makes them at every step: what computes, without ops that a graph could hold.

`LeanParts` is asked by the compiler's own pass (`hbc.passes.decompose`), so that the parts, their scales and their form
are the compiler's; `arithmetic` says what each part computes, by the parameters that lowering derives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Op, Value
from hbc.ir.fixed_point import eltwise, pool
from hbc.ir.fixed_point.params import choose_scheme, clamp_limits, multiplier_of
from hbc.ir.location import Loc
from hbc.ir.semantics import Semantics
from hbc.ir.types import TensorType
from hbc.native import divide
from hbc.passes.base import Target
from hbc.passes.composites.norm import inverse_root
from hbc.passes.composites.parts import Function, Parts, Table, i16
from hbc.passes.composites.sums import Since
from hbc.passes.quanta import scale_of
from hbc.passes.segments import FIRST, LAST
from hbc_runtime import numerics
from hbc_runtime.isa import Scheme

_NARROW = 256  # inputs that segments of single inputs hold, whatever the function
_WIDEST = 1024  # inputs of a cell of the widest segment
_NOWHERE = Graph()
_CURVES: dict[Function, divide.Curve] = {
    np.reciprocal: divide.Curve.INVERSE,
    inverse_root: divide.Curve.INVERSE_ROOT,
}


@dataclass(frozen=True)
class Results:
    """What a table gives for the inputs from `first` on, int32; where there is nothing, 0."""

    first: int
    values: np.ndarray

    def at(self, q: np.ndarray) -> np.ndarray:
        """The results for integers `q`."""
        return self.values[np.asarray(q, np.int64) - self.first] if len(self.values) else np.zeros(np.shape(q))


_NOTHING = Results(0, np.zeros(0, np.int32))


class Part(NamedTuple):
    """An op that is never made: its class, operands, attributes, result; a table has its results."""

    cls: type[Op]
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    out: Value
    table: Results | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What decides whether the BPU takes it."""
        return self.cls, self.out.type.shape, self.out.type.dtype, self.attrs.get("axes")


class LeanParts(Parts):
    """Parts that are computed here and never emitted: a table is its results, and is divided only where that matters.

    Of at most 256 inputs the compiler's table is exact: their segments can all be 64 inputs wide, and there are 64.
    """

    legality: dict[tuple[object, ...], Rejection | None] = {}  # noqa: RUF012 - one memory for all: no scale plays a part

    def __init__(self, loc: Loc) -> None:
        super().__init__(loc)
        self.parts: list[Part] = []

    @classmethod
    def least_error(cls, loc: Loc, build: Callable[[Parts], float]) -> float:
        """The error that is left where tables have none: a bound, since every error of a table adds to the result's."""
        return build(_Sketch(loc))

    def drop(self) -> None:
        """Forget all parts."""
        self.parts = []

    def make(self, cls: type[Op], *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:  # noqa: A002
        """The result of a part."""
        if type is None:
            (type,) = make_op(cls, operands, attrs, self.loc).infer()  # noqa: A001
        part = Part(cls, operands, attrs, Value(type, _NOWHERE, 0))
        self.parts.append(part)
        return part.out

    def rejection(self, target: Target) -> Rejection | None:
        """Why one of the parts may not run on the BPU: asked once for parts of these shapes."""
        key = (target, *(p.key for p in self.parts))
        if key not in self.legality:
            made = [make_op(p.cls, p.operands, p.attrs, self.loc, [p.out.type]) for p in self.parts if p.table is None]
            self.legality[key] = next((found for op in made if (found := target.legal(op)) is not None), None)
            for op in made:
                op.drop_operands()
        return self.legality[key]

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        """As `Parts.table`, without constants."""
        t = i16(x.type.shape, scale)
        make = _remembered if isinstance(f, Since) else _results
        results, error = make(f, scale_of(x.type), scale_of(t), reach)
        return self.made(x, t, results, error)

    def made(self, x: Value, t: TensorType, results: Results, error: float) -> Table:
        """A table as a part."""
        part = Part(ops.SegmentLut, (x,), {}, Value(t, _NOWHERE, 0), results)
        self.parts.append(part)
        return Table(part.out, error, results)


class _Sketch(LeanParts):
    """Parts of which only types are known; wide tables hold nothing, and have no error."""

    def make(self, cls: type[Op], *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:  # noqa: A002
        """A value of the part's type."""
        if type is None:
            return super().make(cls, *operands, **attrs)
        return Value(type, _NOWHERE, 0)

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        """Only what narrow tables hold is computed."""
        if reach[1] - reach[0] < _NARROW:
            return super().table(x, f, scale, reach)
        return self.made(x, i16(x.type.shape, scale), _NOTHING, 0.0)


def _results(f: Function, step: float, scale: float, reach: tuple[int, int]) -> tuple[Results, float]:
    """(what the compiler's table of f gives within its reach, its largest distance from f, in reals)."""
    if reach[1] - reach[0] < _NARROW:
        reals = f(np.arange(reach[0], reach[1] + 1) * step)
        values = numerics.lut_table(lambda _: reals, reals, scale, 0, FIRST, LAST).astype(np.int32)
        return Results(reach[0], values), float(np.abs(values * scale - reals).max())
    first, last = max(reach[0] - _WIDEST, FIRST), min(reach[1] + _WIDEST, LAST + 1)
    given: np.ndarray | divide.Known | None = _known(f, step)
    if given is None:
        with np.errstate(all="ignore"):  # outside of the reach a function may have no value
            given = np.ascontiguousarray(f(np.arange(first, last + 1) * step), np.float64)
    values, error = divide.table(given, first, last - first + 1, reach, scale)
    return Results(reach[0], values), error


@lru_cache(maxsize=64)
def _remembered(f: Since, step: float, scale: float, reach: tuple[int, int]) -> tuple[Results, float]:
    """As `_results`: forms of a composite share tables, and so do steps between which no scale moves."""
    return _results(f, step, scale, reach)


def _known(f: Function, step: float) -> divide.Known | None:
    """What f is, where its values needn't be given."""
    curve = _CURVES.get(f.f) if isinstance(f, Since) else None
    if curve is None:
        return None
    assert isinstance(f, Since)
    return divide.Known(curve, step, f.low, -math.inf if f.since is None else f.since)


# ---- what parts compute


class Arithmetic(NamedTuple):
    """A part's numbers. `what`: sum (lhs, rhs multipliers, shift), product, total (multiplier, shifts), largest,
    smallest, larger, smaller, clip, look or same; the result lies in [low, high].
    """

    what: str
    scheme: Scheme = Scheme.NONE
    numbers: tuple[int, int, int] = (0, 0, 0)
    low: int = FIRST
    high: int = LAST


_PLAIN: dict[type[Op], str] = {
    ops.ReduceMax: "largest",
    ops.ReduceMin: "smallest",
    ops.Maximum: "larger",
    ops.Minimum: "smaller",
    ops.SegmentLut: "look",
    ops.Reshape: "same",
}


def arithmetic(part: Part, sem: Semantics) -> Arithmetic:
    """What a part that isn't a constant computes. Raises ScaleRangeError where a scale has no multiplier."""
    if part.cls in _PLAIN:
        return Arithmetic(_PLAIN[part.cls])
    types, out = [v.type for v in part.operands], part.out.type
    if part.cls is ops.Clip:
        limits = clamp_limits(out, (part.attrs.get("low", -math.inf), part.attrs.get("high", math.inf)))
        return Arithmetic("clip", Scheme.NONE, (0, 0, 0), *limits)
    limits = clamp_limits(out, part.attrs.get("clip", ops.NO_CLIP))
    if part.cls in {ops.Add, ops.Sub}:
        numbers = eltwise.add_parameters(types[0], types[1], out, -1.0 if part.cls is ops.Sub else 1.0)
        return Arithmetic("sum", Scheme.FORM_B, _lowest(numbers), *limits)
    scheme = choose_scheme(out, sem, bias=False)
    if part.cls is ops.Mul:
        what, ratio = "product", eltwise.product_ratio(types[0], types[1], out)
    else:
        assert part.cls in {ops.ReduceMean, ops.ReduceSum}, part.cls
        count = math.prod(types[0].shape[a] for a in part.attrs["axes"]) if part.cls is ops.ReduceMean else 1
        what, ratio = "total", pool.reduced_ratio(types[0], out, float(count))
    m = multiplier_of(ratio, scheme)
    return Arithmetic(what, scheme, (m.multiplier, m.pre_shift, m.post_shift), *limits)


def _lowest(numbers: Sequence[int]) -> tuple[int, int, int]:
    """D6's numbers in lowest terms: x − largest is a difference, without shifts."""
    ma, mb, shift = numbers
    common = min([shift, *((m & -m).bit_length() - 1 for m in (ma, mb) if m)])
    return ma >> common, mb >> common, shift - common
