"""Add, Mul, Maximum, Minimum with broadcasting; Clamp."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...isa import Add, Clamp, Maximum, Minimum, Mul, Scheme
from ...numerics import I16_MAX
from ...program import Tensor
from ...types import DType
from .. import numerics, words, x86
from ..broadcast import Groups, broadcasting
from ..emitter import F32, F64, I32, I64, Emitter, const, element, lanes_of, scalar_of, vector
from ..host import Host
from ..loops import elementwise
from ..registry import Constants, KernelBuilder, Operands, Packed, kernel, operand, packing
from .quant import difference, form_b, reach

Combine = Callable[[ir.Value, ir.Value], ir.Value]


@kernel(Add)
def emit_add(k: KernelBuilder, op: Add, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS D6, or float32 step by step."""
    if op.scheme is Scheme.FLOAT:
        broadcasting(k, ins[:2], outs[0], _in_floats(k, op, k.b.fadd))
        return
    a_bound = reach(operand(ins, 0).dtype, op.lhs_zero_point) * abs(op.lhs_multiplier)
    b_bound = reach(operand(ins, 1).dtype, op.rhs_zero_point) * abs(op.rhs_multiplier)
    narrow = a_bound + b_bound < 1 << 31 and op.shift < 32 and outs[0].dtype is not DType.I32
    wide = I32 if narrow else I64

    def integers(a: ir.Value, b: ir.Value) -> ir.Value:
        lhs = k.b.mul(difference(k, a, op.lhs_zero_point, wide), const(vector(wide, lanes_of(a)), op.lhs_multiplier))
        rhs = k.b.mul(difference(k, b, op.rhs_zero_point, wide), const(vector(wide, lanes_of(b)), op.rhs_multiplier))
        total = k.b.add(lhs, rhs)
        scaled = numerics.round_shift_half_up(k, total, const(total.type, op.shift))
        return _offset_and_clamp(k, scaled, op)

    broadcasting(k, ins[:2], outs[0], integers, groups=_sums_of_bytes(k, op, ins, outs[0], a_bound + b_bound))


def _sums_of_bytes(k: KernelBuilder, op: Add, ins: Operands, out: Tensor, bound: int) -> Groups | None:
    """D6 on bytes with multipliers of 16 bits: pairs of products in i32, half a step and the zero points in one
    constant. Exact where |sum| ≤ `bound`, with the half step, is i32: then so is the sum modulo 2^32.
    """
    a, b = operand(ins, 0), operand(ins, 1)
    half = 1 << (op.shift - 1) if op.shift else 0
    weights = op.lhs_multiplier, op.rhs_multiplier
    fits = all(-(1 << 15) <= w < 1 << 15 for w in weights) and op.shift < 32 and bound + half < 1 << 31
    if not (all_bytes(a, b, out) and words.has_words(k.host) and fits):
        return None
    zero_points = words.raised(a, op.lhs_zero_point), words.raised(b, op.rhs_zero_point)
    start = half - sum(w * z for w, z in zip(weights, zero_points, strict=True))

    def combine(x: ir.Value, y: ir.Value) -> ir.Value:
        rounded = []
        for lhs, rhs in zip(words.words_of(k, a, x), words.words_of(k, b, y), strict=True):
            sums = words.weighted_sum(k, lhs, rhs, weights, start)
            low, high = (k.b.ashr(v, const(v.type, op.shift)) for v in sums)
            rounded.append(x86.pack_words(k, low, high))
        return words.finished(k, out, (rounded[0], rounded[1]), op.zero_point, op.clamp_min, op.clamp_max)

    return Groups(words.group_of(k.host), combine)


@packing(Mul)
def pack_mul(
    op: Mul, _ins: Operands, _outs: Sequence[Tensor], constants: Constants, _host: Host
) -> Packed:  # the one multiplier and its shifts become part of the code
    """Nothing to pack; the variant is (multiplier, pre shift, post shift) in form B."""
    return Packed((), form_b(op, constants[2:5]))


