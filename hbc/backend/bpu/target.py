"""The BPU as a target: one march and one arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from hbc.diagnostics import Rejection
from hbc.ir.core import Module, Op
from hbc.ir.semantics import Semantics
from hbc.passes.manager import Stage
from hbc_runtime.program import Program

from .emit import emit_program
from .lower import lower_module
from .march import MARCHES, MarchSpec
from .pipelines import PIPELINES
from .rules import RULES
from .rules.registry import Rule

_RULES_OF: dict[type[Op], tuple[Rule, ...]] = {}  # filled as classes are asked for


def _rules(kind: type[Op]) -> tuple[Rule, ...]:
    """The rules that speak of ops of a class."""
    if kind not in _RULES_OF:
        _RULES_OF[kind] = tuple(rule for rule in RULES if issubclass(kind, rule.classes))
    return _RULES_OF[kind]


@dataclass(frozen=True)
class Target:
    """One march with one arithmetic (`bpu` or `onnx`); implements `hbc.passes.base.Target`."""

    march_name: str = "nash-e"
    arith: str = "bpu"

    @property
    def march(self) -> MarchSpec:
        """The march's numbers."""
        return MARCHES[self.march_name]

    @property
    def semantics(self) -> Semantics:
        """The numeric facts of march and arithmetic."""
        return Semantics(self.march_name, self.arith)

    @property
    def pipeline(self) -> tuple[Stage, ...]:
        """The stages, in order."""
        return PIPELINES[self.march_name]

    def legal(self, op: Op) -> Rejection | None:
        """The first constraint that `op` breaks, or None."""
        march = self.march
        found = next((r for rule in _rules(type(op)) if (r := rule.refusal(op, march)) is not None), None)
        return None if found is None else found.rejection

    def lower(self, module: Module) -> int:
        """Ops placed on the BPU or the host become instructions."""
        return lower_module(module, self.semantics)

    def emit(self, module: Module) -> Program:
        """The lowered, scheduled module as a program."""
        return emit_program(module)
