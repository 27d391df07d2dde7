"""Removes ops whose results nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hbc.ir.core import Graph, Module

from .base import Pass, Target


@dataclass(frozen=True)
class Dce(Pass):
    """Remove every op none of whose results is read by a living op or returned; no op has side effects.

        %a = clip %x
        %b = add %x, %y        →    %b = add %x, %y
        return %b                   return %b

    Arguments stay: they are the user's inputs.
    """

    name: ClassVar[str] = "dce"
    absorbs: ClassVar[str] = "nothing reads its result any more"

    def run(self, module: Module, target: Target) -> int:
        return remove_dead(module.graph)


def remove_dead(graph: Graph) -> int:
    """Drop the dead ops of `graph`; returns how many there were."""
    living = []
    for op in reversed(graph.ops):  # users come after what they read: one walk sees every use gone
        if any(r.uses for r in op.results):
            living.append(op)
        else:
            op.drop_operands()
    removed = len(graph.ops) - len(living)
    graph.ops = living[::-1]
    return removed
