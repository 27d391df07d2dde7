"""Constants of reals beside an activation, as the integers that an elementwise op takes."""

from __future__ import annotations

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import numerics

from .matching import activation_behind, real_constant
from .quanta import LIMITS, sixteen_bits

ONNX_LIMIT = 2.0  # quanta that a constant's rounding may move a result under --arith onnx, whatever its dtype


def quantized(reals: np.ndarray, t: TensorType, sem: Semantics) -> np.ndarray:
    """`reals` as a quantize to the per-tensor type `t` makes them."""
    assert t.quant is not None
    lo, hi = t.dtype.limits
    scale, zero = np.float32(t.quant.scale[0]), np.int64(t.quant.zero_point[0])
    return np.asarray(numerics.quantize(reals, scale, zero, sem.rounding, lo, hi), t.dtype.numpy)


def has_integers(reals: np.ndarray, op: Op) -> bool:
    """False for NaN, and for an infinity that may meet a 0."""
    return bool(np.isfinite(reals).all() if isinstance(op, ops.Mul) else not np.isnan(reals).any())


def with_integers(
    rw: Rewriter, op: ops.Binary, operands: list[Value | None], t: TensorType, sem: Semantics
) -> list[Value | None] | None:
    """`operands` with the constant of reals among them as integers; None where those are too coarse for a result `t`.

    A maximum or minimum takes them in the result's scale, others as i16 of the range that matters.
    """
    made: list[Value | None] = []
    for i, value in enumerate(operands):
        other = operands[1 - i]
        assert value is not None
        assert other is not None
        reals = real_constant(value, sem) if value.type.quant is None else None
        if reals is None:
            made.append(value)
        elif isinstance(op, (ops.Maximum, ops.Minimum)):
            scaled = TensorType(reals.shape, t.dtype, t.quant)
            made.append(rw.op(ops.Const, value=quantized(reals, t, sem), type=scaled, name=value.name).out)
        elif _error(op, i, reals, other.type, t) > limit(t, sem):
            return None
        else:
            ints, scale = sixteen_bits(np.clip(reals, *_range_that_matters(op, i, other.type, t)))
            sixteen = TensorType(ints.shape, DType.I16, Quant.per_tensor(scale))
            made.append(rw.op(ops.Const, value=ints, type=sixteen, name=value.name).out)
    return made


def limit(t: TensorType, sem: Semantics) -> float:
    """How many quanta of a result `t` a constant's rounding may cost."""
    return ONNX_LIMIT if sem.is_onnx else LIMITS[t.dtype]


def why_too_coarse(op: Op, sem: Semantics) -> Rejection | None:
    """Why an elementwise op of an activation and a constant stays in reals, for `why_real`."""
    users = [u for u in op.results[0].users if isinstance(u, ops.Quantize)]
    if not isinstance(op, (ops.Add, ops.Sub, ops.Mul)) or not users or users[0].out.type.dtype not in LIMITS:
        return None
    for i, value in enumerate(op.operands):
        x, reals, t = activation_behind(op.operands[1 - i]), real_constant(value, sem), users[0].out.type
        if x is None or reals is None or activation_behind(value) is not None or not has_integers(reals, op):
            continue
        error = _error(op, i, reals, x.type, t)
        if error > limit(t, sem):
            what = f"its constant would move its result by up to {error:.1f} quanta as i16, whose steps are one size"
            return Rejection(f"{what} ({limit(t, sem):.0f} are allowed)", "split it into constants of one magnitude")
    return None


def _error(op: ops.Binary, place: int, reals: np.ndarray, other: TensorType, t: TensorType) -> float:
    """By how many quanta of the result, at most, the constant's rounding moves what doesn't saturate."""
    assert t.quant is not None
    inside = np.clip(reals.astype(np.float64), *_range_that_matters(op, place, other, t))
    ints, scale = sixteen_bits(inside)
    moved = np.abs(ints * scale - inside)
    if isinstance(op, ops.Mul):
        held, most = max(map(abs, _ends(t))) + t.quant.scale[0], max(map(abs, _ends(other)))
        moved = moved * np.minimum(most, held / np.maximum(np.abs(inside), held / most))
    return float(moved.max(initial=0.0) / t.quant.scale[0])


def _range_that_matters(op: ops.Binary, place: int, other: TensorType, t: TensorType) -> tuple[float, float]:
    """Between which reals a constant at `place` makes a difference; beyond them every result saturates.

    Numbers such as the -1e9 of a mask would else leave no steps for their neighbours.
    """
    assert t.quant is not None
    assert other.quant is not None
    (low, high), (first, last), step = _ends(t), _ends(other), t.quant.scale[0]
    low, high = low - step, high + step
    if isinstance(op, ops.Mul):
        most = max(-low, high) / other.quant.scale[0]
        return -most, most
    if isinstance(op, ops.Add):
        return low - last, high - first
    return (low + first, high + last) if place == 0 else (first - high, last - low)


def _ends(t: TensorType) -> tuple[float, float]:
    """The smallest and largest real of a tensor of one scale."""
    assert t.quant is not None
    low, high = ((q - t.quant.zero_point[0]) * t.quant.scale[0] for q in t.dtype.limits)
    return low, high
