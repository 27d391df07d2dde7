"""Observers: what a FakeQuantize remembers of the tensors that pass, and the threshold that it makes of them.

Ranges are kept by torch, on the tensor's device. Histograms, and the methods that choose a threshold from them, are
those of `hbc.calibration`, which calibration without training uses as well.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hbc.calibration import Convention, Grid, Kl, Method, Mix, Mse, Percentile, Statistics, choose

if TYPE_CHECKING:
    from .fake_quantize import FakeQuantSpec

OBSERVERS = ("min-max", "moving-average", "percentile", "mse", "kl", "mix", "fixed")
BINS = 2048


class Observer(nn.Module, abc.ABC):
    """Statistics of one tensor."""

    is_cheap = True  # the threshold may be asked for after every batch
    seen: bool = False

    @abc.abstractmethod
    def add(self, x: Tensor) -> None:
        """One more batch."""

    @abc.abstractmethod
    def threshold(self, spec: FakeQuantSpec) -> Tensor:
        """The largest magnitude that stays unclipped, one per channel."""

    @abc.abstractmethod
    def merge(self, others: Sequence[Observer]) -> None:
        """Take in what replicas on other devices saw."""


class RangeObserver(Observer):
    """Least and largest value: of all batches (averaging None), of the last (1), or a moving average of each."""

    low: Tensor
    high: Tensor

    def __init__(self, axis: int | None, channels: int, averaging: float | None) -> None:
        super().__init__()
        self.axis, self.averaging = axis, averaging
        self.register_buffer("low", torch.zeros(channels))
        self.register_buffer("high", torch.zeros(channels))
        self.batches = 0

    def add(self, x: Tensor) -> None:
        if self.axis is None:
            low, high = torch.aminmax(x)
            low, high = low.reshape(1), high.reshape(1)
        else:
            low, high = torch.aminmax(x.movedim(self.axis, 0).reshape(x.shape[self.axis], -1), dim=1)
        if not self.seen:
            self.low.copy_(low)
            self.high.copy_(high)
        elif self.averaging is None:
            torch.minimum(self.low, low, out=self.low)
            torch.maximum(self.high, high, out=self.high)
        else:
            self.low.lerp_(low.to(self.low.dtype), self.averaging)
            self.high.lerp_(high.to(self.high.dtype), self.averaging)
        self.seen = True
        self.batches += 1

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """A range that was loaded has been seen: a moving average goes on from it."""
        super()._load_from_state_dict(*args, **kwargs)
        if bool(((self.low != 0) | (self.high != 0)).any()):
            self.seen, self.batches = True, max(self.batches, 1)

    def threshold(self, spec: FakeQuantSpec) -> Tensor:
        return torch.maximum(self.low.abs(), self.high.abs())

    def merge(self, others: Sequence[Observer]) -> None:
        parts = [o for o in (self, *others) if isinstance(o, RangeObserver) and o.seen]
        if not parts:
            return
        lows, highs = (torch.stack([getattr(p, n).to(self.low.device) for p in parts]) for n in ("low", "high"))
        if self.averaging is None:
            low, high = lows.amin(0), highs.amax(0)
        else:
            weights = torch.tensor([float(p.batches) for p in parts], device=self.low.device)
            weights = (weights / weights.sum()).unsqueeze(1)
            low, high = (lows * weights).sum(0), (highs * weights).sum(0)
        self.low.copy_(low)
        self.high.copy_(high)
        self.batches, self.seen = sum(p.batches for p in parts), True


class HistogramObserver(Observer):
    """A histogram of magnitudes, from which a method chooses the threshold."""

    is_cheap = False

    def __init__(self, axis: int | None, method: Method) -> None:
        super().__init__()
        self.method = method
        self.statistics = Statistics(axis=axis, bins=BINS)

    def add(self, x: Tensor) -> None:
        self.statistics.add(x.float().cpu().numpy())
        self.seen = True

    def threshold(self, spec: FakeQuantSpec) -> Tensor:
        from .fake_quantize import BITS

        grid = Grid(BITS[spec.dtype], spec.narrow, Convention.QAT)
        return torch.from_numpy(choose(self.statistics, grid, self.method).threshold).float()

    def merge(self, others: Sequence[Observer]) -> None:
        for other in others:
            if isinstance(other, HistogramObserver):
                self.statistics.merge(other.statistics)
                self.seen = self.seen or other.seen


def make_observer(spec: FakeQuantSpec, axis: int | None, channels: int) -> Observer:
    """The observer that a spec names. Weights change under training: their range is that of the last look."""
    methods: dict[str, Method] = {"percentile": Percentile(spec.percentile), "kl": Kl(), "mse": Mse(), "mix": Mix()}
    if spec.observer in methods:
        return HistogramObserver(axis, methods[spec.observer])
    if axis is not None:
        return RangeObserver(axis, channels, 1.0)
    return RangeObserver(axis, channels, None if spec.observer == "min-max" else spec.averaging)


def merge_statistics(models: Sequence[nn.Module]) -> None:
    """Merge what replicas of one model observed, on whatever devices, into each of them, scales included."""
    from .fake_quantize import FakeQuantize

    tables = [{n: m for n, m in model.named_modules() if isinstance(m, FakeQuantize)} for model in models]
    for name, first in tables[0].items():
        if first.observer is None:
            continue
        first.observer.merge([t[name].observer for t in tables[1:]])  # type: ignore[misc]
        first.compute_scale()
        for table in tables[1:]:
            if first.is_ready():
                with torch.no_grad():
                    table[name].scale.copy_(first.scale)
                table[name].ready = True
