"""Nodes that only ONNX Runtime runs: what a call keeps, what subgraphs capture, float16, and what can't be called."""

from __future__ import annotations

import base64

import numpy as np
import onnx
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import Call
from hbc.ir.types import DType

from .net import UNDEFINED, Net, agrees, floats, integers, names_of

F32 = np.float32


def test_a_call_keeps_its_node_under_the_users_name() -> None:
    net = Net(13)
    net.op("Hardmax", net.input("x", [2, 5]), out="y", axis=-1)
    net.output("y")
    (call,) = agrees(net.model(), {"x": floats(0, 2, 5)}).graph.walk(Call)
    proto = onnx.NodeProto.FromString(base64.b64decode(call.node_proto))
    assert (call.op_type, call.domain, call.opset, call.node) == ("Hardmax", "", 13, "Hardmax_0")
    assert (list(proto.input), list(proto.output), proto.name) == (["operand:0"], ["result:0"], "Hardmax_0")


@pytest.mark.parametrize("opset", [11, 13])
def test_a_call_means_what_the_models_opset_says(opset: int) -> None:
    net = Net(opset)
    net.op("Hardmax", net.input("x", [2, 3, 4]), out="y")  # before opset 13: over all axes from 1 on
    net.output("y")
    agrees(net.model(), {"x": floats(1, 2, 3, 4)})


def test_missing_optional_inputs_stay_missing() -> None:
    net = Net(13)
    x = net.input("x", [2, 1, 4])
    w, r = net.const(floats(2, 1, 12, 4)), net.const(floats(3, 1, 12, 3))
    net.op("LSTM", x, w, r, "", "", net.const(floats(4, 1, 1, 3)), out=["y", "", "c"], hidden_size=3)
    net.output("y", "c")
    (call,) = agrees(net.model(), {"x": floats(5, 2, 1, 4)}, atol=1e-5).graph.walk(Call)
    assert len(call.xs) == 4
    assert [r.type.shape for r in call.results] == [(2, 1, 1, 3), (1, 1, 3)]


def test_known_operands_decide_result_shapes() -> None:
    net = Net(13)
    net.op("TopK", net.input("x", [2, 9]), net.const(np.int64([4])), out=["v", "i"])
    net.output("v")
    net.output("i", dtype=np.int64)
    module = agrees(net.model(), {"x": floats(6, 2, 9)})
    assert [o.value.type.shape for o in module.graph.outputs] == [(2, 4), (2, 4)]


def test_quantised_operands_are_plain_numbers_to_a_call() -> None:
    net = Net(13)
    q = net.q(net.input("x", [4, 4]), 0.1, np.uint8(7))
    net.dq(
        net.op("ReverseSequence", q, net.input("n", [4], np.int64), time_axis=0, batch_axis=1),
        0.1,
        np.uint8(7),
        out="y",
    )
    net.output("y")
    module = agrees(net.model(), {"x": floats(7, 4, 4), "n": np.int64([1, 4, 2, 3])})
    assert "call ReverseSequence" in names_of(module)


def branch(name: str, *operands: str, op_type: str = "Add") -> onnx.GraphProto:
    inner = Net()
    inner.op(op_type, inner.op(op_type, *operands, out="t0"), "t0", out=name)
    inner.outputs.append(onnx.helper.make_tensor_value_info(name, UNDEFINED, None))
    inner.outputs[-1].type.tensor_type.elem_type = 1
    return inner.model().graph


def test_subgraphs_capture_outer_tensors() -> None:
    """Inner names (`t0`) that meet the export's own names must not be confused with them."""
    net = Net(13)
    x, bias = net.input("x", [3]), net.op("Relu", net.input("b", [3]))
    condition = net.op("Greater", net.op("ReduceSum", x, keepdims=0), net.const(F32(0)))
    net.op("If", condition, out="y", then_branch=branch("a", x, bias), else_branch=branch("b2", x, bias, op_type="Mul"))
    net.output("y")
    for sign in (1, -1):
        module = agrees(net.model(), {"x": F32([1, 2, 3]) * sign, "b": F32([-1, 5, 6])})
    (call,) = (c for c in module.graph.walk(Call) if c.op_type == "If")
    assert len(call.xs) == 3


def test_a_loop_whose_result_has_a_stated_shape_is_called() -> None:
    body = Net()
    for name, dtype in (("i", np.int64), ("c", np.bool_), ("v", F32)):
        body.input(name, [] if name != "v" else [2], dtype)
    body.op("Identity", "c", out="c2")
    body.op("Add", "v", "step", out="v2")
    body.output("c2", dtype=np.bool_)
    body.output("v2")
    net = Net(13)
    v = net.input("x", [2])
    net.op("Identity", net.input("s", [2]), out="step")
    net.op("Loop", net.const(np.asarray(3, np.int64)), "", v, out="y", body=body.model().graph)
    net.outputs.append(onnx.helper.make_tensor_value_info("y", 1, [2]))  # inference thinks that a loop may grow it
    assert "call Loop" in names_of(agrees(net.model(), {"x": floats(9, 2), "s": floats(10, 2)}))


