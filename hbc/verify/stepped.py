"""Stages that run step by step in NumPy arrays: the IR and the reference engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from .stage import Array, Given, Place, Sample, Step, same

Key = Hashable
Run = Callable[["list[Array | None]"], Sequence[Array]]


@dataclass(frozen=True)
class Unit:
    """One step: what it reads (None: a missing operand), what it writes, and how to compute that."""

    reads: tuple[Key | None, ...]
    writes: tuple[Key, ...]
    run: Run


@dataclass(frozen=True)
class Stepped:
    """A stage as a list of units. Constants stay; other values go when their last reader has run.

    `start` gives the values of the inputs by key for a sample, checked.
    """

    name: str
    about: str
    units: tuple[Unit, ...]
    at: dict[Key, Place]  # in running order
    constants: Callable[[Key], Array | None]
    start: Callable[[Sample], dict[Key, Array]]
    last: dict[Key, int] = field(init=False)

    def __post_init__(self) -> None:
        last = {k: i for i, u in enumerate(self.units) for k in (*u.reads, *u.writes) if k is not None}
        object.__setattr__(self, "last", last)

    @property
    def places(self) -> tuple[Place, ...]:
        """Every named tensor, in running order."""
        return tuple(self.at.values())

    def fetch(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """The values of these places; the run ends with the last of them."""
        left, found = set(names), {}
        values = self.start(sample)
        for i, unit in enumerate(self.units):
            if not left:
                break
            for key, value in zip(unit.writes, unit.run(self._operands(unit, values)), strict=True):
                values[key] = value
                place = self.at.get(key)
                if place is not None and place.name in left:
                    left.discard(place.name)
                    found[place.name] = value
            self._forget(i, unit, values)
        return found

    def walk(self, sample: Sample, given: Given) -> Iterator[Step]:
        """Two runs side by side: one from the inputs, one in which every op reads what was given."""
        plain = self.start(sample)
        fed = dict(plain)
        for i, unit in enumerate(self.units):
            made = unit.run(self._operands(unit, plain))
            alike = all(plain.get(k) is fed.get(k) for k in unit.reads)
            again = made if alike else unit.run(self._operands(unit, fed))
            for key, total, own in zip(unit.writes, made, again, strict=True):
                plain[key], fed[key] = total, own
                place = self.at.get(key)
                if place is None:
                    continue
                yield Step(place, total, own)
                want = given(place, total)
                if want is not None:
                    fed[key] = total if same(total, want) else want  # the same object: what follows runs once
            self._forget(i, unit, plain)
            self._forget(i, unit, fed)

    def _operands(self, unit: Unit, values: dict[Key, Array]) -> list[Array | None]:
        return [None if k is None else values[k] if k in values else self.constants(k) for k in unit.reads]

    def _forget(self, i: int, unit: Unit, values: dict[Key, Array]) -> None:
        for key in (*unit.reads, *unit.writes):
            if key is not None and self.last[key] == i:
                values.pop(key, None)
