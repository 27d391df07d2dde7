"""Which operations the outputs are sensitive to: each rounded alone, or each left in reals alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn

from hbc.debug import Column, Figure, Report, Similarity, loss_of, similarity, worst_of
from hbc.debug.columns import WithSimilarity
from hbc.debug.figures import bars
from hbc.debug.measures import require_metric
from hbc.verify.measure import CLOSE_SQNR

from ..errors import no_such
from ..fake_quantize import FakeQuantize
from ..units import QuantizedWeighted
from .running import (
    Values,
    argument_count,
    batches,
    in_mode,
    kind_of,
    named_outputs,
    prepared_graph,
    switches,
    units_in_order,
)

How = Literal["quantized", "float"]
COLUMNS = (
    Column("unit", "name"),
    Column("what", "what", about="the result of the operation, or its weight"),
    Column("operation", "kind"),
    Column("type", "dtype"),
    Column("loss", "loss", "number", "by the metric of the ranking: the larger, the more sensitive"),
    Column("cosine", "cosine", "cosine", "of the output that is worst off"),
    Column("SQNR", "sqnr", "decibel", "of the output that is worst off, in dB"),
    Column("MSE", "mse", "number", rank=1),
    Column("L1", "l1", "number", rank=2),
    Column("KL", "kl", "number", rank=3),
)


@dataclass(frozen=True)
class SensitivityRow(WithSimilarity):
    """One thing that is rounded (`alone` quantized) or left real (`alone` float), and the outputs then."""

    name: str
    what: str
    kind: str
    dtype: str
    loss: float
    figures: Similarity

    @property
    def flagged(self) -> bool:
        """True where this, rounded alone, leaves the outputs below 27 dB."""
        return self.loss > 0 and self.figures.sqnr < CLOSE_SQNR


@dataclass(frozen=True)
class SensitivityReport(Report[SensitivityRow]):
    """Rows from most to least sensitive."""

    @property
    def losses(self) -> dict[str, float]:
        """Losses of the results by unit: the table that `SensitiveOpSetter` takes."""
        return {r.name: r.loss for r in self.rows if r.what == "result"}

    @property
    def weight_losses(self) -> dict[str, float]:
        """Losses of the weights by unit."""
        return {r.name: r.loss for r in self.rows if r.what == "weight"}


@dataclass(frozen=True)
class Point:
    """One FakeQuantize and whose it is."""

    name: str
    what: str
    kind: str
    fq: FakeQuantize


def points(model: fx.GraphModule) -> Iterator[Point]:
    """Every FakeQuantize that rounds, in running order; shared weights once."""
    seen: set[int] = set()
    for name, unit in units_in_order(model).items():
        parts = [("weight", unit.weight_fake_quant)] if isinstance(unit, QuantizedWeighted) else []
        if unit.activation_post_process is not None:
            parts.append(("result", unit.activation_post_process))
        for what, fq in parts:
            if fq.quantizing and id(fq) not in seen:
                seen.add(id(fq))
                yield Point(name, what, kind_of(unit), fq)


def sensitivity(
    model: nn.Module,
    inputs: Any = None,
    *,
    metric: str = "sqnr",
    alone: How = "quantized",
    steps: int | None = None,
    progress: bool = True,
) -> SensitivityReport:
    """How far the outputs move where one result or weight alone is rounded; one run of the model for each.

    `alone="float"`: everything is rounded but one, and the loss is how much of the whole loss is left without it,
    negated: what helps most when it is kept real comes first. `metric`: cosine, mse, l1, kl or sqnr (noise over
    signal), of the output that is worst off. Arithmetic is that of plain fake quantisation.
    """
    model = prepared_graph(model, "sensitivity")
    require_metric(metric)
    if alone not in {"quantized", "float"}:
        raise no_such("way of ranking", alone, ("quantized", "float"))
    given = model.meta["example_inputs"] if inputs is None else inputs
    calls = list(batches(given, argument_count(model), steps))
    found = list(points(model))
    wanted = [_outputs(model, args, "float") for args in calls]
    rows = []
    for point in _shown(found, show=progress):
        changes = [(p.fq, (p is point) == (alone == "quantized")) for p in found]
        with switches(model, changes):
            got = [_run(model, args) for args in calls]
        outputs = output_similarity(wanted, got)
        sign = 1.0 if alone == "quantized" else -1.0
        loss = sign * loss_of(outputs, metric)
        rows.append(SensitivityRow(point.name, point.what, point.kind, point.fq.spec.dtype, loss, outputs))
    rows.sort(key=lambda r: -r.loss)
    return _report(tuple(rows), metric, alone)


def output_similarity(wanted: Sequence[Values], got: Sequence[Values]) -> Similarity:
    """The worst of each figure over outputs and batches."""
    return worst_of([similarity(g[name], w[name]) for w, g in zip(wanted, got, strict=True) for name in w])


def _outputs(model: fx.GraphModule, args: tuple[Any, ...], mode: str) -> Values:
    with torch.no_grad(), in_mode(model, mode):
        return _run(model, args)


def _run(model: fx.GraphModule, args: tuple[Any, ...]) -> Values:
    with torch.no_grad():
        return named_outputs(model.meta["interface"], model(*args))


def _shown(items: Sequence[Point], *, show: bool) -> Any:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, "ranking", console=console, disable=not show or not console.is_terminal, transient=True)


def _report(rows: tuple[SensitivityRow, ...], metric: str, alone: How) -> SensitivityReport:
    about = f"{'only this rounded' if alone == 'quantized' else 'all but this rounded'}, by {metric}"
    items = [
        (
            f"{r.name} ({r.what})",
            abs(r.loss),
            f"{r.sqnr:.1f} dB, cosine {r.cosine:.5f}",
            r.flagged,
        )
        for r in rows
    ]
    figure = Figure("Loss of the outputs", bars(items, logarithmic=True), "Logarithmic; red: below 27 dB.")
    notes: tuple[str, ...] = ()
    if rows:
        notes = (f"first: {rows[0].name} ({rows[0].what}), {rows[0].sqnr:.1f} dB at the outputs",)
    return SensitivityReport("Sensitivity", about, COLUMNS, rows, notes, (figure,) if rows else ())
