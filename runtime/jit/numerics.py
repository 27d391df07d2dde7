"""The arithmetic of `runtime/numerics.py` under the same names, emitting LLVM IR for one value of any number of lanes.

The NumPy module is the law; `tests/exact` holds this one to it bit for bit.
No fast-math flag and no fused multiply-add appears: every float step rounds exactly as NumPy's float32 does.
Parameters (multiplier, shifts) may be narrower integers than the arithmetic needs: they are sign-extended here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

from llvmlite import ir

from ..isa import Rounding, Scheme
from ..numerics import I16_MAX, I32_MAX, I32_MIN
from .emitter import F32, F64, I32, I64, Emitter, const, lanes_of, scalar_of, vector

_FAR = 2.0**40  # as in NumPy: a float beyond it is clipped to it; it still saturates after any i32 zero point


def saturate(e: Emitter, x: ir.Value, lo: int, hi: int) -> ir.Value:
    """Clip an integer to [lo, hi], in its own type; bounds that the type cannot exceed cost nothing."""
    width = scalar_of(x).width
    if lo > -(1 << (width - 1)):
        x = e.smax(x, const(x.type, lo))
    if hi < (1 << (width - 1)) - 1:
        x = e.smin(x, const(x.type, hi))
    return x


def saturate_i32(e: Emitter, x: ir.Value) -> ir.Value:
    """D3: an i64 accumulator saturated to i32; an i32 one as it is."""
    return x if scalar_of(x) == I32 else e.resize(saturate(e, x, I32_MIN, I32_MAX), I32)


def round_shift_half_up(e: Emitter, x: ir.Value, shift: ir.Value) -> ir.Value:
    """(x + 2^(shift−1)) >> shift, arithmetic; x itself where shift is 0. `shift` has x's type, 0 ≤ shift < width.

    Computed as ((x >> (shift − 1)) + 1) >> 1, which is equal and cannot overflow.
    """
    half = e.b.zext(e.b.icmp_signed(">", shift, const(x.type, 0)), x.type)  # 1, or 0 where shift is 0
    nearly = e.b.ashr(x, e.b.sub(shift, half))
    return e.b.ashr(e.b.add(nearly, half), half)


def requantize(
    e: Emitter,
    acc: ir.Value,
    scheme: Scheme,
    multiplier: ir.Value | None,
    pre_shift: ir.Value | None,
    post_shift: ir.Value | None,
    zero_point: int,
    lo: int,
    hi: int,
) -> ir.Value:
    """NUMERICS 4 by scheme: an i32 or i64 accumulator to an i32 in [lo, hi].

    `multiplier` and the shifts have acc's lanes: i16 or i32 integers, f32 for FLOAT; i8 or i32 shifts.
    """
    a = saturate_i32(e, acc)
    if scheme is Scheme.NONE:
        return saturate(e, a, lo, hi)
    assert multiplier is not None
    if scheme is Scheme.FLOAT:
        product = e.b.fmul(e.b.sitofp(a, vector(F32, lanes_of(a))), multiplier)
        return nearbyint_f32(e, product, zero_point, lo, hi)
    assert pre_shift is not None
    assert post_shift is not None
    if scheme is Scheme.WIDE:
        product = e.b.mul(e.resize(a, I64), e.resize(multiplier, I64))
        scaled = round_shift_half_up(e, product, e.resize(post_shift, I64))
        return e.resize(saturate(e, _plus(e, scaled, zero_point), lo, hi), I32)
    narrow = saturate(e, e.b.ashr(a, e.resize(pre_shift, I32)), -I16_MAX - 1, I16_MAX)
    product = e.b.mul(narrow, e.resize(multiplier, I32))
    post = e.resize(post_shift, I32)
    scaled = e.b.ashr(product, post) if scheme is Scheme.FORM_A else round_shift_half_up(e, product, post)
    return saturate(e, _plus(e, scaled, zero_point), lo, hi)  # |scaled| ≤ 2^30, so the sum fits


@dataclass(frozen=True)
class WideScale:
    """What scheme WIDE needs of a multiplier and a post shift, made once for many accumulators: lanes of i64."""

    multiplier: ir.Value
    shift: ir.Value  # all but the last bit of the post shift
    half: ir.Value  # 1, or 0 where the post shift is 0: see round_shift_half_up

    @staticmethod
    def of(e: Emitter, multiplier: ir.Value, post_shift: ir.Value) -> WideScale:
        """Of parameters that are narrower integers."""
        shift = e.resize(post_shift, I64)
        half = e.b.zext(e.b.icmp_signed(">", shift, const(shift.type, 0)), shift.type)
        return WideScale(e.resize(multiplier, I64), e.b.sub(shift, half), half)

    def apply(self, e: Emitter, acc: ir.Value, zero_point: int, lo: int, hi: int) -> ir.Value:
        """`requantize` by scheme WIDE of an i32 or i64 accumulator: an i64 in [lo, hi]."""
        if scalar_of(acc) == I64:
            acc = saturate(e, acc, I32_MIN, I32_MAX)
        upper = const(self.multiplier.type, 32)  # as if both were widened here: x86 multiplies the lower halves
        a, m = (e.b.ashr(e.b.shl(v, upper), upper) for v in (e.resize(acc, I64), self.multiplier))
        product = e.b.mul(a, m)
        scaled = e.b.ashr(e.b.add(e.b.ashr(product, self.shift), self.half), self.half)
        return saturate(e, _plus(e, scaled, zero_point), lo, hi)


def nearbyint_f32(e: Emitter, x: ir.Value, zero_point: int, lo: int, hi: int) -> ir.Value:
    """clip(nearbyint(x) + zero_point, lo, hi) of a float32, as i32; half to even, NaN counts as 0, ±inf saturates."""
    lanes = lanes_of(x)
    whole = e.overloaded("llvm.nearbyint", nan_to_zero(e, x))
    if max(abs(lo - zero_point), abs(hi - zero_point)) < 1 << 24:  # bounds that float32 holds exactly
        whole = clip_float(e, whole, lo - zero_point, hi - zero_point)
        return _plus(e, e.b.fptosi(whole, vector(I32, lanes)), zero_point)
    far = clip_float(e, whole, -_FAR, _FAR)
    q = _plus(e, e.b.fptosi(far, vector(I64, lanes)), zero_point)
    return e.resize(saturate(e, q, lo, hi), I32)


def addend_to_accumulator(
    e: Emitter, q: ir.Value, zero_point: int, multiplier: ir.Value, shift: ir.Value, *, narrow: bool = False
) -> ir.Value:
    """D5: ((q − zero_point) · multiplier) >> shift, a negative shift is a left shift; i64.

    With `narrow`, in i32: the caller knows that the product fits, and that 0 ≤ shift ≤ 31.
    """
    wide = I32 if narrow else I64
    product = e.b.mul(_plus(e, e.resize(q, wide), -zero_point), e.resize(multiplier, wide))
    s = e.resize(shift, wide)
    if narrow:
        return e.b.ashr(product, s)
    zero = const(s.type, 0)
    right = e.b.ashr(product, e.smax(s, zero))
    left = e.b.shl(product, e.smax(e.b.sub(zero, s), zero))
    return e.b.select(e.b.icmp_signed(">=", s, zero), right, left)


def quantize(
    e: Emitter, x: ir.Value, scale: ir.Value, zero_point: ir.Value, rounding: Rounding, lo: int, hi: int
) -> ir.Value:
    """NUMERICS 2: float32 → clip(round(x / scale) + zero_point, lo, hi) as i64; NaN counts as 0 (D2), ±inf saturates.

    `scale` is f32 and `zero_point` i32, each of x's lanes.
    """
    v, wide = nan_to_zero(e, x), vector(F64, lanes_of(x))
    if rounding is Rounding.HALF_EVEN_F32:
        r = e.b.fpext(e.overloaded("llvm.nearbyint", e.b.fdiv(v, scale)), wide)
    else:
        r = round_half_away(e, e.b.fdiv(e.b.fpext(v, wide), e.b.fpext(scale, wide)))
    r = e.b.fadd(clip_float(e, r, -_FAR, _FAR), e.b.sitofp(zero_point, wide))
    return e.b.fptosi(clip_float(e, r, lo, hi), vector(I64, lanes_of(x)))


@dataclass(frozen=True)
class ByteScale:
    """What `quantize_bytes` needs of a scale and a zero point, in every lane: see there."""

    scale: ir.Value
    inverse: ir.Value
    zero_point: ir.Value  # i32
    low: ir.Value
    high: ir.Value
    sure: ir.Value

    @staticmethod
    def of(e: Emitter, scale: ir.Value, zero_point: ir.Value, lo: int, hi: int) -> ByteScale:
        """From one scale (f32) and one zero point (i32, |zero_point| < 2^30): for results in [lo, hi]."""

        def less_zero_point(bound: int) -> ir.Value:
            return e.b.sitofp(e.b.sub(const(I32, bound), zero_point), F32)

        low, high = less_zero_point(lo - 1), less_zero_point(hi + 1)
        farther = e.overloaded("llvm.maxnum", e.overloaded("llvm.fabs", low), e.overloaded("llvm.fabs", high))
        margin = e.b.fmul(farther, const(F32, 2.0**-21))
        sure = e.b.fsub(const(F32, 0.5 - 2.0**-20), margin)
        return ByteScale(scale, e.b.fdiv(const(F32, 1.0), scale), zero_point, low, high, sure)

    def splat(self, e: Emitter, lanes: int) -> ByteScale:
        """In every lane of a vector."""
        return ByteScale(*(e.splat(getattr(self, f.name), lanes) for f in fields(self)))


def quantize_bytes(e: Emitter, xs: Sequence[ir.Value], by: ByteScale, lo: int, hi: int) -> list[ir.Value]:
    """`quantize` by HALF_EVEN_F32 to a range of at most 256 integers, as i32, of several vectors.

    A division takes many times as long as a multiplication, and only the rounded quotient matters: the product
    y = x · (1/s) is off the float32 quotient by less than |y| · 2^-21 + 2^-20. What lies beyond one quantum outside of
    the range saturates, by either; so y is limited to that (`low`, `high`), which limits the error too: both round to
    one integer unless a tie is as near as that (`sure` is half a quantum less the largest error). Then, and for NaN,
    all vectors are divided. A zero point too far away for float32 makes `sure` negative, and every quotient a division.
    """
    lanes = lanes_of(xs[0])
    rounded, checks = [], []
    for x in xs:
        y = e.b.fmul(x, by.inverse)
        y = e.b.select(e.b.fcmp_ordered("<", by.high, y), by.high, y)  # NaN stays
        y = e.b.select(e.b.fcmp_ordered(">", by.low, y), by.low, y)
        r = e.overloaded("llvm.nearbyint", y)
        checks.append(e.b.fcmp_ordered("<", e.overloaded("llvm.fabs", e.b.fsub(y, r)), by.sure))
        rounded.append(r)
    all_sure = functools.reduce(e.b.and_, checks)
    bits = ir.IntType(lanes)
    passed = e.b.icmp_unsigned("==", e.b.bitcast(all_sure, bits), ir.Constant(bits, (1 << lanes) - 1))
    before = e.b.block
    divided, joined = e.b.append_basic_block("divide"), e.b.append_basic_block("rounded")
    e.b.cbranch(passed, joined, divided)
    e.b.position_at_end(divided)
    exact = [e.overloaded("llvm.nearbyint", e.b.fdiv(nan_to_zero(e, x), by.scale)) for x in xs]
    exact = [clip_float(e, r, -(2.0**30), 2.0**30) for r in exact]  # still saturates after the zero point
    e.b.branch(joined)
    e.b.position_at_end(joined)
    wholes = [e.b.phi(r.type) for r in rounded]
    for whole, r, other in zip(wholes, rounded, exact, strict=True):
        whole.add_incoming(r, before)
        whole.add_incoming(other, divided)
    return [saturate(e, e.b.add(e.b.fptosi(w, vector(I32, lanes)), by.zero_point), lo, hi) for w in wholes]


def dequantize(e: Emitter, q: ir.Value, scale: ir.Value, zero_point: ir.Value) -> ir.Value:
    """NUMERICS 2: float32(q − zero_point) · scale, in float32. `q` and `zero_point` are signed integers.

    The difference is exact in float64 (|q − zp| < 2^33), so the one rounding to float32 is that of an int64 conversion.
    """
    wide = vector(F64, lanes_of(q))
    centred = e.b.fsub(e.b.sitofp(q, wide), e.b.sitofp(zero_point, wide))
    return e.b.fmul(e.b.fptrunc(centred, vector(F32, lanes_of(q))), scale)


def round_half_away(e: Emitter, v: ir.Value) -> ir.Value:
    """Nearest integer, ties away from zero, in float64."""
    whole = e.overloaded("llvm.trunc", v)
    rest = e.overloaded("llvm.fabs", e.b.fsub(v, whole))
    step = e.overloaded("llvm.copysign", const(v.type, 1.0), v)
    return e.b.fadd(whole, e.b.select(e.b.fcmp_ordered(">=", rest, const(v.type, 0.5)), step, const(v.type, 0.0)))


def nan_to_zero(e: Emitter, x: ir.Value) -> ir.Value:
    """x, or 0.0 where x is NaN (D2)."""
    return e.b.select(e.b.fcmp_unordered("uno", x, x), const(x.type, 0.0), x)


def clip_float(e: Emitter, x: ir.Value, lo: float, hi: float) -> ir.Value:
    """x limited to [lo, hi]; x is not NaN."""
    low, high = const(x.type, float(lo)), const(x.type, float(hi))
    x = e.b.select(e.b.fcmp_ordered("<", x, low), low, x)
    return e.b.select(e.b.fcmp_ordered(">", x, high), high, x)


def centred(e: Emitter, x: ir.Value, zero_point: int) -> ir.Value:
    """x − zero_point, in x's type."""
    return _plus(e, x, -zero_point)


def _plus(e: Emitter, x: ir.Value, value: int) -> ir.Value:
    return x if value == 0 else e.b.add(x, const(x.type, value))
