"""Which plan each level takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hbc.diagnostics import EmitError

from .cascade import Group, Shape, groups_in, joins, merged, reach
from .plan import Plan, Tiled, Tiler
from .timing import Timing

WEIGHTS = 8  # of on-chip memory: the part that the weights of one step are cut down to, so that more are on their way
EVEN = Shape(bands=16, share=1.0, weights=0.5)
THRIFTY = Shape(bands=32, share=0.7, weights=0.5)  # more bands, less traffic
OTHERS = (Shape(8, 0.7, 0.5), Shape(16, 0.7, 0.25), Shape(16, 1.5, 0.5))
FINER = ((16, 8, 4, 3, 2), (4, 3, 2), (32, 16, 8, 4, 3, 2))
TRIES, LEAST = 40, 6  # plans that O3 looks at for a segment at most, and at least
WORK = 16_000  # commands of all plans together behind which it looks at no more
SLOWER, LESS = 1.01, 0.98  # a cascade may take so much longer where it moves so much less
Score = tuple[float, float]


def choose(tiler: Tiler) -> Tiled:
    """The tiling of a segment at its level. EmitError where an instruction cannot be tiled."""
    number = tiler.options.number
    if number == 0:
        return tiler.tile(Plan(buffers=1))
    if number == 1:
        plans = (tiler.tile(Plan(buffers=n)) for n in (2, 1))
        return min(plans, key=lambda t: t.timing.cycles)
    base = tiler.tile(Plan(buffers=2, weights=WEIGHTS))
    search = _Search(tiler, base, scored(tiler.options.objective, base.timing))
    search.attempt(replace(base.plan, buffers=1))  # fewer, larger tiles
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
    """The best plan so far, how many were looked at, and how many commands they had together."""

    tiler: Tiler
    best: Tiled
    score: Callable[[Timing], Score]
    tries: int = 0
    work: int = 0

    def attempt(self, plan: Plan, *, lenient: bool = False) -> bool:
        """Take a plan where it is better (`lenient`: or saves traffic at hardly a cost); False where it isn't."""
        self.tries += 1
        try:
            found = self.tiler.tile(plan)
        except EmitError:  # a band of rows that does not fit; the plan without it does
            return False
        self.work += len(found.stream.commands)
        new, old = found.timing, self.best.timing
        saves = lenient and new.cycles <= SLOWER * old.cycles and new.ddr_bytes <= LESS * old.ddr_bytes
        if self.score(new) >= self.score(old) and not saves:
            return False
        self.best = found
        return True

    def cascade_spilled(self) -> None:
        """Cascades around what had to leave the chip."""
        base = self.best
        shapes = (EVEN,) if self.tiler.options.objective == "latency" else (EVEN, THRIFTY)
        for shape in shapes:
            groups = self._groups(merged(reach(self.tiler.context, sorted(base.spilled))), shape)
            if groups:
                self.attempt(replace(base.plan, groups=groups), lenient=True)

    def _groups(self, ranges: list[tuple[int, int]], shape: Shape) -> tuple[Group, ...]:
        return groups_in(self.tiler.context, ranges, self.tiler.budget(self.best.plan), shape)

    # ---- O3

    @property
    def over(self) -> bool:
        """True where enough plans were looked at."""
        return self.tries >= TRIES or (self.tries >= LEAST and self.work >= WORK)

    def refine(self) -> None:
        """Other groups, other cuts, other numbers of bands, as long as there are tries left."""
        spilled = merged(reach(self.tiler.context, sorted(self.best.spilled)))
        for plan in self._starts(spilled):
            if self.over:
                return
            self.attempt(plan)
        for first in [g.first for g in self.best.plan.groups]:
            for change in (lambda g: g.rebanded(0.5), lambda g: g.rebanded(2), lambda _: None):
                if self.over:
                    return
                self.attempt(self._changed(first, change))

    def _starts(self, spilled: list[tuple[int, int]]) -> Iterator[Plan]:
        """Plans far from one another, each from the best so far."""
        everywhere = self._runs()
        for shape in (THRIFTY, OTHERS[0]):
            yield replace(self.best.plan, groups=self._groups(spilled, shape))
            yield replace(self.best.plan, groups=self._groups(everywhere, shape))
        for weights in (WEIGHTS // 2, WEIGHTS * 2):
            yield replace(self.best.plan, weights=weights)
        for shape in OTHERS[1:]:
            yield replace(self.best.plan, groups=self._groups(spilled, shape))
            yield replace(self.best.plan, groups=self._groups(everywhere, shape))
        for fractions in FINER:
            yield replace(self.best.plan, fractions=fractions)

    def _runs(self) -> list[tuple[int, int]]:
        """Neighbours that may be cascaded, whether anything spills or not: engines then work side by side."""
        context = self.tiler.context
        fits = [joins(context, i) for i in range(len(context.segment.instructions))]
        return merged((i, i + 1) for i in range(len(fits) - 1) if fits[i] and fits[i + 1])

    def _changed(self, first: int, change: Callable[[Group], Group | None]) -> Plan:
        """The best plan with one group changed, or left out."""
        plan = self.best.plan
        groups = [change(g) if g.first == first else g for g in plan.groups]
        return replace(plan, groups=tuple(g for g in groups if g is not None))
