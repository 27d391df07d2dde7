"""What generators of quantised models write beside plain QDQ, against ONNX Runtime with its optimiser off.

Every net is compiled in both arithmetics. `onnx` is within 1 quantum of ONNX Runtime (it sums reals in float32, so that
a tie may fall the other way); `bpu` within 2: the vendor's requantisation, and its rounding of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import hbc
from hbc.driver import Compiled
from tests.differential.built import Built, closed, compare, opened, packed, run, scales
from tests.ort_age import needs_young_onnxruntime
from tests.unit.frontend.net import RNG, Net, floats, integers, onnxruntime_outputs

MS = "com.microsoft"
F32, I8, U8, I16, U16, I32 = np.float32, np.int8, np.uint8, np.int16, np.uint16, np.int32


CASES: dict[str, Callable[[], Built]] = {}


def case(build: Callable[[], Built]) -> Callable[[], Built]:
    CASES[build.__name__] = build
    return build


# ---- fewer than 8 bits, 16 bits


@case
def activations_of_4_bits() -> Built:
    net = Net(21)
    x, s, z = net.input("x", [1, 3, 6, 6]), net.const(F32(0.3)), packed(net, "z", 1, TensorProto.INT4)
    d = net.op("DequantizeLinear", net.op("QuantizeLinear", x, s, z), s, z)
    y = net.op("Conv", d, net.dq(net.const(integers(1, I8, 4, 3, 3, 3)), 0.01, I8(0)), pads=[1, 1, 1, 1])
    s, z = net.const(F32(0.2)), packed(net, "z2", 3, TensorProto.UINT4)
    net.op("DequantizeLinear", net.op("QuantizeLinear", y, s, z), s, z, out="y")
    net.output("y")
    return Built(net, {"x": 2 * floats(0, 1, 3, 6, 6)}, 0.2)


@case
def activations_of_4_bits_per_channel() -> Built:
    net = Net(21)
    x, s = net.input("x", [2, 3, 8]), net.const(F32([0.1, 0.2, 0.3]))
    z = packed(net, "z", [0, 1, -2], TensorProto.INT4)
    q = net.op("QuantizeLinear", x, s, z, axis=1)
    net.op("DequantizeLinear", q, s, z, out="y", axis=1)
    net.output("y")
    return Built(net, {"x": 2 * floats(0, 2, 3, 8)}, 0.1, cpu={"clip"})


@case
def weights_of_4_bits_per_channel() -> Built:
    net, x, feeds = opened(21, 1, 3, 6, 6)
    w = packed(net, "w", RNG(1).integers(-8, 8, (4, 3, 3, 3)), TensorProto.INT4)
    w = net.op("DequantizeLinear", w, net.const(F32([0.1, 0.2, 0.05, 0.3])), axis=-4)
    return closed(net, net.op("Conv", x, w, pads=[1, 1, 1, 1]), feeds)


@case
def weights_of_4_bits_with_zero_points() -> Built:
    net, x, feeds = opened(21, 2, 8, zero=U8(128))
    w = packed(net, "w", RNG(1).integers(0, 16, (8, 5)), TensorProto.UINT4)
    z = packed(net, "z", [5, 6, 7, 8, 9], TensorProto.UINT4)
    w = net.op("DequantizeLinear", w, net.const(4 * scales(2, 5)), z, axis=1)
    return closed(net, net.op("MatMul", x, w), feeds, 0.05, U8(100))


@case
def weights_fake_quantised_to_4_bits() -> Built:
    net, x, feeds = opened(21, 2, 8, zero=U8(128))
    z, s = packed(net, "z", [0] * 5, TensorProto.INT4), net.const(F32([0.1, 0.2, 0.05, 0.3, 0.07]))
    q = net.op("QuantizeLinear", net.const(floats(1, 5, 8)), s, z, axis=0)
    w = net.op("DequantizeLinear", q, s, z, axis=0)
    return closed(net, net.op("Gemm", x, w, transB=1), feeds, 0.1, U8(100))


@case
def activations_of_16_bits() -> Built:
    net = Net(21)
    x = net.qdq(net.input("x", [1, 3, 6, 6]), 2**-12, U16(33000))
    w = net.dq(net.const(integers(1, I8, 4, 3, 3, 3)), 0.01, I8(0))
    return closed(net, net.op("Conv", x, w, pads=[1] * 4), {"x": floats(0, 1, 3, 6, 6)}, 2**-11, I16(-5))


@case
def integers_clipped_in_their_own_type() -> Built:
    net = Net(13)
    s, z = net.const(F32(0.3)), net.const(U8(0))
    q = net.op("Identity", net.op("QuantizeLinear", net.input("x", [1, 3, 7, 7]), s, z))
    limits = [net.op("Cast", net.const(I32(v)), to=TensorProto.UINT8) for v in (0, 15)]
    net.op("DequantizeLinear", net.op("Clip", q, *limits), s, z, out="y")
    net.output("y")
    return Built(net, {"x": 4 * floats(0, 1, 3, 7, 7)}, 0.3)


@case
def integers_clipped_in_a_wider_type() -> Built:
    net = Net(13)
    s, z = net.const(F32(0.3)), net.const(I8(0))
    q = net.op("QuantizeLinear", net.input("x", [1, 3, 7, 7]), s, z)
    q = net.op("Clip", net.op("Cast", q, to=TensorProto.INT32), net.const(I32(-7)), net.const(I32(7)))
    net.op("DequantizeLinear", net.op("Cast", q, to=TensorProto.INT8), s, z, out="y")
    net.output("y")
    return Built(net, {"x": 4 * floats(0, 1, 3, 7, 7)}, 0.3)


@case
def weights_clipped_behind_their_quantize() -> Built:
    net, x, feeds = opened(13, 1, 3, 6, 6)
    s, z = net.const(scales(1, 4) * 4), net.const(np.zeros(4, I8))
    q = net.op("QuantizeLinear", net.const(floats(2, 4, 3, 3, 3)), s, z, axis=0)
    w = net.op("DequantizeLinear", net.op("Clip", q, net.const(I8(-15)), net.const(I8(15))), s, z, axis=0)
    return closed(net, net.op("Conv", x, w), feeds)


# ---- axes, zero points, scales


@case
def transposed_convolution_by_a_negative_axis() -> Built:
    net, x, feeds = opened(13, 1, 3, 5, 5)
    w = net.dq(net.const(integers(1, I8, 3, 4, 2, 2)), scales(2, 4), np.zeros(4, I8), axis=-3)
    return closed(net, net.op("ConvTranspose", x, w, strides=[2, 2]), feeds)


@case
def transposed_convolution_in_groups() -> Built:
    net, x, feeds = opened(13, 1, 4, 5, 5)
    w = net.dq(net.const(integers(1, I8, 4, 3, 2, 2)), scales(2, 3), np.zeros(3, I8), axis=1)
    return closed(net, net.op("ConvTranspose", x, w, strides=[2, 2], group=2), feeds)


def wrong_axis(op: str, shape: list[int], axis: int, name: str) -> Built:
    net, x, feeds = opened(13, *([1, 3, 5, 5] if len(shape) == 4 else [4, 3]))
    w = net.dq(net.const(integers(1, I8, *shape)), 4 * scales(2, 3), np.zeros(3, I8), axis=axis)
    return closed(net, net.op(op, x, w), feeds, 0.2, cpu={name})


CASES["convolution_with_scales_of_its_inputs"] = lambda: wrong_axis("Conv", [3, 3, 3, 3], 1, "conv2d")
CASES["transposed_convolution_with_scales_of_its_inputs"] = lambda: wrong_axis(
    "ConvTranspose", [3, 3, 2, 2], 0, "conv_transpose2d"
)
CASES["product_with_scales_of_its_rows"] = lambda: wrong_axis("MatMul", [3, 3], 0, "linear")


@case
def weights_transposed_behind_their_dequantize() -> Built:
    net, x, feeds = opened(13, 4, 6)
    w = net.dq(net.const(integers(1, I8, 5, 6)), scales(2, 5), np.zeros(5, I8), axis=0)
    b = net.dq(net.const(RNG(3).integers(-300, 300, 5).astype(I32)), F32(0.03) * scales(2, 5), np.zeros(5, I32), axis=0)
    return closed(net, net.op("Gemm", x, net.op("Transpose", w, perm=[1, 0]), b), feeds)


@case
def weights_split_along_their_scales() -> Built:
    net, x, feeds = opened(13, 3, 8)
    w = net.dq(net.const(integers(1, I8, 8, 6)), scales(2, 6), np.zeros(6, I8), axis=1)
    parts = ["w1", "w2"]
    net.op("Split", w, out=parts, axis=1)
    a, b = (net.qdq(net.op("MatMul", x, part), 0.1, I8(4)) for part in parts)
    return closed(net, net.op("Add", a, b), feeds, 0.15)


@case
def weights_joined_of_two_scales() -> Built:
    net, x, feeds = opened(13, 3, 8)
    w = [net.dq(net.const(integers(i, I8, 8, 3)), 0.01 * i, I8(i)) for i in (1, 2)]
    return closed(net, net.op("MatMul", x, net.op("Concat", *w, axis=1)), feeds)


@case
def unsigned_weights_with_a_zero_point_per_channel() -> Built:
    net, x, feeds = opened(13, 1, 3, 6, 6, zero=U8(128))
    w = net.dq(net.const(integers(1, U8, 4, 3, 3, 3)), scales(2, 4), U8([100, 128, 140, 255]), axis=0)
    return closed(net, net.op("Conv", x, w), feeds, zero=U8(7))


@case
def bias_in_8_bits_of_its_own_scale() -> Built:
    net, x, feeds = opened(13, 1, 3, 7, 7)
    w = net.dq(net.const(integers(1, I8, 4, 3, 3, 3)), 0.01, I8(0))
    return closed(net, net.op("Conv", x, w, net.dq(net.const(integers(2, I8, 4)), 0.02, I8(3))), feeds)


@case
def pads_on_one_side_with_zero_points() -> Built:
    net, x, feeds = opened(13, 1, 3, 7, 7, zero=U8(77))
    w = net.dq(net.const(integers(1, U8, 4, 3, 3, 3)), 0.01, U8(131))
    return closed(net, net.op("Conv", x, w, pads=[0, 2, 1, 1], strides=[2, 2]), feeds, zero=U8(99))


@case
def average_over_padding() -> Built:
    net, x, feeds = opened(13, 1, 3, 7, 7, zero=U8(77))
    attrs: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2], "count_include_pad": 1}
    return closed(net, net.op("AveragePool", x, **attrs), feeds, 0.02, U8(99))


@case
def concat_of_three_scales_and_types() -> Built:
    net = Net(21)
    x, z = net.input("x", [1, 3, 5, 5]), net.input("z", [1, 2, 5, 5])
    parts = [net.qdq(x, 0.03, U8(20)), net.qdq(z, 0.07, I8(12)), net.qdq(x, 0.0007, I16(12))]
    feeds = {"x": floats(0, 1, 3, 5, 5), "z": 3 * floats(1, 1, 2, 5, 5)}
    return closed(net, net.op("Concat", *parts, axis=-3), feeds, 0.05, U8(90))


@case
def relu_behind_a_quantize_of_another_zero_point() -> Built:
    net, x, feeds = opened(13, 1, 3, 7, 7, zero=U8(100))
    y = net.op("Conv", x, net.dq(net.const(integers(1, I8, 4, 3, 3, 3)), 0.01, I8(0)))
    return closed(net, net.op("Relu", net.qdq(y, 0.1, U8(140))), feeds, 0.07, U8(0))


@case
def dequantized_by_another_scale_than_quantized() -> Built:
    net = Net(13)
    net.dq(net.q(net.input("x", [2, 10]), 0.05, U8(100)), 0.1, U8(90), out="y")
    net.output("y")
    return Built(net, {"x": floats(0, 2, 10)}, 0.1)


@case
def negative_scales_everywhere() -> Built:
    net = Net(13)
    x = net.qdq(net.input("x", [1, 3, 7, 7]), -0.03, I8(7))
    w = net.dq(net.const(integers(1, I8, 4, 3, 3, 3)), -0.01, I8(0))
    y = net.op("Conv", x, w)
    return closed(net, y, {"x": floats(0, 1, 3, 7, 7)}, 0.1, cpu={"neg"})


# ---- generators' habits


@case
def tensorflow_lite_by_way_of_tf2onnx() -> Built:
    """u8 everywhere with zero points, NHWC, a transpose around every op, a depthwise convolution."""
    net = Net(13)
    x = net.dq(net.input("x", [1, 7, 7, 3], U8), 0.0078, U8(127))
    x = net.op("Transpose", x, perm=[0, 3, 1, 2])
    w = net.dq(net.const(integers(1, U8, 4, 3, 3, 3)), 0.01, U8(131))
    b = net.dq(net.const(RNG(2).integers(-3000, 3000, 4).astype(I32)), 0.000078, I32(0))
    y = net.op("Clip", net.op("Conv", x, w, b, pads=[1] * 4), net.const(F32(0)), net.const(F32(6)))
    y = net.qdq(net.op("Transpose", y, perm=[0, 2, 3, 1]), 0.0235, U8(0))
    w = net.dq(net.const(integers(3, U8, 4, 1, 3, 3)), 0.02, U8(120))
    y = net.op("Conv", net.op("Transpose", y, perm=[0, 3, 1, 2]), w, group=4, pads=[1] * 4)
    net.q(net.op("Transpose", y, perm=[0, 2, 3, 1]), 0.05, U8(110), out="y")
    net.output("y", dtype=U8)
    return Built(net, {"x": integers(4, U8, 1, 7, 7, 3)}, 1)


@case
def torch_scripts_habits() -> Built:
    """Identity on initializers, scales shaped [1], no zero point for the weight."""
    net = Net(13)
    s, z = net.op("Identity", net.const(F32([0.03]))), net.op("Identity", net.const(I8([7])))
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", net.input("x", [1, 3, 7, 7]), s, z), s, z)
    w = net.op("Identity", net.const(integers(1, I8, 4, 3, 3, 3)))
    w = net.op("DequantizeLinear", w, net.op("Identity", net.const(scales(2, 4))), axis=0)
    net.op("DequantizeLinear", net.op("QuantizeLinear", net.op("Conv", x, w), s, z), s, z, out="y")
    net.output("y")
    return Built(net, {"x": floats(0, 1, 3, 7, 7)}, 0.03)


def by_arithmetic(net: Net, x: str, scale: Any, zero: float, low: float, high: float) -> str:
    """(clip(round(x / scale) + zero) − zero) · scale in float ops, as people write it in PyTorch."""
    s = net.const(F32(scale))
    y = net.op("Round", net.op("Div", x, s))
    y = net.op("Add", y, net.const(F32(zero))) if zero else y
    y = net.op("Clip", y, net.const(F32(low)), net.const(F32(high)))
    y = net.op("Sub", y, net.const(F32(zero))) if zero else y
    return net.op("Mul", y, s)


@case
def fake_quantisation_by_arithmetic() -> Built:
    """Activations with a zero point, weights of 7 bits per channel, a relu'd 4 bit result."""
    net = Net(17)
    x = by_arithmetic(net, net.input("x", [1, 3, 8, 8]), 0.03, 120, 0, 255)
    w = by_arithmetic(net, net.const(floats(1, 4, 3, 3, 3)), 2 * scales(2, 4, 1, 1, 1), 0, -63, 63)
    y = net.op("Relu", net.op("Conv", x, w))
    net.op("Identity", by_arithmetic(net, y, 0.4, 0, 0, 15), out="y")
    net.output("y")
    return Built(net, {"x": floats(0, 1, 3, 8, 8)}, 0.4)


