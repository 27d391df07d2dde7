"""Tensors of unusual kinds: sparse ones, ones without elements, text, float64 on its way through calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hbc
from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import Const
from hbc_runtime import Session

from .net import Net, agrees, floats, integers, names_of

F32, I8, I64 = np.float32, np.int8, np.int64


def sparse(name: str, values: Any, places: Any, dims: list[int]) -> onnx.SparseTensorProto:
    values, places = np.asarray(values, F32), np.asarray(places, I64)
    return helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(values, name), onnx.numpy_helper.from_array(places, f"{name}_at"), dims
    )


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "by axis"])
@pytest.mark.parametrize("kind", ["initializer", "constant"])
def test_sparse_tensors_become_dense(kind: str, places: Any) -> None:
    net = Net(17)
    x = net.input("x", [2, 3])
    tensor = sparse("w", [2.5, -1.0], places, [2, 3])
    if kind == "constant":
        net.op("Constant", out="w", sparse_value=tensor)
    net.op("Add", x, "w", out="y")
    net.output("y")
    model = net.model()
    if kind == "initializer":
        model.graph.sparse_initializer.append(tensor)
    module = load(model)
    (const,) = module.graph.walk(Const)
    np.testing.assert_array_equal(const.value, F32([[0, 2.5, 0], [0, 0, -1]]))
    got = Session(hbc.compile(model, march="nash-e").program, engine="reference").run({"x": np.ones((2, 3), F32)})
    np.testing.assert_array_equal(got["y"], F32([[1, 3.5, 1], [1, 1, 0]]))


@pytest.mark.parametrize(
    ("places", "dims"),
    [([1, 6], [2, 3]), ([-1, 2], [2, 3]), ([[0, 1], [1, 3]], [2, 3]), ([1], [2, 3]), ([[1], [2]], [2, 3])],
)
def test_sparse_tensors_whose_places_do_not_fit_are_refused(places: Any, dims: list[int]) -> None:
    net = Net(17)
    net.op("Add", net.input("x", [2, 3]), "w", out="y")
    net.output("y")
    model = net.model()
    model.graph.sparse_initializer.append(sparse("w", [2.5, -1.0], places, dims))
    with pytest.raises(FrontendError, match="sparse tensor 'w'"):
        load(model)


def test_a_huge_sparse_tensor_is_refused_before_it_is_made() -> None:
    net = Net(17)
    net.op("Add", net.input("x", [2, 3]), "w", out="y")
    net.output("y")
    model = net.model()
    model.graph.sparse_initializer.append(sparse("w", [1.0], [5], [1 << 20, 1 << 20]))
    with pytest.raises(FrontendError, match="beyond 2 GiB"):
        load(model)


def test_text_is_explained() -> None:
    net = Net(17)
    net.op("Constant", out="t", value_string="hello")
    net.op("Constant", out="s", value_strings=["a", "b"])
    net.op("StringNormalizer", "s", out="n")
    net.output("n", dtype=TensorProto.STRING)
    with pytest.raises(FrontendError, match="its value is text"):
        load(net.model())


def test_inputs_without_elements_are_known() -> None:
    """`axes` of size 0 means all axes to ReduceSum; it need not be waited for."""
    net = Net(17)
    net.op("ReduceSum", net.input("x", [2, 3]), net.input("axes", [0], I64), out="y", keepdims=0)
    net.output("y")
    x = floats(0, 2, 3)
    program = hbc.compile(net.model(), march="nash-e").program
    got = Session(program, engine="reference").run({"x": x, "axes": np.zeros(0, I64)})
    np.testing.assert_allclose(got["y"], x.sum(), rtol=1e-6)


def test_results_without_elements_come_out() -> None:
    net = Net(17)
    x = net.input("x", [2, 3])
    net.op("Slice", x, net.const(I64([0])), net.const(I64([0])), net.const(I64([1])), out="none")
    net.op("Relu", x, out="y")
    net.output("none", "y")
    got = Session(hbc.compile(net.model(), march="nash-e").program, engine="reference").run({"x": floats(0, 2, 3)})
    assert got["none"].shape == (2, 0)


def test_an_input_without_elements_is_joined_with_others() -> None:
    net = Net(17)
    net.op("Concat", net.input("past", [1, 0, 4]), net.input("x", [1, 2, 4]), out="y", axis=1)
    net.output("y")
    x = floats(0, 1, 2, 4)
    program = hbc.compile(net.model(), march="nash-e").program
    got = Session(program, engine="reference").run({"x": x, "past": np.zeros((1, 0, 4), F32)})
    np.testing.assert_array_equal(got["y"], x)


def test_float64_reaches_a_call_as_it_is() -> None:
    """1 + 2⁻⁴⁰ is 1 in f32: a call that reads float64 must not see a rounded one, whether input, constant or result."""
    fine = 1 + 2.0**-40
    net = Net(17)
    x = net.input("x", [3], np.float64)
    sums = net.op("CumSum", x, net.const(np.int32(0)))
    net.op("CumSum", sums, net.const(np.int32(0)), out="twice")
    net.op("CumSum", net.const(np.float64([fine, 0, 0])), net.input("axis", [], np.int32), out="known")
    net.op("Det", net.input("m", [1, 1], np.float32), out="d")
    net.outputs.append(helper.make_tensor_value_info(sums, TensorProto.DOUBLE, None))
    net.output("known", dtype=np.float64)
    net.output("twice", dtype=np.float64)
    net.output("d")
    feeds = {"x": np.float64([fine, 0, 0]), "axis": np.asarray(0, np.int32), "m": F32([[2]])}
    got = Session(hbc.compile(net.model(), march="nash-e").program, engine="reference").run(feeds)
    np.testing.assert_array_equal(got[sums], [fine] * 3)
    np.testing.assert_array_equal(got["twice"], np.cumsum([fine] * 3))
    np.testing.assert_array_equal(got["known"], [fine] * 3)


def test_float16_reaches_a_call_without_a_detour() -> None:
    net = Net(17)
    net.op("Hardmax", net.op("CumSum", net.input("x", [2, 3], np.float16), net.const(np.int32(1))), out="y")
    net.output("y", dtype=np.float16)
    module = agrees(net.model(), {"x": floats(1, 2, 3).astype(np.float16)})
    assert names_of(module) == ["call CumSum", "call Hardmax"]


def test_training_is_explained() -> None:
    net = Net(17, ai_onnx_preview_training=1)
    x = net.input("x", [2])
    net.op("Adam", x, x, x, x, x, x, out=["a", "b", "c"], domain="ai.onnx.preview.training")
    net.output("a")
    with pytest.raises(FrontendError, match="for inference"):
        load(net.model())


def test_integers_of_constants_are_decoded_once() -> None:
    net = Net(17)
    w = net.const(integers(0, I8, 3, 3))
    net.op("Add", net.op("Cast", w, to=1), net.input("x", [3, 3]), out="y")
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(0, 3, 3)})) == ["add"]
