"""QONNX nodes against an evaluation of their published formulas in NumPy: ONNX Runtime has no kernels for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import hbc
from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import Const, Conv2d, Dequantize
from hbc.ir.types import DType
from hbc_runtime import Session

from .net import Array, Net, floats, run_module

DOMAIN = "qonnx.custom_op.general"
F32 = np.float32


def published_round(x: Array, mode: str) -> Array:
    """The rounding modes of the operator definitions."""
    if mode in {"ROUND", "HALF_EVEN"}:
        return np.round(x)
    if mode == "CEIL":
        return np.ceil(x)
    if mode == "FLOOR":
        return np.floor(x)
    magnitude = {
        "UP": np.ceil(np.abs(x)), "DOWN": np.floor(np.abs(x)), "ROUND_TO_ZERO": np.floor(np.abs(x)),
        "HALF_UP": np.floor(np.abs(x) + F32(0.5)), "HALF_DOWN": np.ceil(np.abs(x) - F32(0.5)),
    }[mode]  # fmt: skip
    return np.asarray(np.sign(x) * magnitude)


class Published(OpRun):
    """Base of the operators: attributes come from the node."""

    op_domain = DOMAIN

    def attribute(self, name: str, default: Any) -> Any:
        found = [onnx.helper.get_attribute_value(a) for a in self.onnx_node.attribute if a.name == name]
        return found[0] if found else default


class Quant(Published):
    def _run(self, *operands: Array, **_: Any) -> tuple[Array]:
        x, scale, zero, bits = operands
        signed, narrow, b = self.attribute("signed", 1), self.attribute("narrow", 0), float(bits)
        high = 2 ** (b - 1) - 1 if signed else 2**b - 1 - bool(narrow)
        low = -(2 ** (b - 1)) + bool(narrow) if signed else 0
        steps = np.clip(x / scale + zero, low, high)
        steps = published_round(steps, self.attribute("rounding_mode", b"ROUND").decode())
        return (((steps - zero) * scale).astype(F32),)


class BipolarQuant(Published):
    def _run(self, *operands: Array, **_: Any) -> tuple[Array]:
        x, scale = operands
        return (np.where(x >= 0, scale, -scale).astype(F32),)


class Trunc(Published):
    def _run(self, *operands: Array, **_: Any) -> tuple[Array]:
        x, scale, zero, before, after = operands
        steps = np.round(x / scale + zero) / 2 ** (float(before) - float(after))
        return (((np.floor(steps) - zero) * scale).astype(F32),)


def published(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The model's outputs by the published formulas."""
    session = ReferenceEvaluator(model, new_ops=[Quant, BipolarQuant, Trunc])
    return [np.asarray(a) for a in session.run(None, feeds)]


def qonnx(opset: int = 17) -> Net:
    net = Net(opset)
    net.opsets[DOMAIN] = 1
    return net


def quant(
    net: Net, x: str, scale: Any, zero: float, bits: float, out: str = "", mode: str = "ROUND", **attrs: int
) -> str:
    flags = {"signed": 1, "narrow": 0, "rounding_mode": mode, **attrs}
    operands = [net.const(F32(scale)), net.const(F32(zero)), net.const(F32(bits))]
    return net.op("Quant", x, *operands, out=out, domain=DOMAIN, **flags)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.integers(1, 18),
    signed=st.booleans(),
    narrow=st.booleans(),
    mode=st.sampled_from(["ROUND", "FLOOR", "CEIL", "UP", "DOWN", "ROUND_TO_ZERO", "HALF_UP", "HALF_DOWN"]),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_activations_lie_on_the_grid(bits: int, signed: bool, narrow: bool, mode: str, share: float, seed: int) -> None:
    """Every number of bits, sign, rounding and zero point: equal in every element, far beyond the limits too."""
    top = (1 << (bits - int(signed))) - 1
    zero = float(round(share * max(top - 1, 0))) if bits <= 8 else 0.0
    scale = F32(0.37 * 2.0 ** (4 - bits))
    net = qonnx()
    quant(net, net.input("x", [200]), scale, zero, bits, out="y", mode=mode, signed=int(signed), narrow=int(narrow))
    net.output("y")
    model = net.model()
    x = floats(seed, 200) * F32(scale * 2.0**bits)
    got = run_module(load(model), {"x": x})["y"]
    np.testing.assert_array_equal(got, published(model, {"x": x})[0])