@case
def pairs_in_a_row() -> Built:
    net = Net(13)
    x = net.input("x", [1, 3, 6, 6])
    for scale, zero in ((0.05, U8(100)), (0.05, U8(100)), (0.07, I8(3))):
        x = net.qdq(x, scale, zero)
    return closed(net, x, {"x": floats(0, 1, 3, 6, 6)}, 0.05, U8(100))


@case
def microsofts_channels_last_convolution() -> Built:
    net = Net(13, com_microsoft=1)
    operands = [F32(0.02), U8(120), integers(1, I8, 4, 3, 3, 3), scales(2, 4), np.zeros(4, I8), F32(0.1), U8(99)]
    names = [net.const(v) for v in (*operands, RNG(3).integers(-900, 900, 4).astype(I32))]
    net.op("QLinearConv", net.input("x", [1, 7, 7, 3], U8), *names, out="y", domain=MS, channels_last=1)
    net.output("y", dtype=U8)
    return Built(net, {"x": integers(4, U8, 1, 7, 7, 3)}, 1)


@case
def reals_at_some_borders() -> Built:
    """An unquantised input and an unquantised weight: those two products stay in reals."""
    net = Net(13)
    w = net.dq(net.const(integers(1, I8, 4, 3, 3, 3)), 0.02, I8(0))
    y = net.qdq(net.op("Conv", net.input("x", [1, 3, 6, 6]), w), 0.1, U8(128))
    y = net.qdq(net.op("MaxPool", y, kernel_shape=[2, 2]), 0.1, U8(128))
    return closed(
        net, net.op("Conv", y, net.const(floats(2, 4, 4, 1, 1))), {"x": floats(0, 1, 3, 6, 6)}, cpu={"conv2d"}
    )


