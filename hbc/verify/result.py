"""What a comparison of two stages comes to: frozen values."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .histogram import Histogram
from .measure import CLOSE_COSINE, ONE, Distance, Verdict, finite
from .pairing import Absent


@dataclass(frozen=True)
class Tolerance:
    """What passes. `quanta`: the most steps, where a tensor has a step. `cosine`: the least cosine.

    A tensor without a step, of which only `quanta` is asked, needs a cosine of 0.999. With neither, what isn't
    DIFFERENT passes.
    """

    quanta: float | None = None
    cosine: float | None = None

    def passes(self, d: Distance) -> bool:
        """Whether these figures are within the tolerance."""
        if self.quanta is None and self.cosine is None:
            return d.verdict is not Verdict.DIFFERENT
        if d.verdict is Verdict.EQUAL:
            return True
        if self.cosine is not None and not d.cosine >= self.cosine:
            return False
        if self.quanta is None:
            return True
        if d.max_quanta is None:
            return self.cosine is not None or d.cosine >= CLOSE_COSINE
        return d.max_quanta <= self.quanta * ONE

    def __str__(self) -> str:
        parts = (
            [] if self.quanta is None else [f"at most {self.quanta:g} {'quantum' if self.quanta == 1 else 'quanta'}"]
        )
        parts += [] if self.cosine is None else [f"cosine at least {self.cosine:g}"]
        return ", ".join(parts) or "at most 1 quantum or CLOSE"


@dataclass(frozen=True)
class TensorRow:
    """One tensor, over all samples: the worst of each figure, of `equal` the mean.

    `own`: the error of its op alone, on the reference stage's operands; None where the op cannot be run alone.
    `total`: the error of the whole way from the inputs. `source`: the reference stage's name, where it is another.
    `scale`: the largest of `channels` scales, None for plain numbers. `saturated`: the share of the reference stage's
    elements that lie outside what the integers here can stand for. `starts`: an error starts here.
    """

    name: str
    source: str
    op: str
    nodes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    scale: float | None
    channels: int
    saturated: float | None
    own: Distance | None
    total: Distance
    passed: bool
    starts: bool

    @property
    def judged(self) -> Distance:
        """The op's own error, or the total where there is none."""
        return self.total if self.own is None else self.own


@dataclass(frozen=True)
class VerifyResult:
    """Two stages of one model, compared. `rows` are in the judged stage's running order."""

    model: str
    source: str
    to: str
    about: tuple[str, str]
    march: str
    arith: str
    samples: int
    inputs: str
    by: str
    tolerance: Tolerance
    rows: tuple[TensorRow, ...]
    absent: tuple[Absent, ...]
    histograms: dict[str, Histogram] = field(default_factory=dict, repr=False, hash=False)

    @property
    def passed(self) -> bool:
        """True where tensors were compared and every one is within the tolerance."""
        return bool(self.rows) and all(r.passed for r in self.rows)

    @property
    def starts(self) -> tuple[TensorRow, ...]:
        """Where errors start, in running order."""
        return tuple(r for r in self.rows if r.starts)

    @property
    def first(self) -> TensorRow | None:
        """The first tensor at which the stages differ at all."""
        return next((r for r in self.rows if r.total.verdict is not Verdict.EQUAL), None)

    def counts(self, *, own: bool = False) -> dict[Verdict, int]:
        """How many tensors have each verdict, by their total or by their own error."""
        found = Counter((r.judged if own else r.total).verdict for r in self.rows)
        return {v: found[v] for v in Verdict}

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON values, without histograms."""
        plain = dataclasses.asdict(dataclasses.replace(self, rows=(), histograms={}))
        del plain["histograms"]
        counts = {"total": self.counts(), "own": self.counts(own=True)}
        head = {
            "passed": self.passed,
            "verdicts": {k: {str(v): n for v, n in c.items()} for k, c in counts.items()},
            "starts": [r.name for r in self.starts],
            "first": None if self.first is None else self.first.name,
        }
        return finite({**plain, **head, "rows": [row_dict(r) for r in self.rows]})


def row_dict(row: TensorRow) -> dict[str, Any]:
    """One row as JSON values, with its verdicts."""
    plain = dataclasses.asdict(row)
    for key in ("own", "total"):
        d: Distance | None = getattr(row, key)
        if d is not None:
            plain[key]["verdict"] = str(d.verdict)
    return plain


def table_rows(result: VerifyResult) -> list[list[object]]:
    """A heading and the rows, for a spreadsheet; an error column is empty where an op has no error of its own."""
    figures = ("equal", "max_abs", "max_quanta", "cosine", "sqnr", "verdict")
    head = ["order", "tensor", "op", "nodes", "dtype", "shape", "scale", "channels", "saturated", "starts", "passed"]
    table: list[list[object]] = [[*head, *(f"own_{f}" for f in figures), *(f"total_{f}" for f in figures)]]
    for i, r in enumerate(result.rows):
        shape = "x".join(map(str, r.shape))
        cells: list[object] = [i, r.name, r.op, " ".join(r.nodes), r.dtype, shape, r.scale, r.channels, r.saturated]
        cells += [int(r.starts), int(r.passed)]
        for d in (r.own, r.total):
            cells += (
                [""] * len(figures)
                if d is None
                else [str(v) if isinstance(v := getattr(d, f), Verdict) else v for f in figures]
            )
        table.append(cells)
    return table
