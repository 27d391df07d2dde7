"""What quantising came to: frozen values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hbc.files import write_atomically
from hbc.verify.histogram import Histogram
from hbc.verify.measure import CLOSE_SQNR, Distance, finite

FLAGGED = CLOSE_SQNR  # dB below which a tensor is flagged: noise of 1/500 of the signal's power


@dataclass(frozen=True)
class TensorLoss:
    """One quantised tensor; distances are over all measured samples, their elements taken together.

    `scale`: the largest of `channels` scales, of which the smallest is `scale / spread`. `method`: what chose it.
    `clipped`: the share of elements beyond the threshold. `own`: what rounding this tensor alone does to it. `total`:
    how far it is from the float model's with everything rounded; None for a weight. `output`: the SQNR in dB of the
    model's outputs where this tensor alone is rounded; None where that was not asked for. `raised`: automatic precision
    made it 16 bits.
    """

    name: str
    kind: str  # activation | weight
    op: str
    nodes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    scale: float
    channels: int
    spread: float
    method: str
    threshold: float
    clipped: float
    own: Distance
    total: Distance | None
    output: float | None = None
    raised: bool = False

    @property
    def flagged(self) -> bool:
        """True where rounding this tensor alone leaves itself, or the outputs, an SQNR below 27 dB."""
        return min(self.own.sqnr, math.inf if self.output is None else self.output) < FLAGGED


@dataclass(frozen=True)
class OutputLoss:
    """One output of the quantised model against the float model's, over all measured samples."""

    name: str
    distance: Distance


@dataclass(frozen=True)
class QuantizeResult:
    """The quantised model and the report on it. `left`: nodes that stay off integers, and why."""

    model: str
    march: str
    data: bytes = field(repr=False)
    samples: int
    measured: int
    tensors: tuple[TensorLoss, ...]
    outputs: tuple[OutputLoss, ...]
    left: dict[str, str] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    corrected: int = 0
    histograms: dict[str, Histogram] = field(default_factory=dict, repr=False, hash=False)

    def to_bytes(self) -> bytes:
        """The quantised ONNX model, serialised; the same model, samples and configuration give the same bytes."""
        return self.data

    def save(self, path: str | Path) -> int:
        """Write the ONNX file, whole or not at all, and return its size. Raises OSError; an older file then stays."""
        write_atomically(Path(path), self.data)
        return len(self.data)

    @property
    def ranking(self) -> tuple[TensorLoss, ...]:
        """The tensors from worst to best: by what each does to the outputs, where that is known, or to itself."""
        return tuple(sorted(self.tensors, key=lambda t: t.own.sqnr if t.output is None else t.output))

    @property
    def flagged(self) -> tuple[TensorLoss, ...]:
        """The tensors that 8 bits hardly hold, the worst first."""
        return tuple(t for t in self.ranking if t.flagged)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        plain = dataclasses.asdict(dataclasses.replace(self, data=b"", tensors=(), histograms={}))
        for key in ("data", "histograms"):
            del plain[key]
        plain["tensors"] = [{**dataclasses.asdict(t), "flagged": t.flagged} for t in self.tensors]
        plain["ranking"] = [t.name for t in self.ranking]
        return finite({**plain, "bytes": len(self.data)})
