"""A whole module as ONNX: names are the user's, what is read again is what was written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="what was written is run by ONNX Runtime")

from hbc.backend.cpu.export_model import export_model
from hbc.frontend import load
from hbc.ir import ops
from hbc.ir.core import Module
from tests.unit.frontend.net import Net, floats, onnxruntime_outputs

pytestmark = pytest.mark.ort


def written(net: Net) -> tuple[Module, onnx.ModelProto]:
    """The module of a net, and the module as ONNX, which ONNX's checker takes."""
    module = load(net.model())
    made = export_model(module)
    onnx.checker.check_model(made.proto, full_check=True)
    return module, made.proto


def assert_same_outputs(net: Net, made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    want, got = onnxruntime_outputs(net.model(), feeds), onnxruntime_outputs(made, feeds)
    assert list(got) == list(want)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_names_are_the_users() -> None:
    net = Net()
    y = net.op("Relu", net.input("image", [1, 2, 3, 3]), out="hidden")
    net.output(net.op("Tanh", y, out="result"))
    _, made = written(net)
    assert [i.name for i in made.graph.input] == ["image"]
    assert [(n.name, list(n.input), list(n.output)) for n in made.graph.node] == [
        ("Relu_0", ["image"], ["hidden"]),
        ("Tanh_1", ["hidden"], ["result"]),
    ]
    assert_same_outputs(net, made, {"image": floats(0, 1, 2, 3, 3)})


def test_the_writers_own_names_give_way() -> None:
    """Inputs and tensors that are called as the writer calls its own."""
    net = Net()
    y = net.op("Add", net.input("t1", [2, 3]), net.const(np.float32([1, 2, 3])), out="t0")
    y = net.op("Mul", y, net.op("Tanh", "t1", out="t3"), out="t7")
    net.output(net.op("Softmax", y, axis=1, out="t2"), "t0", "t3")
    _, made = written(net)
    assert_same_outputs(net, made, {"t1": floats(0, 2, 3)})


def test_a_value_may_be_returned_twice_and_an_input_as_it_is() -> None:
    net = Net()
    y = net.op("Relu", net.input("x", [2, 3]), out="a")
    net.op("Identity", y, out="b")
    net.op("Identity", "x", out="c")
    net.output("a", "b", "c")
    _, made = written(net)
    assert_same_outputs(net, made, {"x": floats(0, 2, 3)})


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("size", [(10, 14), (3, 5), (5, 7), (7, 7)])
def test_a_linear_resize_is_one_node_again(mode: str, size: tuple[int, int]) -> None:
    net = Net()
    sizes = net.const(np.int64([1, 2, *size]))
    attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    y = net.op("Resize", net.input("x", [1, 2, 5, 7]), "", "", sizes, **attributes)
    net.output(net.op("Relu", y, out="y"))
    module, made = written(net)
    assert_same_outputs(net, made, {"x": floats(0, 1, 2, 5, 7)})
    again = [(op.rows, op.columns) for op in load(made).graph.walk(ops.ResizeLinear)]
    want = [(op.rows, op.columns) for op in module.graph.walk(ops.ResizeLinear)]
    assert [n.op_type for n in made.graph.node] == (["Resize", "Relu"] if want else ["Relu"])
    np.testing.assert_allclose(again, want, rtol=1e-6)


def test_a_resize_of_no_mode_is_spelt_out() -> None:
    net = Net()
    y = net.op(
        "Resize", net.input("x", [1, 2, 5, 7]), "", net.const(np.float32([1, 1, 1.7, 2.3])), mode="linear"
    )  # floor(1.7 · 5) / 5 is not 1.7
    net.output(net.op("Relu", y, out="y"))
    _, made = written(net)
    assert "Resize" not in {n.op_type for n in made.graph.node}
    assert_same_outputs(net, made, {"x": floats(0, 1, 2, 5, 7)})


def test_a_batch_norm_is_one_node_again() -> None:
    net = Net()
    parameters = [net.const(np.float32(v)) for v in ([1, -2], [0.5, 3], [0.1, 0.2], [1, 4])]
    y = net.op("BatchNormalization", net.op("Relu", net.input("x", [1, 2, 3, 3])), *parameters)
    net.output(net.op("Tanh", y, out="y"))
    _, made = written(net)
    assert [n.op_type for n in made.graph.node] == ["Relu", "BatchNormalization", "Tanh"]
    assert_same_outputs(net, made, {"x": floats(0, 1, 2, 3, 3)})


@pytest.mark.parametrize(("dtype", "opset"), [(np.int8, 19), (np.int16, 21)])
def test_quantize_and_dequantize_are_onnxs(dtype: type[np.generic], opset: int) -> None:
    net = Net(21)
    net.output(net.dq(net.q(net.input("x", [3, 4]), 0.01, dtype(0)), 0.01, dtype(0), out="y"))
    _, made = written(net)
    assert [n.op_type for n in made.graph.node] == ["QuantizeLinear", "DequantizeLinear"]
    assert next(o.version for o in made.opset_import if o.domain == "") == opset
    x = {"x": 2 * floats(0, 3, 4)}
    assert np.array_equal(onnxruntime_outputs(made, x)["y"], onnxruntime_outputs(net.model(), x)["y"])


def test_exposed_values_are_further_outputs() -> None:
    net = Net()
    y = net.op("Relu", net.input("x", [2, 3]), out="inner")
    net.output(net.op("Tanh", y, out="y"))
    module = load(net.model())
    inner = next(op.out for op in module.graph.ops if op.node == "Relu_0")
    made = export_model(module, expose=[inner, inner, module.graph.args[0]])
    assert (made.names[inner], [o.name for o in made.proto.graph.output]) == ("inner", ["y", "inner"])
    x = floats(0, 2, 3)
    assert np.array_equal(onnxruntime_outputs(made.proto, {"x": x})["inner"], np.maximum(x, 0))
    assert export_model(module).to_bytes() == export_model(module).to_bytes()
