"""grid_sample in integers (NUMERICS D11): from a quantised grid of −1…1 to 16-bit pixel positions."""

from __future__ import annotations

import math

import numpy as np

from hbc_runtime import isa
from hbc_runtime.isa.sample import I16_LIMITS, MAX_FRACTION

from ..ops.sample import GridSample
from ..semantics import Semantics
from .core import NHWC, Arrays, Fixed, Ref, signed
from .params import multipliers, scalar_scale, scalar_zero_point


def fraction_bits(sizes: tuple[int, ...]) -> int:
    """As many as leave an i16 position room for every pixel and the one behind; no more than a weight has."""
    return max(0, min(MAX_FRACTION, int(math.log2(I16_LIMITS[1] / max(sizes)))))


def grid_sample(op: GridSample, sem: Semantics, arrays: Arrays) -> Fixed:
    """grid_sample → GridSample in NHWC; the grid's scale becomes a 31-bit multiplier per axis, rounded half up once.

    position · 2^F = (grid − zero point) · (s · factor · 2^F) + offset · 2^F, by `GridSample.line`.
    """
    x, grid = signed(op.x.type), signed(op.grid.type)
    bits = fraction_bits(x.shape[2:])
    lines = [op.line(1), op.line(0)]  # the grid's order: column, row
    ratios = scalar_scale(grid) * np.array([factor for factor, _ in lines]) * 2.0**bits
    (mult, _, shift), _ = multipliers(ratios, isa.Scheme.WIDE, 0)
    assert mult is not None
    assert shift is not None
    fields = {
        "nearest": op.nearest,
        "border": op.border,
        "fraction_bits": bits,
        "multipliers": tuple(int(m) for m in mult),
        "shifts": tuple(int(s) for s in shift),
        "origin": tuple(math.floor(offset * 2**bits + 0.5) for _, offset in lines),
        "grid_zero_point": scalar_zero_point(grid),
        "pad_value": scalar_zero_point(x),
    }
    return Fixed(isa.GridSample, (NHWC, Ref(1)), fields, NHWC)
