"""Signed weights of integer products become unsigned ones of the same value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hbc.backend.cpu.unsigned_weights import exact_source, uses_integer_products, with_unsigned_weights
from tests.unit.frontend.net import Net, integers, onnxruntime_outputs

Array = np.ndarray[Any, Any]
I8, U8, F32 = np.int8, np.uint8, np.float32
ROWS, COLUMNS = integers(1, U8, 4, 64), integers(2, I8, 64, 6)
IMAGE, KERNEL = integers(3, U8, 1, 8, 6, 6), integers(4, I8, 4, 8, 3, 3)


def exact(x: Array, w: Array, x_zero: int = 0, w_zero: Any = 0) -> Array:
    """The product's sums, in 64 bits."""
    return (x.astype(np.int64) - x_zero) @ (w.astype(np.int64) - w_zero)


def matmul_integer(zero: int | None = None, x: Array = ROWS) -> onnx.ModelProto:
    net = Net(17)
    zeros = [] if zero is None else ["", net.const(I8(zero))]
    net.op("MatMulInteger", net.input("x", x.shape, x.dtype), net.const(COLUMNS), *zeros, out="y")
    net.output("y", dtype=np.int32)
    return net.model()


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def weight_of(model: onnx.ModelProto, node: int = 0, at: int = 1, zero: int = 3) -> tuple[Array, Array]:
    """(weight, zero point) of a node."""
    values, inputs = constants(model), model.graph.node[node].input
    return values[inputs[at]], values[inputs[zero]]


@pytest.mark.parametrize("zero", [None, 0, -7])
def test_weight_and_zero_point_move_by_128(zero: int | None) -> None:
    model = matmul_integer(zero)
    assert with_unsigned_weights(model)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model), full_check=True)
    weight, point = weight_of(model)
    assert (weight.dtype, point.dtype) == (U8, U8)
    assert np.array_equal(weight.astype(int) - 128, COLUMNS)
    assert int(point) == (zero or 0) + 128


@pytest.mark.parametrize("zero", [None, -7])
def test_onnx_runtimes_sums_are_exact(zero: int | None) -> None:
    """On a CPU without VNNI they aren't otherwise: these pairs of products pass 16 bits."""
    x, w = np.full((4, 64), 255, U8), np.full((64, 6), 127, I8)
    net = Net(17)
    zeros = [] if zero is None else ["", net.const(I8(zero))]
    net.op("MatMulInteger", net.input("x", x.shape, U8), net.const(w), *zeros, out="y")
    net.output("y", dtype=np.int32)
    got = onnxruntime_outputs(net.model(), {"x": x})["y"]
    assert np.array_equal(got, exact(x, w, 0, zero or 0))


def test_a_convolution_keeps_its_integers() -> None:
    def net(kernel: Array, zeros: Array) -> onnx.ModelProto:
        net = Net(17)
        x = net.input("x", IMAGE.shape, U8)
        scale = net.const(F32(0.01))
        weight = net.const(kernel), net.const(np.full(4, 0.02, F32)), net.const(zeros)
        net.op("QLinearConv", x, scale, net.const(U8(3)), *weight, net.const(F32(0.5)), net.const(U8(128)), out="y")
        net.output("y", dtype=U8)
        return net.model()

    model = net(KERNEL, np.zeros(4, I8))
    assert with_unsigned_weights(model)
    weight, zeros = weight_of(model, at=3, zero=5)
    assert np.array_equal(weight, KERNEL.astype(int) + 128)
    assert np.array_equal(zeros, np.full(4, 128))
    want = onnxruntime_outputs(net((KERNEL.astype(int) + 128).astype(U8), np.full(4, 128, U8)), {"x": IMAGE})["y"]
    assert np.array_equal(onnxruntime_outputs(net(KERNEL, np.zeros(4, I8)), {"x": IMAGE})["y"], want)
    assert np.unique(want).size > 16


