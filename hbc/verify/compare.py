"""The comparison: the judged stage is walked, and the reference stage's tensors are fetched chunk by chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .facts import Facts
from .histogram import Histogram, HistogramMaker
from .measure import Distance, Verdict, worst
from .pairing import Absent, absent, pair
from .result import TensorRow, Tolerance
from .stage import Array, Place, Sample, Stage
from .stored import Pair

CHUNK = 1 << 28  # bytes of the reference stage's tensors that are held at once
OnTensor = Callable[[int, int, str], None]  # done, of how many, the tensor's name


@dataclass(frozen=True)
class Compared:
    """Rows in running order, what has no row, and histograms by name where they were asked for."""

    rows: tuple[TensorRow, ...]
    absent: tuple[Absent, ...]
    histograms: dict[str, Histogram]


def compare(
    source: Stage,
    to: Stage,
    samples: Sequence[Sample],
    facts: Facts,
    *,
    tolerance: Tolerance,
    by: str = "op",
    histograms: bool = False,
    on_tensor: OnTensor | None = None,
) -> Compared:
    """Every tensor of `to` that `source` has, over all samples.

    Held at once: the live tensors of two runs of `to` (one from the inputs, one on `source`'s operands), and one chunk
    of `source`'s tensors; a model whose tensors need more chunks runs `source` once per chunk.
    """
    pairs = pair(source.places, to.places, facts)
    tallies = {name: _Tally(p, HistogramMaker(p.quantum) if histograms else None) for name, p in pairs.items()}
    misfits: dict[str, str] = {}
    tell, total, done = on_tensor or (lambda *_: None), len(pairs) * len(samples), 0
    for sample in samples:
        supply = _Supply(source, sample, list(pairs.values()), facts)
        for step in to.walk(sample, supply.given):
            name = step.place.name
            if name not in pairs:
                continue
            done += 1
            tell(done, total, name)
            supply.require(name, step.total)
            want = pairs[name].oriented(supply.values[name], step.total.shape) if name in supply.values else None
            if want is None:
                misfits[name] = _misfit(supply.values.get(name), step.total)
                tallies.pop(name, None)
            elif name in tallies:
                tallies[name].add(want, step.total, step.own)
    misfits.update((n, "this stage gives no array for it") for n, t in tallies.items() if not t.totals)
    rows = [t.row(tolerance, by) for t in tallies.values() if t.totals]
    lost = [
        Absent(pairs[n].source.name, pairs[n].source.op, pairs[n].source.nodes, "shape", why)
        for n, why in misfits.items()
    ]
    made = {t.pair.to.name: t.histogram.done() for t in tallies.values() if t.histogram and t.totals}
    return Compared(_marked(rows, tolerance), (*absent(source.places, to.places, pairs, facts), *lost), made)


@dataclass
class _Supply:
    """The reference stage's tensors of one sample, a chunk at a time, in the judged stage's order."""

    source: Stage
    sample: Sample
    order: list[Pair]
    facts: Facts
    values: dict[str, Array] = field(default_factory=dict)  # by the judged stage's name

    def __post_init__(self) -> None:
        self.at = {p.to.name: i for i, p in enumerate(self.order)}
        self.end = 0  # of the chunk that is held

    def require(self, name: str, like: Array) -> None:
        """Have the tensor in `values`, if the reference stage gives it."""
        start = self.at[name]
        if start < self.end:
            return
        count = self.facts.fitting([p.to.name for p in self.order[start:]], CHUNK)
        pairs = self.order[start : start + count]
        self.end = start + count
        self.values.clear()
        found = self.source.fetch(self.sample, {p.source.name for p in pairs})
        self.values = {p.to.name: found[p.source.name] for p in pairs if p.source.name in found}

    def given(self, place: Place, like: Array) -> Array | None:
        """The reference stage's tensor as the judged stage would hold it."""
        if place.name not in self.at or place.name not in self.values:
            return None
        return self.order[self.at[place.name]].fitted(self.values[place.name], like)


@dataclass
class _Tally:
    """One tensor's figures, sample by sample."""

    pair: Pair
    histogram: HistogramMaker | None
    totals: list[Distance] = field(default_factory=list)
    owns: list[Distance] = field(default_factory=list)
    dtype: str = ""
    shape: tuple[int, ...] = ()
    outside: list[float] = field(default_factory=list)

    def add(self, want: Array, total: Array, own: Array | None) -> None:
        first = self.pair.distance(want, total)
        self.totals.append(first)
        if own is not None and own.shape == want.shape:
            self.owns.append(self.pair.distance(want, own))
        self.dtype = self.pair.to.dtype or str(total.dtype)
        self.shape = total.shape
        share = self.pair.outside(want, total)
        if share is not None:
            self.outside.append(share)
        if self.histogram is not None:
            self.histogram.add(*self.pair.reals(want, total))

    def row(self, tolerance: Tolerance, by: str) -> TensorRow:
        """All samples as one row."""
        to = self.pair.to
        own = worst(self.owns) if len(self.owns) == len(self.totals) else None
        total = worst(self.totals)
        judged = total if by == "total" or own is None else own
        scales = to.quant.scale if to.quant is not None else ()
        return TensorRow(
            name=to.name,
            source="" if self.pair.source.name == to.name else self.pair.source.name,
            op=to.op,
            nodes=to.nodes,
            dtype=self.dtype,
            shape=self.shape,
            scale=max(scales, default=None),
            channels=len(scales),
            saturated=max(self.outside, default=None),
            own=own,
            total=total,
            passed=tolerance.passes(judged),
            starts=False,
        )


def _marked(rows: Sequence[TensorRow], tolerance: Tolerance) -> tuple[TensorRow, ...]:
    """Rows at which errors start: those whose op alone is outside the tolerance, else the first that isn't equal."""
    starts = {i for i, r in enumerate(rows) if not tolerance.passes(r.judged)}
    if not starts:
        starts = set([i for i, r in enumerate(rows) if r.judged.verdict is not Verdict.EQUAL][:1])
    return tuple(dataclasses.replace(r, starts=i in starts) for i, r in enumerate(rows))


def _misfit(want: Array | None, got: Array) -> str:
    if want is None:
        return "the other stage gives no array for it"
    return f"its shape is {list(want.shape)} there and {list(got.shape)} here"
