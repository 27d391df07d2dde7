"""Exact forward's constants: `hbc_runtime.numerics` for many channels at once, as training derives them every step.

Each function is the scalar one of `hbc_runtime.numerics` (or `hbc.ir.fixed_point.params`), whose docstring has the
source of the rule; tests hold it to that, bit for bit. Zero points are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hbc.ir.fixed_point.params import VANISHING
from hbc_runtime.isa import Scheme
from hbc_runtime.numerics import I32_MAX, ScaleRangeError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Requantization:
    """Scheme and parameters, int64, one per channel; `rounding` is form A's bias term, 0 in the others."""

    scheme: Scheme
    multiplier: Ints
    pre_shift: Ints
    post_shift: Ints
    rounding: Ints


def normalized(m: Floats, bits: int) -> tuple[Ints, Ints]:
    """`numerics.normalize` of positive ratios: (multipliers in [2^(bits−1), 2^bits), shifts)."""
    if not (m.min() > 0 and m.max() < np.inf):  # NaN is neither
        msg = f"scale ratios are {m.min()!r} … {m.max()!r}; they must be positive and finite"
        raise ScaleRangeError(msg)
    fraction, exponent = np.frexp(m)
    mult = np.floor(fraction * 2.0**bits + 0.5).astype(np.int64)
    over = mult >> bits  # 1 where rounding gave 2^bits
    return mult >> over, bits - over - exponent


def requantization(ratio: npt.ArrayLike, *, wide: bool, bias: bool) -> Requantization:
    """Parameters of the ratios s_acc / s_out: WIDE for int16 results, else form A with a `bias`, form B without.

    Raises ScaleRangeError for a ratio whose shifts leave the range.
    """
    m = np.atleast_1d(np.asarray(ratio, np.float64))
    if 0 <= m.min() < VANISHING:  # channels of nothing
        dead = (m >= 0) & (m < VANISHING)
        r = requantization(np.where(dead, 1.0, m), wide=wide, bias=bias)
        parts = (np.where(dead, 0, p) for p in (r.multiplier, r.pre_shift, r.post_shift, r.rounding))
        return Requantization(r.scheme, *parts)
    none = np.zeros(m.shape, np.int64)
    mult, total = normalized(m, 31 if wide else 15)
    if wide:
        _require(total, 62, m)
        return Requantization(Scheme.WIDE, mult, none, total, none)
    pre = np.maximum(0, np.frexp(np.floor(127 / m))[1].astype(np.int64) - 15)
    _require(total - pre, 31, m)
    _require(pre, 31, m)
    if not bias:
        return Requantization(Scheme.FORM_B, mult, pre, total - pre, none)
    return Requantization(Scheme.FORM_A, mult, pre, total - pre, np.floor(0.5 / m + 0.5).astype(np.int64))


def addend(ratio: Floats) -> tuple[Ints, Ints]:
    """`numerics.addend_params`: multipliers and shifts; a ratio of 0 has multiplier 0."""
    dead = ratio == 0
    mult, total = normalized(np.where(dead, 1.0, ratio), 15)
    mult, total = np.where(dead, 0, mult), np.where(dead, 0, total)
    _require(total, 62, ratio, low=-31)
    return mult, total


def _require(shift: Ints, high: int, ratio: Floats, low: int = 0) -> None:
    if shift.min() < low or shift.max() > high:
        msg = f"scale ratios {ratio.min():.9g} … {ratio.max():.9g} need shifts of {shift.min()} … {shift.max()}"
        raise ScaleRangeError(msg)


def bias_steps(bias: npt.ArrayLike, acc_scale: Floats) -> Ints:
    """`numerics.bias_to_accumulator`, for scales that are positive."""
    t = np.asarray(bias, np.float64) / acc_scale
    whole = np.trunc(t)
    q = whole + np.where(np.abs(t - whole) >= 0.5, np.copysign(1.0, t), 0.0)
    return np.minimum(np.maximum(q, -I32_MAX - 1), I32_MAX).astype(np.int64)
