"""How legality rules are declared: one predicate per constraint, whose docstring is the message and the manual.

The docstring's first paragraph is the constraint, its second, `Try: …`, the rewrite that keeps an op on the BPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hbc.diagnostics import Rejection
from hbc.ir.core import Op

from ..march import MarchSpec

OpT = TypeVar("OpT", bound=Op)
Predicate = Callable[[OpT, MarchSpec], "Rejection | None"]
TRY = "Try:"


def everywhere(march: MarchSpec) -> bool:
    """A constraint of every march."""
    return True


@dataclass(frozen=True)
class Refusal:
    """A constraint that an op breaks: its name and text, the op's own `value`, and the rewrite to try."""

    rule: str
    text: str
    value: str
    hint: str

    @property
    def rejection(self) -> Rejection:
        """The same as one sentence and a hint."""
        return Rejection(f"{self.text} {self.value}".rstrip(), self.hint)


@dataclass(frozen=True)
class Rule:
    """One constraint on ops of `classes`; `where` tells the marches that have it."""

    classes: tuple[type[Op], ...]
    predicate: Predicate[Op]
    where: Callable[[MarchSpec], bool] = everywhere

    @property
    def name(self) -> str:
        """The constraint's short name, for tables."""
        return self.predicate.__name__.replace("_", "-")

    def text(self, march: MarchSpec) -> str:
        """The docstring's constraint with the march's numbers in it."""
        return self._paragraphs(march)[0]

    def advice(self, march: MarchSpec) -> str:
        """The rewrite to try, from the docstring."""
        found = (p for p in self._paragraphs(march) if p.startswith(TRY))
        return next(found, "").removeprefix(TRY).strip().rstrip(".")

    def _paragraphs(self, march: MarchSpec) -> list[str]:
        text = inspect.cleandoc(self.predicate.__doc__ or "")
        return [" ".join(p.split()).format(march=march) for p in text.split("\n\n")]

    def refusal(self, op: Op, march: MarchSpec) -> Refusal | None:
        """What the constraint says to `op`; None where it is kept, or is none of this march or of these ops."""
        if not isinstance(op, self.classes) or not self.where(march):
            return None
        found = self.predicate(op, march)
        if found is None:
            return None
        return Refusal(self.name, self.text(march), found.reason, found.hint or self.advice(march))


def legal(
    *classes: type[Op], where: Callable[[MarchSpec], bool] = everywhere
) -> Callable[[Callable[[OpT, MarchSpec], Rejection | None]], Rule]:
    """Declare a constraint on ops of these classes, on the marches that `where` picks."""

    def declare(predicate: Callable[[OpT, MarchSpec], Rejection | None]) -> Rule:
        return Rule(classes, predicate, where)  # type: ignore[arg-type]

    return declare


def reject(reason: str, hint: str = "") -> Rejection:
    """`reason` says the actual value: 'Here it is 41.'; `hint` only where the docstring's advice would not do."""
    return Rejection(reason, hint)
