"""Instructions that look one i8 tensor up, one after another, become one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Graph, Module, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, TensorType
from hbc_runtime import isa, reference

from .base import Pass, Target
from .matching import const_value

EVERY_BYTE = np.arange(-128, 128).astype(np.int8)
# How many operands, from the first on, hold elements; behind them stand parameters, which have to be constants.
ELEMENTS: dict[type[isa.Instruction], int] = {
    isa.Lut: 1, isa.Requantize: 1, isa.Clamp: 1, isa.Add: 2, isa.Mul: 2, isa.Maximum: 2, isa.Minimum: 2,
}  # fmt: skip


@dataclass(frozen=True)
class ComposeTables(Pass):
    """Elementwise instructions over one i8 tensor and constants are one table of 256 entries: the same integers.

        %a = bpu.lut %x, %t
        %b = bpu.lut %a, %u                        %v = const dense<…> : tensor<256xi8>
        %y = bpu.mul %a, %b, %mult, %pre, %post  →  %y = bpu.lut %x, %v

    A model that quantises after every operator brings such chains. An instruction that stands alone stays; a table
    that changes nothing, not even the scale, vanishes.
    """

    name: ClassVar[str] = "compose-tables"
    absorbs: ClassVar[str] = "its table changes nothing, or is part of the next one"

    def run(self, module: Module, target: Target) -> int:
        del target
        known: dict[Value, _Function] = {}
        changes = 0
        for op in module.graph.walk(ops.BpuOp):
            function = _function_of(op, known)
            if function is None:
                continue
            known[op.out] = function
            if function.steps < 2 or op.out.type.dtype not in isa.INT_ACT:
                continue
            new = _replaced(module.graph, op, function)
            if new is not None:
                known[new.out] = _Function(function.source, function.table, 1, (new,))
            changes += 1
        return changes


@dataclass(frozen=True)
class _Function:
    """A value as a function of the bytes of another: its integers for −128 … 127, and how many ops compute them."""

    source: Value
    table: np.ndarray
    steps: int
    ops: tuple[ops.BpuOp, ...]


def _function_of(op: ops.BpuOp, known: dict[Value, _Function]) -> _Function | None:
    """The op's result as a function of one i8 tensor of its shape, or None."""
    count, t = ELEMENTS.get(op.INSTRUCTION, 0), op.out.type
    if not count or not t.shape or op.placement is None or op.placement.device == "cpu":
        return None
    parameters = [const_value(v) for v in op.operands[count:]]
    if any(v is not None and (p is None or p.shape not in {(1,), (256,)}) for v, p in _paired(op, count, parameters)):
        return None
    read: list[_Function] = []
    arrays: list[np.ndarray | None] = []
    shape = (*(1 for _ in t.shape[1:]), 256)
    for value in op.operands[:count]:
        assert value is not None
        number = const_value(value)
        if number is not None and number.size == 1:
            arrays.append(number)
            continue
        one = known.get(value) or _itself(value)
        if one is None or value.type.shape != t.shape:
            return None
        read.append(one)
        arrays.append(one.table.reshape(shape))
    if not read or any(f.source is not read[0].source for f in read):
        return None
    (y,) = reference.execute(op.instruction(), [*arrays, *parameters], [TensorType(shape, t.dtype)])
    steps = 1 + sum(f.steps for f in read) + (len(read) - 1)
    made = dict.fromkeys(o for f in read for o in f.ops)
    return _Function(read[0].source, y.reshape(256), steps, (*made, op))


def _paired(
    op: ops.BpuOp, count: int, parameters: list[np.ndarray | None]
) -> list[tuple[Value | None, np.ndarray | None]]:
    return list(zip(op.operands[count:], parameters, strict=True))


def _itself(value: Value) -> _Function | None:
    """An i8 tensor that is computed, as a function of itself."""
    if value.type.dtype is not DType.I8 or value.defined_by(ops.Const) is not None:
        return None
    return _Function(value, EVERY_BYTE, 0, ())


def _replaced(graph: Graph, op: ops.BpuOp, function: _Function) -> ops.BpuOp | None:
    """Let the readers of `op` read a table's result, whose op is returned; None where they read the source itself."""
    source, rw = function.source, Rewriter(graph, op)
    if source.type == op.out.type and not op.out.is_output and np.array_equal(function.table, EVERY_BYTE):
        rw.replace(op, source, *function.ops[:-1])
        return None
    table = rw.op(ops.Const, value=function.table)
    new = rw.op(ops.BPU_OPS[isa.Lut], source, table.out, type=op.out.type)
    new.placement = op.placement
    rw.replace(op, new, *function.ops[:-1])
    return new
