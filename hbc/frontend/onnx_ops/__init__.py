"""Import rules, one module per family of operators. `RULES` maps (domain, op type) to its rule."""

from __future__ import annotations

from . import (
    activation,
    call,
    conv,
    dynamic,
    eltwise,
    gated,
    grid_sample,
    horizon,
    move,
    norm,
    pool,
    qlinear,
    qonnx,
    quant,
    reduce,
    resize,
    scatter,
    select,
    shape,
)
from .registry import Key, collect

RULES = collect(
    activation,
    call,
    conv,
    dynamic,
    eltwise,
    gated,
    grid_sample,
    horizon,
    move,
    norm,
    pool,
    qlinear,
    qonnx,
    quant,
    reduce,
    resize,
    scatter,
    select,
    shape,
)
FALLBACK = call.call

__all__ = ["FALLBACK", "RULES", "Key"]
