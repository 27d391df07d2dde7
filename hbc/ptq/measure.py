"""What rounding costs: tensor by tensor, alone and on the whole way, and at the outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hbc.calibration.grid import Array
from hbc.ir import ops
from hbc.ir.core import Module, Value
from hbc.passes.matching import const_value
from hbc.verify.histogram import Histogram, HistogramMaker
from hbc.verify.measure import Distance

from .collect import OnStep, Sample
from .legalise import Quantised
from .runner import Runner, in_pieces
from .settings import Setting


@dataclass
class Pooled:
    """One distance over all samples, their elements taken together: a sample of nothing but zeros weighs nothing."""

    quantum: float | None = None
    elements: int = 0
    equal: int = 0
    max_abs: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    norm: float = 0.0
    fits: bool = True

    def add(self, got: Array, want: Array) -> None:
        """One sample. Where a size depends on the data and came out otherwise, nothing is right any more."""
        if got.shape != want.shape:
            self.fits = False
            return
        a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        fine = np.isfinite(a) & np.isfinite(b)
        self.fits &= bool((fine | same).all())
        a, b = a[fine], b[fine]
        self.elements, self.equal = self.elements + same.size, self.equal + int(same.sum())
        self.max_abs = max(self.max_abs, float(np.abs(a - b).max(initial=0.0)))
        self.signal, self.norm = self.signal + float(b @ b), self.norm + float(a @ a)
        self.noise, self.product = self.noise + float((a - b) @ (a - b)), self.product + float(a @ b)

    def done(self) -> Distance:
        """The figures."""
        if not self.fits:
            return Distance(equal=0.0, max_abs=math.inf, max_quanta=None, cosine=0.0, sqnr=-math.inf)
        quanta = None if self.quantum is None else self.max_abs / self.quantum
        if not self.noise:
            return Distance(1.0, 0.0, None if quanta is None else 0.0, 1.0, math.inf)
        sqnr = 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf
        length = math.sqrt(self.signal) * math.sqrt(self.norm)
        return Distance(
            self.equal / self.elements, self.max_abs, quanta, self.product / length if length else 0.0, sqnr
        )


class Losses:
    """Distances by value (own: of rounding alone; total: of the whole way), and of the outputs by name."""

    def __init__(self) -> None:
        self.own: dict[Value, Pooled] = {}
        self.total: dict[Value, Pooled] = {}
        self.outputs: dict[str, Pooled] = {}
        self.histograms: dict[Value, HistogramMaker] = {}

    def of(self, value: Value) -> tuple[Distance, Distance | None]:
        """Own and total over all samples; constants have no total."""
        return self.own[value].done(), self.total[value].done() if value in self.total else None

    def histogram(self, value: Value) -> Histogram | None:
        """Values before and after rounding."""
        return self.histograms[value].done() if value in self.histograms else None


def measure_losses(
    module: Module,
    quantised: Quantised,
    samples: Sequence[Sample],
    on_step: OnStep | None = None,
    *,
    histograms: bool = False,
    threads: int = 1,
) -> Losses:
    """Run the float module and the quantised one over the samples, both with ONNX Runtime's optimiser off."""
    losses = Losses()
    for value, setting in quantised.settings.items():
        constant = const_value(value)
        if constant is not None:
            _own(losses, value, constant, rounded_constant(constant, setting), setting, histograms=histograms)
    inner = [v for v in quantised.plan.activations if not isinstance(v.op, ops.Const)]
    computed = [v for v in inner if v.op is not None]
    read = quantised.inserted.read
    plain = Runner(module, computed, threads=threads)
    after = Runner(quantised.inserted.module, [read[v] for v in inner], threads=threads)
    for number, sample in enumerate(samples):
        for piece in in_pieces(inner):
            floats = plain.run(sample, [v for v in piece if v.op is not None])
            floats |= {v: sample[str(v.name)] for v in piece if v.op is None}
            results = after.run(sample, [read[v] for v in piece])
            for value in piece:
                setting, x = quantised.settings[value], floats[value]
                _own(losses, value, x, setting.rounded(x), setting, histograms=histograms)
                losses.total.setdefault(value, Pooled(setting.scale[0])).add(results[read[value]], x)
        wanted = plain.results(sample)
        for name, got in after.results(sample).items():
            losses.outputs.setdefault(name, Pooled()).add(got, wanted[name])
        if on_step is not None:
            on_step("measuring", number + 1, len(samples))
    return losses


def rounded_constant(x: Array, setting: Setting) -> Array:
    """A constant as it comes back from its integers."""
    scale = np.asarray(setting.scale, np.float32)
    shape = [1] * x.ndim
    if setting.axis is not None:
        shape[setting.axis] = -1
    return setting.integers(x).astype(np.float32) * scale.reshape(shape if setting.axis is not None else ())


def output_sqnr(wanted: Sequence[Mapping[str, Array]], got: Sequence[Mapping[str, Array]]) -> float:
    """The least SQNR in dB of the outputs of reals, samples taken together; inf where all are equal."""
    rows: dict[str, Pooled] = {}
    for w, g in zip(wanted, got, strict=True):
        for name in w:
            if w[name].dtype.kind == "f":
                rows.setdefault(name, Pooled()).add(g[name], w[name])
    return min((r.done().sqnr for r in rows.values()), default=math.inf)


def _own(losses: Losses, value: Value, x: Array, rounded: Array, setting: Setting, *, histograms: bool) -> None:
    quantum = max(setting.scale)
    losses.own.setdefault(value, Pooled(quantum)).add(rounded, x)
    if histograms:
        losses.histograms.setdefault(value, HistogramMaker(quantum)).add(x, rounded)
