"""Automatic precision: what each tensor's rounding alone does to the outputs, and the worst ones in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbc.calibration.grid import Array
from hbc.diagnostics import error
from hbc.ir.core import Module, Value
from hbc.ir.types import DType

from .collect import OnStep, Sample
from .config import AutoRules
from .errors import QuantizeError
from .insert import insert
from .legalise import Quantised, Settler
from .measure import output_sqnr
from .precision import is_narrow
from .runner import Runner

RANKED_ON = 2  # samples: an order needs fewer than a scale


def sensitivity(
    module: Module, made: Quantised, samples: Sequence[Sample], on_step: OnStep | None = None, threads: int = 1
) -> dict[Value, float]:
    """The least SQNR in dB of the outputs for each tensor, where it alone is rounded (and what shares its scale).

    One model with gates, run once per tensor and sample.
    """
    few = samples[:RANKED_ON]
    gated = insert(module, made.plan, made.settings, gated=True)
    runner = Runner(gated.module, threads=threads)
    closed = {name: np.zeros((), np.float32) for name in gated.gates.values()}
    wanted = [runner.results({**closed, **s}) for s in few]
    ranked: dict[Value, float] = {}
    for number, value in enumerate(gated.gates):
        if value not in ranked:
            together = made.plan.group(value) if value in made.plan.joined else (value,)
            opened = closed | {gated.gates[v]: np.ones((), np.float32) for v in together if v in gated.gates}
            sqnr = output_sqnr(wanted, [runner.results({**opened, **s}) for s in few])
            ranked.update(dict.fromkeys(together, sqnr))
        if on_step is not None:
            on_step("ranking", number + 1, len(gated.gates))
    return ranked


def raise_worst(
    module: Module,
    settler: Settler,
    rules: AutoRules,
    ranked: Mapping[Value, float],
    samples: Sequence[Sample],
    on_step: OnStep | None = None,
    threads: int = 1,
) -> tuple[Quantised, frozenset[Value], tuple[str, ...]]:
    """The quantised model in which the worst tensors have 16 bits, those tensors, and notes.

    `rules.top` of them, or as few as let the outputs reach `rules.target`. QuantizeError where the march has no int16.
    """
    if not settler.wishes.has_int16:
        hint = "leave auto out, or compile for bayes or nash"
        raise error(QuantizeError, f"{module.march} has no int16 to raise tensors to", hint=hint)
    base = settler.attempt()
    order = _candidates(base, settler, ranked)
    if rules.top is not None:
        raised = frozenset(order[: rules.top])
        return settler.settle(raised), raised, ()
    plain = Runner(module, threads=threads)
    wanted = [plain.results(s) for s in samples]
    target = 30.0 if rules.target is None else rules.target
    search = _Search(settler, order, wanted, samples, on_step, threads)
    count = search.least(target)
    raised = frozenset(order[:count])
    made = settler.settle(raised)
    reached = search.sqnr(count)
    note = f"the outputs reach {reached:.1f} dB, not {target:g}, with the {count} worst tensors raised; more don't help"
    return made, raised, () if reached >= target else (note,)


def _candidates(base: Quantised, settler: Settler, ranked: Mapping[Value, float]) -> list[Value]:
    """What may have 16 bits and has 8, the worst first; of tensors that share a scale, the first stands for all."""
    found: dict[Value, None] = {}
    for value in sorted(ranked, key=lambda v: ranked[v]):
        first = base.plan.joined.get(value)
        if base.settings[value].bits != 8:
            continue
        if first is None:
            if DType.I16 in settler.wishes.march.weights:
                found[value] = None
        elif not any(is_narrow(v) or v in settler.lowered for v in base.plan.group(first)):
            found[first] = None
    return list(found)


class _Search:
    """The SQNR of the outputs with the first `count` tensors raised, by running the model; each asked once."""

    def __init__(
        self,
        settler: Settler,
        order: Sequence[Value],
        wanted: Sequence[Mapping[str, Array]],
        samples: Sequence[Sample],
        on_step: OnStep | None,
        threads: int,
    ) -> None:
        self.settler, self.order, self.wanted, self.samples = settler, order, wanted, samples
        self.on_step, self.threads = on_step, threads
        self.known: dict[int, float] = {}

    def sqnr(self, count: int) -> float:
        """With the first `count` raised."""
        if count not in self.known:
            made = self.settler.attempt(frozenset(self.order[:count]))
            runner = Runner(made.inserted.module, threads=self.threads)
            self.known[count] = output_sqnr(self.wanted, [runner.results(s) for s in self.samples])
            if self.on_step is not None:
                self.on_step("raising", len(self.known), 2 * len(self.order).bit_length() + 2)
        return self.known[count]

    def least(self, target: float) -> int:
        """The least count that reaches the target, by doubling and then halving; where none does, the best known."""
        low, high = -1, 0
        while self.sqnr(high) < target:
            if high == len(self.order):
                return max(self.known, key=lambda c: (self.known[c], -c))
            low, high = high, min(max(1, 2 * high), len(self.order))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.sqnr(middle) >= target else (middle, high)
        return high
