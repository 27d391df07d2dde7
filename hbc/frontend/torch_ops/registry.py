"""`@torch_op`: the marker that makes a function the import rule of a PyTorch operator."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ..torch_node import Rule


def torch_op(*names: str) -> Callable[[Rule], Rule]:
    """Mark a rule for operators by their whole names (`aten::conv2d`): `(TorchNode) -> Value | [Value | None, …]`.

    One value per result; None for a result that hbc can't make, which is an error only where something reads it.
    """

    def mark(rule: Rule) -> Rule:
        rule.torch_names = [*getattr(rule, "torch_names", []), *names]  # type: ignore[attr-defined]
        return rule

    return mark


def collect(*modules: ModuleType) -> dict[str, Rule]:
    """All marked rules of `modules`; AssertionError where two claim one operator."""
    rules: dict[str, Rule] = {}
    for module in modules:
        for rule in vars(module).values():
            if getattr(rule, "__module__", None) != module.__name__:
                continue  # imported from another module, which is collected itself
            for name in getattr(rule, "torch_names", []):
                assert name not in rules, f"two rules for {name}"
                rules[name] = rule
    return rules
