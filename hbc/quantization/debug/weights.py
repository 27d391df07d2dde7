"""Float weights beside the integers that they become, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hbc.debug import DETAIL, Column, Figure, Report, Similarity, similarity
from hbc.debug.figures import bars
from hbc.debug.hostile import FEW, weight_reasons
from hbc.debug.weight_statistics import WeightStatistics, weight_statistics

from ..fake_quantize import FakeQuantize, fake_quantize
from ..units import QuantizedWeighted
from .running import as_prepared, kind_of, prepared_graph, units_in_order

COLUMNS = (
    Column("unit", "name"),
    Column("operation", "kind"),
    Column("type", "dtype"),
    Column("shape", "shape", "shape", rank=3),
    Column("cosine", "cosine", "cosine", "of the float and the rounded weight", rank=4),
    Column("SQNR", "sqnr", "decibel", "of the whole weight, in dB"),
    Column("MSE", "mse", "number", rank=DETAIL),
    Column("error", "atol", "number", "the largest difference", rank=DETAIL),
    Column("quanta", "quanta", "quanta", "the same in steps of the largest scale", rank=DETAIL),
    Column("least scale", "least_scale", "number", rank=DETAIL),
    Column("scale", "scale", "number", "the largest of the channels' scales"),
    Column("spread", "spread", "number", "the largest channel's magnitude over the smallest's", rank=5),
    Column("worst channel", "worst", "count", "the channel of the least SQNR"),
    Column("its SQNR", "worst_sqnr", "decibel"),
    Column("peak", "peak", "number", "largest over usual magnitude, in the channel where that is worst"),
    Column("bits", "bits", "bits", "bits left of the usual values of the worst channel"),
    Column("why", "reasons", "words", "why it is flagged", rank=2),
)


@dataclass(frozen=True)
class WeightRow:
    """One weight. `statistics`: its figures channel by channel."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    whole: Similarity
    scale: float
    least_scale: float
    reasons: tuple[str, ...]
    statistics: WeightStatistics = field(repr=False, compare=False)

    cosine = property(lambda self: self.whole.cosine)
    sqnr = property(lambda self: self.whole.sqnr)
    mse = property(lambda self: self.whole.mse)
    atol = property(lambda self: self.whole.distance.max_abs)
    quanta = property(lambda self: self.whole.distance.max_quanta)
    spread = property(lambda self: self.statistics.spread)
    worst = property(lambda self: self.statistics.worst)
    worst_sqnr = property(lambda self: float(self.statistics.sqnr.min()))
    peak = property(lambda self: float(self.statistics.peak.max()))
    bits = property(lambda self: float(self.statistics.bits.min()))
    flagged = property(lambda self: bool(self.reasons))


def compare_weights(prepared: nn.Module, reference: nn.Module | None = None) -> Report[WeightRow]:
    """The weights of a prepared model and what rounding leaves of them; shared ones once.

    `reference`: the float model whose weights are the reference, to see what training and rounding changed together;
    by default the prepared model's own real weights. Batch norms are folded in.
    """
    prepared = prepared_graph(prepared, "compare_weights")
    known = {} if reference is None else units_in_order(as_prepared(reference, prepared.meta["example_inputs"]))
    rows, seen = [], set()
    for name, unit in units_in_order(prepared).items():
        if not isinstance(unit, QuantizedWeighted) or id(unit.weight_fake_quant) in seen:
            continue
        seen.add(id(unit.weight_fake_quant))
        other = known.get(name)
        rows.append(_row(name, unit, other if isinstance(other, QuantizedWeighted) else None))
    notes = tuple(f"{r.name}: {'; '.join(r.reasons)}" for r in rows if r.flagged)
    order = sorted(rows, key=lambda r: r.worst_sqnr)
    items = [(r.name, max(0.0, r.bits), f"{r.bits:.1f} bits, {r.sqnr:.1f} dB", r.flagged) for r in order]
    figure = Figure(
        "Bits left of usual values", bars(items, limit=FEW), "In the worst channel of each; under 4 is few."
    )
    return Report("Weights", "float beside rounded", COLUMNS, tuple(rows), notes, (figure,))


@torch.no_grad()
def rounded_weight(unit: QuantizedWeighted) -> tuple[Tensor, Tensor, Tensor]:
    """(the float weight with its batch norm folded in, the same rounded, its scales), whatever the switches are."""
    weight, _ = unit.folded()
    fq: FakeQuantize = unit.weight_fake_quant
    if not fq.is_ready():
        fq.observe(weight)
    scale = fq.along(weight.dim())
    return weight, fake_quantize(weight, scale, fq.spec.qmin, fq.spec.qmax), fq.scale


def _row(name: str, unit: QuantizedWeighted, other: QuantizedWeighted | None) -> WeightRow:
    own, rounded, scales = (t.detach().cpu().numpy() for t in rounded_weight(unit))
    real = own if other is None else other.folded()[0].detach().cpu().numpy()
    real = real if real.shape == rounded.shape else own
    found: Any = weight_statistics(real, rounded, scales, unit.axis)
    return WeightRow(
        name=name,
        kind=kind_of(unit),
        dtype=unit.weight_fake_quant.spec.dtype,
        shape=tuple(real.shape),
        whole=similarity(rounded, real, float(np.max(scales))),
        scale=float(np.max(scales)),
        least_scale=float(np.min(scales)),
        reasons=weight_reasons(found),
        statistics=found,
    )