@pytest.mark.parametrize("bits", [2, 4, 8, 12])
@pytest.mark.parametrize("mode", ["ROUND", "FLOOR", "HALF_UP"])
@pytest.mark.parametrize("narrow", [0, 1])
def test_weights_are_the_published_integers(bits: int, mode: str, narrow: int) -> None:
    """Constants become integers of 8 bits (16 above), per channel, and a conv of quantised activations takes them."""
    net = qonnx()
    w = floats(1, 4, 3, 3, 3)
    scale = (np.abs(w).max((1, 2, 3), keepdims=True) / 2.0 ** (bits - 1)).astype(F32)
    weight = quant(net, net.const(w), scale, 0.0, bits, mode=mode, narrow=narrow)
    x = quant(net, net.input("x", [1, 3, 8, 8]), 0.05, 0.0, 8)
    quant(net, net.op("Conv", x, weight, pads=[1, 1, 1, 1]), 0.1, 0.0, 8, out="y")
    net.output("y")
    model = net.model()
    module = load(model)
    (conv,) = module.graph.walk(Conv2d)
    const = conv.weight.defined_by(Dequantize).x
    assert const.type.dtype is (DType.I8 if bits <= 8 else DType.I16)
    assert const.type.quant.axis == 0
    reals = run_module(module, {"x": floats(2, 1, 3, 8, 8)})["y"]
    expected = published(model, {"x": floats(2, 1, 3, 8, 8)})[0]
    assert np.abs(reals - expected).max() <= 0.1 + 1e-6  # a quantum: sums in another order meet a tie
    compiled = hbc.compile(model, march="nash", arith="onnx")
    assert {op.placement.device for op in compiled.module.graph.ops if op.placement} <= {"bpu", "host"}
    with Session(compiled.program) as session:
        got = session.run({"x": floats(2, 1, 3, 8, 8)})["y"]
    assert np.abs(got - expected).max() <= 0.1 + 1e-6
    assert np.mean(got == expected) > 0.99


@pytest.mark.parametrize("signed", [0, 1])
def test_a_narrow_activation_is_clipped_inside_the_convolution(signed: int) -> None:
    """conv → relu → Quant of 4 bits: one instruction, whose clamp is that of 4 bits."""
    net = qonnx()
    weight = quant(net, net.const(floats(3, 4, 3, 1, 1)), 0.02, 0.0, 8, narrow=1)
    x = quant(net, net.input("x", [1, 3, 8, 8]), 0.05, 0.0, 8)
    y = net.op("Relu", net.op("Conv", x, weight))
    quant(net, y, 0.2, 0.0, 4, out="y", signed=signed)
    net.output("y")
    model = net.model()
    feeds = {"x": floats(4, 1, 3, 8, 8) * 3}
    expected = published(model, feeds)[0]
    assert expected.max() == F32((7 if signed else 15) * F32(0.2))  # the limit is reached
    compiled = hbc.compile(model, march="nash", arith="onnx")
    convs = [op for op in compiled.module.graph.ops if op.NAME == "bpu.conv2d"]
    assert [op.NAME for op in compiled.module.graph.ops if op.NAME == "bpu.clamp"] == []
    high = convs[0].attrs["clamp_max"] - convs[0].attrs.get("zero_point", 0)
    assert high == (7 if signed else 15)
    with Session(compiled.program) as session:
        got = session.run(feeds)["y"]
    assert np.abs(got - expected).max() <= 0.2 + 1e-6
    assert np.mean(got == expected) > 0.99


def test_a_bias_of_32_bits_stays_in_accumulator_steps() -> None:
    net = qonnx()
    weight = quant(net, net.const(floats(5, 4, 3, 1, 1)), 0.02, 0.0, 8)
    bias = quant(net, net.const(floats(6, 4)), 0.02 * 0.05, 0.0, 32)
    x = quant(net, net.input("x", [1, 3, 4, 4]), 0.05, 0.0, 8)
    net.op("Conv", x, weight, bias, out="y")
    net.output("y")
    model = net.model()
    module = load(model)
    (conv,) = module.graph.walk(Conv2d)
    assert conv.bias.defined_by(Dequantize).x.type.dtype is DType.I32
    feeds = {"x": floats(7, 1, 3, 4, 4)}
    with Session(hbc.compile(model, march="nash", arith="onnx").program) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], published(model, feeds)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("constant", [True, False])
def test_bipolar_is_one_bit_without_a_zero(constant: bool) -> None:
    net = qonnx()
    x = np.float32([-2, -0.0, 0.0, 1e-9, 3])
    source = net.const(x) if constant else net.input("x", [5])
    anchor = net.op("Identity", net.input("anchor", [5])) if constant else ""
    y = net.op("BipolarQuant", source, net.const(F32(0.25)), domain=DOMAIN)
    net.op("Add", y, anchor, out="y") if constant else net.op("Identity", y, out="y")
    net.output("y")
    model = net.model()
    feeds = {"anchor": np.zeros(5, F32)} if constant else {"x": x}
    np.testing.assert_array_equal(run_module(load(model), feeds)["y"], F32([-0.25, 0.25, 0.25, 0.25, 0.25]))
    np.testing.assert_array_equal(published(model, feeds)[0], F32([-0.25, 0.25, 0.25, 0.25, 0.25]))


def test_trunc_cuts_low_bits() -> None:
    net = qonnx()
    operands = [net.const(F32(v)) for v in (0.125, 0.0, 10, 8)]
    net.op("Trunc", net.input("x", [100]), *operands, out="y", domain=DOMAIN, rounding_mode="FLOOR")
    net.output("y")
    model, x = net.model(), floats(8, 100) * 30
    np.testing.assert_array_equal(run_module(load(model), {"x": x})["y"], published(model, {"x": x})[0])