@case
def attention_in_one_op() -> Built:
    net = Net(13, com_microsoft=1)
    operands = [integers(1, I8, 8, 24), floats(2, 24), F32(0.02), F32(0.01)]
    names = [net.const(v) for v in operands]
    names += ["", net.const(U8(128)), net.const(I8(0))]
    net.op("QAttention", net.input("x", [1, 4, 8], U8), *names, out="y", domain=MS, num_heads=2)
    net.output("y")
    return Built(net, {"x": integers(4, U8, 1, 4, 8)}, 1e-5, cpu={"call"})


# ---- the comparison


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_dialect(name: str, arith: str) -> None:
    compare(CASES[name](), arith)


# ---- what a report says of it


def reasons(compiled: Compiled) -> dict[str, str]:
    """What runs on the CPU and why, by source node."""
    placed = [op for op in compiled.module.graph.ops if op.placement and op.placement.device == "cpu"]
    return {op.node: op.placement.reason for op in placed if op.placement}


def test_a_report_names_the_operand_that_is_not_quantised() -> None:
    built = CASES["reals_at_some_borders"]()
    found = reasons(hbc.compile(built.net.model(), march="nash"))
    assert len(found) == 2
    first, second = found.values()
    assert "'x'" in first
    assert "isn't quantised" in first
    assert built.net.nodes[-3].input[1] in second
    assert "not quantised" in second


