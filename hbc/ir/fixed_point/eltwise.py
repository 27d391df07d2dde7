"""Elementwise ops, tables and changes of scale in integers (NUMERICS 2, 4, 5, 7)."""

from __future__ import annotations

import numpy as np

from hbc_runtime import isa, numerics
from hbc_runtime.isa import Scheme

from ..core import Op
from ..ops.eltwise import Add, Maximum, Minimum, Mul, Sub
from ..ops.misc import Lut, SegmentLut
from ..ops.quant import Dequantize, FlipSign, Quantize, Requantize
from ..ops.unary import Clip
from ..semantics import Semantics
from ..types import DType, TensorType
from .core import Arrays, Fixed, Ref, View, pair, signed
from .params import (
    choose_scheme,
    clamp_limits,
    multipliers,
    quant_of,
    result_fields,
    scalar_scale,
    scalar_zero_point,
)


def _out(op: Op) -> Ref:
    return Ref(0, View.RESHAPE, op.out.type.shape)


def _zero_points(a: TensorType, b: TensorType, out: TensorType) -> dict[str, object]:
    return {
        "lhs_zero_point": scalar_zero_point(a),
        "rhs_zero_point": scalar_zero_point(b),
        "zero_point": scalar_zero_point(out),
    }


def _scales(a: TensorType, b: TensorType, out: TensorType, sign: float = 1.0) -> dict[str, object]:
    return {
        "scheme": Scheme.FLOAT,
        "lhs_scale": scalar_scale(a),
        "rhs_scale": sign * scalar_scale(b),
        "out_scale": scalar_scale(out),
    }


def add_parameters(a: TensorType, b: TensorType, out: TensorType, sign: float) -> tuple[int, int, int]:
    """D6's multipliers and shift of a ± b, of one scale each."""
    s = scalar_scale(out)
    return numerics.add_params(scalar_scale(a) / s, sign * scalar_scale(b) / s)


def product_ratio(a: TensorType, b: TensorType, out: TensorType) -> float:
    """s_a · s_b / s_out."""
    return scalar_scale(a) * scalar_scale(b) / scalar_scale(out)


def add(op: Add | Sub, sem: Semantics, arrays: Arrays) -> Fixed:
    """add, sub → Add (D6); subtraction is a negative second multiplier."""
    a, b, out = signed(op.lhs.type), signed(op.rhs.type), signed(op.out.type)
    sign = -1.0 if isinstance(op, Sub) else 1.0
    lo, hi = clamp_limits(out, op.clip)
    fields = _zero_points(a, b, out) | {"clamp_min": lo, "clamp_max": hi}
    if sem.is_onnx:
        fields |= _scales(a, b, out, sign)
    else:
        ma, mb, shift = add_parameters(a, b, out, sign)
        fields |= {"scheme": Scheme.FORM_B, "lhs_multiplier": ma, "rhs_multiplier": mb, "shift": shift}
    return Fixed(isa.Add, pair(op), fields, _out(op))


def mul(op: Mul, sem: Semantics, arrays: Arrays) -> Fixed:
    """mul → Mul: m = s_a·s_b/s_out, form B on the product."""
    a, b, out = signed(op.lhs.type), signed(op.rhs.type), signed(op.out.type)
    lo, hi = clamp_limits(out, op.clip)
    fields = _zero_points(a, b, out) | {"clamp_min": lo, "clamp_max": hi}
    if sem.is_onnx:
        fields |= _scales(a, b, out)
        return Fixed(isa.Mul, (*pair(op), None, None, None), fields, _out(op))
    scheme = choose_scheme(out, sem, bias=False)
    params, _ = multipliers(np.array([product_ratio(a, b, out)]), scheme, scalar_zero_point(out))
    return Fixed(isa.Mul, (*pair(op), *params), fields | {"scheme": scheme}, _out(op))


def extremum(op: Maximum | Minimum, sem: Semantics, arrays: Arrays) -> Fixed:
    """maximum, minimum of one scale: no arithmetic."""
    cls = isa.Maximum if isinstance(op, Maximum) else isa.Minimum
    return Fixed(cls, pair(op), {}, _out(op))


def clip(op: Clip, sem: Semantics, arrays: Arrays) -> Fixed:
    """clip of one scale → Clamp."""
    lo, hi = clamp_limits(signed(op.out.type), (op.low, op.high))
    return Fixed(isa.Clamp, (Ref(0),), {"clamp_min": lo, "clamp_max": hi})


def requantize(op: Requantize, sem: Semantics, arrays: Arrays) -> Fixed:
    """requantize → Requantize, form B or WIDE (D12).

    For onnx an i8 operand goes through the exact table of DQ then Q.
    """
    x, out = signed(op.x.type), signed(op.out.type)
    if sem.is_onnx and x.dtype is DType.I8 and out.dtype in {DType.I8, DType.I16} and quant_of(x).is_per_tensor:
        return Fixed(isa.Lut, (Ref(0), _requantize_table(x, out)))
    q = quant_of(x)
    scheme = choose_scheme(out, sem, bias=False)
    ratio = np.asarray(q.scale, np.float64) / scalar_scale(out)
    params, _ = multipliers(ratio, scheme, scalar_zero_point(out))
    if len(set(q.zero_point)) != 1:
        msg = "requantize takes one zero point for all channels"
        raise LookupError(msg)
    fields = {"axis": -1 if q.axis is None else q.axis, "x_zero_point": q.zero_point[0]}
    return Fixed(isa.Requantize, (Ref(0), *params), result_fields(out, scheme) | fields)


def _requantize_table(x: TensorType, out: TensorType) -> np.ndarray:
    real = numerics.dequantize(np.arange(-128, 128), scalar_scale(x), scalar_zero_point(x))
    lo, hi = out.dtype.limits
    q = numerics.quantize(real, scalar_scale(out), scalar_zero_point(out), isa.Rounding.HALF_EVEN_F32, lo, hi)
    return q.astype(out.dtype.numpy)


def lut(op: Lut, sem: Semantics, arrays: Arrays) -> Fixed:
    """lut → Lut."""
    return Fixed(isa.Lut, (Ref(0), Ref(1)))


def segment_lut(op: SegmentLut, sem: Semantics, arrays: Arrays) -> Fixed:
    """segment_lut → SegmentLut."""
    lo, hi = op.out.type.dtype.limits
    return Fixed(isa.SegmentLut, (Ref(0), Ref(1), Ref(2)), {"clamp_min": lo, "clamp_max": hi})


def quantize(op: Quantize, sem: Semantics, arrays: Arrays) -> Fixed:
    """quantize → Quantize with the march's rounding."""
    t = op.out.type
    q = quant_of(t)
    lo, hi = op.limits
    fields = {"axis": -1 if q.axis is None else q.axis, "rounding": sem.rounding, "clamp_min": lo, "clamp_max": hi}
    return Fixed(isa.Quantize, (Ref(0), np.asarray(q.scale, np.float32), np.asarray(q.zero_point, np.int32)), fields)


def dequantize(op: Dequantize, sem: Semantics, arrays: Arrays) -> Fixed:
    """dequantize → Dequantize."""
    q = quant_of(op.x.type)
    fields: dict[str, object] = {"axis": -1 if q.axis is None else q.axis}
    return Fixed(isa.Dequantize, (Ref(0), np.asarray(q.scale, np.float32), np.asarray(q.zero_point, np.int32)), fields)


def flip_sign(op: FlipSign, sem: Semantics, arrays: Arrays) -> Fixed:
    """flip_sign → FlipSign."""
    return Fixed(isa.FlipSign, (Ref(0),))
