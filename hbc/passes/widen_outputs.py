"""High-precision outputs: the accumulator itself where nothing quantises the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import fixed_point, ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, Quant, TensorType

from .base import Pass, Target
from .fold_qdq import WEIGHTED, fold_operands, fold_weighted
from .matching import is_default_clip


@dataclass(frozen=True)
class WidenOutputs(Pass):
    """A weighted op over integers whose result stays real returns its i32 accumulator (NUMERICS 6).

        %c = conv2d (dequantize %x), (dequantize %w), %b
            → %a = conv2d %x, %w, %b : tensor<…xi32, q<axis=1, s_x · s_w>>
              %c = dequantize %a

    No rounding term, no requantisation; the scale is per channel, float32 s_x·s_w. Two activations' matmul likewise.
    """

    name: ClassVar[str] = "widen-outputs"
    changes_numerics: ClassVar[bool] = True  # the bias is rounded to accumulator steps

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in list(module.graph.ops):
            if not isinstance(op, (*WEIGHTED, ops.Matmul)) or op.out.type.dtype is not DType.F32 or not op.out.uses:
                continue
            rw = Rewriter(module.graph, op)
            operands = (fold_operands if isinstance(op, ops.Matmul) else fold_weighted)(rw, op, target.semantics)
            if operands is None or not is_default_clip(op) or getattr(op, "addend", None) is not None:
                continue
            t = TensorType(op.out.type.shape, DType.I32, _scale(op, operands))
            wide = rw.op(type(op), *operands, type=t, **op.attrs)
            rw.replace(op, rw.op(ops.Dequantize, wide.out), wide)
            wide.loc = op.loc
            changes += rw.changes
        return changes


def _scale(op: Op, operands: list[Value | None]) -> Quant:
    a, b = operands[0], operands[1]
    assert a is not None
    assert b is not None
    if isinstance(op, ops.Matmul):
        return Quant.per_tensor(a.type.quant.scale[0] * b.type.quant.scale[0])  # type: ignore[union-attr]
    axis = op.out.type.rank - 1 if isinstance(op, ops.Linear) else 1
    scale = fixed_point.conv.accumulator_scale(a.type, b.type, op.out.type.shape[axis])
    return Quant(tuple(float(s) for s in np.float32(scale)), (0,), axis)
