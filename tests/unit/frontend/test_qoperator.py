"""QOperator models: each op as dequantize → float op → quantize, with the types its scales give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.frontend import load
from hbc.ir.core import Module
from hbc.ir.ops import Call, Const, Conv2d, Dequantize, Linear, Quantize
from hbc.ir.types import DType, Quant
from tests.ort_age import needs_young_onnxruntime

from .net import Array, Net, agrees, floats, integers, names_of, onnxruntime_outputs, run_module

I8, U8, I32, F32 = np.int8, np.uint8, np.int32, np.float32
MS = "com.microsoft"


def pair(net: Net, scale: Any, zero: Any) -> list[str]:
    return [net.const(F32(scale)), net.const(zero)]


def at_most_one_quantum(net: Net, feeds: dict[str, Array], share: float = 0.02) -> Module:
    """Microsoft's kernels add the zero point before rounding, so ties may fall one integer away (NUMERICS 10.3)."""
    module = load(net.model())
    got, want = run_module(module, feeds), onnxruntime_outputs(net.model(), feeds)
    for name, array in want.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        apart = np.abs(got[name].astype(np.int64) - array)
        assert apart.max() <= 1
        assert (apart > 0).mean() <= share
    return module


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("x_dtype", [U8, I8])
def test_qlinear_conv(x_dtype: Any, bias: bool, per_channel: bool) -> None:
    """Powers of two, so that the real form rounds the very ties that the integer form has."""
    net = Net(13)
    x = net.input("x", [1, 4, 6, 7], x_dtype)
    scale, zero = (F32([2**-7, 2**-6, 2**-5, 2**-8]), I8([0] * 4)) if per_channel else (F32(2**-6), I8(0))
    w = [net.const(integers(1, I8, 4, 1, 3, 3), "w"), *pair(net, scale, zero)]
    more = [net.const(I32([500, -400, 30, 0]), "b")] if bias else []
    net.op(
        "QLinearConv",
        x,
        *pair(net, 2**-4, x_dtype(7)),
        *w,
        *pair(net, 2**-3, x_dtype(3)),
        *more,
        out="y",
        group=4,
        pads=[1] * 4,
    )
    net.output("y", dtype=x_dtype)
    module = agrees(net.model(), {"x": integers(2, x_dtype, 1, 4, 6, 7)}, exported=False)
    assert module.graph.args[0].type.quant == Quant.per_tensor(2**-4, 7)
    (conv,) = module.graph.walk(Conv2d)
    if bias:
        const = conv.bias.defined_by(Dequantize).x.defined_by(Const)
        steps = np.atleast_1d(F32(2**-4) * scale)
        assert const.out.type.quant == Quant(tuple(float(s) for s in steps), (0,), 0 if per_channel else None)


def test_qlinear_conv_of_one_axis_with_weight_zero_point() -> None:
    net = Net(13)
    w = [net.const(integers(3, U8, 3, 2, 3)), *pair(net, 0.02, U8(130))]
    net.op(
        "QLinearConv", net.input("x", [1, 2, 9], U8), *pair(net, 0.05, U8(100)), *w, *pair(net, 0.1, U8(128)), out="y"
    )
    net.output("y", dtype=U8)
    agrees(net.model(), {"x": integers(4, U8, 1, 2, 9)}, exported=False)


@pytest.mark.parametrize("weight", [True, False])
def test_qlinear_matmul(weight: bool) -> None:
    net = Net(13)
    a = net.input("a", [2, 3, 8], U8)
    b = net.const(integers(5, I8, 8, 4)) if weight else net.input("b", [8, 4], I8)
    feeds: dict[str, Array] = {"a": integers(6, U8, 2, 3, 8)}
    if not weight:
        feeds["b"] = integers(5, I8, 8, 4)
    net.op("QLinearMatMul", a, *pair(net, 0.02, U8(100)), b, *pair(net, 0.03, I8(0)), *pair(net, 0.5, U8(128)), out="y")
    net.output("y", dtype=U8)
    assert bool(list(agrees(net.model(), feeds, exported=False).graph.walk(Linear))) == weight


def test_qlinear_matmul_with_scales_per_column() -> None:
    net = Net(13)
    b = [net.const(integers(7, I8, 8, 4)), *pair(net, [0.01, 0.02, 0.03, 0.04], I8([0] * 4))]
    net.op(
        "QLinearMatMul", net.input("a", [3, 8], U8), *pair(net, 0.02, U8(100)), *b, *pair(net, 0.5, U8(128)), out="y"
    )
    net.output("y", dtype=U8)
    module = agrees(net.model(), {"a": integers(8, U8, 3, 8)}, exported=False)
    assert next(module.graph.walk(Linear)).weight.defined_by(Dequantize).x.type.quant.axis == 0


