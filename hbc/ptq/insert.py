"""A float graph with quantize and dequantize ops where a plan wants them: the quantised model, or one with gates.

A gate is an input of the model, 0 or 1, that switches one tensor's rounding on: y = x + gate · (rounded − x). One model
with gates measures what each tensor's rounding costs, without a new session for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hbc.calibration.grid import Array
from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.location import Loc
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.matching import const_value

from .points import Plan
from .settings import Setting


@dataclass
class Inserted:
    """The new module; for each value of the old one what its readers read now, and the float value itself."""

    module: Module
    read: dict[Value, Value] = field(default_factory=dict)
    floats: dict[Value, Value] = field(default_factory=dict)
    gates: dict[Value, str] = field(default_factory=dict)  # of values and weights; the names of inputs


def insert(
    module: Module,
    plan: Plan,
    settings: Mapping[Value, Setting],
    *,
    gated: bool = False,
    corrections: Mapping[Op, Array] | None = None,
) -> Inserted:
    """A copy of `module` in which each value of `settings` is rounded, and biases of quantised products are integers.

    `gated`: behind gates, the biases as they are. `corrections`: other biases for products.
    """
    return _Inserter(module, plan, settings, gated, corrections or {}).run()


class _Inserter:
    def __init__(
        self,
        module: Module,
        plan: Plan,
        settings: Mapping[Value, Setting],
        gated: bool,  # noqa: FBT001 - two callers, both above
        corrections: Mapping[Op, Array],
    ) -> None:
        self.old, self.plan, self.settings = module, plan, settings
        self.gated, self.corrections = gated, corrections
        self.new = Graph(module.graph.name)
        self.done = Inserted(Module(self.new, module.name, module.march, module.arith, dict(module.metadata)))

    def run(self) -> Inserted:
        read, loc = self.done.read, next((op.loc for op in self.old.graph.ops), None)
        for arg in self.old.graph.args:
            read[arg] = self.done.floats[arg] = self.new.add_arg(str(arg.name), arg.type)
        for arg in self.old.graph.args:
            if arg in self.settings and loc is not None:
                self._round(arg, next((u.loc for u in arg.users), loc))
        for op in self.old.graph.ops:
            self._copy(op)
        for out in self.old.graph.outputs:
            self.new.add_output(out.name, read[out.value])
        return self.done

    def _copy(self, op: Op) -> None:
        operands = [None if v is None else self.done.read[v] for v in op.operands]
        if op in self.plan.weights and not self.gated:
            operands[2] = self._bias(op, operands[2])
        made = make_op(type(op), operands, dict(op.attrs), op.loc, [r.type for r in op.results])
        self.new.ops.append(made)
        for old, result in zip(op.results, made.results, strict=True):
            result.name = old.name
            self.done.read[old] = self.done.floats[old] = result
            if old in self.settings:
                self._round(old, op.loc)

    def _round(self, old: Value, loc: Loc) -> None:
        """Let readers of `old` read it rounded."""
        setting, x = self.settings[old], self.done.read[old]
        t = TensorType(old.type.shape, setting.dtype, setting.quant)
        if isinstance(old.op, ops.Const):
            q = self._add(ops.Const, [], {"value": setting.integers(old.op.value)}, loc, t)
        else:
            q = self._add(ops.Quantize, [x], {}, loc, t)
        q.name = f"{old.name}_quantized"
        rounded = self._add(ops.Dequantize, [q], {}, loc, old.type)
        rounded.name = f"{old.name}_dequantized"
        self.done.read[old] = self._gated(old, x, rounded, loc) if self.gated else rounded

    def _gated(self, old: Value, x: Value, rounded: Value, loc: Loc) -> Value:
        name = f"gate:{len(self.done.gates)}"
        gate = self.new.add_arg(name, TensorType((), DType.F32))
        self.done.gates[old] = name
        error = self._add(ops.Sub, [rounded, x], {}, loc, old.type)
        switched = self._add(ops.Mul, [error, gate], {}, loc, old.type)
        return self._add(ops.Add, [x, switched], {}, loc, old.type)

    def _bias(self, op: Op, bias: Value | None) -> Value | None:
        """The bias in steps of the accumulator, i32, where both scales are known."""
        x, weight, old = op.operands[0], op.operands[1], op.operands[2]
        reals = self.corrections.get(op, None if old is None else const_value(old))
        if reals is None or x is None or weight is None:
            return bias
        name = f"{weight.name}/bias" if old is None else old.name
        if op in self.corrections:
            bias = self._add(ops.Const, [], {"value": reals}, op.loc, TensorType(reals.shape, DType.F32))
            bias.name = f"{name}_corrected"
        source = self.settings.get(self.plan.root.get(x, x))
        if source is None or weight not in self.settings:
            return bias
        steps = np.float32(source.scale[0]) * np.asarray(self.settings[weight].scale, np.float32)
        steps = np.broadcast_to(steps, reals.shape)
        values = np.rint(reals.astype(np.float64) / steps.astype(np.float64))
        if np.abs(values).max(initial=0) >= 2**31:
            return bias
        quant = Quant(tuple(map(float, steps)), (0,) * len(steps), 0)
        t = TensorType(reals.shape, DType.I32, quant)
        q = self._add(ops.Const, [], {"value": values.astype(np.int32)}, op.loc, t)
        q.name = f"{name}_quantized"
        made = self._add(ops.Dequantize, [q], {}, op.loc, t.as_float())
        made.name = f"{name}_dequantized"
        return made

    def _add(
        self, cls: type[Op], operands: list[Value | None], attrs: Mapping[str, object], loc: Loc, t: TensorType
    ) -> Value:
        op = make_op(cls, operands, attrs, loc, [t])
        self.new.ops.append(op)
        return op.out
