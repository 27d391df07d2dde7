"""The samples on which two stages of a model file give the most different outputs."""

from __future__ import annotations

from dataclasses import dataclass

from hbc.diagnostics import CannotCompare, error
from hbc.verify.pairing import pair
from hbc.verify.stage import Stage, StageError
from hbc.words import plural

from .columns import CASE_COLUMNS, WithSimilarity
from .figures import bars
from .measures import METRICS, Similarity, loss_of, require_metric, similarity
from .model_files import Case, OnStep
from .report import Column, Figure, Report

COLUMNS = (
    Column("sample", "index", "count", "its number among the samples, from 0"),
    *CASE_COLUMNS,
)


@dataclass(frozen=True)
class FileCaseRow(WithSimilarity):
    """One output of one sample."""

    index: int
    output: str
    loss: float
    figures: Similarity


def file_cases(
    case: Case, source: str = "float", to: str = "jit", metric: str = "cosine", on_step: OnStep | None = None
) -> Report[FileCaseRow]:
    """Every sample's outputs of stage `to` against those of stage `source` (stages as in `hbc verify`), worst first."""
    require_metric(metric)
    first, second = case.bench.stage(source), case.bench.stage(to)
    rows: list[FileCaseRow] = []
    for number in range(len(case.samples)):
        for name, figures in _outputs(case, first, second, number):
            rows.append(FileCaseRow(number, name, loss_of(figures, metric), figures))
        if on_step is not None:
            on_step("comparing", number + 1, len(case.samples))
    if not rows:
        why = f"{source} and {to} share no output"
        raise error(StageError, "nothing can be compared", where=str(case.bench.model), why=why, kind=CannotCompare)
    rows.sort(key=lambda r: (-r.loss, r.index))
    return _report(case, rows, f"{second.name} against {first.name}", metric)


def _outputs(case: Case, first: Stage, second: Stage, number: int) -> list[tuple[str, Similarity]]:
    names = {o.name for o in case.module.graph.outputs}
    pairs = {n: p for n, p in pair(first.places, second.places, case.bench.facts).items() if n in names}
    sample = case.samples[number]
    want = first.fetch(sample, [p.source.name for p in pairs.values()])
    got = second.fetch(sample, list(pairs))
    found = []
    for name, p in pairs.items():
        if name not in got or p.source.name not in want:
            continue
        turned = p.oriented(want[p.source.name], got[name].shape)
        if turned is not None:
            a, b = p.reals(turned, got[name])
            found.append((name, similarity(b, a, p.quantum)))
    return found


def _report(case: Case, rows: list[FileCaseRow], stages: str, metric: str) -> Report[FileCaseRow]:
    about = f"{case.bench.model}, {stages}, {plural(len(case.samples), 'sample')} ({case.said}), by {metric}"
    notes = []
    for name in dict.fromkeys(r.output for r in rows):
        mine = [r for r in rows if r.output == name]
        worst = {m: max(mine, key=lambda r: (loss_of(r.figures, m), -r.index)).index for m in METRICS}
        notes.append(f"worst samples of {name}: {', '.join(f'{i} by {m}' for m, i in worst.items())}")
    items = [(f"{r.index}: {r.output}", max(r.loss, 0.0), f"{r.loss:.4g}", False) for r in rows]
    return Report("Bad cases", about, COLUMNS, tuple(rows), tuple(notes), (Figure("The worst", bars(items)),))
