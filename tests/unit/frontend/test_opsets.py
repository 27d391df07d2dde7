"""Opsets 1 to 28: the oldest by ONNX's converter, the newest by rules whose operators didn't change."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hbc
from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import Call
from hbc.ir.types import DType
from hbc_runtime import Session

from .net import Net, agrees, floats, names_of

F32, I8 = np.float32, np.int8


def runs(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    return dict(Session(hbc.compile(model, march="nash-e").program, engine="reference").run(feeds))


@pytest.mark.parametrize("opset", [7, 8])
def test_opsets_before_9_that_onnxruntime_runs(opset: int) -> None:
    net = Net(opset)
    x = net.input("x", [1, 2, 4, 4])
    y = net.op("Conv", x, net.const(floats(0, 3, 2, 3, 3)), pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    bn = [net.const(np.abs(floats(i, 3)) + 1) for i in range(1, 5)]
    y = net.op("BatchNormalization", y, *bn, epsilon=1e-3)
    y = net.op("Upsample", net.op("Relu", y), scales=[1.0, 1.0, 2.0, 2.0]) if opset == 7 else net.op("Relu", y)
    net.op("Dropout", y, out="y")
    net.output("y")
    assert "conv2d" in names_of(agrees(net.model(), {"x": floats(5, 1, 2, 4, 4)}, exported=False, atol=1e-5))


def old(opset: int, nodes: list[onnx.NodeProto], shape: list[int], **constants: Any) -> onnx.ModelProto:
    """A model as it was written then: every initializer is an input, too."""
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors]
    graph = helper.make_graph(nodes, "old", inputs, [helper.make_tensor_value_info("y", 1, None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    after = [2, 12] if nodes[-1].op_type == "Reshape" else shape
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, after))
    return model


def test_the_broadcasting_of_old_additions() -> None:
    """Before opset 7, `broadcast` and `axis` said where the second operand's axes belong."""
    bias = F32([1, 2, 3])
    model = old(6, [helper.make_node("Add", ["x", "b"], ["y"], "a", broadcast=1, axis=1)], [2, 3, 4], b=bias)
    x = floats(0, 2, 3, 4)
    np.testing.assert_array_equal(runs(model, {"x": x})["y"], x + bias[None, :, None])
    assert load(model).metadata["opset"] == "ai.onnx 6"


def test_an_old_reshape_has_its_shape_as_an_attribute() -> None:
    model = old(1, [helper.make_node("Reshape", ["x"], ["y"], "r", shape=[2, 12])], [2, 3, 4])
    x = floats(0, 2, 3, 4)
    np.testing.assert_array_equal(runs(model, {"x": x})["y"], x.reshape(2, 12))


def test_what_the_converter_cannot_do_is_explained() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "n"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
        "body",
        [helper.make_tensor_value_info(name, 1, [2]) for name in "sn"],
        [helper.make_tensor_value_info(name, 1, [2]) for name in "tu"],
    )
    node = helper.make_node("Scan", ["", "i", "x"], ["f", "y"], "scan", num_scan_inputs=1, body=body)
    inputs = [helper.make_tensor_value_info("i", 1, [1, 2]), helper.make_tensor_value_info("x", 1, [1, 3, 2])]
    outputs = [helper.make_tensor_value_info("f", 1, [1, 2]), helper.make_tensor_value_info("y", 1, [1, 3, 2])]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    with pytest.raises(FrontendError, match="opset 8, and can't be converted") as raised:
        load(model)
    assert "opset 9 or newer" in str(raised.value)


