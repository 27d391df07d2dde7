"""Write a trained `DigitsNet` as a QDQ ONNX model: i8 weights and i32 biases with their scales, Q/DQ pairs between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from network import QMAX, DigitsNet, FakeQuant, QuantLayer
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 17


class QdqGraph:
    """An ONNX graph under construction; every method adds nodes and returns the name of their result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        """An initialiser."""
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def op(self, op_type: str, operands: Sequence[str], result: str, **attributes: Any) -> str:
        """A node named after its result."""
        self.nodes.append(helper.make_node(op_type, operands, [result], name=f"/{result}", **attributes))
        return result

    def fake_quant(self, x: str, quant: FakeQuant) -> str:
        """QuantizeLinear and DequantizeLinear, per tensor."""
        grid = [
            self.constant(f"{x}_scale", _numpy(quant.scale)),
            self.constant(f"{x}_zero_point", np.array(0, np.int8)),
        ]
        q = self.op("QuantizeLinear", [x, *grid], f"{x}_q")
        return self.op("DequantizeLinear", [q, *grid], f"{x}_dq")

    def layer(self, name: str, layer: QuantLayer, x: str, source: FakeQuant) -> str:
        """A conv or linear layer on i8 weights and an i32 bias, with its relu and the Q/DQ pair of its result."""
        weights = self._parameters(name, layer, source)
        if isinstance(layer.layer, nn.Conv2d):
            pad = int(layer.layer.padding[0])
            kernel = list(layer.layer.kernel_size)
            y = self.op("Conv", [x, *weights], name, kernel_shape=kernel, pads=[pad] * 4, group=layer.layer.groups)
        else:
            y = self.op("Gemm", [x, *weights], name, transB=1)
        y = self.op("Relu", [y], f"{name}_relu") if layer.relu else y
        return y if layer.result is None else self.fake_quant(y, layer.result)

    def _parameters(self, name: str, layer: QuantLayer, source: FakeQuant) -> list[str]:
        weight, bias = layer.layer.weight, layer.layer.bias
        assert bias is not None
        scale = layer.weight_scale()
        step = source.scale * scale
        q = (weight / scale.view(-1, *[1] * (weight.dim() - 1))).round().clamp(-QMAX, QMAX)
        return [
            self._dequantized(f"{name}.weight", _numpy(q).astype(np.int8), _numpy(scale)),
            self._dequantized(f"{name}.bias", _numpy((bias / step).round()).astype(np.int32), _numpy(step)),
        ]

    def _dequantized(self, name: str, value: np.ndarray, scale: np.ndarray) -> str:
        grid = [
            self.constant(f"{name}_q", value),
            self.constant(f"{name}_scale", scale),
            self.constant(f"{name}_zero_point", np.zeros(scale.shape, value.dtype)),
        ]
        return self.op("DequantizeLinear", grid, name, axis=0)


def to_onnx(net: DigitsNet) -> onnx.ModelProto:
    """The network as a checked ONNX model, `image` f32[1, 1, 8, 8] → `logits` f32[1, 10]."""
    graph = QdqGraph()
    x = graph.fake_quant("image", net.image)
    stem = graph.layer("stem", net.stem, x, net.image)
    x = graph.layer("depthwise", net.depthwise, stem, _result(net.stem))
    x = graph.layer("pointwise", net.pointwise, x, _result(net.depthwise))
    x = graph.op("Relu", [graph.op("Add", [stem, x], "sum")], "total")
    x = graph.fake_quant(x, net.total)
    x = graph.op("MaxPool", [x], "pool1", kernel_shape=[2, 2], strides=[2, 2])
    x = graph.layer("wide", net.wide, x, net.total)
    x = graph.op("MaxPool", [x], "pool2", kernel_shape=[2, 2], strides=[2, 2])
    x = graph.op("Flatten", [x], "features")
    graph.layer("logits", net.head, x, _result(net.wide))
    return _model(graph)


def _model(graph: QdqGraph) -> onnx.ModelProto:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])
    proto = helper.make_graph(graph.nodes, "digits", [image], [logits], graph.constants)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(proto, opset_imports=[opset], ir_version=8, producer_name="examples/digits")
    onnx.checker.check_model(model, full_check=True)
    return model


def _result(layer: QuantLayer) -> FakeQuant:
    assert layer.result is not None
    return layer.result


def _numpy(x: Tensor) -> np.ndarray:
    return np.asarray(x.detach().numpy())
