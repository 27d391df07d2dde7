"""Weights (constants, dequantised and fake-quantised constants), moved and scaled without losing their integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.builder import make_op
from hbc.ir.core import Value
from hbc.ir.ops import Const, Dequantize, Move, Mul, Quantize, Reshape, Transpose
from hbc.ir.ops.quant import quant_arrays
from hbc.ir.types import DType, Quant, TensorType

from .building import Building
from .problem import quoted


def is_weight(value: Value) -> bool:
    """True for a constant seen through any number of quantize and dequantize ops."""
    op = value.op
    while isinstance(op, (Quantize, Dequantize)):
        op = op.x.op
    return isinstance(op, Const)


def require_finite(n: Building, *operands: Value | None) -> None:
    """FrontendError naming the first weight or bias that holds NaN or infinity: no integer stands for those."""
    for value in operands:
        const = None if value is None else value.defined_by(Const)
        if const is not None and const.value.dtype.kind == "f" and not np.isfinite(const.value).all():
            why = "no integer stands for NaN or infinity"
            raise n.fail(
                f"the constant {quoted(const.node)} is not finite", why=why, hint="check the training or the export"
            )


def reshaped(n: Building, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` under another shape; a weight stays a weight where its quantisation axis survives."""
    return value if value.type.shape == shape else _moved(n, value, Reshape, {"shape": shape})


def transposed(n: Building, value: Value, perm: tuple[int, ...]) -> Value:
    """`value` with its axes permuted; a weight stays a weight."""
    return value if perm == tuple(range(len(perm))) else _moved(n, value, Transpose, {"perm": perm})


def scaled(n: Building, value: Value, factor: float) -> Value:
    """value · factor: in the constant or in its scales where `value` is one, else by a mul."""
    if factor == 1.0:
        return value
    op = value.op
    if isinstance(op, Const) and value.type.dtype is DType.F32:
        return n.const((op.value.astype(np.float64) * factor).astype(np.float32))
    source = op.x if isinstance(op, Dequantize) else None
    const = source.defined_by(Const) if source is not None else None
    if const is not None and factor > 0:
        q = const.out.type.quant
        assert q is not None, const
        scales = np.asarray(q.scale, np.float32) * np.float32(factor)
        quant = Quant(tuple(float(s) for s in scales), q.zero_point, q.axis)
        return n.op(Dequantize, n.scope.const(const.value, const.loc, const.out.name, quant))
    return n.op(Mul, value, n.const(np.float32(factor)))


def _moved(n: Building, value: Value, cls: type[Move], attrs: dict[str, Any]) -> Value:
    """The move applied as far up as it goes: through dequantize and quantize into the constant itself.

    Where a per-channel axis would be torn apart, it stays behind the dequantize, or drops the scales.
    """
    if is_weight(value) and _survives(n, value, cls, attrs):
        return _pushed(n, value, cls, attrs)
    torn = value.type.quant is not None and not _survives(n, value, cls, attrs)
    return n.op(cls, n.stripped(value) if torn else value, **attrs)


def _survives(n: Building, value: Value, cls: type[Move], attrs: dict[str, Any]) -> bool:
    """True where every per-channel axis on the way up to the constant has an image under the move."""
    try:
        _image(n, value, cls, attrs)
    except ValueError:
        return False
    op = value.op
    return _survives(n, op.x, cls, attrs) if isinstance(op, (Quantize, Dequantize)) and is_weight(value) else True


def _pushed(n: Building, value: Value, cls: type[Move], attrs: dict[str, Any]) -> Value:
    op = value.op
    if isinstance(op, Dequantize):
        return n.op(Dequantize, _pushed(n, op.x, cls, attrs))
    if isinstance(op, Quantize):
        quant = _image(n, value, cls, attrs).quant
        x = _pushed(n, op.x, cls, attrs)
        return n.op(Quantize, x, type=TensorType(x.type.shape, value.type.dtype, quant), narrow=op.narrow)
    assert isinstance(op, Const), op
    t = _image(n, value, cls, attrs)
    array = op.value.reshape(t.shape) if cls is Reshape else np.ascontiguousarray(op.value.transpose(attrs["perm"]))
    return n.scope.const(array, op.loc, op.out.name, t.quant)


def _image(n: Building, value: Value, cls: type[Move], attrs: dict[str, Any]) -> TensorType:
    """The move's result type for `value`; ValueError where a per-channel axis has no image."""
    stand_in = Value(value.type, n.scope.graph, 0)  # takes the use that a failed inference leaves behind
    return make_op(cls, [stand_in], attrs, n.loc).out.type


def limited_weight(n: Building, value: Value, low: float, high: float) -> Value | None:
    """The integers of a fake-quantised constant limited to [low, high]: its reals are, before they are quantised.

    None for any other value. Rounding keeps order, so it is the same to limit before as after.
    """
    op, quant = value.op, value.type.quant
    const = op.x.defined_by(Const) if isinstance(op, Quantize) else None
    if const is None or quant is None:
        return None
    scale, zero = quant_arrays(quant, value.type.rank)
    bounds = [np.float32(limit - zero) * scale for limit in (low, high)]
    reals = n.scope.const(np.clip(const.value, *bounds).astype(np.float32), const.loc, const.out.name)
    return n.op(Quantize, reals, type=value.type)