@pytest.mark.parametrize("op", ["DynamicQuantizeLinear", "DynamicQuantizeMatMul"])
def test_scales_found_at_run_time_come_with_the_way_out(op: str) -> None:
    net = Net(13, com_microsoft=1)
    x = net.input("x", [4, 6])
    if op == "DynamicQuantizeLinear":
        q = net.op(op, x, out=["q", "s", "z"])
        y = net.op("MatMulInteger", q, net.const(integers(1, I8, 6, 5)), "z")
        net.op("Mul", net.op("Cast", y, to=1), net.op("Mul", "s", net.const(F32(0.01))), out="y")
    else:
        net.op(op, x, net.const(integers(1, I8, 6, 5)), net.const(F32(0.01)), out="y", domain=MS)
    net.output("y")
    model, feeds = net.model(), {"x": floats(0, 4, 6)}
    compiled = hbc.compile(model, march="nash")
    np.testing.assert_allclose(run(compiled, feeds)["y"], onnxruntime_outputs(model, feeds)["y"], rtol=1e-6)
    said = next(r for node, r in reasons(compiled).items() if node.startswith(op))
    assert "at run time" in said
    assert "quantize_static" in said


# ---- what this ONNX Runtime cannot run: an evaluation in NumPy


def test_bfloat16_scales() -> None:
    """Opset 23 lets scales be bfloat16 beside float tensors."""
    net = Net(23)
    for name, value in (("s", 0.03125), ("s2", 0.5)):
        net.constants.append(helper.make_tensor(name, TensorProto.BFLOAT16, [], [value]))
    x, zero, w = net.input("x", [2, 8]), net.const(I8(0)), integers(1, I8, 8, 5)
    d = net.op("DequantizeLinear", net.op("QuantizeLinear", x, "s", zero), "s", zero, output_dtype=1)
    y = net.op("MatMul", d, net.dq(net.const(w), 0.02, I8(0)))
    net.op("DequantizeLinear", net.op("QuantizeLinear", y, "s2", zero), "s2", zero, out="y", output_dtype=1)
    net.output("y")
    feeds = {"x": floats(0, 2, 8)}
    q = np.clip(np.rint(feeds["x"] / F32(0.03125)), -128, 127)
    acc = (q.astype(np.float64) * 0.03125) @ (w.astype(np.float64) * np.float64(F32(0.02)))
    want = np.clip(np.rint(acc / 0.5), -128, 127).astype(F32) * F32(0.5)
    np.testing.assert_array_equal(run(hbc.compile(net.model(), march="nash", arith="onnx"), feeds)["y"], want)


