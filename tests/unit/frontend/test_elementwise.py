"""Arithmetic with broadcasting, functions of one variable, reductions, batch normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load

from .net import Net, agrees, floats, integers, names_of

F32 = np.float32


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
def test_binary_arithmetic_broadcasts(op_type: str) -> None:
    net = Net(13)
    net.op(op_type, net.input("a", [1, 3, 4, 4]), net.input("b", [3, 1, 1]), out="y")
    net.op(op_type, net.const(F32(1.5)), "a", out="z")
    net.output("y", "z")
    agrees(
        net.model(),
        {"a": np.abs(floats(0, 1, 3, 4, 4)) + F32(0.1), "b": np.abs(floats(1, 3, 1, 1)) + F32(0.1)},
        atol=1e-5,
    )


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_any_number_of_operands(op_type: str) -> None:
    net = Net(13)
    for name in "abc":
        net.input(name, [2, 3])
    net.op(op_type, "a", "b", "c", out="y")
    net.op(op_type, "a", out="z")
    net.output("y", "z")
    agrees(net.model(), {name: floats(i, 2, 3) for i, name in enumerate("abc")})


def test_integers_divide_towards_zero() -> None:
    net = Net(14)
    net.op("Div", net.input("a", [6], np.int32), net.const(np.int32([2, -2, 3, 3, -3, 7])), out="y")
    net.op("Add", "a", net.op("Mul", "a", "a"), out="z")
    net.output("y", "z", dtype=np.int32)
    module = agrees(net.model(), {"a": np.int32([7, 7, -7, 8, -8, 0])})
    assert names_of(module) == ["div", "mul", "add"]


def test_an_integer_exponent_is_read_as_a_real() -> None:
    net = Net(13)
    net.op("Pow", net.input("x", [5]), net.const(np.int64(3)), out="y")
    net.output("y")
    agrees(net.model(), {"x": floats(2, 5)})


def test_arithmetic_on_quantised_integers_is_on_the_integers() -> None:
    """ONNX adds the numbers, whatever they stand for elsewhere."""
    net = Net(14)
    q = net.op("Cast", net.q(net.input("x", [9]), 0.5, np.int8(3)), to=6)
    net.op("Add", q, net.const(np.int32(1)), out="y")
    net.output("y", dtype=np.int32)
    module = agrees(net.model(), {"x": floats(3, 9) * 9})
    assert names_of(module) == ["quantize", "reinterpret", "cast", "add"]


SINGLE: list[tuple[str, dict[str, Any], int]] = [
    *((t, {}, 17) for t in ("Sigmoid", "Tanh", "Exp", "Erf", "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Sin")),
    *((t, {}, 17) for t in ("Cos", "Atan", "Sinh", "Cosh", "Asinh", "Softsign", "Softplus", "HardSwish", "Relu")),
    ("Tan", {}, 17), ("Mish", {}, 18), ("LeakyRelu", {}, 17), ("LeakyRelu", {"alpha": 0.3}, 17),
    ("Elu", {"alpha": 1.5}, 17), ("Selu", {}, 17), ("Selu", {"alpha": 1.2, "gamma": 0.8}, 17),
    ("HardSigmoid", {}, 17), ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, 17),
    ("ThresholdedRelu", {"alpha": 0.4}, 17), ("Celu", {"alpha": 0.5}, 17),
    ("Gelu", {}, 20), ("Gelu", {"approximate": "tanh"}, 20),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "attrs", "opset"), SINGLE, ids=str)
def test_functions_of_one_variable(op_type: str, attrs: dict[str, Any], opset: int) -> None:
    net = Net(opset)
    net.op(op_type, net.input("x", [4, 50]), out="y", **attrs)
    net.output("y")
    module = agrees(net.model(), {"x": floats(4, 4, 50) * 2}, atol=1e-5)
    assert "call" not in " ".join(names_of(module))


@pytest.mark.parametrize("op_type", ["Log", "Sqrt", "Reciprocal", "Acosh", "Asin", "Acos", "Atanh"])
def test_functions_with_a_domain(op_type: str) -> None:
    net = Net(17)
    net.op(op_type, net.input("x", [100]), out="y")
    net.output("y")
    x = np.linspace(1, 4, 100) if op_type == "Acosh" else np.linspace(0.01, 0.95, 100)
    agrees(net.model(), {"x": x.astype(F32)}, atol=1e-5)


@pytest.mark.parametrize("domain", ["com.microsoft"])
def test_contributed_gelu(domain: str) -> None:
    net = Net(17, com_microsoft=1)
    net.op("Gelu", net.input("x", [40]), out="y", domain=domain)
    net.op("QuickGelu", "x", out="z", domain=domain)
    net.output("y", "z")
    assert names_of(agrees(net.model(), {"x": floats(5, 40)}, atol=1e-5)) == ["gelu", "mul", "sigmoid", "mul"]


@pytest.mark.parametrize("slope", [(), (1,), (3, 1, 1), (1, 3, 1, 1), (4,)])
def test_prelu(slope: tuple[int, ...]) -> None:
    net = Net(17)
    net.op("PRelu", net.input("x", [1, 3, 4, 4]), net.const(np.abs(floats(6, *slope))), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(7, 1, 3, 4, 4)})
    assert names_of(module) == (["leaky_relu"] if np.prod(slope) == 1 else ["less", "mul", "where"])


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (None, 0.3), (-0.2, None), (None, None), (0.0, None)])
@pytest.mark.parametrize("opset", [10, 11, 13])
def test_clip(low: float | None, high: float | None, opset: int) -> None:
    net = Net(opset)
    x = net.input("x", [30])
    if opset < 11:
        net.op("Clip", x, out="y", **{k: v for k, v in (("min", low), ("max", high)) if v is not None})
    else:
        bounds = ["" if v is None else net.const(F32(v)) for v in (low, high)]
        while bounds and not bounds[-1]:
            bounds.pop()
        net.op("Clip", x, *bounds, out="y")
    net.output("y")
    agrees(net.model(), {"x": floats(8, 30)}, atol=0)


def test_clip_bounds_may_be_dequantised_or_computed() -> None:
    net = Net(13)
    low = net.dq(net.const(np.int8(-3)), 0.25, np.int8(0))
    net.op("Clip", net.input("x", [30]), low, net.const(F32(0.5)), out="y")
    net.op("Clip", "x", net.input("low", []), out="z")
    net.output("y", "z")
    module = agrees(net.model(), {"x": floats(9, 30), "low": np.asarray(0.1, F32)}, atol=0)
    assert names_of(module) == ["clip", "maximum"]


REDUCTIONS = [
    ("ReduceMean", 13),
    ("ReduceMean", 18),
    ("ReduceSum", 11),
    ("ReduceSum", 13),
    ("ReduceMax", 13),
    ("ReduceMin", 18),
]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(2, 3), (-1,), (1,), None])
@pytest.mark.parametrize(("op_type", "opset"), REDUCTIONS)
def test_reductions(op_type: str, opset: int, axes: tuple[int, ...] | None, keep: int) -> None:
    net = Net(opset)
    x = net.input("x", [2, 3, 4, 5])
    as_operand = opset >= (13 if op_type == "ReduceSum" else 18)
    if axes is None:
        net.op(op_type, x, out="y", keepdims=keep)
    elif as_operand:
        net.op(op_type, x, net.const(np.int64(axes)), out="y", keepdims=keep)
    else:
        net.op(op_type, x, out="y", axes=axes, keepdims=keep)
    net.output("y")
    module = agrees(net.model(), {"x": floats(10, 2, 3, 4, 5)}, atol=1e-5)
    assert len(names_of(module)) == 1


def test_no_axes_and_noop_means_nothing_happens() -> None:
    net = Net(18)
    net.op(
        "ReduceSum", net.op("Relu", net.input("x", [2, 3])), net.const(np.int64([])), out="y", noop_with_empty_axes=1
    )
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(11, 2, 3)})) == ["clip"]


def test_other_reductions_stay_on_the_cpu() -> None:
    net = Net(17)
    net.op("ReduceL2", net.input("x", [2, 3, 4]), out="y", axes=[1])
    net.op("ArgMax", "x", out="i", axis=-1)
    net.output("y")
    net.output("i", dtype=np.int64)
    assert names_of(agrees(net.model(), {"x": floats(12, 2, 3, 4)})) == ["call ReduceL2", "arg_max"]


@pytest.mark.parametrize("opset", [9, 15])
def test_batch_normalization_folds_its_parameters(opset: int) -> None:
    net = Net(opset)
    parameters = [net.const(v) for v in (floats(1, 3), floats(2, 3), floats(3, 3), np.abs(floats(4, 3)) + F32(0.1))]
    net.op("BatchNormalization", net.input("x", [2, 3, 4, 4]), *parameters, out="y", epsilon=1e-3)
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(13, 2, 3, 4, 4)}, atol=1e-5)) == ["batch_norm"]


def test_batch_normalization_with_a_negative_variance_is_refused() -> None:
    net = Net(15)
    net.op("BatchNormalization", net.input("x", [1, 1, 2, 2]), *(net.const(F32([v])) for v in (1, 0, 0, -1)), out="y")
    net.output("y")
    with pytest.raises(FrontendError, match="not finite"):
        load(net.model())


def test_reductions_of_integers() -> None:
    net = Net(18)
    q = net.q(net.input("x", [2, 6]), 0.1, np.int8(3))
    net.op("ReduceMax", q, net.const(np.int64([1])), out="y")
    net.op("ReduceSum", net.input("n", [2, 6], np.int32), net.const(np.int64([0])), out="z")
    net.output("y", dtype=np.int8)
    net.output("z", dtype=np.int32)
    module = agrees(net.model(), {"x": floats(14, 2, 6) * 9, "n": integers(15, np.int16, 2, 6).astype(np.int32)})
    assert names_of(module) == ["quantize", "reduce_max", "reduce_sum"]
    assert module.graph.outputs[0].value.type.quant is not None


@pytest.mark.parametrize(("operands", "limits"), [("ab", [1]), ("a", [1, 9])])
def test_a_division_of_hbcs_own_says_what_it_takes(operands: str, limits: list[int]) -> None:
    net = Net(17, hbc=1)
    net.op("Div", *(net.input(name, [2, 3]) for name in operands), out="y", domain="hbc", divisor=limits)
    net.output("y")
    with pytest.raises(FrontendError, match=r"takes two tensors and a divisor's two limits(.|\n)*'Div_0'"):
        load(net.model())


def test_a_division_of_hbcs_own_keeps_its_divisors_limits() -> None:
    net = Net(17, hbc=1)
    net.op("Div", net.input("a", [2, 3]), net.input("b", [2, 3]), out="y", domain="hbc", divisor=[1, 127])
    net.output("y")
    (op,) = load(net.model()).graph.ops
    assert op.attrs["divisor"] == (1, 127)
