"""Step quantisation: chosen parts of a model in reals, the rest rounded, and what that does to the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from hbc.debug import Column, Figure, Report, Similarity
from hbc.debug.figures import bars

from ..errors import no_such
from ..fake_quantize import FakeQuantize
from ..units import QuantizedWeighted
from .running import (
    Values,
    argument_count,
    batches,
    in_mode,
    is_table,
    kept_state,
    named_outputs,
    prepared_graph,
    units_in_order,
)
from .sensitive import output_similarity

COLUMNS = (
    Column("part", "name"),
    Column("units", "units", "count", "quantised units in it"),
    Column("SQNR with it real", "sqnr", "decibel", "of the outputs, all other parts rounded, in dB"),
    Column("gain", "gain", "decibel", "against everything rounded, in dB"),
    Column("SQNR up to it", "up_to", "decibel", "of the outputs with this part and those before it rounded, in dB"),
    Column("cosine with it real", "cosine", "cosine"),
)


@dataclass(frozen=True)
class PartRow:
    """One part: the outputs with it alone in reals, and with the parts up to it alone rounded."""

    name: str
    units: int
    kept: Similarity
    gain: float
    up_to: float

    sqnr = property(lambda self: self.kept.sqnr)
    cosine = property(lambda self: self.kept.cosine)


def units_of_parts(model: fx.GraphModule, names: Iterable[str]) -> dict[str, list[str]]:
    """The units of each part: the unit of that name, and those inside of the module of that name.

    OptionError, with the nearest names, where there is none.
    """
    known = list(units_in_order(model))
    found = {}
    for name in names:
        inside = [u for u in known if u == name or u.startswith(f"{name}.")]
        if not inside:
            raise no_such("part", name, {*known, *(p for p, _ in model.named_modules() if p)})
        found[name] = inside
    return found


def _rounding(model: fx.GraphModule, names: Iterable[str]) -> list[FakeQuantize]:
    units = units_in_order(model)
    found = []
    for name in names:
        unit = units[name]
        found += [unit.weight_fake_quant] if isinstance(unit, QuantizedWeighted) else []
        found += [unit.activation_post_process] if unit.activation_post_process is not None else []
    return found


@contextmanager
def kept_float(model: nn.Module, parts: Iterable[str]) -> Iterator[None]:
    """Within, the named parts (units, or modules with all inside of them) are not rounded, results and weights alike.

    Operations that read reals compute in plain fake quantisation, as they have no integers to read.
    """
    model = prepared_graph(model, "kept_float")
    names = [u for units in units_of_parts(model, parts).values() for u in units]
    with kept_state(model):
        for fq in _rounding(model, names):
            fq.quantizing = fq.observing = False
        yield


@contextmanager
def lut_only(model: nn.Module) -> Iterator[None]:
    """Within, what the chip computes by tables is computed in the program's integers, all else fake-quantised.

    What an evaluation loses here against plain fake quantisation, tables alone cost.
    """
    model = prepared_graph(model, "lut_only")
    with in_mode(model, "lut"):
        yield


def tables_of(model: nn.Module) -> tuple[str, ...]:
    """The units that the chip computes by look-up tables, alone or among other steps."""
    model = prepared_graph(model, "tables_of")
    return tuple(name for name, unit in units_in_order(model).items() if is_table(unit))


def stepwise(
    model: nn.Module, inputs: Any = None, parts: Sequence[str] | None = None, *, steps: int | None = None
) -> Report[PartRow]:
    """For every part: the outputs with it alone in reals, and with it and the parts before it alone rounded.

    `parts`: names of units or modules in running order; by default the model's first level.
    """
    model = prepared_graph(model, "stepwise")
    given = model.meta["example_inputs"] if inputs is None else inputs
    calls = list(batches(given, argument_count(model), steps))
    chosen = units_of_parts(model, parts or list(dict.fromkeys(n.split(".")[0] for n in units_in_order(model))))
    wanted = _results(model, calls, list(units_in_order(model)))
    whole = output_similarity(wanted, _results(model, calls, []))
    rows, before = [], []
    names = list(units_in_order(model))
    for part, units in chosen.items():
        before += units
        kept = output_similarity(wanted, _results(model, calls, units))
        so_far = output_similarity(wanted, _results(model, calls, [n for n in names if n not in before]))
        rows.append(PartRow(part, len(units), kept, kept.sqnr - whole.sqnr, so_far.sqnr))
    order = sorted(rows, key=lambda r: -r.gain)
    items = [(r.name, max(r.gain, 0.0), f"{r.gain:+.1f} dB", False) for r in order]
    figure = Figure("Gain of keeping a part real", bars(items), "dB of the outputs' SQNR.")
    notes = (f"everything rounded: {whole.sqnr:.1f} dB", f"most is gained by {order[0].name}: {order[0].gain:+.1f} dB")
    return Report("Step quantisation", "parts kept in reals", COLUMNS, tuple(rows), notes, (figure,))


def _results(model: fx.GraphModule, calls: Sequence[tuple[Any, ...]], real: Sequence[str]) -> list[Values]:
    with torch.no_grad(), in_mode(model, "fake"):
        for fq in _rounding(model, real):
            fq.quantizing = False
        return [named_outputs(model.meta["interface"], model(*args)) for args in calls]