def test_readers_share_a_weights_twin() -> None:
    net = Net(17)
    x, w = net.input("x", ROWS.shape, U8), net.const(COLUMNS)
    for name in "ab":
        net.op("MatMulInteger", x, w, out=name)
    net.output("a", "b", dtype=np.int32)
    model = net.model()
    assert with_unsigned_weights(model)
    assert model.graph.node[0].input[1:] == model.graph.node[1].input[1:]
    assert sum(v.dtype == U8 and v.shape == COLUMNS.shape for v in constants(model).values()) == 1


def test_weights_and_activations_may_come_from_nodes() -> None:
    net = Net(17)
    x = net.op("QuantizeLinear", net.input("x", ROWS.shape), net.const(F32(0.1)), net.const(U8(3)))
    w = net.op("Constant", value=numpy_helper.from_array(COLUMNS))
    net.op("MatMulInteger", x, w, net.const(U8(3)), out="y")
    net.output("y", dtype=np.int32)
    model = net.model()
    real = (ROWS.astype(F32) - 3) * F32(0.1)
    assert with_unsigned_weights(model)
    assert np.array_equal(onnxruntime_outputs(model, {"x": real})["y"], exact(ROWS, COLUMNS, 3))


def test_what_is_quantised_at_run_time_is_unsigned() -> None:
    net = Net(17, com_microsoft=1)
    x = net.input("x", ROWS.shape)
    net.op("DynamicQuantizeMatMul", x, net.const(COLUMNS), net.const(F32(0.1)), out="y", domain="com.microsoft")
    net.output("y")
    model = net.model()
    assert with_unsigned_weights(model)
    weight, point = weight_of(model)
    assert np.array_equal(weight.astype(int) - int(point), COLUMNS)


def branches() -> onnx.ModelProto:
    """A product in the branches of an If and beside it, its weight in the graph around them."""
    net = Net(17)
    x, w = net.input("x", ROWS.shape, U8), net.const(COLUMNS)

    def branch(name: str) -> onnx.GraphProto:
        node = helper.make_node("MatMulInteger", [x, w], [name])
        result = helper.make_tensor_value_info(name, onnx.TensorProto.INT32, [4, 6])
        return helper.make_graph([node], name, [], [result])

    condition = net.input("c", [], np.bool_)
    net.op("If", condition, out="y", then_branch=branch("then"), else_branch=branch("else"))
    net.op("MatMulInteger", x, w, out="z")
    net.output("y", "z", dtype=np.int32)
    return net.model()


def test_products_in_subgraphs_are_found() -> None:
    model = branches()
    assert uses_integer_products(model)
    for got in onnxruntime_outputs(model, {"x": ROWS, "c": np.array(True)}).values():
        assert np.array_equal(got, exact(ROWS, COLUMNS))


def computed() -> onnx.ModelProto:
    net = Net(17)
    net.op("MatMulInteger", net.input("x", ROWS.shape, U8), net.input("w", COLUMNS.shape, I8), out="y")
    net.output("y", dtype=np.int32)
    return net.model()


def relu() -> onnx.ModelProto:
    net = Net(17)
    net.op("Relu", net.input("x", [2]), out="y")
    net.output("y")
    return net.model()


UNCHANGED: dict[str, Callable[[], onnx.ModelProto]] = {
    "a signed activation": lambda: matmul_integer(x=ROWS.view(I8)),
    "a computed weight": computed,
    "no product": relu,
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_needs_no_change_stays(name: str) -> None:
    model = UNCHANGED[name]()
    before = model.SerializeToString(deterministic=True)
    assert not with_unsigned_weights(model)
    assert model.SerializeToString(deterministic=True) == before
    assert exact_source(before) == before


def test_what_is_no_model_stays_for_onnx_runtime_to_refuse() -> None:
    junk = b"MatMulInteger, not a model"
    assert exact_source(junk) == junk
    assert exact_source("no/such/file.onnx") == "no/such/file.onnx"