def test_four_bits_by_output_dtype_through_moves() -> None:
    net = Net(21)
    s = net.const(F32(0.3))
    q = net.op("QuantizeLinear", net.input("x", [2, 8]), s, output_dtype=TensorProto.INT4)
    q = net.op("Transpose", net.op("Reshape", q, net.const(np.int64([8, 2]))), perm=[1, 0])
    net.op("DequantizeLinear", q, s, out="y")
    net.output("y")
    feeds = {"x": 2 * floats(0, 2, 8)}
    want = np.clip(np.rint(feeds["x"] / F32(0.3)), -8, 7).astype(F32).reshape(8, 2).T * F32(0.3)
    assert want.max() == F32(7) * F32(0.3)
    np.testing.assert_array_equal(run(hbc.compile(net.model(), march="nash", arith="onnx"), feeds)["y"], want)


@pytest.mark.skipif(not hasattr(TensorProto, "INT2"), reason="this onnx package knows no 2 bit integers")
def test_weights_of_2_bits() -> None:
    needs_young_onnxruntime("has no 2 bit integers")
    net, x, feeds = opened(25, 2, 8)
    w = packed(net, "w", RNG(1).integers(-2, 2, (8, 5)), TensorProto.INT2)
    w = net.op("DequantizeLinear", w, net.const(20 * scales(2, 5)), axis=1)
    model = closed(net, net.op("MatMul", x, w), feeds).net.model()
    want = onnxruntime_outputs(model, feeds)["y"]
    got = run(hbc.compile(model, march="nash", arith="onnx"), feeds)["y"]
    assert np.abs(got - want).max() <= 0.1 * (1 + 1e-5)


