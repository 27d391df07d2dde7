"""The kernels of every instruction. `KERNELS` is the one table that the engine reads."""

from __future__ import annotations

from ..registry import collect
from . import (
    conv,
    conv_transpose,
    eltwise,
    image,
    lut,
    matmul,
    max_pool,
    move,
    pool,
    quant,
    reduce,
    resize,
    sample,
    select,
)

KERNELS = collect(
    conv, conv_transpose, matmul, max_pool, pool, reduce, quant, eltwise, lut, move, resize, image, sample, select
)
