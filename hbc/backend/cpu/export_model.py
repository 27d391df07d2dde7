"""A whole module as an ONNX model: inputs, outputs, nodes and tensors under the user's names, Q and DQ as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper

from hbc.diagnostics import EmitError, error
from hbc.ir.core import Module, Op, Value
from hbc.ir.ops import CALLS, BatchNorm, Const, Dequantize, Quantize, ResizeLinear
from hbc.ir.types import DYNAMIC, DType, Quant

from .emitter import EmitRule, Emitter, _ir_version, no_cpu_form
from .export import _rules
from .opsets import segment_opset, subgraphs

NEWEST = 21  # the first opset whose QuantizeLinear knows int16
MICROSOFT = "com.microsoft"  # has int16 in every opset


@dataclass(frozen=True)
class ExportedModel:
    """The model, and the tensor that each value became."""

    proto: onnx.ModelProto
    names: Mapping[Value, str]

    def to_bytes(self) -> bytes:
        """The serialised model; the same module gives the same bytes."""
        return bytes(self.proto.SerializeToString(deterministic=True))


def export_model(module: Module, *, expose: Iterable[Value] = ()) -> ExportedModel:
    """`module` as ONNX, values `expose` as further outputs. Quantize and dequantize are QuantizeLinear and its inverse.

    Opset 19 (21 where there is int16), or the one that the module's calls are written in: int16 is com.microsoft's
    where that is older. EmitError names the op that has no ONNX form.
    """
    graph = module.graph
    e = Emitter(_opsets(graph.ops))
    taken = {str(a.name) for a in graph.args} | {o.name for o in graph.outputs}
    e.reserve(1 + max((int(n[1:]) for n in taken if n[:1] == "t" and n[1:].isdecimal()), default=-1))
    for arg in graph.args:
        e.names[arg] = str(arg.name)
    rules = {**_rules(), Quantize: _quantize, Dequantize: _dequantize, BatchNorm: _batch_norm, ResizeLinear: _resize}
    for op in graph.ops:
        if isinstance(op, Const):
            continue
        if type(op) not in rules:
            raise no_cpu_form(op, "only the BPU has it")
        e.emit(op, rules[type(op)])
    infos = [_info(str(a.name), a) for a in graph.args]
    claimed: dict[str, str] = {}
    outputs = [_output(e, o.name, o.value, claimed) for o in graph.outputs]
    renamed = {**claimed, **_renamed(e, taken, claimed)}
    exposed = [onnx.ValueInfoProto(name=e.names[v]) for v in dict.fromkeys(expose) if e.names[v] not in taken]
    made = helper.make_graph(e.nodes, module.name or "model", infos, outputs + exposed, e.initializers)
    _rename(made, renamed)
    for info in made.output:
        info.name = renamed.get(info.name, info.name)
    opsets = [helper.make_opsetid(d, v) for d, v in sorted(e.opsets.items())]
    proto = helper.make_model(made, opset_imports=opsets, producer_name="hbc", ir_version=_ir_version(e.opset))
    return ExportedModel(proto, {v: renamed.get(n, n) for v, n in e.names.items()})


def _opsets(ops: Iterable[Op]) -> dict[str, int]:
    found = segment_opset(list(ops))
    wide = any(r.type.dtype is DType.I16 for op in ops for r in op.results)
    if wide and not any(isinstance(op, CALLS) for op in ops):
        found[""] = NEWEST
    return {**found, MICROSOFT: found.get(MICROSOFT, 1)}


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    elem_type = helper.np_dtype_to_tensor_dtype(value.type.dtype.numpy)
    return helper.make_tensor_value_info(name, elem_type, [None if d == DYNAMIC else d for d in value.type.shape])


def _output(e: Emitter, name: str, value: Value, claimed: dict[str, str]) -> onnx.ValueInfoProto:
    """The graph's output `name`: the value's own tensor, or a copy where that is an input or returned already."""
    source = e.tensor(value)
    if value.op is None or isinstance(value.op, Const) or source in claimed:
        e.nodes.append(helper.make_node("Identity", [source], [name], name=e.node_name()))
    else:
        claimed[source] = name
    return _info(name, value)


def _renamed(e: Emitter, taken: set[str], claimed: Mapping[str, str]) -> dict[str, str]:
    """A better name for the emitter's own: the user's tensor's, where nothing has it yet."""
    used, found = set(taken), {}
    for value, name in e.names.items():
        if name in taken or name in claimed or name in found or not value.name:
            continue
        wanted, count = value.name, 1
        while wanted in used:
            count += 1
            wanted = f"{value.name}#{count}"
        used.add(wanted)
        found[name] = wanted
    free = {f"t{i}" for i in range(e._count)} - set(found)  # noqa: SLF001 - names that stay must not be taken either
    return {old: new if new not in free else f"{new}#" for old, new in found.items()}


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        _rename_node(node, names)


