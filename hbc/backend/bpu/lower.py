"""Emit the instruction form of ops: `fixed_point.derive` says which, this module puts it into the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbc.ir import fixed_point, ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Placement, Value
from hbc.ir.fixed_point import Fixed, Ref, View, view_shape
from hbc.ir.fixed_point.core import view_array
from hbc.ir.location import FileLoc, Loc
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc_runtime import isa

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def lower_module(module: Module, sem: Semantics) -> int:
    """Replace every op placed on `bpu` or `host` that has an instruction form; returns how many were."""
    lowering = _Lowering(module.graph, sem)
    for op in module.graph.ops:
        lowering.visit(op)
    module.graph.ops = lowering.body
    return lowering.changes + copy_shared_outputs(module.graph)


def copy_shared_outputs(graph: Graph) -> int:
    """Give every graph output a buffer of its own: copies of inputs, constants, values returned twice.

    A copy is a `bpu.reshape` to the same shape; memory planning never aliases one whose result is an output.
    """
    last = max((op.placement.segment for op in graph.ops if op.placement is not None), default=0)
    seen: set[Value] = set()
    copies = 0
    for i, output in enumerate(graph.outputs):
        value = output.value
        if value.op is not None and not isinstance(value.op, ops.Const) and value not in seen:
            seen.add(value)
            continue
        loc = value.op.loc if value.op is not None else FileLoc(output.name)
        copy = make_op(ops.BPU_OPS[isa.Reshape], [value], {}, loc, [value.type], [output.name])
        copy.placement = Placement("host", "an output of its own", last + last % 2)
        graph.ops.append(copy)
        graph.set_output(i, copy.out)
        copies += 1
    return copies


class _Lowering:
    def __init__(self, graph: Graph, sem: Semantics) -> None:
        self.graph, self.sem = graph, sem
        self.body: list[Op] = []
        self.changes = 0

    def visit(self, op: Op) -> None:
        """Keep the op, or append its instruction form and let its readers read that."""
        if op.placement is None or op.placement.device == "cpu" or isinstance(op, ops.BpuOp):
            self.body.append(op)
            return
        arrays = [None if v is None or (c := v.defined_by(ops.Const)) is None else c.value for v in op.operands]
        fixed = fixed_point.derive(op, self.sem, arrays)
        operands = [self.operand(op, x) for x in fixed.operands]
        t = op.out.type
        shape = view_shape(t.shape, fixed.out)
        inner = TensorType(shape, t.dtype, _viewed_quant(t, fixed.out))
        cls = ops.BPU_OPS[fixed.instruction]
        result = self.add(cls, operands, fixed.fields, op, inner)
        value = self.unview(result, fixed, op)
        value.name = op.out.name
        self.graph.replace_uses(op.out, value)
        op.drop_operands()
        self.changes += 1

    def add(
        self, cls: type[Op], operands: Sequence[Value | None], fields: Mapping[str, object], op: Op, t: TensorType
    ) -> Value:
        """A new op in `op`'s place."""
        new = make_op(cls, operands, fields, op.loc, [t])
        new.placement = op.placement
        self.body.append(new)
        return new.out

    def const(self, value: np.ndarray, loc: Loc, t: TensorType | None = None) -> Value:
        """A constant parameter."""
        value = np.ascontiguousarray(value)
        new = make_op(ops.Const, [], {"value": value}, loc, [t or TensorType(value.shape, DType.of(value.dtype))])
        self.body.append(new)
        return new.out

    def operand(self, op: Op, x: Ref | np.ndarray | None) -> Value | None:
        """A derived constant, or an operand under its view (constants are viewed at compile time)."""
        if x is None:
            return None
        if isinstance(x, np.ndarray):
            return self.const(x, op.loc)
        value = op.operands[x.index]
        if value is None or x.view is View.SAME:
            return value
        shape = view_shape(value.type.shape, x)
        if x.view is View.RESHAPE and shape == value.type.shape:
            return value
        t = TensorType(shape, value.type.dtype, _viewed_quant(value.type, x))
        const = value.defined_by(ops.Const)
        if const is not None:
            return self.const(view_array(const.value, x), const.loc, t)
        if x.view is View.NHWC:
            return self.add(ops.BPU_OPS[isa.Transpose], [value], {"perm": TO_NHWC}, op, t)
        return self.add(ops.BPU_OPS[isa.Reshape], [value], {}, op, t)

    def unview(self, result: Value, fixed: Fixed, op: Op) -> Value:
        """The instruction's result in the op's own shape."""
        t = op.out.type
        if fixed.out.view is View.NHWC:
            return self.add(ops.BPU_OPS[isa.Transpose], [result], {"perm": TO_NCHW}, op, t)
        if result.type.shape != t.shape:
            return self.add(ops.BPU_OPS[isa.Reshape], [result], {}, op, t)
        result.type = t
        return result


def _viewed_quant(t: TensorType, ref: Ref) -> Quant | None:
    """The quantisation under a view: the channel axis moves to the end; where a view hides the axis nothing is said."""
    q = t.quant
    if q is None or q.axis is None or ref.view is View.SAME:
        return q
    if ref.view is View.NHWC:
        return Quant(q.scale, q.zero_point, {0: 0, 1: 3, 2: 1, 3: 2}[q.axis])
    if ref.view is View.ROWS and q.axis == t.rank - 1:
        return Quant(q.scale, q.zero_point, 3)
    return None