def test_a_shape_that_the_file_states_helps_where_inference_ends() -> None:
    net = Net(13, com_microsoft=1)
    net.op("Inverse", net.input("x", [2, 2]), out="t", domain="com.microsoft")
    net.op("Pad", "t", net.op("Cast", net.input("p", [4]), to=7), out="y")
    net.outputs.append(onnx.helper.make_tensor_value_info("y", 1, [4, 4]))
    module = agrees(net.model(), {"x": F32([[2, 0], [0, 4]]), "p": F32([1, 1, 1, 1])})
    assert names_of(module) == ["call Inverse", "cast", "call Pad"]


def test_unknown_domains_are_listed_all_at_once() -> None:
    net = Net(13, my_domain=1)
    a = net.op("Fancy", net.input("x", [1]), domain="my.domain")
    net.op("Fancier", net.op("Fancy", a, domain="my.domain"), out="y", domain="my.domain")
    net.output("y")
    with pytest.raises(FrontendError) as raised:
        load(net.model())
    text = str(raised.value)
    assert all(
        part in text for part in ("my.domain.Fancy (×2)", "my.domain.Fancier (×1)", "Fancy_0", "Fancy_1", "Fancier_2")
    )


def test_unknown_nodes_inside_branches_are_listed_too() -> None:
    net = Net(13, my_domain=1)
    x = net.input("x", [3])
    inner = branch("b", x, x)
    inner.node[0].op_type, inner.node[0].domain = "Fancy", "my.domain"
    net.op("If", net.input("c", [], np.bool_), out="y", then_branch=branch("a", x, x), else_branch=inner)
    net.output("y")
    with pytest.raises(FrontendError, match=r"my\.domain\.Fancy"):
        load(net.model())


def test_unknown_nodes_that_nothing_needs_do_not_matter() -> None:
    net = Net(13, my_domain=1)
    net.op("Fancy", net.input("x", [1]), domain="my.domain")
    net.op("Relu", "x", out="y")
    net.output("y")
    assert names_of(load(net.model())) == ["clip"]


def test_model_local_functions_are_inlined() -> None:
    net = Net(13, my_domain=1)
    net.op("Twice", net.input("x", [3]), out="y", domain="my.domain")
    net.output("y")
    model = net.model()
    body = [onnx.helper.make_node("Add", ["a", "a"], ["b"])]
    opsets = [onnx.helper.make_opsetid("", 13)]
    model.functions.append(onnx.helper.make_function("my.domain", "Twice", ["a"], ["b"], body, opsets))
    assert names_of(agrees(model, {"x": floats(11, 3)})) == ["add"]


def test_float16_models_compute_in_f32_and_keep_their_border() -> None:
    net = Net(13)
    x = net.input("x", [2, 6], np.float16)
    w = net.const(floats(12, 6, 4).astype(np.float16))
    net.op("Hardmax", net.op("Add", net.op("MatMul", x, w), net.const(np.float16(0.5))), out="y")
    net.output("y", dtype=np.float16)
    module = agrees(net.model(), {"x": floats(13, 2, 6).astype(np.float16)}, atol=2e-3)
    assert names_of(module) == ["cast", "linear", "add", "cast", "call Hardmax"]
    assert module.graph.args[0].type.dtype is DType.F16


def test_float64_is_narrowed() -> None:
    net = Net(13)
    net.op("Mul", net.input("x", [4], np.float64), net.const(np.float64(1 / 3)), out="y")
    net.output("y", dtype=np.float64)
    agrees(net.model(), {"x": floats(14, 4).astype(np.float64)}, atol=1e-6)


def test_integers_and_booleans_compute_on_the_cpu() -> None:
    net = Net(13)
    a = net.input("a", [6], np.int64)
    both = net.op("And", net.op("Less", a, net.const(np.int64(5))), net.op("Greater", a, net.const(np.int64(-5))))
    net.op("Not", both, out="y")
    net.output("y", dtype=np.bool_)
    agrees(net.model(), {"a": integers(15, np.int8, 6).astype(np.int64)})


@pytest.mark.parametrize(
    "elem_type", [onnx.TensorProto.STRING, onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN]
)
def test_element_types_that_are_not_taken_are_named(elem_type: int) -> None:
    net = Net(19)
    net.op("Identity", net.input("x", [2], elem_type), out="y")
    net.output("y", dtype=elem_type)
    with pytest.raises(FrontendError, match=onnx.TensorProto.DataType.Name(elem_type)):
        load(net.model())
