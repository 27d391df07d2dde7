"""Import rules of PyTorch's operators, one module per family. `RULES` maps an operator's name to its rule."""

from __future__ import annotations

from importlib import import_module

from .registry import collect

_FAMILIES = (
    "activation", "arith", "attention", "conv", "eltwise", "fill", "fused", "lookup", "matrix", "move", "norm", "order",
    "pool", "quant", "quantized", "reduce", "resize", "scatter", "select", "shape",
)  # fmt: skip
RULES = collect(*(import_module(f".{family}", __name__) for family in _FAMILIES))

__all__ = ["RULES"]
