"""Small questions that several passes ask of a graph."""

from __future__ import annotations

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType

NARROW = (DType.I8, DType.U8, DType.I16, DType.U16)
MAX_RANK = 6  # of elementwise instructions: the executor's widest broadcast; the manuals allow 10 axes


def const_value(value: Value | None) -> np.ndarray | None:
    """The array of a `const`, or None."""
    const = None if value is None else value.defined_by(ops.Const)
    return None if const is None else const.value


def integers_behind(value: Value | None) -> Value | None:
    """The quantised value that `value` dequantises, or None."""
    dq = None if value is None else value.defined_by(ops.Dequantize)
    return None if dq is None else dq.x


def activation_behind(value: Value | None) -> Value | None:
    """Like `integers_behind`, for narrow integers of one scale: what an instruction takes as an activation."""
    q = integers_behind(value)
    if q is None or q.type.dtype not in NARROW or q.type.quant is None or not q.type.quant.is_per_tensor:
        return None
    return q


def weight_behind(value: Value | None) -> Value | None:
    """The constant integers that `value` dequantises, narrow, per tensor or per channel; else None."""
    q = integers_behind(value)
    return q if q is not None and q.type.dtype in NARROW and q.defined_by(ops.Const) else None


def real_constant(value: Value | None, sem: Semantics) -> np.ndarray | None:
    """The reals of a constant, quantised or not; None where `value` is computed."""
    direct = const_value(value)
    if direct is not None:
        return direct
    dq = None if value is None else value.defined_by(ops.Dequantize)
    ints = None if dq is None else const_value(dq.x)
    return None if dq is None or ints is None else dq.reference(sem, ints)[0]


def one_number(value: Value | None, sem: Semantics) -> float | None:
    """The number that a constant of one element holds, quantised or not."""
    array = real_constant(value, sem)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def feeds_only_quantize(value: Value) -> bool:
    """True where every reader is a quantize and the graph does not return the value."""
    return bool(value.uses) and all(isinstance(u.op, ops.Quantize) for u in value.uses)


def narrowed(clip: tuple[float, float], by: ops.Clip) -> tuple[float, float]:
    """The limits of clip(clip(x, *clip), low, high)."""
    low, high = (min(max(limit, by.low), by.high) for limit in clip)
    return low, high


def limits_of(quantize: ops.Quantize, clip: tuple[float, float] = ops.NO_CLIP) -> tuple[float, float]:
    """The reals to which `clip` limits what is quantised; a narrow quantize also keeps its lowest integer out."""
    t = quantize.out.type
    if not quantize.narrow or t.quant is None:
        return clip
    low = (quantize.limits[0] - t.quant.zero_point[0]) * t.quant.scale[0]
    return max(low, clip[0]), max(low, clip[1])


def is_default_clip(op: Op) -> bool:
    """True where the op has no fused clip."""
    return tuple(op.attrs.get("clip", ops.NO_CLIP)) == ops.NO_CLIP
