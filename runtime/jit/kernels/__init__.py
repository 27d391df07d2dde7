"""The kernels of every instruction. `KERNELS` is the one table that the engine reads."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from ..registry import collect

_NAMES = ("conv", "conv_transpose", "matmul", "pool", "reduce", "quant", "eltwise", "lut", "move", "resize")
KERNELS = collect(*(import_module(f".{n}", __name__) for n in _NAMES if find_spec(f"{__name__}.{n}")))
