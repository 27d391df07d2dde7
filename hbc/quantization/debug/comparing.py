"""Layer by layer: how far one model is from another, and how much of that each operation does by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from hbc.debug import DETAIL, Column, Figure, Report, Similarity, similarity, worst_of
from hbc.diagnostics import OptionError, error
from hbc.verify import TensorRow
from hbc.verify.measure import CLOSE_SQNR, ONE
from hbc.verify.plot import depth_plot
from hbc.verify.text import decibel

from ..converting import FixedPointModel
from ..errors import no_such
from ..units import QuantizedUnit, is_prepared
from .program import ProgramRunnable
from .running import (
    Array,
    Runnable,
    UnitRunnable,
    argument_count,
    as_prepared,
    batches,
    dtype_of,
    kind_of,
    prepared_graph,
    result_of,
    scale_of,
    units_in_order,
)

NARROWED = 0.9  # of the reference's largest magnitude
COLUMNS = (
    Column("#", "index", "count", rank=8),
    Column("unit", "name"),
    Column("operation", "kind"),
    Column("type", "dtype", about="of the result in the judged model", rank=1),
    Column("shape", "shape", "shape", rank=DETAIL),
    Column("scale", "scale", "number", "the step of the judged result; what quanta count", rank=2),
    Column("cosine", "cosine", "cosine", "of the reference's and the judged result as vectors", rank=3),
    Column("SQNR", "sqnr", "decibel", "10·log10(Σ reference² / Σ difference²) in dB"),
    Column("MSE", "mse", "number", "mean squared difference", rank=4),
    Column("L1", "l1", "number", "mean absolute difference", rank=6),
    Column("KL", "kl", "number", "divergence of the histograms of values, in nats", rank=5),
    Column("error", "atol", "number", "the largest difference", rank=DETAIL),
    Column("quanta", "quanta", "quanta", "the largest difference in steps, the whole way from the inputs"),
    Column("op quanta", "op_quanta", "quanta", "the same where the operation reads the reference's operands"),
    Column("op SQNR", "op_sqnr", "decibel", "of the operation that reads the reference's operands"),
    Column("advice", "advice", about="what the figures say"),
    Column("min", "low", "number", "of the reference", rank=DETAIL),
    Column("max", "high", "number", "of the reference", rank=DETAIL),
    Column("judged min", "judged_low", "number", rank=DETAIL),
    Column("judged max", "judged_high", "number", rank=DETAIL),
)


@dataclass(frozen=True)
class LayerRow:
    """One unit, over all batches the worst of each figure. Figures of `op_…` are None where it can't run alone."""

    index: int
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None
    total: Similarity
    op: Similarity | None
    low: float
    high: float
    judged_low: float
    judged_high: float
    advice: str

    cosine = property(lambda self: self.total.cosine)
    sqnr = property(lambda self: self.total.sqnr)
    mse = property(lambda self: self.total.mse)
    l1 = property(lambda self: self.total.l1)
    kl = property(lambda self: self.total.kl)
    atol = property(lambda self: self.total.distance.max_abs)
    quanta = property(lambda self: self.total.distance.max_quanta)
    op_quanta = property(lambda self: None if self.op is None else self.op.distance.max_quanta)
    op_sqnr = property(lambda self: None if self.op is None else self.op.sqnr)

    @property
    def flagged(self) -> bool:
        """True where the operation by itself goes wrong, or there is advice."""
        return bool(self.advice)


