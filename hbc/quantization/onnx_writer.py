"""A QDQ ONNX model, written node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Form = Literal["compiled", "file", "quantized"]
OPSET = 21  # the first whose QuantizeLinear has int16
PORTABLE = 20  # ONNX Runtime 1.32 fails on 8-bit models of opset 21: it gives Q nodes that it adds no zero point's type
IR_VERSIONS = {OPSET: 10, PORTABLE: 9}
NEEDS_21 = {"GroupNormalization"}  # whose scale was per group before
DTYPES = {"int8": TensorProto.INT8, "int16": TensorProto.INT16}
QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}
NUMPY = {"int8": np.int8, "int16": np.int16}


class Writer:
    """Nodes and initializers under names that are given once.

    Forms: `compiled` is opset 21, for hbc. `file` has opset 20 where it can; int16 is quantised by ONNX Runtime's own
    operators then (domain com.microsoft). `quantized` is a file whose biases are int32.
    """

    def __init__(self, form: Form = "compiled") -> None:
        self.portable, self.integer_bias = form != "compiled", form == "quantized"
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.names: set[str] = set()
        self.prefix = ""  # of the module that nodes belong to
        self.shapes: dict[str, tuple[int, ...]] = {}

    def free(self, name: str) -> str:
        """`name`, or the first of name_1, name_2 … that nothing has."""
        found, i = name, 0
        while found in self.names:
            i += 1
            found = f"{name}_{i}"
        self.names.add(found)
        return found

    def op(self, kind: str, inputs: Sequence[str], *, name: str = "", outputs: int = 1, **attributes: Any) -> Any:
        """One node; the name of its result, or names where there are several. A domain is part of the attributes."""
        base = self.free(name or "/".join(filter(None, [self.prefix, kind])))
        results = [base] if outputs == 1 else [self.free(f"{base}_{i}") for i in range(outputs)]
        given = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(kind, list(inputs), results, name=base, **given))
        return results[0] if outputs == 1 else results

    def const(self, value: Any, name: str = "", dtype: Any = None) -> str:
        """An initializer; float64 becomes float32, Python's integers int64."""
        array = np.asarray(value, dtype)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        found = self.free(name or f"{self.prefix or 'constant'}/value")
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), found))
        return found

    def barrier(self, x: str, name: str) -> str:
        """`x`, as hbc takes it: nothing is fused across."""
        found = self.op("Barrier", [x], name=f"{name}/barrier", domain="hbc")
        self.shapes[found] = self.shapes.get(x, ())
        return str(found)

    def input(self, name: str, shape: Sequence[int], elem_type: int = TensorProto.FLOAT) -> str:
        """An input of the model."""
        found = self.free(name)
        self.inputs.append(helper.make_tensor_value_info(found, elem_type, list(shape)))
        return found

    def output(self, value: str, name: str, shape: Sequence[int] | None, elem_type: int = TensorProto.FLOAT) -> None:
        """An output of the model: `value` under `name`."""
        found = self.free(name)
        self.nodes.append(helper.make_node("Identity", [value], [found], name=found))
        self.outputs.append(helper.make_tensor_value_info(found, elem_type, None if shape is None else list(shape)))

    def quantized(self, x: str, dtype: str, scale: np.ndarray, *, narrow: bool, name: str) -> str:
        """QuantizeLinear (and a Clip of a narrow range), then DequantizeLinear; scales verbatim."""
        s = self.const(np.float32(scale.reshape(-1)[0]), f"{name}/scale")
        z = self.const(NUMPY[dtype](0), f"{name}/zero_point")
        on_reals = narrow and self.portable and dtype == "int16"  # ONNX Runtime has no Clip of int16
        if on_reals:
            least = self.const(np.float32(-np.iinfo(np.int16).max) * np.float32(scale.reshape(-1)[0]))
            x = self.op("Clip", [x, least], name=f"{name}/narrow")
        q = self.op("QuantizeLinear", [x, s, z], name=f"{name}/quantize")
        if narrow and not on_reals:
            limits = np.iinfo(NUMPY[dtype])
            low, high = self.const(NUMPY[dtype](-limits.max)), self.const(NUMPY[dtype](limits.max))
            q = self.op("Clip", [q, low, high], name=f"{name}/narrow")
        return str(self.op("DequantizeLinear", [q, s, z], name=f"{name}/dequantize"))

    def weight(self, ints: np.ndarray, scale: np.ndarray, axis: int, name: str) -> str:
        """Integers of a weight with a scale per channel of `axis`, dequantised."""
        w = self.const(ints, name)
        s = self.const(scale.astype(np.float32), f"{name}/scale")
        z = self.const(np.zeros(scale.shape, ints.dtype), f"{name}/zero_point")
        return str(self.op("DequantizeLinear", [w, s, z], name=f"{name}/dequantize", axis=axis))

    def model(self, name: str) -> onnx.ModelProto:
        """The model, of ONNX opset 21, or of 20 where it is portable and can be."""
        opset = PORTABLE if self.portable and not NEEDS_21 & {n.op_type for n in self.nodes} else OPSET
        opsets = [helper.make_opsetid("", opset)]
        if opset == PORTABLE and self._move_int16():
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        if any(n.domain == "hbc" for n in self.nodes):
            opsets.append(helper.make_opsetid("hbc", 1))
        graph = helper.make_graph(self.nodes, name or "model", self.inputs, self.outputs, self.constants)
        return helper.make_model(
            graph, opset_imports=opsets, producer_name="hbc.quantization", ir_version=IR_VERSIONS[opset]
        )

    def _move_int16(self) -> bool:
        """Q and DQ nodes of int16 into ONNX Runtime's domain; were there any?"""
        wide = {c.name for c in self.constants if c.data_type == TensorProto.INT16}
        moved = [n for n in self.nodes if n.op_type in QUANTIZERS and n.input[2] in wide]
        for node in moved:
            node.domain = "com.microsoft"
        return bool(moved)
