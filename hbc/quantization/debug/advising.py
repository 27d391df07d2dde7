"""What few bits don't hold, and which operations to give int16: flags of feature maps and weights together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from hbc.backend.bpu.march import MARCHES
from hbc.debug import Column, Report
from hbc.debug.report import listed
from hbc.ir.types import DType

from ..fake_quantize import FakeQuantSpec
from ..march import has_int16
from ..qconfig import QConfig, UnitInfo
from ..units import QuantizedUnit, QuantizedWeighted
from .feature_maps import statistics
from .running import prepared_graph, units_in_order
from .weights import compare_weights

COLUMNS = (
    Column("unit", "name"),
    Column("what", "what", about="the result of the operation, or its weight"),
    Column("operation", "kind"),
    Column("type", "dtype"),
    Column("bits", "bits", "bits", "bits left: docs/debug.md"),
    Column("why", "reasons", "words"),
    Column("advice", "advice"),
)
INT16, INT16_WEIGHT = "int16", "int16 weight"


@dataclass(frozen=True)
class AdviceRow:
    """One tensor that few bits don't hold."""

    name: str
    what: str
    kind: str
    dtype: str
    bits: float | None
    reasons: tuple[str, ...]
    advice: str
    flagged: bool = True


@dataclass(frozen=True)
class Int16Setter:
    """int16 for the results and weights of these operations; what else a setter behind it says stays."""

    results: frozenset[str]
    weights: frozenset[str] = frozenset()
    base: QConfig = field(default_factory=QConfig)

    def names(self) -> list[str]:
        """The names that a model must have."""
        return sorted(self.results | self.weights)

    def __call__(self, unit: UnitInfo) -> QConfig | None:
        if unit.name not in self.results | self.weights:
            return None
        output = self.base.output or FakeQuantSpec()
        output = output.changed(dtype="int16") if unit.name in self.results else output
        wide = unit.is_tail and unit.can_be_wide
        weight = self.base.weight.changed(dtype="int16") if unit.name in self.weights else self.base.weight
        return QConfig(None if wide else output, weight)


@dataclass(frozen=True)
class AdviceReport(Report[AdviceRow]):
    """The flagged tensors, and the setter that gives int16 to those that it helps. `base`: how the model rounds."""

    base: QConfig = field(default_factory=QConfig)

    @property
    def setter(self) -> Int16Setter:
        """For `prepare`: int16 where the advice says so."""
        results = frozenset(r.name for r in self.rows if r.advice == INT16)
        return Int16Setter(results, frozenset(r.name for r in self.rows if r.advice == INT16_WEIGHT), self.base)


def advise(model: nn.Module, inputs: Any = None, *, steps: int | None = None) -> AdviceReport:
    """The feature maps and weights of a prepared model that its integers hardly hold, why, and what to try.

        report = advise(prepared, loader)
        again = prepare(float_model, example, report.setter)

    A weight gets int16 only where its operand keeps int8: the chip multiplies 16 by 8 bits, not 16 by 16.
    """
    model = prepared_graph(model, "advise")
    maps = statistics(model, inputs, steps=steps)
    rows = [
        AdviceRow(r.name, "result", r.kind, r.dtype, r.bits, r.reasons, _allowed(r.advice, model.meta["march"]))
        for r in maps.flagged
        if r.dtype.startswith("int") and r.dtype != "int32"
    ]
    wide = {r.name for r in rows if r.advice == INT16}
    units = units_in_order(model)
    for w in compare_weights(model).flagged:
        advice = _weight_advice(units[w.name], w.dtype, model, wide)
        rows.append(AdviceRow(w.name, "weight", w.kind, w.dtype, w.bits, w.reasons, advice))
    notes = listed([f"{r.name} ({r.what}): {r.advice}" for r in rows])
    about = "tensors that few bits don't hold"
    base = _base(units.values())
    return AdviceReport("Advice", about, COLUMNS, tuple(rows), notes or ("nothing is flagged",), base=base)


def _base(units: Collection[QuantizedUnit]) -> QConfig:
    """Observer and rounding of the first result and the first weight, whatever their types and fixed scales are."""
    results = [u.activation_post_process.spec for u in units if u.activation_post_process is not None]
    weights = [u.weight_fake_quant.spec for u in units if isinstance(u, QuantizedWeighted)]
    plain = QConfig()
    output = results[0].changed(dtype="int8", scale=None) if results else plain.output
    return QConfig(output, weights[0].changed(dtype="int8", scale=None) if weights else plain.weight)


def _allowed(advice: str, march: str) -> str:
    if advice == INT16 and not has_int16(march):
        return f"{march} has no int16: normalise it in the float model, or use another chip"
    return advice


def _weight_advice(unit: QuantizedUnit, dtype: str, model: fx.GraphModule, wide: set[str]) -> str:
    assert isinstance(unit, QuantizedWeighted)
    march = model.meta["march"]
    if dtype == "int16":
        return "int16 already: clip or rescale its outliers"
    if DType.I16 not in MARCHES[march].weights:
        return f"{march} has no int16 weights: clip its outliers, or move them into the layer before"
    source = unit.sources[0]
    if source is None or source.spec.dtype != "int8" or source.name in wide:
        return "its operand has int16, and a product of 16 by 16 bits isn't available: clip its outliers"
    return INT16_WEIGHT