def _rename_node(node: NodeProto, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        renamed = [names.get(x, x) for x in field]
        del field[:]
        field.extend(renamed)
    for inner in subgraphs(node):  # tensors of their own keep their names: those are not the emitter's
        _rename(inner, names)


# ---- what a segment spells out, and a model that is read again says in one node


def _batch_norm(e: Emitter, op: BatchNorm) -> str:
    """x · multiplier + offset as a BatchNormalization of mean 0, variance 1 and epsilon 0."""
    channels = op.multiplier.type.shape[0]
    mean, variance = e.const(np.zeros(channels, np.float32)), e.const(np.ones(channels, np.float32))
    operands = [e.tensor(op.x), e.tensor(op.multiplier), e.tensor(op.offset), mean, variance]
    return e.clip(e.node("BatchNormalization", *operands, epsilon=0.0), *op.clip)


def _resize(e: Emitter, op: ResizeLinear) -> str:
    """A Resize of the coordinate mode that these positions are; spelt out where they are none's."""
    before, after = op.x.type.shape[2:], op.size
    lines = op.rows, op.columns
    moved = [i for i in range(2) if (before[i], lines[i]) != (after[i], (0.0, 1.0))]
    for mode, line in _LINES.items():
        if all(np.allclose(line(before[i], after[i]), lines[i], rtol=1e-6, atol=1e-6) for i in moved):
            sizes = e.ints((*op.x.type.shape[:2], *after))
            attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
            return e.node("Resize", e.tensor(op.x), "", "", sizes, **attributes)
    rule: EmitRule[ResizeLinear] = _rules()[ResizeLinear]
    return str(rule(e, op))


# First position and step of an axis of n elements that becomes m, by coordinate mode (onnx_ops/resize.py).
_LINES: dict[str, Callable[[int, int], tuple[float, float]]] = {
    "half_pixel": lambda n, m: (0.5 * n / m - 0.5, n / m),
    "align_corners": lambda n, m: (0.0, (n - 1) / max(m - 1, 1)),
    "asymmetric": lambda n, m: (0.0, n / m),
}


def _quantize(e: Emitter, op: Quantize) -> str:
    t = op.out.type
    if t.quant is None or op.narrow:
        raise error(EmitError, f"QuantizeLinear of node {op.node!r} leaves out no integer", why="it is narrow")
    return _linear(e, "QuantizeLinear", e.tensor(op.x), t.quant, t.dtype)


def _dequantize(e: Emitter, op: Dequantize) -> str:
    t = op.x.type
    assert t.quant is not None, op
    return _linear(e, "DequantizeLinear", e.tensor(op.x), t.quant, t.dtype)


def _linear(e: Emitter, op_type: str, x: str, quant: Quant, dtype: DType) -> str:
    """One scale as a scalar, several along their axis; the zero point is 0.

    Before opset 21 the zero point states the dtype. From then on `output_dtype` does: ONNX Runtime 1.32 refuses what
    its own optimiser makes of an int8 zero point there ("output_dtype INT8 does not match y_zero_point type UINT8").
    """
    axis, stated = quant.axis, e.opset < NEWEST
    scale, zero = np.asarray(quant.scale, np.float32), np.asarray(quant.zero_point, dtype.numpy)
    if axis is None:
        scale, zero = scale.reshape(()), zero.reshape(())
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    names = [x, e.const(scale)]
    if stated or zero.any():
        names.append(e.const(zero))
    elif op_type == "QuantizeLinear":
        attributes["output_dtype"] = helper.np_dtype_to_tensor_dtype(dtype.numpy)
    domain = MICROSOFT if dtype.size == 2 and stated else ""
    out = e.fresh()
    e.nodes.append(helper.make_node(op_type, names, [out], name=e.node_name(), domain=domain, **attributes))
    return out
