"""How often each module is called in one forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hbc.debug import Column, Report

from ..capturing import arguments, is_leaf
from ..stubs import FloatFunctional
from ..units import is_prepared, units_of
from .running import kept_state

COLUMNS = (
    Column("module", "name"),
    Column("type", "kind"),
    Column("calls", "calls", "count", "in one forward"),
    Column("remark", "remark"),
)


@dataclass(frozen=True)
class CallRow:
    """One module. `calls`: 0 for one that isn't used, more than 1 for a shared one."""

    name: str
    kind: str
    calls: int
    remark: str

    flagged = property(lambda self: self.calls != 1)


def called_counts(model: nn.Module, inputs: Any, *, leaf: Callable[[nn.Module], bool] | None = None) -> Report[CallRow]:
    """How often each leaf module of a model is called on `inputs`, the tuple of a call's arguments.

    A module that isn't called was made for nothing, or is called past its `forward`; a shared one has one weight and,
    in a prepared model, one scale per call. A FloatFunctional that is called more than once can't be prepared.
    `leaf`: which modules to count; by default those that capture keeps whole, and FloatFunctionals.
    """
    chosen = leaf or (lambda m: is_leaf(m) or isinstance(m, FloatFunctional))
    if leaf is None and is_prepared(model):
        named: dict[str, nn.Module] = dict(units_of(model))
    else:
        named = {n: m for n, m in model.named_modules() if n and chosen(m)}
    counts: Counter[int] = Counter()

    def count(module: nn.Module, _x: Any, _y: Any) -> None:
        counts[id(module)] += 1

    handles = [m.register_forward_hook(count) for m in set(named.values())]
    try:
        with torch.no_grad(), kept_state(model):
            model.eval()
            model(*arguments(inputs))
    finally:
        for handle in handles:
            handle.remove()
    rows = tuple(CallRow(n, type(m).__name__, counts[id(m)], _remark(m, counts[id(m)])) for n, m in named.items())
    unused, shared = sum(r.calls == 0 for r in rows), sum(r.calls > 1 for r in rows)
    notes = (f"{unused} not called, {shared} called more than once",)
    return Report("Calls of modules", "one forward", COLUMNS, rows, notes)


def _remark(module: nn.Module, calls: int) -> str:
    if not calls:
        return "not called"
    if calls == 1:
        return ""
    if isinstance(module, FloatFunctional):
        return "make one FloatFunctional per call: each has one scale"
    return "shared: one weight, a scale of its own for each call" if hasattr(module, "weight") else "shared"
