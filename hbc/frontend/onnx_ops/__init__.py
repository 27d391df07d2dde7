"""Import rules, one module per family of operators. `RULES` maps (domain, op type) to its rule."""

from __future__ import annotations

from . import activation, call, conv, eltwise, horizon, move, pool, qlinear, quant, reduce, resize, shape
from .registry import Key, collect

RULES = collect(activation, call, conv, eltwise, horizon, move, pool, qlinear, quant, reduce, resize, shape)
FALLBACK = call.call

__all__ = ["FALLBACK", "RULES", "Key"]
