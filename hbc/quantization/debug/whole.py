"""Everything that the kit has to say about one model, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from hbc.debug import Report, write_page

from .advising import advise
from .bad_cases import bad_cases
from .calls import called_counts
from .comparing import compare
from .feature_maps import statistics
from .qconfigs import check_qconfig
from .running import argument_count, batches, prepared_graph
from .sensitive import sensitivity
from .stepwise import stepwise
from .unfused import check_unfused
from .weights import compare_weights


def profile(
    reference: nn.Module,
    model: nn.Module,
    inputs: Any,
    path: str | Path | None = None,
    *,
    steps: int | None = None,
    progress: bool = True,
) -> tuple[Report[Any], ...]:
    """Every report on a prepared model against its float `reference`, as one page where `path` is given.

    `inputs`: the tuple of a call's arguments, or a loader; `steps`: at most so many of its batches, which are held.
    Sensitivity is ranked on the first batch. Raises OSError where the page can't be written.
    """
    graph = prepared_graph(model, "profile")
    calls = list(batches(inputs, argument_count(model), steps))
    first = calls[0]
    reports: list[Report[Any]] = [
        advise(model, calls),
        compare(reference, model, calls),
        sensitivity(model, first, progress=progress),
        stepwise(model, first),
        statistics(model, calls),
        compare_weights(model),
        bad_cases(reference, model, calls, progress=progress),
        check_qconfig(model),
        check_unfused(graph),
        called_counts(reference, first),
    ]
    if path is not None:
        write_page(path, reports, f"{type(reference).__name__} on {graph.meta['march']}")
    return tuple(reports)
