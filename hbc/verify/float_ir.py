"""The float model behind a quantised one: the IR as it was taken in, without its quantize and dequantize ops.

Weights are the dequantised ones. What a quantisation did besides rounding is kept where a generator is known to fold it
there: a range that begins at 0 keeps its relu, one from 0 to 6 its relu6. Other saturation is taken out with the pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.ops.quant import quant_arrays
from hbc.ir.types import TensorType
from hbc_runtime import numerics

SIX = 1e-3  # how near to 6 a range must end to be a relu6's


def without_quantisation(
    module: Module, keep: Callable[[ops.Quantize], bool] = lambda _op: False
) -> tuple[Module, dict[str, str]]:
    """A new module in floats, and for each quantised or dequantised tensor's name the float's that stands for it.

    `keep`: quantize ops that go on rounding, each with a dequantize behind it.
    """
    walk = _Walk(module, keep)
    return Module(walk.run(), module.name, module.march, module.arith, dict(module.metadata)), walk.names


class _Walk:
    """`made`: for each old value the new one; for a quantised value the float that it stands for."""

    def __init__(self, module: Module, keep: Callable[[ops.Quantize], bool]) -> None:
        self.old, self.keep = module.graph, keep
        self.new = Graph(module.graph.name)
        self.made: dict[Value, Value] = {}
        self.names: dict[str, str] = {}

    def run(self) -> Graph:
        for arg in self.old.args:
            self.made[arg] = self.as_float(self.new.add_arg(str(arg.name), arg.type), arg)
        for op in self.old.ops:
            self.visit(op)
        for out in self.old.outputs:
            self.new.add_output(out.name, self.made[out.value])
        return self.new

    def visit(self, op: Op) -> None:
        if isinstance(op, ops.Const):
            self.constant(op)
        elif isinstance(op, ops.Quantize) and self.keep(op):
            rounded = self.add(ops.Quantize, [self.made[op.x]], dict(op.attrs), op, op.out.type)
            self.made[op.out] = self.add(ops.Dequantize, [rounded], {}, op, op.out.type.as_float())
        elif isinstance(op, ops.Quantize):
            self.stand(op.out, self.limited(op, self.made[op.x]))
        elif isinstance(op, ops.Dequantize):
            self.stand(op.out, self.made[op.x])
        elif any(v is not None and v.type.quant is not None for v in (*op.operands, *op.results)):
            self.on_integers(op)
        else:
            self.copy(op)

    def stand(self, old: Value, new: Value) -> None:
        """Let `new` be what `old` is; the first name that it meets is its name."""
        self.made[old] = new
        if new.name is None:
            new.name = old.name
        if old.name and new.name and old.name != new.name:
            self.names[old.name] = new.name

    def constant(self, op: ops.Const) -> None:
        t = op.out.type
        value = op.value if t.quant is None else numerics.dequantize(op.value, *quant_arrays(t.quant, t.rank))
        made = self.add(ops.Const, [], {"value": np.asarray(value)}, op, None)
        made.name = op.out.name
        self.made[op.out] = made

    def limited(self, op: ops.Quantize, x: Value) -> Value:
        """`x`, through the relu that the range of `op` stands for."""
        quant = op.out.type.quant
        assert quant is not None
        low, high = op.limits
        begins = all(z == low for z in quant.zero_point)
        if not begins or isinstance(x.op, ops.Clip) or x.op is None or isinstance(x.op, ops.Const):
            return x
        ends = [s * (high - z) for s, z in zip(quant.scale, quant.zero_point, strict=True)]
        top = 6.0 if all(math.isclose(e, 6.0, rel_tol=SIX) for e in ends) else math.inf
        made = self.add(ops.Clip, [x], {"low": 0.0, "high": top}, op, x.type)
        made.name, x.name = x.name or op.out.name, None
        return made

    def on_integers(self, op: Op) -> None:
        """An op that moves integers moves floats instead; a call and a reinterpret compute on the integers."""
        if isinstance(op, ops.Call | ops.Reinterpret):
            operands = [None if v is None else self.as_integers(v, op) for v in op.operands]
            for old, result in zip(op.results, self.made_like(op, operands, [r.type for r in op.results]), strict=True):
                self.stand(old, self.as_float(result, old))
            return
        types = [r.type if r.type.quant is None else r.type.as_float() for r in op.results]
        operands = [None if v is None else self.made[v] for v in op.operands]
        for old, result in zip(op.results, self.made_like(op, operands, types), strict=True):
            self.stand(old, result)

    def as_integers(self, v: Value, reader: Op) -> Value:
        """The integers that `v` was, from the float that stands for it."""
        made = self.made[v]
        return made if v.type.quant is None else self.add(ops.Quantize, [made], {}, reader, v.type)

    def as_float(self, new: Value, old: Value) -> Value:
        """The float of a quantised value; others are what they are."""
        if old.type.quant is None:
            return new
        reader = old.op or next(iter(old.users), None)
        return new if reader is None else self.add(ops.Dequantize, [new], {}, reader, old.type.as_float())

    def copy(self, op: Op) -> None:
        operands = [None if v is None else self.made[v] for v in op.operands]
        for old, result in zip(op.results, self.made_like(op, operands, [r.type for r in op.results]), strict=True):
            self.stand(old, result)

    def made_like(self, op: Op, operands: list[Value | None], types: list[TensorType]) -> list[Value]:
        """The results of a new op like `op`."""
        made = make_op(type(op), operands, dict(op.attrs), op.loc, types)
        self.new.ops.append(made)
        return made.results

    def add(
        self, cls: type[Op], operands: list[Value | None], attrs: dict[str, object], like: Op, t: TensorType | None
    ) -> Value:
        """A new op at the place of `like`."""
        op = make_op(cls, operands, attrs, like.loc, None if t is None else [t])
        self.new.ops.append(op)
        return op.out
