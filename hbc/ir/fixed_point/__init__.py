"""Quantised ops in integers: which instruction each is, with which constants.

Lowering emits it, the interpreter runs it. `derive(op, sem, arrays)` gives the `Fixed` of an op (arrays: the values of
its constant operands, None elsewhere); `evaluate(op, sem, arrays)` runs that instruction's NumPy reference on all
operands; `is_fixed(op)` says whether an op is in quantised form, so that its integers are defined here and not by its
float reference.
"""

from __future__ import annotations

import numpy as np

from hbc.diagnostics import PassError, ScaleOutOfRange, error
from hbc_runtime import isa, reference
from hbc_runtime.numerics import ScaleRangeError

from .. import ops
from ..core import Op
from ..semantics import Semantics
from ..types import TensorType
from . import conv, eltwise, move, pool, sample, select
from .core import Arrays, Derive, Fixed, Ref, View, flip_in, flip_out, signed, unview_array, view_array, view_shape

__all__ = [
    "ARITHMETIC", "CHOICES", "DERIVE", "Fixed", "Ref", "View", "derive", "evaluate", "is_fixed", "signed", "view_shape",
]  # fmt: skip

CHOICES = select.FAMILY  # ops whose operands or results are truth values or positions, which have no scale
ARITHMETIC: dict[type[Op], Derive] = {
    ops.Conv2d: conv.conv2d,
    ops.ConvTranspose2d: conv.conv_transpose2d,
    ops.Linear: conv.linear,
    ops.Matmul: conv.matmul,
    ops.BatchNorm: conv.batch_norm,
    ops.Add: eltwise.add,
    ops.Sub: eltwise.add,
    ops.Mul: eltwise.mul,
    ops.Maximum: eltwise.extremum,
    ops.Minimum: eltwise.extremum,
    ops.Clip: eltwise.clip,
    ops.Requantize: eltwise.requantize,
    ops.SegmentLut: eltwise.segment_lut,
    ops.AvgPool: pool.avg_pool,
    ops.MaxPool: pool.max_pool,
    ops.ReduceMean: pool.reduce_sum,
    ops.ReduceSum: pool.reduce_sum,
    ops.ReduceMax: pool.reduce_extremum,
    ops.ReduceMin: pool.reduce_extremum,
    ops.ResizeLinear: move.resize_linear,
    ops.GridSample: sample.grid_sample,
    ops.Equal: select.compare,
    ops.Less: select.compare,
    ops.LessOrEqual: select.compare,
    ops.Greater: select.compare,
    ops.GreaterOrEqual: select.compare,
    ops.LogicalAnd: select.logical,
    ops.LogicalOr: select.logical,
    ops.LogicalXor: select.logical,
    ops.LogicalNot: select.logical,
    ops.Where: select.where,
    ops.ArgMax: select.position,
    ops.ArgMin: select.position,
}

DERIVE: dict[type[Op], Derive] = {
    **ARITHMETIC,
    ops.Quantize: eltwise.quantize,
    ops.Dequantize: eltwise.dequantize,
    ops.FlipSign: eltwise.flip_sign,
    ops.Lut: eltwise.lut,
    ops.Reshape: move.reshape,
    ops.Reinterpret: move.reshape,
    ops.Transpose: move.transpose,
    ops.Slice: move.slice_,
    ops.Pad: move.pad,
    ops.Expand: move.expand,
    ops.Gather: move.gather,
    ops.Concat: move.concat,
    ops.ResizeNearest: move.resize_nearest,
}


def is_fixed(op: Op) -> bool:
    """True where the op is arithmetic in quantised form."""
    if isinstance(op, CHOICES):
        return select.has_integers(op)
    first = op.operands[0] if op.operands else None
    return type(op) in ARITHMETIC and first is not None and first.type.quant is not None


def derive(op: Op, sem: Semantics, arrays: Arrays) -> Fixed:
    """The instruction an op becomes. PassError naming op and tensors where its scales leave the fixed-point range."""
    try:
        return DERIVE[type(op)](op, sem, arrays)
    except ScaleRangeError as cause:
        values = [v for v in (*op.operands, *op.results) if v is not None]
        scales = [f"{v.name or 'operand'}: {v.type.quant.scale[:4]}" for v in values if v.type.quant is not None]
        raise error(
            PassError,
            f"{op.NAME} {op.node!r} cannot be requantised: {cause}",
            why=f"scales: {'; '.join(scales)}",
            hint=f"calibrate the result {op.results[0].name!r} again; its scale does not suit its operands' scales",
            kind=ScaleOutOfRange,
        ) from cause


def evaluate(op: Op, sem: Semantics, arrays: Arrays) -> list[np.ndarray]:
    """The op's integers by the NumPy reference of its instruction; unsigned types go through their signed twins."""
    fixed = derive(op, sem, arrays)
    ins = [_bound(x, arrays) for x in fixed.operands]
    t = signed(op.out.type)
    shape = view_shape(t.shape, fixed.out)
    result = reference.execute(_instruction(fixed), ins, [TensorType(shape, t.dtype)])[0]
    return [np.asarray(flip_out(unview_array(result, fixed.out, t.shape), op.out.type.dtype), order="C")]


def _instruction(fixed: Fixed) -> isa.Instruction:
    return fixed.instruction(inputs=(), outputs=(), **fixed.fields)


def _bound(x: Ref | np.ndarray | None, arrays: Arrays) -> np.ndarray | None:
    if not isinstance(x, Ref):
        return x
    array = flip_in(arrays[x.index])
    return None if array is None else view_array(array, x)
