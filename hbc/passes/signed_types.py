"""Unsigned quantised tensors become signed ones: the top bit flipped, the zero point moved by half the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.location import Loc
from hbc.ir.ops.quant import flip_array, flip_type
from hbc.ir.types import DType, TensorType

from .base import Pass, Target

UNSIGNED = (DType.U8, DType.U16)
AGNOSTIC = (
    ops.Quantize,
    ops.Move,
    ops.Concat,
    ops.MaxPool,
    ops.ReduceMax,
    ops.ReduceMin,
    ops.Reinterpret,
    ops.Requantize,
    ops.Dequantize,
)


@dataclass(frozen=True)
class SignedTypes(Pass):
    """Only signed integers inside; a flip at the border where the user's tensors are unsigned.

    Exact (NUMERICS 1).

        graph(%x: tensor<u8, q<0.1:128>>)             graph(%x: tensor<u8, q<0.1:128>>)
        %a = dequantize %x                        →   %s = flip_sign %x : tensor<i8, q<0.1:0>>
                                                      %a = dequantize %s
    """

    name: ClassVar[str] = "signed-types"

    def run(self, module: Module, target: Target) -> int:
        walk = _Walk(module.graph)
        for arg in module.graph.args:
            walk.add_twin(arg)
        for op in list(module.graph.ops):
            walk.visit(op)
        walk.restore_outputs()
        module.graph.ops = walk.body
        return walk.changes


class _Walk:
    """One pass over the ops.

    `twins` maps unsigned values that stay to their signed twins, `turned` holds those that became signed.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.body: list[Op] = []
        self.twins: dict[Value, Value] = {}
        self.turned: set[Value] = set()
        self.changes = 0

    def visit(self, op: Op) -> None:
        """Rewire the op's operands, then turn its unsigned results or give them twins."""
        agnostic = _is_agnostic(op)
        for i, value in enumerate(op.operands):
            if value in self.turned and not agnostic:
                op.set_operand(i, self.flip(value, op.loc))
            elif value in self.twins and agnostic:
                op.set_operand(i, self.twins[value])
        self.body.append(op)
        for result in op.results:
            if agnostic or isinstance(op, ops.Const):
                self.turn(op, result)
            else:
                self.add_twin(result)

    def turn(self, op: Op, result: Value) -> None:
        """Give the result the signed type of the same reals."""
        if not _is_unsigned(result.type):
            return
        if isinstance(op, ops.Const):
            op.attrs["value"] = flip_array(op.value)
        result.type = flip_type(result.type)
        self.turned.add(result)
        self.changes += 1

    def add_twin(self, value: Value) -> None:
        """A signed twin for the sign-agnostic readers of an unsigned value that must stay as it is."""
        readers = [u for u in value.users if _is_agnostic(u)]
        if _is_unsigned(value.type) and readers:
            self.twins[value] = self.flip(value, value.op.loc if value.op is not None else readers[0].loc)
            self.changes += 1

    def flip(self, value: Value, loc: Loc) -> Value:
        """The value with its top bit flipped."""
        op = make_op(ops.FlipSign, [value], {}, loc)
        self.body.append(op)
        return op.out

    def restore_outputs(self) -> None:
        """Flip back the graph outputs that were unsigned: the user's dtype stays."""
        for i, output in enumerate(self.graph.outputs):
            value = output.value
            if value in self.turned and value.op is not None:
                back = self.flip(value, value.op.loc)
                self.graph.set_output(i, back)


def _is_agnostic(op: Op) -> bool:
    """True where flipping operand and result together changes nothing.

    Plain integers on one side of a reinterpret are what they are.
    """
    if isinstance(op, ops.Reinterpret):
        return op.x.type.quant is not None and op.out.type.quant is not None
    return isinstance(op, AGNOSTIC)


def _is_unsigned(t: TensorType) -> bool:
    return t.quant is not None and t.dtype in UNSIGNED