@pytest.mark.parametrize("elem_type", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_float8_is_explained(elem_type: str) -> None:
    net = Net(19)
    zero = helper.make_tensor("zero", getattr(TensorProto, elem_type), [], [0.0])
    net.constants.append(zero)
    q = net.op("QuantizeLinear", net.input("x", [4]), net.const(F32(1)), "zero")
    net.op("DequantizeLinear", q, net.const(F32(1)), "zero", out="y")
    net.output("y")
    with pytest.raises(hbc.HbcError) as raised:
        hbc.compile(net.model())
    assert elem_type in str(raised.value)
    assert "8 and 16 bit integers" in str(raised.value)


@pytest.mark.parametrize("domain", ["com.amd.quark", "com.vai.quantize"])
def test_quark_s_own_operators_mean_what_onnx_s_do(domain: str) -> None:
    prefix = "Extended" if domain == "com.amd.quark" else "Vitis"
    plain, own = (Net(17), Net(17))
    own.opsets[domain] = 1
    for net, (start, where) in ((plain, ("", "")), (own, (prefix, domain))):
        s, z = net.const(F32(0.04)), net.const(I8(-3))
        q = net.op(f"{start}QuantizeLinear", net.input("x", [2, 9]), s, z, domain=where)
        net.op(f"{start}DequantizeLinear", q, s, z, out="y", domain=where)
        net.output("y")
    feeds = {"x": 4 * floats(0, 2, 9)}
    got = run(hbc.compile(own.model(), march="nash", arith="onnx"), feeds)["y"]
    np.testing.assert_array_equal(got, onnxruntime_outputs(plain.model(), feeds)["y"])
