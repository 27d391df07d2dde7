"""Which integers an op may take."""

from __future__ import annotations

import math

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Op
from hbc.ir.types import DType, Quant

from ..march import MarchSpec
from .registry import legal, reject

ACTIVATIONS = (
    ops.Conv2d, ops.ConvTranspose2d, ops.Linear, ops.Matmul, ops.BatchNorm, ops.Add, ops.Sub, ops.Mul, ops.Maximum,
    ops.Minimum, ops.Clip, ops.Requantize, ops.MaxPool, ops.AvgPool, ops.Reduce, ops.Lut, ops.SegmentLut,
    ops.ResizeLinear, ops.GridSample, ops.Move, ops.Concat,
)  # fmt: skip
WEIGHTED = (ops.Conv2d, ops.ConvTranspose2d, ops.Linear)


@legal(*ACTIVATIONS)
def activation_dtype(op: Op, march: MarchSpec) -> Rejection | None:
    """Activations on {march.name} are {march.activation_names}.

    Try: quantise the tensor to {march.activation_names}.
    """
    for value in (*op.operands, *op.results):
        if value is None or value.defined_by(ops.Const) or value.type.dtype is DType.I32:
            continue
        if value.type.dtype not in march.activations:
            reason = f"Here {value.name or 'one of its tensors'!r} is {value.type.dtype.text}."
            who = repr(value.name) if value.name else "it"
            return reject(reason, f"quantise {who} to {march.activation_names}")
    return None


@legal(*WEIGHTED)
def weight_dtype(op: Op, march: MarchSpec) -> Rejection | None:
    """Weights on {march.name} are {march.weight_names}, and never i16 beside i16 activations.

    Try: quantise weights to int8.
    """
    weight, x = op.operands[1], op.operands[0]
    assert weight is not None
    assert x is not None
    if weight.type.dtype is DType.I16 and x.type.dtype is DType.I16:
        return reject("Here both are i16.", "make one of them int8")
    if weight.type.dtype not in march.weights and weight.type.dtype is not DType.U8:
        return reject(f"Here weights are {weight.type.dtype.text}.")
    return None


@legal(ops.Matmul)
def matmul_dtypes(op: ops.Matmul, march: MarchSpec) -> Rejection | None:
    """A matmul takes at most one i16 operand.

    Try: make one of them int8.
    """
    if op.lhs.type.dtype is op.rhs.type.dtype is DType.I16:
        return reject("Here both are i16.")
    return None


@legal(ops.Mul)
def product_bits(op: ops.Mul, march: MarchSpec) -> Rejection | None:
    """The product of two integers, zero points taken off, fits 32 bits.

    Try: quantise one of them to int8, or both with a zero point of 0.
    """
    reach = [_reach(t.dtype, t.quant) for t in (op.lhs.type, op.rhs.type) if t.quant is not None]
    if math.prod(reach) < 1 << 31:
        return None
    return reject(f"Here they reach {' and '.join(map(str, reach))}.")


def _reach(dtype: DType, quant: Quant) -> int:
    lo, hi = dtype.limits
    return max(max(hi - z, z - lo) for z in quant.zero_point)


@legal(ops.ResizeLinear)
def resize_dtype(op: ops.ResizeLinear, march: MarchSpec) -> Rejection | None:
    """A bilinear resize takes i8.

    Try: quantise its operand to int8.
    """
    dtype = op.x.type.dtype
    return None if dtype is DType.I8 else reject(f"Here it is {dtype.text}.")


RULES = (activation_dtype, weight_dtype, matmul_dtypes, product_bits, resize_dtype)
