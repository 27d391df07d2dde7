"""A QDQ ONNX model, written node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21  # the first whose QuantizeLinear has int16
DTYPES = {"int8": TensorProto.INT8, "int16": TensorProto.INT16}
NUMPY = {"int8": np.int8, "int16": np.int16}


class Writer:
    """Nodes and initializers under names that are given once."""

    def __init__(self) -> None:
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
        q = self.op("QuantizeLinear", [x, s, z], name=f"{name}/quantize")
        if narrow:
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
        """The model, of ONNX opset 21."""
        graph = helper.make_graph(self.nodes, name or "model", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, producer_name="hbc.quantization", ir_version=10)
