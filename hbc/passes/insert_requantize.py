"""Give operands one scale where an op does no arithmetic of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, TensorType

from .base import Pass, Target


@dataclass(frozen=True)
class InsertRequantize(Pass):
    """concat, maximum, minimum and where take operands of their result's scale; a requantize makes them so (D12).

        %y = concat %a, %b : q<0.1>           %r = requantize %b : q<0.1>
          (a: q<0.1>, b: q<0.2>)          →   %y = concat %a, %r : q<0.1>

    add, sub and mul bring operands of any scale together themselves (D6).
    """

    name: ClassVar[str] = "insert-requantize"
    changes_numerics: ClassVar[bool] = True  # before it, the integers of such an op have no meaning

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in list(module.graph.ops):
            if isinstance(op, (ops.Concat, ops.Maximum, ops.Minimum, ops.Where)) and op.out.type.quant is not None:
                changes += self._unify(Rewriter(module.graph, op), op)
        return changes

    @staticmethod
    def _unify(rw: Rewriter, op: Op) -> int:
        want = op.out.type
        made: dict[Value, Value] = {}
        changes = 0
        for i, value in enumerate(op.operands):
            assert value is not None
            if value.type.dtype is DType.BOOL:  # the condition of a where
                continue
            if value.type.quant == want.quant and value.type.dtype is want.dtype:
                continue
            if value not in made:
                t = TensorType(value.type.shape, DType(want.dtype), want.quant)
                made[value] = rw.op(ops.Requantize, value, type=t, name=value.name and f"{value.name}.requantized").out
            op.set_operand(i, made[value])
            changes += 1
        return changes