@kernel(Mul)
def emit_mul(k: KernelBuilder, op: Mul, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS 5, or float32 step by step."""
    if op.scheme is Scheme.FLOAT:
        broadcasting(k, ins[:2], outs[0], _in_floats(k, op, k.b.fmul))
        return
    a_bound, b_bound = (reach(operand(ins, i).dtype, zp) for i, zp in enumerate((op.lhs_zero_point, op.rhs_zero_point)))
    wide = I32 if a_bound * b_bound < 1 << 31 else I64
    params = [None if t is None else k.load(k.ins[2 + j], 0, element(t.dtype)) for j, t in enumerate(ins[2:5])]

    def integers(a: ir.Value, b: ir.Value) -> ir.Value:
        lhs, rhs = difference(k, a, op.lhs_zero_point, wide), difference(k, b, op.rhs_zero_point, wide)
        if a_bound * b_bound >= 1 << 63:  # beyond ±2^31, any product but one by 0 saturates to i32 anyway (D3)
            lhs, rhs = (numerics.saturate(k, v, -(1 << 31), 1 << 31) for v in (lhs, rhs))
        mult, pre, post = (None if p is None else k.splat(p, lanes_of(a)) for p in params)
        acc = k.b.mul(lhs, rhs)
        return numerics.requantize(k, acc, op.scheme, mult, pre, post, op.zero_point, op.clamp_min, op.clamp_max)

    broadcasting(k, ins[:2], outs[0], integers, groups=_products_of_bytes(k, op, ins, outs[0], a_bound * b_bound))


def _products_of_bytes(k: KernelBuilder, op: Mul, ins: Operands, out: Tensor, bound: int) -> Groups | None:
    """Form B on products of bytes, in words; products that may pass i16 (`bound`) are shifted and saturated in i32."""
    a, b = operand(ins, 0), operand(ins, 1)
    if k.variant is None or not (all_bytes(a, b, out) and words.has_words(k.host)):
        return None
    mult, pre, post = k.variant
    zero_points = words.raised(a, op.lhs_zero_point), words.raised(b, op.rhs_zero_point)
    if not all(-(1 << 14) < z < 1 << 14 for z in zero_points):
        return None

    def combine(x: ir.Value, y: ir.Value) -> ir.Value:
        done = []
        for pair in zip(words.words_of(k, a, x), words.words_of(k, b, y), strict=True):
            lhs, rhs = (words.plus(k, v, -z) for v, z in zip(pair, zero_points, strict=True))
            if bound <= I16_MAX:
                product = k.b.mul(lhs, rhs)
                narrow = k.b.ashr(product, const(product.type, min(pre, 15)))
            else:
                low, high = (k.b.ashr(v, const(v.type, pre)) for v in words.product(k, lhs, rhs))
                narrow = x86.pack_words(k, low, high)
            done.append(words.scaled(k, narrow, mult, post))
        return words.finished(k, out, (done[0], done[1]), op.zero_point, op.clamp_min, op.clamp_max)

    return Groups(words.group_of(k.host), combine)


@kernel(Maximum)
def emit_maximum(k: KernelBuilder, _op: Maximum, ins: Operands, outs: Sequence[Tensor]) -> None:
    """The larger of each pair."""
    broadcasting(k, ins[:2], outs[0], k.smax, lanes=4 * k.host.lanes // outs[0].dtype.size)


@kernel(Minimum)
def emit_minimum(k: KernelBuilder, _op: Minimum, ins: Operands, outs: Sequence[Tensor]) -> None:
    """The smaller of each pair."""
    broadcasting(k, ins[:2], outs[0], k.smin, lanes=4 * k.host.lanes // outs[0].dtype.size)


@kernel(Clamp)
def emit_clamp(k: KernelBuilder, op: Clamp, _ins: Operands, outs: Sequence[Tensor]) -> None:
    """Limited to [clamp_min, clamp_max]."""
    ty = element(outs[0].dtype)

    def body(i: ir.Value, lanes: int) -> None:
        k.store(numerics.saturate(k, k.load(k.ins[0], i, ty, lanes), op.clamp_min, op.clamp_max), k.outs[0], i)

    elementwise(k, outs[0].elements, 4 * k.host.lanes * 8 // ty.width, body)


# ---- arithmetic


def all_bytes(*tensors: Tensor) -> bool:
    """True where every tensor is i8."""
    return all(t.dtype is DType.I8 for t in tensors)


def real(e: Emitter, x: ir.Value, zero_point: int, scale: float) -> ir.Value:
    """f32(x − zero_point) · scale; the difference is exact in float64, so it is rounded once."""
    lanes = lanes_of(x)
    if scalar_of(x) == I32 or abs(zero_point) >= 1 << 30:
        exact = e.b.fsub(e.b.sitofp(x, vector(F64, lanes)), const(F64, float(zero_point), lanes))
        f = e.b.fptrunc(exact, vector(F32, lanes))
    else:
        f = e.b.sitofp(difference(e, x, zero_point, I32), vector(F32, lanes))
    return e.b.fmul(f, const(F32, scale, lanes))


def _offset_and_clamp(e: Emitter, x: ir.Value, op: Add) -> ir.Value:
    """clamp(x + zero_point); clamped before the addition, which cannot overflow then."""
    within = numerics.saturate(e, x, op.clamp_min - op.zero_point, op.clamp_max - op.zero_point)
    return within if op.zero_point == 0 else e.b.add(within, const(x.type, op.zero_point))


def _in_floats(e: Emitter, op: Add | Mul, combine: Combine) -> Combine:
    """`combine` of both operands' reals, rounded."""

    def floats(a: ir.Value, b: ir.Value) -> ir.Value:
        lhs, rhs = real(e, a, op.lhs_zero_point, op.lhs_scale), real(e, b, op.rhs_zero_point, op.rhs_scale)
        return _round_float(e, combine(lhs, rhs), op)

    return floats


def _round_float(e: Emitter, x: ir.Value, op: Add | Mul) -> ir.Value:
    """nearbyint(x / out_scale) + zero_point, clamped."""
    quotient = e.b.fdiv(x, const(x.type, op.out_scale))
    return numerics.nearbyint_f32(e, quotient, op.zero_point, op.clamp_min, op.clamp_max)
