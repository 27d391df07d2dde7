"""Builds one ONNX graph out of IR ops: names, initializers, nodes, and the opset's dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from hbc.diagnostics import EmitError, NoCpuForm, error
from hbc.ir.core import Op, Value
from hbc.ir.ops import Const
from hbc.ir.types import DYNAMIC, DType

from .unsigned_weights import with_unsigned_weights

OpT = TypeVar("OpT", bound=Op)
Emitted = str | Sequence[str]
EmitRule = Callable[["Emitter", OpT], Emitted]

INLINE = 64  # bytes of a constant below which equal ones share an initializer: shapes, axes, bounds


def no_cpu_form(op: Op, why: str) -> EmitError:
    """An op that must run on the CPU, and can't."""
    return error(EmitError, f"{op.NAME} of node {op.node!r} can't run on the CPU", why=why, kind=NoCpuForm)


class Emitter:
    """Nodes and initializers so far. `opset` is ONNX's own domain's: rules choose attribute or operand forms by it."""

    def __init__(self, opsets: dict[str, int]) -> None:
        self.opsets = opsets
        self.opset = opsets[""]
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.names: dict[Value, str] = {}
        self._count = 0
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._node_names: dict[str, int] = {}
        self._op: Op | None = None

    # -- names

    def fresh(self) -> str:
        """A tensor name that nothing has yet."""
        self._count += 1
        return f"t{self._count - 1}"

    def tensor(self, value: Value | None) -> str:
        """The tensor of a value; a constant made outside the segment is embedded. EmitError where nothing makes it."""
        if value is None:
            return ""
        if value not in self.names:
            if not isinstance(value.op, Const):
                raise self.error(
                    f"operand {value.name or value.index!r} is made outside the segment and is no input of it"
                )
            self.names[value] = self.const(value.op.value)
        return self.names[value]

    def error(self, why: str) -> EmitError:
        """An EmitError that names the op being emitted and the user's node."""
        if self._op is None:
            return error(EmitError, "a CPU segment can't be written as ONNX", why=why, kind=NoCpuForm)
        return no_cpu_form(self._op, why)

    # -- building

    def emit(self, op: Op, rule: EmitRule[Op]) -> None:
        """Apply a rule and note where the op's results are."""
        self._op = op
        made = rule(self, op)
        names = [made] if isinstance(made, str) else list(made)
        self.names.update(zip(op.results, names, strict=True))
        self._op = None

    def const(self, array: np.ndarray) -> str:
        """An initializer."""
        array = np.asarray(array, order="C")
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= INLINE else None
        if key is not None and key in self._shared:
            return self._shared[key]
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(array, name))
        if key is not None:
            self._shared[key] = name
        return name

    def ints(self, values: Sequence[int]) -> str:
        """An i64 initializer of rank 1."""
        return self.const(np.asarray(values, np.int64))

    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """A node with one output, under the user's node name; attributes that are None are left out."""
        out = self.fresh()
        given = {k: v for k, v in attrs.items() if v is not None}
        trimmed = list(inputs)
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        if not onnx.defs.has(op_type, self.opset):
            raise self.error(f"opset {self.opset} has no {op_type}")
        self.nodes.append(helper.make_node(op_type, trimmed, [out], name=self.node_name(), **given))
        return out

    def node_name(self, given: str = "") -> str:
        """A name, by default the user's of the op being emitted, made unique: ONNX Runtime refuses equal names."""
        name = given or (self._op.node if self._op is not None else "output")
        count = self._node_names[name] = self._node_names.get(name, 0) + 1
        if count == 1:
            return name
        return f"{name}#{count}"

    # -- forms that differ by opset

    def cast(self, x: str, dtype: DType) -> str:
        """Cast to a dtype."""
        return self.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(dtype.numpy))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Reshape to known sizes; a size of 0 is meant literally where the opset can say so."""
        if 0 in shape and self.opset < 14:
            raise self.error("a size of 0 means 'copy' to Reshape before opset 14")
        literal = 1 if 0 in shape else None
        return self.node("Reshape", x, self.ints(shape), allowzero=literal)

    def clip(self, x: str, low: float, high: float) -> str:
        """x limited to [low, high], f32; infinite bounds are left out."""
        if (low, high) == (-np.inf, np.inf):
            return x
        if (low, high) == (0.0, np.inf):
            return self.node("Relu", x)
        bounds: dict[str, Any] = {"min": low if np.isfinite(low) else None, "max": high if np.isfinite(high) else None}
        if self.opset < 11:
            return self.node("Clip", x, **bounds)
        return self.node("Clip", x, *("" if v is None else self.const(np.float32(v)) for v in bounds.values()))

    def model(self, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> bytes:
        """The serialised model; same ops, same bytes."""
        graph = helper.make_graph(
            self.nodes, name or "segment", [_info(self.names[v], v) for v in inputs],
            self._named_outputs(inputs, outputs), self.initializers,
        )  # fmt: skip
        opsets = [helper.make_opsetid(d, v) for d, v in sorted(self.opsets.items())]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="hbc", ir_version=_ir_version(self.opset))
        with_unsigned_weights(model)
        return bytes(model.SerializeToString(deterministic=True))

    def _named_outputs(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> list[onnx.ValueInfoProto]:
        """Outputs under names of their own, whatever makes them: t(n), t(n+1), … behind the n inputs."""
        infos = []
        for i, v in enumerate(outputs):
            info = _info(f"t{len(inputs) + i}", v)
            source = self.tensor(v)
            self.nodes.append(helper.make_node("Identity", [source], [info.name], name=self.node_name()))
            infos.append(info)
        return infos

    def reserve(self, count: int) -> None:
        """Keep the next `count` names for the graph's outputs."""
        self._count += count


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    elem_type = helper.np_dtype_to_tensor_dtype(value.type.dtype.numpy)
    return helper.make_tensor_value_info(name, elem_type, [None if d == DYNAMIC else d for d in value.type.shape])


def _ir_version(opset: int) -> int:
    """The first ONNX IR version that allows the opset, 8 at least."""
    return 11 if opset >= 23 else 10 if opset >= 21 else 9 if opset >= 19 else 8


class EmitRules:
    """Rules by op class."""

    def __init__(self) -> None:
        self.table: dict[type[Op], EmitRule[Op]] = {}

    def __call__(
        self, *classes: type[Op]
    ) -> Callable[[Callable[[Emitter, OpT], Emitted]], Callable[[Emitter, OpT], Emitted]]:
        """`@rules(Conv2d)` makes a function the rule of a class."""

        def mark(rule: Callable[[Emitter, OpT], Emitted]) -> Callable[[Emitter, OpT], Emitted]:
            for cls in classes:
                assert cls not in self.table, f"two rules for {cls.NAME}"
                self.table[cls] = rule  # type: ignore[assignment]
            return rule

        return mark
