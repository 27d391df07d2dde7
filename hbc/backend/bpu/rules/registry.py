"""How legality rules are declared: one predicate per constraint, whose docstring is the message and the manual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hbc.diagnostics import Rejection
from hbc.ir.core import Op

from ..march import MarchSpec

OpT = TypeVar("OpT", bound=Op)
Predicate = Callable[[OpT, MarchSpec], "Rejection | None"]


@dataclass(frozen=True)
class Rule:
    """One constraint on ops of `classes`."""

    classes: tuple[type[Op], ...]
    predicate: Predicate[Op]

    @property
    def name(self) -> str:
        """The constraint's short name, for tables."""
        return self.predicate.__name__.replace("_", "-")

    def text(self, march: MarchSpec) -> str:
        """The docstring with the march's numbers in it."""
        return " ".join((self.predicate.__doc__ or "").split()).format(march=march)

    def check(self, op: Op, march: MarchSpec) -> Rejection | None:
        """The rejection, its reason led by the constraint's own text."""
        found = self.predicate(op, march)
        return None if found is None else Rejection(f"{self.text(march)} {found.reason}", found.hint)


def legal(*classes: type[Op]) -> Callable[[Callable[[OpT, MarchSpec], Rejection | None]], Rule]:
    """Declare a constraint on ops of these classes."""

    def declare(predicate: Callable[[OpT, MarchSpec], Rejection | None]) -> Rule:
        return Rule(classes, predicate)  # type: ignore[arg-type]

    return declare


def reject(reason: str, hint: str = "") -> Rejection:
    """`reason` says the actual value: 'Here it is 41.'"""
    return Rejection(reason, hint)