def test_a_scale_along_two_axes_is_computed_in_reals() -> None:
    net = qonnx()
    scale = (np.arange(12).reshape(1, 3, 4) + 1).astype(F32) / 16
    quant(net, net.input("x", [2, 3, 4]), scale, 0.0, 4, out="y")
    net.output("y")
    model, x = net.model(), floats(9, 2, 3, 4) * 3
    np.testing.assert_array_equal(run_module(load(model), {"x": x})["y"], published(model, {"x": x})[0])


def test_scales_computed_at_run_time_run_in_reals() -> None:
    net = qonnx()
    operands = [net.input("s", [1]), net.const(F32(0)), net.const(F32(8))]
    net.op("Quant", net.input("x", [20]), *operands, out="y", domain=DOMAIN, signed=1, narrow=0, rounding_mode="ROUND")
    net.output("y")
    model, feeds = net.model(), {"s": F32([0.3]), "x": floats(10, 20) * 40}
    np.testing.assert_array_equal(run_module(load(model), feeds)["y"], published(model, feeds)[0])


@pytest.mark.parametrize("domain", ["onnx.brevitas", "finn.custom_op.general"])
def test_older_domains_mean_the_same(domain: str) -> None:
    net = Net(13)
    net.opsets[domain] = 1
    operands = [net.const(F32(v)) for v in (0.1, 0, 8)]
    net.op("Quant", net.input("x", [10]), *operands, out="y", domain=domain, signed=1, narrow=1, rounding_mode="ROUND")
    net.output("y")
    x = floats(11, 10) * 20
    want = np.clip(np.rint(x / F32(0.1)), -127, 127) * F32(0.1)
    np.testing.assert_array_equal(run_module(load(net.model()), {"x": x})["y"], want.astype(F32))


@pytest.mark.parametrize(
    ("op", "domain", "says"),
    [
        ("FloatQuant", DOMAIN, "FloatQuant: it rounds to floats below 16 bits"),
        ("MultiThreshold", DOMAIN, "FINN"),
        ("BFPQuantizeDequantize", "com.amd.quark", "shares an exponent"),
        ("MXQuantizeDequantize", "com.amd.quark", "A8W8"),
    ],
)
def test_what_no_integer_stands_for_is_explained(op: str, domain: str, says: str) -> None:
    net = Net(17)
    net.opsets[domain] = 1
    net.op(op, net.input("x", [4]), out="y", domain=domain)
    net.output("y")
    with pytest.raises(FrontendError) as raised:
        load(net.model())
    assert says in str(raised.value)
    assert f"{op}_0" in str(raised.value)


@pytest.mark.parametrize(
    ("bits", "mode", "scale", "says"),
    [
        (3.5, "ROUND", 0.1, "3.5 bits"),
        (40, "ROUND", 0.1, "40 bits"),
        (8, "STOCHASTIC", 0.1, "STOCHASTIC"),
        (8, "ROUND", 0.0, "scale or zero point"),
        (8, "ROUND", np.nan, "scale or zero point"),
    ],
)
def test_what_a_quant_cannot_say_is_refused(bits: float, mode: str, scale: float, says: str) -> None:
    net = qonnx()
    quant(net, net.input("x", [4]), scale, 0.0, bits, out="y", mode=mode)
    net.output("y")
    with pytest.raises(FrontendError) as raised:
        load(net.model())
    assert says in str(raised.value)
    assert "Quant_0" in str(raised.value)


def test_trunc_with_an_output_scale_is_refused_by_name() -> None:
    net = qonnx()
    operands = [net.const(F32(v)) for v in (0.125, 0.0, 10, 0.25, 8)]
    net.op("Trunc", net.input("x", [4]), *operands, out="y", domain=DOMAIN)
    net.output("y")
    with pytest.raises(FrontendError, match="this form of Trunc isn't taken"):
        load(net.model())


def test_constants_are_not_left_in_reals() -> None:
    """A quantised weight is one integer constant, not a float one behind five ops."""
    net = qonnx()
    net.op("MatMul", net.input("x", [2, 3]), quant(net, net.const(floats(12, 3, 4)), 0.1, 0.0, 4), out="y")
    net.output("y")
    module = load(net.model())
    assert [c.out.type.dtype for c in module.graph.walk(Const)] == [DType.I8]


def test_a_constant_on_a_grid_that_no_dtype_holds_stays_a_number() -> None:
    net = Net(17, **{DOMAIN: 1})
    bits = [net.const(F32(v)) for v in (1, 0, 32)]
    net.op("Quant", net.const(F32([3e9])), *bits, out="w", domain=DOMAIN, signed=0)
    net.op("Add", net.input("x", [1]), "w", out="y")
    net.output("y")
    got = run_module(load(net.model()), {"x": F32([0])})["y"]
    np.testing.assert_array_equal(got, F32([3e9]))
