"""The interpreter: order, names, borders, and which arithmetic an op gets."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir import DType, Module, Semantics, clone, evaluate, interpret, ops, parse_module
from hbc.ir.dense import seeded
from hbc_runtime.errors import InputMismatch
from tests.strategies_ir import runnable

X = np.array([[-1.5, 0.5, 2.0, 9.0]], np.float32)
TEXT = """
graph @g(%x: tensor<1x4xf32>) -> (%y, "total sum" = %1, %x) {
  %0 = clip %x {low = 0.0, high = 6.0} : tensor<1x4xf32>
  %y = neg %0 : tensor<1x4xf32>
  %1 = reduce_sum %y {axes = [1]} : tensor<1x1xf32>
}
"""
CALL = """
graph @g(%x: tensor<2xf32>) -> (%y) {
  %y = call %x {op_type = "Foo", opset = 1, node_proto = ""} : tensor<2xf32>
}
"""


def test_outputs_come_by_their_names_in_order() -> None:
    outputs = interpret(parse_module(TEXT), {"x": X})
    assert list(outputs) == ["y", "total sum", "x"]
    assert np.array_equal(outputs["y"], np.array([[0.0, -0.5, -2.0, -6.0]], np.float32))
    assert np.array_equal(outputs["total sum"], np.array([[-8.5]], np.float32))
    assert np.array_equal(outputs["x"], X)


def test_keep_adds_every_value_by_its_name_in_the_text() -> None:
    kept = interpret(parse_module(TEXT), {"x": X}, keep=True)
    assert sorted(kept) == ["0", "1", "total sum", "x", "y"]
    assert np.array_equal(kept["0"], np.array([[0.0, 0.5, 2.0, 6.0]], np.float32))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": X, "z": X}, "there is no input 'z'; inputs are 'x'"),
        ({"x": X.astype(np.float64)}, r"input 'x' is float64\[1, 4\], not f32\[1, 4\]"),
        ({"x": X[0]}, r"input 'x' is float32\[4\], not f32\[1, 4\]"),
    ],
)
def test_inputs_must_fit(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputMismatch, match=message):
        interpret(parse_module(TEXT), inputs)


def test_an_op_that_only_the_cpu_has_needs_an_engine() -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(LookupError, match=r"Foo \('%y'\) runs on the CPU only"):
        interpret(parse_module(CALL), {"x": x})

    def engine(op: ops.Call, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        assert op.op_type == "Foo"
        return [arrays[0] + np.float32(1)]

    assert np.array_equal(interpret(parse_module(CALL), {"x": x}, cpu=engine)["y"], x + 1)


def test_a_result_of_another_type_is_a_bug_that_is_noticed() -> None:
    with pytest.raises(AssertionError, match="<call '%y'> made float64"):
        interpret(parse_module(CALL), {"x": np.zeros(2, np.float32)}, cpu=lambda _op, _arrays: [np.zeros(2)])


def test_march_and_arithmetic_come_from_the_module() -> None:
    """-2.5 rounds to even on nash, away from zero on bayes (NUMERICS 2)."""
    text = "graph @g(%x: tensor<1xf32>) -> (%q) { %q = quantize %x : tensor<1xi8, q<1.0:0>> }"
    x = {"x": np.array([-2.5], np.float32)}
    module = parse_module(text)
    assert interpret(module, x)["q"].tolist() == [-2]
    module.march = "bayes-e"
    assert interpret(module, x)["q"].tolist() == [-3]
    module.arith = "onnx"
    assert interpret(module, x)["q"].tolist() == [-2]


def test_a_quantised_op_computes_in_integers() -> None:
    """1·0.5 + 100·0.5 = 50.5 at scale 1: half up gives 51, where float arithmetic would give half to even 50."""
    text = """
    graph @g(%a: tensor<2xi8, q<0.5:0>>, %b: tensor<2xi8, q<0.5:0>>) -> (%y) {
      %y = add %a, %b : tensor<2xi8, q<1.0:0>>
    }"""
    a, b = np.array([1, 127], np.int8), np.array([100, 127], np.int8)
    assert interpret(parse_module(text), {"a": a, "b": b})["y"].tolist() == [51, 127]


def test_evaluate_gives_arrays_of_the_results_types() -> None:
    line = "%s = reduce_max %x {axes = [0, 1], keepdims = false} : tensor<f32>"
    module = parse_module(f"graph @g(%x: tensor<1x4xf32>) -> (%s) {{ {line} }}")
    (result,) = evaluate(module.graph.ops[0], Semantics(), [X])
    assert isinstance(result, np.ndarray)
    assert (result.shape, result.dtype, float(result)) == ((), np.float32, 9.0)


@pytest.mark.parametrize("keep", [False, True])
def test_values_are_let_go_after_their_last_reader_unless_kept(keep: bool) -> None:
    text = "graph @g(%x: tensor<2xf32>) -> (%c) {" + "".join(
        f'%{out} = call %{x} {{op_type = "Foo", opset = 1, node_proto = ""}} : tensor<2xf32>\n'
        for x, out in (("x", "a"), ("a", "b"), ("b", "c"))
    )
    seen: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def engine(_op: ops.Call, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        seen.append(weakref.ref(arrays[0]))
        alive.append(sum(ref() is not None for ref in seen))
        return [arrays[0].copy()]

    x = {"x": np.zeros(2, np.float32)}
    interpret(parse_module(text + "}"), x, cpu=engine, keep=keep)
    assert alive == ([1, 2, 3] if keep else [1, 2, 2])  # x is the caller's


@settings(max_examples=40, deadline=None)
@given(runnable(), st.integers(0, 3))
def test_a_clone_computes_the_same_and_twice_is_the_same(module: Module, seed: int) -> None:
    inputs = {str(a.name): seeded(seed, a.type.shape, DType.F32) for a in module.graph.args}
    first, second = interpret(module, inputs), interpret(clone(module), inputs)
    assert list(first) == ["out0", "out1"]
    for name, value in first.items():
        assert np.array_equal(value, second[name], equal_nan=True)
        assert value.dtype == np.float32
