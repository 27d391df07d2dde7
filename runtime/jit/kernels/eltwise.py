"""Add, Mul, Maximum, Minimum with broadcasting; Clamp."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...isa import Add, Clamp, Maximum, Minimum, Mul, Scheme
from ...program import Tensor
from ...types import DType
from .. import numerics
from ..broadcast import broadcasting
from ..emitter import F32, F64, I32, I64, Emitter, const, element, lanes_of, scalar_of, vector
from ..loops import elementwise
from ..registry import KernelBuilder, Operands, kernel, operand
from .quant import difference, reach

Combine = Callable[[ir.Value, ir.Value], ir.Value]


@kernel(Add)
def emit_add(k: KernelBuilder, op: Add, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS D6, or float32 step by step."""
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

    broadcasting(k, ins[:2], outs[0], _in_floats(k, op, k.b.fadd) if op.scheme is Scheme.FLOAT else integers)


@kernel(Mul)
def emit_mul(k: KernelBuilder, op: Mul, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS 5, or float32 step by step."""
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

    broadcasting(k, ins[:2], outs[0], _in_floats(k, op, k.b.fmul) if op.scheme is Scheme.FLOAT else integers)


@kernel(Maximum)
def emit_maximum(k: KernelBuilder, _op: Maximum, ins: Operands, outs: Sequence[Tensor]) -> None:
    """The larger of each pair."""
    broadcasting(k, ins[:2], outs[0], k.smax)


@kernel(Minimum)
def emit_minimum(k: KernelBuilder, _op: Minimum, ins: Operands, outs: Sequence[Tensor]) -> None:
    """The smaller of each pair."""
    broadcasting(k, ins[:2], outs[0], k.smin)


@kernel(Clamp)
def emit_clamp(k: KernelBuilder, op: Clamp, _ins: Operands, outs: Sequence[Tensor]) -> None:
    """Limited to [clamp_min, clamp_max]."""
    ty = element(outs[0].dtype)

    def body(i: ir.Value, lanes: int) -> None:
        k.store(numerics.saturate(k, k.load(k.ins[0], i, ty, lanes), op.clamp_min, op.clamp_max), k.outs[0], i)

    elementwise(k, outs[0].elements, 4 * k.host.lanes * 8 // ty.width, body)


# ---- arithmetic


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