def compare(
    reference: nn.Module,
    judged: nn.Module | None = None,
    inputs: Any = None,
    *,
    reference_mode: str | None = None,
    judged_mode: str | None = None,
    steps: int | None = None,
) -> Report[LayerRow]:
    """How far `judged` is from `reference` after every unit, on `inputs`.

    Each is a float model, a prepared one or a `FixedPointModel`; one prepared model may be compared with itself in two
    modes: `float`, `fake`, `lut` (tables exact) or `exact`. By default the reference of a prepared model is `float`
    where `judged` is None, and whatever is judged is `exact`. `inputs`: the tuple of a call's arguments, or a loader of
    such; by default the example that the model was prepared with.

    In `op …` every operation of the judged model reads the reference's values, rounded to its own integers, so that no
    error is inherited. One batch of the reference's results is held at a time.
    """
    alone = judged is None
    judged = reference if judged is None else judged
    inputs = _example(judged, reference) if inputs is None else inputs
    count = len(inputs) if isinstance(inputs, tuple) else max(argument_count(m) for m in (judged, reference))
    tallies: dict[str, Tally] = {}
    sides: tuple[Runnable, Runnable] | None = None
    for args in batches(inputs, count, steps):
        if sides is None:
            first = runnable(reference, reference_mode or ("float" if alone else None), args, judged)
            sides = first, runnable(judged, judged_mode, args, reference)
        _batch(*sides, args, tallies, _quanta_of(judged, reference))
    assert sides is not None
    units = _units(judged, reference, sides)
    rows = tuple(_row(i, n, t, units.get(n)) for i, (n, t) in enumerate(tallies.items()))
    missing = [n for n in sides[0].units if n not in tallies]
    against_float = sides[0].about == "float"
    return _report(rows, f"{sides[1].about} against {sides[0].about}", missing, against_float=against_float)


@dataclass
class Tally:
    """One unit's figures, batch by batch."""

    totals: list[Similarity] = field(default_factory=list)
    owns: list[Similarity] = field(default_factory=list)
    ranges: list[tuple[float, float, float, float]] = field(default_factory=list)
    shape: tuple[int, ...] = ()


def runnable(model: nn.Module, mode: str | None, args: tuple[Any, ...], like: nn.Module | None = None) -> Runnable:
    """A model in one arithmetic; of a float one its units in reals, which are fused as those of `like`."""
    if isinstance(model, FixedPointModel):
        return ProgramRunnable(model)
    prepared = as_prepared(model, args, like)
    return UnitRunnable(prepared, mode or ("exact" if is_prepared(model) else "float"))


def _example(*models: nn.Module) -> Any:
    for model in models:
        if is_prepared(model):
            return model.meta["example_inputs"]  # type: ignore[index]
    hint = "compare(float_model, fixed_point_model, (image,))"
    raise error(OptionError, "compare needs inputs: neither model was prepared with an example", hint=hint)


def _quanta_of(*models: nn.Module) -> dict[str, float]:
    """Steps by unit: of the first model that has them."""
    found: dict[str, float] = {}
    for model in models:
        if is_prepared(model):
            for name, unit in units_in_order(prepared_graph(model, "compare")).items():
                scale = scale_of(unit.activation_post_process)
                if scale is not None:
                    found.setdefault(name, scale)
        elif isinstance(model, FixedPointModel):
            side = ProgramRunnable(model)
            for place in side.stage.places:
                if place.quant is not None and place.name in side.unit_of:
                    found.setdefault(side.unit_of[place.name], max(place.quant.scale))
    return found


def _units(judged: nn.Module, reference: nn.Module, sides: tuple[Runnable, Runnable]) -> dict[str, QuantizedUnit]:
    for side in (sides[1], sides[0]):
        if isinstance(side, UnitRunnable):
            return side.known
    return {}


def _batch(
    first: Runnable, second: Runnable, args: tuple[Any, ...], tallies: dict[str, Tally], quanta: dict[str, float]
) -> None:
    want = first.run(args)
    got = second.run(args)
    own = second.own(args, want)
    for name in second.units:
        if name not in want or name not in got or want[name].shape != got[name].shape:
            continue
        if not _alike(first, second, name):
            continue
        tally = tallies.setdefault(name, Tally())
        quantum = quanta.get(name)
        tally.totals.append(similarity(got[name], want[name], quantum))
        if name in own and own[name].shape == want[name].shape:
            tally.owns.append(similarity(own[name], want[name], quantum))
        tally.ranges.append((*_range(want[name]), *_range(got[name])))
        tally.shape = want[name].shape


def _alike(first: Runnable, second: Runnable, name: str) -> bool:
    """False for units of one name into which different operations are fused."""
    if not isinstance(first, UnitRunnable) or not isinstance(second, UnitRunnable):
        return True
    return kind_of(first.known[name]).replace("+bn", "") == kind_of(second.known[name]).replace("+bn", "")


