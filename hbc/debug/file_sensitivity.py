"""Which tensors of a quantised model file its outputs are sensitive to: each rounded alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hbc.ir import ops
from hbc.ir.core import Module
from hbc.verify.float_ir import without_quantisation
from hbc.verify.measure import CLOSE_SQNR
from hbc.verify.stage import Array
from hbc.words import plural

from .columns import WithSimilarity
from .figures import bars
from .measures import Similarity, loss_of, require_metric, similarity, worst_of
from .model_files import Case, OnStep, is_weight, maker_of, outputs_of, quantize_nodes, watched
from .report import Column, Figure, Report

How = Literal["quantized", "float"]
COLUMNS = (
    Column("tensor", "name"),
    Column("what", "what", about="activation, or weight where the model holds it in reals"),
    Column("made by", "kind", rank=2),
    Column("type", "dtype", rank=1),
    Column("loss", "loss", "number", "by the metric of the ranking: the larger, the more sensitive"),
    Column("SQNR", "sqnr", "decibel", "of the output that is worst off, in dB"),
    Column("cosine", "cosine", "cosine", "of the output that is worst off"),
    Column("MSE", "mse", "number", rank=3),
    Column("L1", "l1", "number", rank=4),
    Column("KL", "kl", "number", rank=5),
)


@dataclass(frozen=True)
class FileSensitivityRow(WithSimilarity):
    """One tensor and the outputs where it alone is rounded, or it alone is left real."""

    name: str
    what: str
    kind: str
    dtype: str
    loss: float
    figures: Similarity

    flagged = property(lambda self: self.loss > 0 and self.figures.sqnr < CLOSE_SQNR)


def file_sensitivity(
    case: Case, metric: str = "sqnr", alone: How = "quantized", on_step: OnStep | None = None
) -> Report[FileSensitivityRow]:
    """How far the outputs move where one quantize node alone rounds (or alone doesn't); one run for each and sample.

    The reference is the model without its quantize and dequantize nodes, weights dequantised. Raises OptionError where
    the model has no quantize nodes.
    """
    require_metric(metric)
    module = case.module
    nodes = quantize_nodes(case)
    wanted = _outputs(case, without_quantisation(module)[0])
    rows = []
    for number, node in enumerate(nodes):
        kept = {n for n in nodes if (n is node) == (alone == "quantized")}
        got = _outputs(case, without_quantisation(module, lambda op, kept=kept: op in kept)[0])  # type: ignore[misc]
        rows.append(_row(node, _similarity(wanted, got), metric, alone))
        if on_step is not None:
            on_step("ranking", number + 1, len(nodes))
    rows.sort(key=lambda r: -r.loss)
    return _report(case, rows, metric, alone)


def _outputs(case: Case, module: Module) -> list[Mapping[str, Array]]:
    stage = watched(module)
    return [outputs_of(stage, module, s) for s in case.samples]


def _similarity(wanted: Sequence[Mapping[str, Array]], got: Sequence[Mapping[str, Array]]) -> Similarity:
    pairs = [(g[n], w[n]) for w, g in zip(wanted, got, strict=True) for n in w if w[n].dtype.kind == "f"]
    return worst_of([similarity(g, w) for g, w in pairs])


def _row(node: ops.Quantize, outputs: Similarity, metric: str, alone: How) -> FileSensitivityRow:
    what = "weight" if is_weight(node) else "activation"
    name = str(node.x.name or node.out.name or node.node)
    sign = 1.0 if alone == "quantized" else -1.0
    return FileSensitivityRow(
        name, what, maker_of(node), node.out.type.dtype.text, sign * loss_of(outputs, metric), outputs
    )


def _report(case: Case, rows: list[FileSensitivityRow], metric: str, alone: How) -> Report[FileSensitivityRow]:
    said = "only this rounded" if alone == "quantized" else "all but this rounded"
    about = f"{case.bench.model}, {said}, by {metric}, {plural(len(case.samples), 'sample')} ({case.said})"
    items = [(r.name, abs(r.loss), f"{r.sqnr:.1f} dB, cosine {r.cosine:.5f}", r.flagged) for r in rows]
    figure = Figure("Loss of the outputs", bars(items, logarithmic=True), "Logarithmic; red: below 27 dB.")
    notes = (f"first: {rows[0].name}, {rows[0].sqnr:.1f} dB at the outputs",)
    return Report("Sensitivity", about, COLUMNS, tuple(rows), notes, (figure,))
