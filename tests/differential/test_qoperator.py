"""QOperator nodes, of ONNX and of Microsoft, compiled in both arithmetics, against ONNX Runtime, its optimiser off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.differential.built import Built, compare, scales
from tests.unit.frontend.net import RNG, Net, floats, integers

MS = "com.microsoft"
F32, I8, U8, I32 = np.float32, np.int8, np.uint8, np.int32
CASES: dict[str, Callable[[], Built]] = {}


def case(build: Callable[[], Built]) -> Callable[[], Built]:
    CASES[build.__name__] = build
    return build


def pair(net: Net, scale: float, zero: Any) -> list[str]:
    return [net.const(F32(scale)), net.const(zero)]


def started(*shape: int, dtype: Any = U8) -> Built:
    """A net with one quantised input."""
    net = Net(17, com_microsoft=1)
    net.input("x", shape, dtype)
    net.output("y", dtype=dtype)
    return Built(net, {"x": integers(9, dtype, *shape)}, 1)


def unary(op: str, scale: float, zero: Any, **attrs: Any) -> Callable[[], Built]:
    def build() -> Built:
        built = started(2, 3, 4, 6)
        operands = [*pair(built.net, 0.05, U8(120)), *pair(built.net, scale, zero)]
        built.net.op(op, "x", *operands, out="y", domain=MS, **attrs)
        if op == "QLinearSoftmax":
            built.cpu_onnx = {"softmax"}  # ONNX's softmax is one of reals
        return built

    return build


CASES["sigmoid"] = unary("QLinearSigmoid", 1 / 256, U8(0))
CASES["leaky_relu"] = unary("QLinearLeakyRelu", 0.05, U8(100), alpha=0.1)
CASES["softmax_of_opset_13"] = unary("QLinearSoftmax", 1 / 256, U8(0), axis=1, opset=13)
CASES["softmax_of_opset_11_flattens"] = unary("QLinearSoftmax", 1 / 256, U8(0), axis=2, opset=11)


@case
def add_broadcasts() -> Built:
    built = started(2, 3, 40)
    net = built.net
    net.input("z", [3, 1], U8)
    built.feeds["z"] = integers(8, U8, 3, 1)
    operands = [*pair(net, 0.05, U8(120)), "z", *pair(net, 0.02, U8(20)), *pair(net, 0.06, U8(100))]
    net.op("QLinearAdd", "x", *operands, out="y", domain=MS)
    return built


@case
def mul_by_a_constant() -> Built:
    built = started(20, 3, 4, dtype=I8)
    net = built.net
    constant = net.const(integers(1, I8, 4))
    operands = [*pair(net, 0.05, I8(-20)), constant, *pair(net, 0.02, I8(2)), *pair(net, 0.06, I8(10))]
    net.op("QLinearMul", "x", *operands, out="y", domain=MS)
    return built


@case
def concat_of_other_scales_and_a_constant() -> Built:
    built = started(2, 3, 4)
    net = built.net
    constant = net.const(integers(1, U8, 2, 1, 4))
    parts = ["x", *pair(net, 0.05, U8(120)), constant, *pair(net, 0.06, U8(100))]
    net.op("QLinearConcat", *pair(net, 0.06, U8(100)), *parts, out="y", domain=MS, axis=1)
    return built


@case
def average_with_pads() -> Built:
    built = started(1, 3, 6, 6)
    operands = [*pair(built.net, 0.05, U8(120)), *pair(built.net, 0.04, U8(100))]
    attrs: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 2, 2]}
    built.net.op("QLinearAveragePool", "x", *operands, out="y", domain=MS, **attrs)
    return built


@case
def global_average_of_channels_last() -> Built:
    built = started(1, 6, 6, 3)
    operands = [*pair(built.net, 0.05, U8(120)), *pair(built.net, 0.01, U8(100))]
    built.net.op("QLinearGlobalAveragePool", "x", *operands, out="y", domain=MS, channels_last=1)
    return built


@case
def where_of_two_scales() -> Built:
    built = started(2, 4)
    net = built.net
    net.input("c", [2, 4], np.bool_)
    built.feeds["c"] = floats(1, 2, 4) > 0
    operands = ["x", *pair(net, 0.05, U8(120)), net.const(U8([1, 60, 120, 255])), *pair(net, 0.02, U8(20))]
    net.op("QLinearWhere", "c", *operands, *pair(net, 0.06, U8(100)), out="y", domain=MS)
    return built


@case
def matmul_with_a_zero_point_per_column() -> Built:
    built = started(2, 3, 4)
    net = built.net
    weight = [net.const(integers(1, U8, 4, 5)), net.const(scales(2, 5)), net.const(integers(3, U8, 5))]
    net.op("QLinearMatMul", "x", *pair(net, 0.05, U8(120)), *weight, *pair(net, 0.1, U8(100)), out="y")
    return built


@case
def depthwise_with_a_zero_point_per_channel() -> Built:
    built = started(1, 4, 6, 6)
    net = built.net
    weight = [net.const(integers(1, U8, 4, 1, 3, 3)), net.const(scales(2, 4)), net.const(U8([1, 128, 200, 255]))]
    bias = net.const(RNG(3).integers(-900, 900, 4).astype(I32))
    operands = [*pair(net, 0.05, U8(120)), *weight, *pair(net, 0.1, U8(100)), bias]
    net.op("QLinearConv", "x", *operands, out="y", group=4, pads=[0, 0, 0, 1])
    return built


@case
def gemm_with_a_transposed_weight() -> Built:
    built = started(4, 6)
    net = built.net
    weight = [net.const(integers(1, I8, 5, 6)), net.const(scales(2, 5)), net.const(np.zeros(5, I8))]
    bias = net.const(RNG(3).integers(-900, 900, 5).astype(I32))
    operands = [*pair(net, 0.02, U8(120)), *weight, bias, *pair(net, 0.1, U8(99))]
    net.op("QGemm", "x", *operands, out="y", domain=MS, transB=1)
    return built


@case
def integer_convolution() -> Built:
    net = Net(13)
    net.op("ConvInteger", net.input("x", [1, 3, 6, 6], U8), net.const(integers(1, I8, 4, 3, 3, 3)), net.const(U8(77)),
           out="y", pads=[1, 1, 1, 1])  # fmt: skip
    net.output("y", dtype=I32)
    return Built(net, {"x": integers(9, U8, 1, 3, 6, 6)}, 1e-9)


@case
def integer_product_with_a_zero_point_per_column() -> Built:
    net = Net(13)
    zeros = [net.const(U8(77)), net.const(integers(2, U8, 4))]
    net.op("MatMulInteger", net.input("x", [3, 6], U8), net.const(integers(1, U8, 6, 4)), *zeros, out="y")
    net.output("y", dtype=I32)
    return Built(net, {"x": integers(9, U8, 3, 6)}, 1e-9)


@case
def recurrent_layer() -> Built:
    net = Net(13, com_microsoft=1)
    weights = [net.const(integers(1, U8, 1, 4, 20)), net.const(integers(2, U8, 1, 5, 20)), net.const(floats(3, 1, 40))]
    quants = [net.const(v) for _ in range(2) for v in (F32([0.01]), U8([128]))]
    operands = [*weights, "", "", "", "", *quants]
    net.op("DynamicQuantizeLSTM", net.input("x", [3, 2, 4]), *operands, out="y", domain=MS, hidden_size=5)
    net.output("y")
    return Built(net, {"x": floats(9, 3, 2, 4)}, 1e-5, cpu={"call"})


@case
def embeddings() -> Built:
    net = Net(13, com_microsoft=1)
    tables = [net.const(integers(i, U8, *shape)) for i, shape in enumerate([(10, 8), (6, 8)])]
    vectors = [net.const(integers(5 + i, U8, 8)) for i in range(2)]
    s, z = net.const(F32(0.01)), net.const(U8(128))
    operands = ["", *tables, "", *vectors, "", s, s, "", s, s, z, z, "", z, z]
    net.op("QEmbedLayerNormalization", net.input("ids", [1, 4], I32), *operands, out=["y", "m"], domain=MS)
    net.output("y")
    return Built(net, {"ids": I32([[1, 0, 9, 3]])}, 1e-5, cpu={"call"})


@case
def scales_given_at_run_time() -> Built:
    built = started(2, 4)
    net = built.net
    net.input("s", [])
    built.feeds["s"] = np.asarray(0.05, F32)
    zero = net.const(U8(3))
    net.op("QLinearAdd", "x", "s", zero, "x", "s", zero, *pair(net, 0.05, U8(9)), out="y", domain=MS)
    built.cpu = {"call"}
    return built


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_qoperator(name: str, arith: str) -> None:
    compare(CASES[name](), arith, share=0.75)