@pytest.mark.parametrize("opset", [24, 25, 26, 27, 28])
def test_a_quantised_model_of_a_new_opset(opset: int) -> None:
    """Integer results within one quantum: ties in f32 may fall to either side."""
    net = Net(opset)
    x = net.qdq(net.input("x", [1, 2, 6, 6]), 0.05, I8(0))
    w = net.dq(net.const(np.random.default_rng(1).integers(-127, 128, (4, 2, 3, 3)).astype(I8)), 0.01, I8(0))
    y = net.qdq(net.op("Conv", x, w, kernel_shape=[3, 3]), 0.1, I8(0))
    y = net.op("Transpose", net.op("Squeeze", y, net.const(np.int64([0]))), perm=[1, 2, 0])
    net.op("Cast", net.op("Flatten", y), out="y", to=1)
    net.output("y")
    module = load(net.model())
    assert [n for n in names_of(module) if n.startswith("call")] == []
    before = net.model()
    before.opset_import[0].version = 21
    feeds = {"x": floats(3, 1, 2, 6, 6)}
    np.testing.assert_array_equal(runs(net.model(), feeds)["y"], runs(before, feeds)["y"])


@pytest.mark.parametrize(("op_type", "attrs"), [("Swish", {"alpha": 1.5}), ("Swish", {}), ("SwiGLU", {"alpha": 0.5})])
def test_swish_has_no_kernel_and_is_taken(op_type: str, attrs: dict[str, float]) -> None:
    """1e-6: NumPy computes the sigmoid in f64."""
    net = Net(28)
    feeds = {"a": floats(0, 2, 5), "b": floats(1, 2, 5)}
    names = [net.input(n, [2, 5]) for n in feeds][: 2 if op_type == "SwiGLU" else 1]
    net.op(op_type, *names, out="y", **attrs)
    net.output("y")
    if op_type == "Swish":
        net.inputs.pop()
        del feeds["b"]
    a = feeds["a"].astype(np.float64)
    want = a / (1 + np.exp(-attrs.get("alpha", 1.0) * a)) * feeds.get("b", 1)
    np.testing.assert_allclose(runs(net.model(), feeds)["y"], want, rtol=1e-6, atol=1e-6)


def test_the_order_of_blocks_is_opset_28s() -> None:
    x = np.arange(2 * 4 * 4, dtype=F32).reshape(1, 2, 4, 4)
    net = Net(28)
    net.op("SpaceToDepth", net.input("x", [1, 2, 4, 4]), out="y", blocksize=2, mode="CRD")
    net.output("y")
    want = x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 8, 2, 2)
    np.testing.assert_array_equal(runs(net.model(), {"x": x})["y"], want)


def test_a_deprecated_operator_is_explained() -> None:
    net = Net(13)
    net.op("Upsample", net.input("x", [1, 1, 2, 2]), net.const(F32([1, 1, 2, 2])), out="y")
    net.output("y")
    with pytest.raises(FrontendError, match="Upsample_0"):
        load(net.model())


def test_an_old_broadcast_of_scalars_has_no_axes_to_place() -> None:
    model = old(6, [helper.make_node("Add", ["x", "b"], ["y"], "a", broadcast=1, axis=0)], [], b=F32(2))
    np.testing.assert_array_equal(runs(model, {"x": F32(3)})["y"], F32(5))


def test_an_old_broadcast_of_a_tensor_of_unknown_rank_names_it() -> None:
    model = old(6, [helper.make_node("Add", ["x", "z"], ["y"], "a", broadcast=1, axis=1)], [2, 3, 4])
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with pytest.raises(FrontendError, match="rank of 'z'"):
        load(model)


@pytest.mark.parametrize("op_type", ["FastGelu", "MatMulNBits"])
def test_half_precision_results_of_microsofts_operators_stay_half(op_type: str) -> None:
    net = Net(17, com_microsoft=1)
    operands = [net.input("x", [2, 32], np.float16)]
    if op_type == "MatMulNBits":
        operands += [net.const(np.ones((3, 1, 16), np.uint8)), net.const(np.ones(3, np.float16))]
    sizes = {"K": 32, "N": 3, "bits": 4, "block_size": 32} if op_type == "MatMulNBits" else {}
    net.op(op_type, *operands, out="y", domain="com.microsoft", **sizes)
    net.output("y", dtype=np.float16)
    (called,) = load(net.model()).graph.walk(Call)
    assert called.results[0].type.dtype is DType.F16
