"""The arithmetic of the BPU in NumPy: slow, wide, obvious. The JIT and the compiler are held to it bit for bit.

`docs/numerics.md` restates every rule for users. [F] marks a fact read off the vendor's own files or manuals; `D1` …
mark named decisions of this project. Integers are computed in int64, derived constants in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .isa import Rounding, Scheme
from .types import DType

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]

I16_MAX = 32767
I32_MIN, I32_MAX = -(1 << 31), (1 << 31) - 1


class ScaleRangeError(ValueError):
    """A scale ratio that the requantisation cannot express: its shifts would leave 0..31."""


# ---- rounding, by name


def round_half_up(x: float) -> int:
    """Nearest integer, ties towards +∞."""
    return math.floor(x + 0.5)


def round_half_away(x: npt.ArrayLike) -> FloatArray:
    """Nearest integer, ties away from zero, in float64."""
    v = np.asarray(x, np.float64)
    whole = np.trunc(v)
    return whole + np.where(np.abs(v - whole) >= 0.5, np.copysign(1.0, v), 0.0)


def saturate(x: npt.ArrayLike, dtype: DType) -> IntArray:
    """Clip to the dtype's range and cast."""
    lo, hi = dtype.limits
    return np.clip(x, lo, hi).astype(dtype.numpy)


def round_shift_half_up(x: IntArray, shift: npt.ArrayLike) -> IntArray:
    """(x + 2^(shift−1)) >> shift, arithmetic; x itself where shift is 0."""
    s = np.asarray(shift, np.int64)
    return (x + np.where(s > 0, np.int64(1) << np.maximum(s - 1, 0), 0)) >> s


# ---- derived constants


@dataclass(frozen=True)
class Multiplier:
    """Fixed-point form of one scale ratio (NUMERICS 4). `rounding` is form A's bias term, 0 otherwise."""

    multiplier: int
    pre_shift: int
    post_shift: int
    rounding: int = 0


def normalize(m: float, bits: int) -> tuple[int, int]:
    """(mult, total) with mult = round_half_up(m · 2^total) in [2^(bits−1), 2^bits) [F for bits = 15]. `m` > 0."""
    if not (0.0 < m < math.inf):
        msg = f"scale ratio is {m!r}; it must be positive and finite"
        raise ScaleRangeError(msg)
    total = bits - math.frexp(m)[1]
    mult = round_half_up(math.ldexp(m, total))
    if mult == 1 << bits:
        total -= 1
        mult = round_half_up(math.ldexp(m, total))
    return mult, total


def _useful_range(zero_point: int, out: DType) -> int:
    """The largest |output − zero point| that does not saturate; 127 at zero point 0 [F], D1 otherwise."""
    lo, hi = out.limits
    return hi if zero_point == 0 else max(hi - zero_point, zero_point - lo)


def requantize_params(m: float, zero_point: int = 0, *, rounding_in_bias: bool) -> Multiplier:
    """NUMERICS 4 for an i8 output: form A where `rounding_in_bias`, else form B (D12).

    `m` is s_in·s_w/s_out. Raises ScaleRangeError where post_shift leaves 0..31 or pre_shift leaves 0..31.
    """
    mult, total = normalize(m, 15)
    useful = math.floor(_useful_range(zero_point, DType.I8) / m)
    pre = max(0, useful.bit_length() - 15)  # smallest n with useful >> n <= 32767
    post = total - pre
    if not (0 <= post <= 31 and pre <= 31):
        msg = f"scale ratio {m:.9g} needs pre_shift {pre} and post_shift {post}; both must lie in 0..31"
        raise ScaleRangeError(msg)
    return Multiplier(mult, pre, post, round_half_up(0.5 / m) if rounding_in_bias else 0)


def wide_params(m: float) -> Multiplier:
    """D4: a 31-bit multiplier and one rounding shift, for i16 (and i32) outputs.

    Raises ScaleRangeError where the shift leaves 0..62.
    """
    mult, total = normalize(m, 31)
    if not 0 <= total <= 62:
        msg = f"scale ratio {m:.9g} needs a shift of {total}; it must lie in 0..62"
        raise ScaleRangeError(msg)
    return Multiplier(mult, 0, total)


def addend_params(m: float) -> tuple[int, int]:
    """D5: (multiplier, shift) that bring a fused add's operand into the accumulator.

    `m` is s_r/(s_in·s_w); a negative shift is a left shift.
    """
    mult, total = normalize(m, 15)
    if not -31 <= total <= 62:
        msg = f"addend scale ratio {m:.9g} needs a shift of {total}; it must lie in -31..62"
        raise ScaleRangeError(msg)
    return mult, total


def add_params(ratio_lhs: float, ratio_rhs: float) -> tuple[int, int, int]:
    """D6: (Ma, Mb, S) for s_a/s_out and s_b/s_out over one S, the larger in [2^14, 2^15).

    Either ratio may be negative.
    """
    larger = max(abs(ratio_lhs), abs(ratio_rhs))
    _, shift = normalize(larger, 15)
    if not 0 <= shift <= 62:
        msg = f"scale ratios {ratio_lhs:.9g} and {ratio_rhs:.9g} need a shift of {shift}; it must lie in 0..62"
        raise ScaleRangeError(msg)

    def fixed(ratio: float) -> int:
        return int(math.copysign(round_half_up(math.ldexp(abs(ratio), shift)), ratio))

    return fixed(ratio_lhs), fixed(ratio_rhs), shift


