"""Signed weights of integer products become unsigned ones, of the same value: what ONNX Runtime computes exactly.

Its kernels multiply u8 by s8 with an instruction that saturates sums of pairs to 16 bits where an x86 CPU has no VNNI
(its documentation: "reduce_range", "session.x64quantprecision"). A weight w with zero point z stands for w − z, and so
does w + 128 with zero point z + 128, in u8; u8 by u8 has no such kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

_DOMAINS = {"ai.onnx": ""}
_MS = "com.microsoft"
_OFFSET = 128
LARGEST = (1 << 31) - 1  # bytes of a protobuf message


class _Places(NamedTuple):
    """Which operands are the activation, its zero point, the weight, and the weight's zero point."""

    x: int
    x_zero: int
    weight: int
    zero: int


_OPERANDS: dict[tuple[str, str], tuple[_Places, ...]] = {
    ("", "QLinearConv"): (_Places(0, 2, 3, 5),),
    ("", "QLinearMatMul"): (_Places(0, 2, 3, 5),),
    ("", "ConvInteger"): (_Places(0, 2, 1, 3),),
    ("", "MatMulInteger"): (_Places(0, 2, 1, 3),),
    (_MS, "QLinearConv"): (_Places(0, 2, 3, 5),),
    (_MS, "QGemm"): (_Places(0, 2, 3, 5),),
    (_MS, "QAttention"): (_Places(0, 6, 1, 7),),
    (_MS, "MatMulIntegerToFloat"): (_Places(0, 4, 1, 5),),
    (_MS, "DynamicQuantizeMatMul"): (_Places(0, -1, 1, 3),),  # it quantises its activation itself, to u8
    (_MS, "DynamicQuantizeLSTM"): (_Places(0, -1, 1, 9), _Places(0, -1, 2, 11)),
}
OP_TYPES = frozenset(op_type for _, op_type in _OPERANDS)


def exact_source(source: str | bytes) -> str | bytes:
    """The model with unsigned weights for its integer products; itself where there are none of them.

    A model of 2 GiB or more stays as it is: it can only be opened from its own file. One that can't be read, too, so
    that ONNX Runtime says why.
    """
    if isinstance(source, bytes) and not any(t.encode() in source for t in OP_TYPES):
        return source
    try:
        if isinstance(source, bytes):
            model = onnx.ModelProto.FromString(source)
        else:
            model = onnx.load(source, load_external_data=False)
            if not uses_integer_products(model):
                return source
            model = onnx.load(source)
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError):
        return source
    changed = model.ByteSize() < LARGEST and with_unsigned_weights(model)
    return model.SerializeToString() if changed else source


def with_unsigned_weights(model: onnx.ModelProto) -> bool:
    """Change `model` in place; True where something had to be changed. Weights that are computed stay as they are."""
    changes = sum(_changed(scope, f"/unsigned{i or ''}") for i, scope in enumerate(_scopes(model.graph)))
    if changes:
        model.ir_version = max(model.ir_version, 4)  # below it every initializer is an input, too
    return changes > 0


def uses_integer_products(model: onnx.ModelProto) -> bool:
    """True where a node is one that `with_unsigned_weights` looks at."""
    return any(node.op_type in OP_TYPES for scope in _scopes(model.graph) for node in scope.graph.node)


class _Scope(NamedTuple):
    """A graph, and what its nodes can read, of it and of those around it."""

    graph: GraphProto
    constants: Mapping[str, TensorProto]
    makers: Mapping[str, NodeProto]
    inputs: Mapping[str, int]  # element types

    def is_u8(self, name: str) -> bool:
        """True for a u8 constant."""
        return name in self.constants and self.constants[name].data_type == TensorProto.UINT8


def _scopes(graph: GraphProto, outer: _Scope | None = None) -> Iterator[_Scope]:
    """The scope of every graph within `graph`."""
    around = outer or _Scope(graph, {}, {}, {})
    own = {o: n for n in graph.node for o in n.output if o}
    spelled = {name: node for name, node in own.items() if (node.op_type, node.domain) == ("Constant", "")}
    constants = {t.name: t for t in graph.initializer}
    for name, node in spelled.items():
        constants[name] = next((a.t for a in node.attribute if a.name == "value"), TensorProto())
    inputs = {i.name: i.type.tensor_type.elem_type for i in graph.input}
    scope = _Scope(graph, {**around.constants, **constants}, {**around.makers, **own}, {**around.inputs, **inputs})
    yield scope
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _scopes(inner, scope)


def _changed(scope: _Scope, suffix: str) -> int:
    """Change the nodes of one graph; returns how many. What is made gets the names that had it, and a suffix."""
    graph, constants = scope.graph, scope.constants
    made: dict[str, str] = {}  # signed constant → its unsigned twin

    def twin(name: str) -> str:
        """The unsigned form of a constant; of an absent zero point, 128."""
        if name not in made:
            values = numpy_helper.to_array(constants[name]) if name else np.zeros((), np.int8)
            made[name] = name + suffix
            unsigned = (values.astype(np.int16) + _OFFSET).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(unsigned, made[name]))
        return made[name]

    changes = 0
    for node in graph.node:
        for places in _OPERANDS.get((_DOMAINS.get(node.domain, node.domain), node.op_type), ()):
            weight, zero = _operand(node, places.weight), _operand(node, places.zero)
            if weight not in constants or constants[weight].data_type != TensorProto.INT8:
                continue
            if (zero and zero not in constants) or not _is_unsigned(node, places, scope):
                continue
            while len(node.input) <= places.zero:
                node.input.append("")
            node.input[places.weight], node.input[places.zero] = twin(weight), twin(zero)
            changes += 1
    return changes


def _operand(node: NodeProto, index: int) -> str:
    return node.input[index] if 0 <= index < len(node.input) else ""


def _is_unsigned(node: NodeProto, places: _Places, scope: _Scope) -> bool:
    """True where the activation is known to be u8."""
    if places.x_zero < 0:
        return True
    x, zero = _operand(node, places.x), _operand(node, places.x_zero)
    if zero in scope.constants:
        return scope.is_u8(zero)
    maker = scope.makers.get(x)
    if maker is None:
        return scope.inputs.get(x) == TensorProto.UINT8
    if maker.op_type == "QuantizeLinear":
        of_maker = _operand(maker, 2)
        return not of_maker or scope.is_u8(of_maker)
    return maker.op_type == "DynamicQuantizeLinear"