def test_integer_products_are_accumulators_in_steps_of_one() -> None:
    needs_young_onnxruntime("has no ConvInteger of i8 weights")
    net = Net(13)
    w, m = net.const(integers(9, I8, 3, 2, 3, 3)), net.const(integers(10, I8, 6, 4))
    net.op("ConvInteger", net.input("x", [1, 2, 5, 5], U8), w, net.const(U8(77)), out="y")
    net.op("MatMulInteger", net.input("a", [3, 6], U8), m, net.const(U8(5)), net.const(I8([1, 2, 3, 4])), out="z")
    net.op("Cast", "z", out="f", to=1)
    net.output("y", "z", dtype=I32)
    net.output("f")
    feeds = {"x": integers(11, U8, 1, 2, 5, 5), "a": integers(12, U8, 3, 6)}
    module = agrees(net.model(), feeds, exported=False)
    assert [q.out.type.quant for q in module.graph.walk(Quantize)] == [Quant((1.0,))] * 2
    assert names_of(module)[-1] == "dequantize"


def test_dynamic_quantisation_stays_on_the_cpu() -> None:
    net = Net(13)
    net.op("DynamicQuantizeLinear", net.input("x", [4, 16]), out=["q", "s", "z"])
    m = net.op("MatMulInteger", "q", net.const(integers(13, I8, 16, 5)), "z", net.const(I8(0)))
    net.op("Mul", net.op("Cast", m, to=1), net.op("Mul", "s", net.const(F32(0.013))), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(14, 4, 16)}, exported=False)
    assert names_of(module) == ["call DynamicQuantizeLinear", "call MatMulInteger", "cast", "mul", "mul"]


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_qlinear_arithmetic(op_type: str) -> None:
    net = Net(13, com_microsoft=1)
    a, b = net.input("a", [1, 3, 4, 4], U8), net.input("b", [3, 1, 1], U8)
    net.op(
        op_type, a, *pair(net, 0.02, U8(100)), b, *pair(net, 0.03, U8(0)), *pair(net, 0.05, U8(60)), out="y", domain=MS
    )
    net.output("y", dtype=U8)
    at_most_one_quantum(net, {"a": integers(15, U8, 1, 3, 4, 4), "b": integers(16, U8, 3, 1, 1)}, share=0.1)


def test_qlinear_concat() -> None:
    net = Net(13, com_microsoft=1)
    a, b = net.input("a", [1, 2, 4, 4], U8), net.input("b", [1, 3, 4, 4], U8)
    net.op(
        "QLinearConcat",
        *pair(net, 0.05, U8(60)),
        a,
        *pair(net, 0.02, U8(100)),
        b,
        *pair(net, 0.05, U8(60)),
        out="y",
        domain=MS,
        axis=1,
    )
    net.output("y", dtype=U8)
    module = at_most_one_quantum(net, {"a": integers(17, U8, 1, 2, 4, 4), "b": integers(18, U8, 1, 3, 4, 4)})
    assert names_of(module) == ["dequantize", "dequantize", "concat", "quantize"]


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op_type", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_qlinear_averages(op_type: str, last: int) -> None:
    net = Net(13, com_microsoft=1)
    x = net.input("x", [1, 6, 6, 4] if last else [1, 4, 6, 6], U8)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4} if op_type == "QLinearAveragePool" else {}
    net.op(
        op_type,
        x,
        *pair(net, 0.02, U8(100)),
        *pair(net, 0.015, U8(90)),
        out="y",
        domain=MS,
        channels_last=last,
        **window,
    )
    net.output("y", dtype=U8)
    at_most_one_quantum(net, {"x": integers(19, U8, *((1, 6, 6, 4) if last else (1, 4, 6, 6)))}, share=0.05)


@pytest.mark.parametrize(("op_type", "attrs"), [("QLinearLeakyRelu", {"alpha": 0.1}), ("QLinearSigmoid", {})])
def test_qlinear_functions(op_type: str, attrs: dict[str, Any]) -> None:
    net = Net(13, com_microsoft=1)
    x = net.input("x", [2, 128], U8)
    net.op(op_type, x, *pair(net, 0.03, U8(128)), *pair(net, 0.01, U8(20)), out="y", domain=MS, **attrs)
    net.output("y", dtype=U8)
    at_most_one_quantum(net, {"x": np.arange(256).astype(U8).reshape(2, 128)})