def bias_to_accumulator(bias: npt.ArrayLike, acc_scale: npt.ArrayLike) -> IntArray:
    """round(b / (s_in·s_w)) in float64, half away from zero, saturated to i32; int64 result [F]."""
    q = round_half_away(np.asarray(bias, np.float64) / np.asarray(acc_scale, np.float64))
    return np.clip(q, I32_MIN, I32_MAX).astype(np.int64)


def bias_b_scale(bias: IntArray) -> tuple[IntArray, IntArray]:
    """bernoulli2's stored bias: (i16-range values, left shifts) with the fewest least bits lost [F].

    41201 → (20600, 1).
    """
    b = np.asarray(bias, np.int64)
    shift = np.zeros_like(b)
    while True:
        over = ((b >> shift) > I16_MAX) | ((b >> shift) < -I16_MAX - 1)
        if not over.any():
            return b >> shift, shift
        shift = shift + over


def quantize_weight(w: npt.ArrayLike, scale: npt.ArrayLike) -> IntArray:
    """Weights of a calibrated model, int8.

    Round half away of w/scale in float64, clipped to [−127, 127] [F; ties untested].
    """
    q = round_half_away(np.asarray(w, np.float64) / np.asarray(scale, np.float64))
    return np.clip(q, -127, 127).astype(np.int8)


# ---- arithmetic on arrays


def quantize(
    x: npt.ArrayLike, scale: npt.ArrayLike, zero_point: npt.ArrayLike, rounding: Rounding, lo: int, hi: int
) -> IntArray:
    """NUMERICS 2: float32 → int64 in [lo, hi]; NaN counts as 0 (D2), ±inf saturates.

    `scale` and `zero_point` broadcast.
    """
    r: FloatArray
    v = np.asarray(x, np.float32)
    v = np.where(np.isnan(v), np.float32(0), v)
    with np.errstate(over="ignore", invalid="ignore"):
        if rounding is Rounding.HALF_EVEN_F32:
            r = np.rint(v / np.asarray(scale, np.float32)).astype(np.float64)
        else:
            r = round_half_away(v.astype(np.float64) / np.asarray(scale, np.float64))
    r = np.clip(r, -(2.0**40), 2.0**40)  # ±inf becomes a number that still saturates after the zero point
    return np.asarray(np.clip(r + np.asarray(zero_point, np.float64), lo, hi).astype(np.int64))


def dequantize(q: npt.ArrayLike, scale: npt.ArrayLike, zero_point: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """NUMERICS 2: float32(q − zero_point) · scale, in float32."""
    centred = np.asarray(q, np.int64) - np.asarray(zero_point, np.int64)
    return np.asarray(centred.astype(np.float32) * np.asarray(scale, np.float32))


def requantize(
    acc: IntArray,
    scheme: Scheme,
    multiplier: npt.ArrayLike | None,
    pre_shift: npt.ArrayLike | None,
    post_shift: npt.ArrayLike | None,
    zero_point: int,
    lo: int,
    hi: int,
) -> IntArray:
    """NUMERICS 4 by scheme; parameters broadcast against `acc`. The accumulator saturates to i32 first (D3)."""
    a = np.clip(np.asarray(acc, np.int64), I32_MIN, I32_MAX)
    if scheme is Scheme.NONE:
        return np.clip(a, lo, hi)
    if scheme is Scheme.FLOAT:
        return np.clip(nearbyint_f32(a.astype(np.float32) * np.asarray(multiplier, np.float32)) + zero_point, lo, hi)
    mult = np.asarray(multiplier, np.int64)
    post = np.asarray(post_shift, np.int64)
    if scheme is Scheme.WIDE:
        return np.clip(round_shift_half_up(a * mult, post) + zero_point, lo, hi)
    narrow = np.clip(a >> np.asarray(pre_shift, np.int64), -I16_MAX - 1, I16_MAX) * mult
    scaled = narrow >> post if scheme is Scheme.FORM_A else round_shift_half_up(narrow, post)
    return np.clip(scaled + zero_point, lo, hi)


def nearbyint_f32(x: npt.NDArray[np.float32]) -> IntArray:
    """Half to even of a float32, as int64; NaN counts as 0, magnitudes beyond 2^40 (and ±inf) as ±2^40."""
    v = np.where(np.isnan(x), np.float32(0), x)
    return np.clip(np.rint(v).astype(np.float64), -(2.0**40), 2.0**40).astype(np.int64)


def addend_to_accumulator(q: IntArray, zero_point: int, multiplier: npt.ArrayLike, shift: npt.ArrayLike) -> IntArray:
    """D5: ((q − zero_point) · multiplier) >> shift, a negative shift is a left shift; int64."""
    s = np.asarray(shift, np.int64)
    product = (np.asarray(q, np.int64) - zero_point) * np.asarray(multiplier, np.int64)
    return np.where(s >= 0, product >> np.maximum(s, 0), product << np.maximum(-s, 0))


def lut_table(
    f: Callable[[FloatArray], FloatArray], x: FloatArray, out_scale: float, zero_point: int, lo: int, hi: int
) -> IntArray:
    """D7: clip(floor(f(x)/s_out + 0.5) + zp), in float64; `x` is the real value of each table index. NaN gives zp."""
    with np.errstate(all="ignore"):
        y = np.asarray(f(np.asarray(x, np.float64)), np.float64) / out_scale
    y = np.where(np.isnan(y), 0.0, y)
    whole = np.floor(_between(y, -(2.0**40), 2.0**40) + 0.5) + zero_point
    return np.asarray(_between(whole, lo, hi).astype(np.int64))


def _between(x: FloatArray, lo: float, hi: float) -> FloatArray:
    """`np.clip`, whose call takes three times as long on the few numbers of a table."""
    return np.asarray(np.minimum(np.maximum(x, lo), hi))
