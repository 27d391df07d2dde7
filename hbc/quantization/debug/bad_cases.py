"""The samples of a data set on which two models' outputs differ most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hbc.debug import DETAIL, METRICS, Column, Figure, Report, Similarity, loss_of, similarity
from hbc.debug.columns import CASE_COLUMNS, WithSimilarity
from hbc.debug.figures import bars
from hbc.debug.measures import require_metric

from ..converting import FixedPointModel
from ..pytree import name_of, walk
from ..units import is_prepared
from .running import (
    Array,
    Values,
    argument_count,
    batches,
    in_mode,
    kept_state,
    named_outputs,
    prepared_graph,
    to_array,
)

Metric = str | Callable[[Array, Array], float]
COLUMNS = (
    Column("sample", "index", "count", "its number in the data set"),
    Column("batch", "batch", "count", rank=DETAIL),
    Column("in batch", "position", "count", rank=DETAIL),
    *CASE_COLUMNS,
)


@dataclass(frozen=True)
class CaseRow(WithSimilarity):
    """One output of one sample."""

    index: int
    batch: int
    position: int
    output: str
    loss: float
    figures: Similarity


@dataclass(frozen=True)
class CasesReport(Report[CaseRow]):
    """Rows from the worst case to the best."""

    @property
    def worst(self) -> dict[str, dict[str, int]]:
        """The number of the worst sample by output and metric."""
        found: dict[str, dict[str, int]] = {}
        for name in dict.fromkeys(r.output for r in self.rows):
            mine = [r for r in self.rows if r.output == name]
            found[name] = {m: max(mine, key=lambda r: (loss_of(r.figures, m), -r.index)).index for m in METRICS}
        return found

    def indices(self, count: int = 10) -> list[int]:
        """The worst samples, each once."""
        return list(dict.fromkeys(r.index for r in self.rows))[:count]


def bad_cases(
    reference: nn.Module,
    judged: nn.Module,
    data: Iterable[Any],
    *,
    metric: Metric = "cosine",
    reference_mode: str = "float",
    judged_mode: str = "exact",
    steps: int | None = None,
    progress: bool = True,
) -> CasesReport:
    """The samples on which the outputs of `judged` are farthest from those of `reference`.

    Models are float, prepared (in a mode of `compare`; the reference's is `float` by default) or fixed-point ones.
    `data`: a loader; batches are taken apart where inputs and outputs have one size of their first axis. `metric`:
    cosine, mse, l1, kl, sqnr, or a function of (reference, judged) that gives a loss. Held at once: one batch.
    """
    if isinstance(metric, str):
        require_metric(metric)
    rows: list[CaseRow] = []
    count = max(argument_count(m) for m in (reference, judged))
    number = 0
    for batch, args in enumerate(_shown(batches(data, count, steps), data, steps, show=progress)):
        want, got = _outputs(reference, args, reference_mode), _outputs(judged, args, judged_mode)
        names = [n for n in want if n in got] or None
        pairs = {n: (want[n], got[n]) for n in names} if names else dict(_in_order(want, got))
        size = _batch_size(args, pairs)
        for position in range(size):
            for name, (w, g) in pairs.items():
                a, b = (w, g) if size == 1 else (w[position], g[position])
                figures = similarity(b, a)
                loss = loss_of(figures, metric) if isinstance(metric, str) else float(metric(a, b))
                rows.append(CaseRow(number, batch, position, name, loss, figures))
            number += 1
    rows.sort(key=lambda r: (-r.loss, r.index))
    return _report(rows, number, metric)


def _outputs(model: nn.Module, args: tuple[Any, ...], mode: str) -> Values:
    with torch.no_grad():
        if isinstance(model, FixedPointModel):
            return named_outputs(model.interface, model(*args))
        if is_prepared(model):
            graph = prepared_graph(model, "bad_cases")
            with in_mode(graph, mode):
                return named_outputs(graph.meta["interface"], model(*args))
        with kept_state(model):
            model.eval()
            result = model(*args)
    leaves = [(path, leaf) for path, leaf in walk(result) if isinstance(leaf, Tensor)]
    return {name_of(path, result, "output"): to_array(leaf) for path, leaf in leaves}


def _in_order(want: Values, got: Values) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Outputs whose names the models don't share, by their order."""
    for (name, w), g in zip(want.items(), got.values(), strict=True):
        yield name, (w, g)


def _batch_size(args: tuple[Any, ...], pairs: dict[str, tuple[Array, Array]]) -> int:
    """How many samples a call holds: the size of the first axis, where inputs and outputs agree on it; else 1."""
    tensors = [t for _, t in walk(args) if isinstance(t, Tensor)]
    sizes = {t.shape[0] if t.dim() else 0 for t in tensors}
    sizes |= {a.shape[0] if a.ndim else 0 for pair in pairs.values() for a in pair}
    size = sizes.pop() if len(sizes) == 1 else 1
    return max(int(size), 1)


def _shown(calls: Iterator[Any], data: Any, steps: int | None, *, show: bool) -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    total = len(data) if isinstance(data, Sized) and not isinstance(data, (tuple, Tensor)) else None
    hidden = not show or not console.is_terminal
    return track(calls, "comparing", total=steps or total, console=console, disable=hidden, transient=True)


def _report(rows: list[CaseRow], count: int, metric: Metric) -> CasesReport:
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "your metric")
    losses = np.array([r.loss for r in rows])
    notes = (
        f"{count} samples; the worst by {name}: {', '.join(map(str, dict.fromkeys(r.index for r in rows[:5])))}",
        f"loss: median {np.median(losses):.4g}, largest {losses.max():.4g}",
    )
    items = [(f"{r.index}: {r.output}", max(r.loss, 0.0), f"{r.loss:.4g}", False) for r in rows]
    figure = Figure("The worst cases", bars(items), f"Loss by {name}.")
    return CasesReport("Bad cases", f"by {name}", COLUMNS, tuple(rows), notes, (figure,))
