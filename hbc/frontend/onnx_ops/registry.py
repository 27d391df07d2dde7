"""`@onnx_op`: the marker that makes a function the import rule of an ONNX operator."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ..onnx_node import Rule

Key = tuple[str, str]  # (domain, op type)


def onnx_op(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Mark a rule for one or more operators of a domain: `(Node) -> Value | [Value, …]`, one value per result."""

    def mark(rule: Rule) -> Rule:
        keys: list[Key] = getattr(rule, "onnx_keys", [])
        rule.onnx_keys = [*keys, *((domain, t) for t in op_types)]  # type: ignore[attr-defined]
        return rule

    return mark


def collect(*modules: ModuleType) -> dict[Key, Rule]:
    """All marked rules of `modules`; AssertionError where two claim one operator."""
    rules: dict[Key, Rule] = {}
    for module in modules:
        for rule in vars(module).values():
            if getattr(rule, "__module__", None) != module.__name__:
                continue  # imported from another module, which is collected itself
            for key in getattr(rule, "onnx_keys", []):
                assert key not in rules, f"two rules for {key}"
                rules[key] = rule
    return rules
