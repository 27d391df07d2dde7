"""Import rules, one module per family of operators. `RULES` maps (domain, op type) to its rule."""

from __future__ import annotations

from importlib import import_module

from .call import call as FALLBACK  # noqa: N812 - the rule for every node that no other claims
from .registry import Key, collect

_FAMILIES = (
    "activation", "call", "conv", "dynamic", "eltwise", "gated", "grid_sample", "horizon", "move", "norm", "pool",
    "qlinear", "qonnx", "quant", "reduce", "resize", "scatter", "select", "shape",
)  # fmt: skip
RULES = collect(*(import_module(f".{family}", __name__) for family in _FAMILIES))

__all__ = ["FALLBACK", "RULES", "Key"]
