"""What the feature maps of a model are like, before they are rounded, and which of them few bits don't hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from hbc.debug import Column, Figure, Report, TensorStatistics
from hbc.debug.channels import channel_figures
from hbc.debug.columns import FEATURE_COLUMNS
from hbc.debug.figures import ranges
from hbc.debug.hostile import activation_advice, activation_reasons, low_bits
from hbc.debug.report import listed

from ..fake_quantize import FakeQuantize
from ..units import QuantizedOperation, QuantizedUnit, QuantizedWeighted, is_prepared
from .running import (
    Recorder,
    argument_count,
    as_prepared,
    batches,
    dtype_of,
    in_mode,
    kind_of,
    result_of,
    scale_of,
    to_array,
    units_in_order,
)

COLUMNS = (
    Column("#", "index", "count", rank=7),
    Column("unit", "name"),
    Column("operation", "kind"),
    *FEATURE_COLUMNS,
)


@dataclass(frozen=True)
class FeatureRow:
    """One feature map over all batches. `statistics`: its figures channel by channel."""

    index: int
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None
    low: float
    high: float
    mean: float
    std: float
    used: float | None
    saturated: float | None
    spread: float
    bits: float | None
    histogram: tuple[int, ...]
    reasons: tuple[str, ...]
    advice: str
    statistics: TensorStatistics = field(repr=False, compare=False)

    @property
    def flagged(self) -> bool:
        """True where there are reasons."""
        return bool(self.reasons)


def statistics(model: nn.Module, inputs: Any = None, *, steps: int | None = None) -> Report[FeatureRow]:
    """Feature maps of a prepared model (in its own rounding) or of a float one (in reals), before they are rounded.

    `inputs`: the tuple of a call's arguments, or a loader of such; by default the example of `prepare`.
    """
    if inputs is None and is_prepared(model):
        inputs = model.meta["example_inputs"]  # type: ignore[index]
    count = len(inputs) if isinstance(inputs, tuple) else argument_count(model)
    prepared: fx.GraphModule | None = None
    found: dict[str, TensorStatistics] = {}
    for args in batches(inputs, count, steps):
        prepared = as_prepared(model, args) if prepared is None else prepared
        _observe(prepared, args, found)
    assert prepared is not None
    units = units_in_order(prepared)
    rows = tuple(_row(i, name, units[name], found[name]) for i, name in enumerate(n for n in units if n in found))
    whiskers = [(r.name, r.low, r.high) for r in rows]
    figure = Figure("Ranges in running order", ranges(whiskers), "From the least to the largest value of each.")
    notes = listed([f"{r.name}: {'; '.join(r.reasons)} → {r.advice}" for r in rows if r.flagged])
    kind = "prepared" if is_prepared(model) else "float"
    channels = channel_figures([(r.name, r.statistics) for r in rows if r.flagged])
    return Report("Feature maps", f"a {kind} model", COLUMNS, rows, notes, (figure, *channels))


def _observe(model: fx.GraphModule, args: tuple[Any, ...], found: dict[str, TensorStatistics]) -> None:
    """One batch: of what is rounded, what goes into its FakeQuantize; of the rest, the results."""
    units = units_in_order(model)

    def add(name: str, x: Tensor) -> None:
        if name not in found:
            found[name] = opened(units[name], x.dim())
        found[name].add(to_array(x))

    def result(name: str, y: Tensor) -> Tensor:
        if result_of(units[name]) is None:
            add(name, y)
        return y

    with torch.no_grad(), in_mode(model, "fake"), _before_rounding(units, add):
        Recorder(model, result).run(*args)


@contextmanager
def _before_rounding(units: dict[str, QuantizedUnit], add: Any) -> Iterator[None]:
    handles = []
    for name, unit in units.items():
        fq = result_of(unit)
        if fq is not None:
            handles.append(fq.register_forward_pre_hook(lambda _, xs, name=name: add(name, xs[0])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def opened(unit: QuantizedUnit, rank: int) -> TensorStatistics:
    """Statistics of a unit's result, with nothing in them."""
    fq: FakeQuantize | None = result_of(unit)
    axis = channel_axis(unit, rank)
    if fq is None:
        return TensorStatistics(axis)
    return TensorStatistics(axis, scale_of(fq), fq.spec.qmin, fq.spec.qmax)


def channel_axis(unit: QuantizedUnit, rank: int) -> int | None:
    """The axis of channels of a result: the last of linear layers and of sequences of tokens, else the second."""
    if rank < 2:
        return None
    if isinstance(unit, QuantizedWeighted):
        return rank - 1 if unit.kind is nn.Linear else 1
    if isinstance(unit, QuantizedOperation) and unit.operation == "layer_norm":
        return rank - 1
    return rank - 1 if rank == 3 else 1


def _row(index: int, name: str, unit: QuantizedUnit, s: TensorStatistics) -> FeatureRow:
    reasons, dtype = activation_reasons(s), dtype_of(unit)
    return FeatureRow(
        index=index,
        name=name,
        kind=kind_of(unit),
        dtype=dtype,
        shape=s.shape,
        scale=s.scale,
        low=s.minimum,
        high=s.maximum,
        mean=s.mean,
        std=s.std,
        used=s.used,
        saturated=s.saturation,
        spread=s.spread,
        bits=low_bits(s.channel_bits()),
        histogram=tuple(map(int, s.counts)),
        reasons=reasons,
        advice=activation_advice(s, dtype, reasons),
        statistics=s,
    )
