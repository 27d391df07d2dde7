"""Which plan each level takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hbc.diagnostics import EmitError

from .cascade import Group, group_of, joins, reach, spans
from .plan import Plan, Tiled, Tiler
from .split import FRACTIONS
from .timing import Timing

FINER = ((16, 8, 4, 3, 2), (4, 3, 2), (32, 16, 8, 4, 3, 2))
WEIGHTS = 8  # of on-chip memory: the part that the weights of one step are cut down to, so that more are on their way
TRIES = 40  # plans that O3 looks at for a segment; fewer where one has more than WORK commands in all
WORK = 40_000
Score = tuple[float, float]


def choose(tiler: Tiler) -> Tiled:
    """The tiling of a segment at its level. EmitError where an instruction cannot be tiled."""
    number = tiler.options.number
    if number == 0:
        return tiler.tile(Plan(buffers=1))
    base = tiler.tile(Plan(buffers=2, weights=1 if number < 2 else WEIGHTS))
    if number == 1:
        return min(base, tiler.tile(Plan(buffers=1)), key=lambda t: t.timing.cycles)
    search = _Search(tiler, base, scored(tiler.options.objective, base.timing))
    search.cascade_spilled()
    if number > 2:
        search.refine()
    return search.best


def scored(objective: str, base: Timing) -> Callable[[Timing], Score]:
    """What is to be small: time, DDR bytes, or both as parts of what `base` has."""
    if objective == "latency":
        return lambda t: (t.cycles, t.ddr_bytes)
    if objective == "bandwidth":
        return lambda t: (t.ddr_bytes, t.cycles)
    return lambda t: (t.cycles / max(base.cycles, 1.0) + t.ddr_bytes / max(base.ddr_bytes, 1), t.cycles)


@dataclass
class _Search:
    """The best plan so far, and how many were looked at."""

    tiler: Tiler
    best: Tiled
    score: Callable[[Timing], Score]
    tries: int = 0

    def attempt(self, plan: Plan) -> bool:
        """Take a plan where it is better; False where it isn't, or cannot be."""
        self.tries += 1
        try:
            found = self.tiler.tile(plan)
        except EmitError:  # a band of rows that does not fit; the plan without it does
            return False
        if self.score(found.timing) >= self.score(self.best.timing):
            return False
        self.best = found
        return True

    def cascade_spilled(self) -> None:
        """Cascades around what had to leave the chip: all of them, and then without those that do not pay."""
        tiler, plan = self.tiler, self.best.plan
        wanted = reach(tiler.context, sorted(self.best.spilled))
        budget = tiler.budget(plan)
        groups = tuple(group_of(tiler.context, *s, budget) for s in spans(tiler.context, wanted, budget))
        if groups:
            self.attempt(replace(plan, groups=groups))

    # ---- O3

    @property
    def over(self) -> bool:
        """True where enough plans were looked at."""
        return self.tries >= max(6, min(TRIES, WORK // max(1, len(self.best.stream.commands))))

    def refine(self) -> None:
        """Other cuts, other groups, other numbers of bands, as long as there are tries left."""
        for plan in self._starts():
            if self.over:
                return
            self.attempt(plan)
        for first in [g.first for g in self.best.plan.groups]:
            for change in (lambda g: g.rebanded(0.5), lambda g: g.rebanded(2), lambda _: None):
                if self.over:
                    return
                self.attempt(self._changed(first, change))

    def _starts(self) -> Iterator[Plan]:
        """Plans far from one another."""
        tiler = self.tiler
        budget = tiler.budget(self.best.plan)
        count = len(tiler.segment.instructions)
        members = [(i, i + 1) for i in range(count - 1) if joins(tiler.context, i) and joins(tiler.context, i + 1)]
        runs = spans(tiler.context, members, budget)
        fixed = self.best.plan.groups
        free = [s for s in runs if all(s[1] < g.first or g.last < s[0] for g in fixed)]
        for bands in (2, 4):
            yield replace(self.best.plan, groups=tuple(Group(*s, bands) for s in runs))
            added = (*fixed, *(Group(*s, bands) for s in free))
            if fixed and free:
                yield replace(self.best.plan, groups=tuple(sorted(added, key=lambda g: g.first)))
        for weights in (WEIGHTS // 2, WEIGHTS * 2):
            yield replace(self.best.plan, weights=weights)
        for fractions in FINER:
            assert fractions != FRACTIONS
            yield replace(self.best.plan, fractions=fractions)

    def _changed(self, first: int, change: Callable[[Group], Group | None]) -> Plan:
        """The best plan with one group changed, or left out."""
        plan = self.best.plan
        groups = [change(g) if g.first == first else g for g in plan.groups]
        return replace(plan, groups=tuple(g for g in groups if g is not None))
