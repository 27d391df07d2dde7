"""Scales to fixed-point parameters: the one place where a compile derives multipliers, shifts and clamps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hbc_runtime import numerics
from hbc_runtime.isa import Scheme

from ..ops.shapes import NO_CLIP
from ..semantics import Semantics
from ..types import DType, Quant, TensorType

VANISHING = 2.0**-32  # below this ratio no i32 accumulator reaches half a step, and the shifts would leave their range


def quant_of(t: TensorType) -> Quant:
    """The quantisation of a type that must have one."""
    assert t.quant is not None, t
    return t.quant


def scalar_scale(t: TensorType) -> float:
    """The per-tensor scale, float64."""
    q = quant_of(t)
    assert q.is_per_tensor, t
    return q.scale[0]


def scalar_zero_point(t: TensorType) -> int:
    """The per-tensor zero point."""
    q = quant_of(t)
    assert q.is_per_tensor, t
    return q.zero_point[0]


def clamp_limits(out: TensorType, clip: tuple[float, float] = NO_CLIP) -> tuple[int, int]:
    """The integers that `clip` (real numbers) leaves of the result's range: the clip's ends quantised half to even."""
    lo, hi = out.dtype.limits
    if clip == NO_CLIP or out.quant is None or not out.quant.is_per_tensor:
        return lo, hi
    s, zp = out.quant.scale[0], out.quant.zero_point[0]

    def integer(x: float) -> int:
        return int(np.clip(np.rint(x / s) + zp, lo, hi)) if math.isfinite(x) else (hi if x > 0 else lo)

    return integer(clip[0]), integer(clip[1])


def result_fields(out: TensorType, scheme: Scheme, clip: tuple[float, float] = NO_CLIP) -> dict[str, object]:
    """The attributes by which a requantising instruction makes `out`."""
    lo, hi = clamp_limits(out, clip)
    zp = 0 if scheme is Scheme.NONE else scalar_zero_point(out)
    return {"scheme": scheme, "zero_point": zp, "clamp_min": lo, "clamp_max": hi}


Parameters = tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]


def is_integral_accumulator(acc_scale: np.ndarray, out: TensorType) -> bool:
    """True where the result is the i32 accumulator itself: its scales are the accumulator's (as float32)."""
    if out.dtype is not DType.I32 or out.quant is None or any(out.quant.zero_point):
        return False
    return bool(np.all(np.float32(acc_scale) == np.asarray(out.quant.scale, np.float32)))


def choose_scheme(out: TensorType, sem: Semantics, *, bias: bool) -> Scheme:
    """Which requantisation serves a result (NUMERICS 4).

    FLOAT for onnx, form A with a bias, form B without, WIDE for i16.
    """
    if sem.is_onnx:
        return Scheme.FLOAT
    if out.dtype is DType.I8:
        return Scheme.FORM_A if bias else Scheme.FORM_B
    return Scheme.WIDE


def multipliers(ratio: np.ndarray, scheme: Scheme, zero_point: int) -> tuple[Parameters, np.ndarray]:
    """((multiplier, pre_shift, post_shift), rounding terms) for the ratios s_acc/s_out of each channel.

    FLOAT keeps `ratio` as float32: the caller rounds it step by step as its ONNX kernel does.
    """
    if scheme is Scheme.NONE:
        return (None, None, None), np.zeros(len(ratio), np.int64)
    if scheme is Scheme.FLOAT:
        return (np.asarray(ratio, np.float32), None, None), np.zeros(len(ratio), np.int64)
    rows = [multiplier_of(float(m), scheme, zero_point) for m in ratio]
    dtype = np.int32 if scheme is Scheme.WIDE else np.int16
    fixed = (
        np.array([r.multiplier for r in rows], dtype),
        np.array([r.pre_shift for r in rows], np.int8),
        np.array([r.post_shift for r in rows], np.int8),
    )
    return fixed, np.array([r.rounding for r in rows], np.int64)


def multiplier_of(m: float, scheme: Scheme, zero_point: int = 0) -> numerics.Multiplier:
    """The parameters of one ratio s_acc/s_out. Raises ScaleRangeError where its shifts leave their range."""
    if 0.0 <= m < VANISHING:  # a dead channel (a scale of about 0): nothing reaches half a step
        return numerics.Multiplier(0, 0, 0)
    if scheme is Scheme.WIDE:
        return numerics.wide_params(m)
    return numerics.requantize_params(m, zero_point, rounding_in_bias=scheme is Scheme.FORM_A)


def shared(parameters: Sequence[np.ndarray | None]) -> Parameters:
    """Per-channel parameters cut to one entry where all channels agree."""
    arrays = [p for p in parameters if p is not None]
    if arrays and all(len(a) > 0 and bool(np.all(a == a[0])) for a in arrays):
        return tuple(None if p is None else p[:1] for p in parameters)  # type: ignore[return-value]
    return tuple(parameters)  # type: ignore[return-value]