def _range(x: Array) -> tuple[float, float]:
    kept = x[np.isfinite(x)]
    return (float(kept.min()), float(kept.max())) if kept.size else (0.0, 0.0)


def _row(index: int, name: str, tally: Tally, unit: QuantizedUnit | None) -> LayerRow:
    total = worst_of(tally.totals)
    op = worst_of(tally.owns) if tally.owns else None
    lows, highs, judged_lows, judged_highs = zip(*tally.ranges, strict=True)
    ends = min(lows), max(highs), min(judged_lows), max(judged_highs)
    fq = None if unit is None else result_of(unit)
    kind, dtype = "" if unit is None else kind_of(unit), dtype_of(unit)
    advice = _advice(total, op, ends, dtype)
    return LayerRow(index, name, kind, dtype, tally.shape, scale_of(fq), total, op, *ends, advice)


def _advice(total: Similarity, op: Similarity | None, ends: tuple[float, float, float, float], dtype: str) -> str:
    """Ranges that shrink are truncation, ranges that stay are rounding (the vendor's public taxonomy)."""
    judged = total if op is None else op
    if judged.sqnr >= CLOSE_SQNR:
        return ""
    if not math.isfinite(judged.mse):
        return "NaN or infinite values"
    before, after = max(abs(ends[0]), abs(ends[1])), max(abs(ends[2]), abs(ends[3]))
    if after < NARROWED * before:
        return f"saturates: {before:.4g} becomes {after:.4g}; calibrate on more data"
    if dtype == "int8":
        return "rounding: try int16"
    return "its operands are too coarse: int16 there" if dtype == "int32" else "look at this operation"


def ranked(rows: Sequence[LayerRow], by: str = "quanta") -> tuple[LayerRow, ...]:
    """Rows by what each operation does by itself, the worst first: by op `quanta`, then op SQNR; or by op `sqnr` alone.

    Against a float model SQNR is what counts: a quantum of an int16 result is a 256th of an int8 one's.
    """
    if by not in {"quanta", "sqnr"}:
        raise no_such("order", by, ("quanta", "sqnr"))
    return tuple(sorted(rows, key=lambda r: (-(r.op_quanta or 0.0) if by == "quanta" else 0.0, own_sqnr(r))))


def own_sqnr(row: LayerRow) -> float:
    """Of the operation by itself; of the whole way where it can't run alone."""
    return float(row.sqnr if row.op_sqnr is None else row.op_sqnr)


def _report(rows: tuple[LayerRow, ...], about: str, missing: Sequence[str], *, against_float: bool) -> Report[LayerRow]:
    notes = [_first(rows, against_float=against_float)] if rows else []
    if missing:
        notes.append(f"no tensor of their own in the judged model, or fused otherwise: {', '.join(missing)}")
    figure = Figure(
        "Error over depth",
        depth_plot([_tensor_row(r) for r in rows]),
        "Blue: the whole way from the inputs. Orange: the operation by itself. Higher is worse.",
    )
    return Report("Similarity per layer", about, COLUMNS, rows, tuple(notes), (figure,) if rows else ())


def _first(rows: Sequence[LayerRow], *, against_float: bool) -> str:
    """Where to look first."""
    worst = ranked(rows, "sqnr" if against_float else "quanta")[0]
    named = f"{worst.name} ({worst.kind})" if worst.kind else worst.name
    if against_float:
        advice = f": {worst.advice}" if worst.advice else ""
        return f"the least SQNR of one operation: {named}, {decibel(own_sqnr(worst))} dB{advice}"
    if (worst.op_quanta or 0) > ONE:
        return f"the largest error of one operation: {named}, {worst.op_quanta:.3g} quanta"
    return "no operation by itself is more than 1 quantum off"


def _tensor_row(r: LayerRow) -> TensorRow:
    op = None if r.op is None else r.op.distance
    return TensorRow(
        r.name, "", r.kind, (), r.dtype, r.shape, r.scale, 1, None, op, r.total.distance, not r.flagged, r.flagged
    )