@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (11, 1), (11, 2)])
def test_qlinear_softmax_of_either_meaning(opset: int, axis: int) -> None:
    net = Net(13, com_microsoft=1)
    x = net.input("x", [2, 3, 4], U8)
    net.op(
        "QLinearSoftmax",
        x,
        *pair(net, 0.03, U8(128)),
        *pair(net, 1 / 256, U8(0)),
        out="y",
        domain=MS,
        axis=axis,
        opset=opset,
    )
    net.output("y", dtype=U8)
    at_most_one_quantum(net, {"x": integers(20, U8, 2, 3, 4)}, share=0.1)


def test_qlinear_where_and_reduce_mean() -> None:
    net = Net(13, com_microsoft=1)
    c = net.input("c", [2, 8], np.bool_)
    a, b = net.input("a", [2, 8], U8), net.input("b", [2, 8], U8)
    net.op(
        "QLinearWhere",
        c,
        a,
        *pair(net, 0.02, U8(9)),
        b,
        *pair(net, 0.03, U8(0)),
        *pair(net, 0.03, U8(5)),
        out="y",
        domain=MS,
    )
    net.output("y", dtype=U8)
    feeds = {"c": floats(21, 2, 8) > 0, "a": integers(22, U8, 2, 8), "b": integers(23, U8, 2, 8)}
    at_most_one_quantum(net, feeds, share=0.1)


@pytest.mark.parametrize("trans_b", [0, 1])
def test_qgemm(trans_b: int) -> None:
    net = Net(13, com_microsoft=1)
    b = integers(24, I8, *((4, 6) if trans_b else (6, 4)))
    scale = F32([0.01, 0.02, 0.03, 0.04])
    operands = [net.const(b), net.const(scale), net.const(I8([0] * 4)), net.const(I32([900, -800, 7, 0]))]
    common = [net.input("a", [3, 6], U8), *pair(net, 0.05, U8(110)), *operands]
    net.op("QGemm", *common, *pair(net, 0.1, U8(100)), out="y", domain=MS, transB=trans_b)
    net.op("QGemm", *common, out="f", domain=MS, transB=trans_b)
    net.output("y", dtype=U8)
    module = at_most_one_quantum(net, {"a": integers(25, U8, 3, 6)})
    net.output("f")
    agrees(net.model(), {"a": integers(25, U8, 3, 6)}, atol=1e-5, exported=False)
    assert next(module.graph.walk(Linear)).bias.defined_by(Dequantize).x.type.quant.axis == 0


def test_quantised_tensors_pass_through_moves_between_qoperators() -> None:
    net = Net(13, com_microsoft=1)
    q = net.q(net.input("x", [1, 4, 4, 4]), 2**-4, U8(128))
    w = [net.const(integers(26, I8, 4, 4, 1, 1)), *pair(net, 2**-6, I8(0))]
    y = net.op(
        "QLinearConv",
        net.op("MaxPool", q, kernel_shape=[2, 2]),
        *pair(net, 2**-4, U8(128)),
        *w,
        *pair(net, 2**-2, U8(9)),
    )
    r = net.op("Resize", y, "", net.const(F32([1, 1, 2, 2])), mode="nearest")
    net.dq(net.op("Reshape", r, net.const(np.int64([1, -1]))), 2**-2, U8(9), out="z")
    net.output("z")
    module = agrees(net.model(), {"x": floats(27, 1, 4, 4, 4)}, atol=1e-5, exported=False)
    names = names_of(module)
    assert names[:3] == ["quantize", "max_pool", "dequantize"]
    assert names[-4:] == ["quantize", "resize_nearest", "reshape", "dequantize"]


def test_scales_that_are_computed_leave_the_op_to_onnx_runtime() -> None:
    net = Net(13, com_microsoft=1)
    a, s = net.input("a", [4], U8), net.input("s", [])
    z = net.const(U8(0))
    net.op("QLinearAdd", a, s, z, a, s, z, s, z, out="y", domain=MS)
    net.output("y", dtype=U8)
    module = agrees(net.model(), {"a": integers(40, U8, 4), "s": np.asarray(F32(0.5))})
    (call,) = module.graph.walk(Call)
    assert call.reason == "its scales or zero points are computed at run time"
    assert "quantize_static" in call.hint


def test_matmul_integer_to_float_has_a_shape_although_onnx_knows_none() -> None:
    net = Net(13, com_microsoft=1)
    b = [net.const(integers(28, I8, 6, 4)), net.const(F32(0.1))]
    net.op("DynamicQuantizeMatMul", net.input("x", [2, 3, 6]), *b, out="y", domain=MS)
    net.output("y")
    module = agrees(net.model(), {"x": floats(29, 2, 3, 6)}, atol=1e-5)
    assert module.graph.outputs[0].value.type.shape == (2, 3, 4)
    assert module.graph.outputs[0].value.type.dtype is DType.F32
