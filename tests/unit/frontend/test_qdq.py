"""QDQ models of every dialect: what each form of QuantizeLinear and DequantizeLinear becomes; its integers agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import Const, Conv2d, Dequantize, Linear, Quantize, Reinterpret
from hbc.ir.types import DType, Quant
from tests.ort_age import needs_young_onnxruntime

from .net import Net, agrees, floats, integers, names_of, run_module

I8, U8, I16, U16, I32, F32 = np.int8, np.uint8, np.int16, np.uint16, np.int32, np.float32


@pytest.mark.parametrize(
    ("zero", "dtype"),
    [(None, DType.U8), (U8(0), DType.U8), (U8(117), DType.U8), (I8(-5), DType.I8)],
    ids=["missing", "u8-0", "u8-117", "i8"],
)
def test_the_zero_point_types_the_integers(zero: Any, dtype: DType) -> None:
    net = Net(13)
    net.dq(net.q(net.input("x", [3, 40]), 0.05, zero), 0.05, zero, out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(0, 3, 40)})
    (quantize,) = module.graph.walk(Quantize)
    assert quantize.out.type.dtype is dtype
    assert quantize.out.type.quant == Quant.per_tensor(0.05, 0 if zero is None else int(zero))


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("zero", [I16(0), I16(-1000), U16(40000)])
def test_sixteen_bits_come_in_both_domains(zero: Any, domain: str) -> None:
    net = Net(21, com_microsoft=1)
    q = net.op("QuantizeLinear", net.input("x", [300]), net.const(F32(1e-3)), net.const(zero), domain=domain)
    net.op("DequantizeLinear", q, net.const(F32(1e-3)), net.const(zero), out="y", domain=domain)
    net.output("y")
    module = agrees(net.model(), {"x": floats(1, 300) * 20})
    assert next(module.graph.walk(Quantize)).out.type.dtype is DType.of(zero.dtype)


def test_output_dtype_types_the_integers_where_there_is_no_zero_point() -> None:
    net = Net(21)
    net.q(net.input("x", [50]), 0.1, out="y", output_dtype=onnx.TensorProto.INT8)
    net.output("y", dtype=I8)
    agrees(net.model(), {"x": floats(2, 50) * 9})


@pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (-1, 4), (-3, 2)])
def test_scales_run_along_any_axis(axis: int, size: int) -> None:
    scale = (np.arange(size) + 1).astype(F32) / 16
    zero = (np.arange(size) * 7).astype(U8)
    net = Net(13)
    q = net.q(net.input("x", [2, 3, 4]), scale, zero, axis=axis)
    net.dq(q, scale, zero, out="y", axis=axis)
    net.output("y")
    module = agrees(net.model(), {"x": floats(3, 2, 3, 4) * 5})
    assert next(module.graph.walk(Quantize)).out.type.quant == Quant(
        tuple(map(float, scale)), tuple(map(int, zero)), axis % 3
    )


def test_scales_shaped_one_are_per_tensor() -> None:
    net = Net(13)
    net.dq(net.q(net.input("x", [4, 4]), [0.25], I8([3])), [0.25], I8([3]), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(4, 4, 4) * 30})
    assert next(module.graph.walk(Quantize)).out.type.quant == Quant.per_tensor(0.25, 3)


def test_an_empty_zero_point_name_means_zero() -> None:
    net = Net(13)
    net.op("DequantizeLinear", net.input("x", [9], U8), net.const(F32(0.5)), "", out="y")
    net.output("y")
    agrees(net.model(), {"x": integers(5, U8, 9)})


def test_rounding_is_half_to_even_before_the_zero_point() -> None:
    net = Net(13)
    net.q(net.input("x", [83]), 1.0, I8(1), out="y")
    net.output("y", dtype=I8)
    agrees(net.model(), {"x": (np.arange(-41, 42) / 2).astype(F32)})


def test_an_integer_input_stands_for_what_its_dequantize_says() -> None:
    net = Net(13)
    x = net.input("x", [1, 4], U8)
    net.op("Add", net.dq(x, 0.5, U8(10)), net.dq(net.op("Transpose", x, perm=[0, 1]), 0.5, U8(10)), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": integers(6, U8, 1, 4)})
    assert module.graph.args[0].type.quant == Quant.per_tensor(0.5, 10)
    assert not list(module.graph.walk(Reinterpret))


def test_an_integer_input_read_in_two_ways_stays_plain() -> None:
    net = Net(13)
    x = net.input("x", [1, 4], U8)
    net.op("Add", net.dq(x, 0.5, U8(10)), net.dq(x, 0.25, U8(10)), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": integers(7, U8, 1, 4)})
    assert module.graph.args[0].type.quant is None
    assert len(list(module.graph.walk(Reinterpret))) == 2


def test_a_dequantize_with_its_own_scale_reinterprets() -> None:
    net = Net(13)
    net.dq(net.q(net.input("x", [20]), 0.5, I8(0)), 0.25, I8(2), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(8, 20) * 20})
    assert names_of(module) == ["quantize", "reinterpret", "dequantize"]


def test_back_to_back_pairs_round_and_saturate_at_every_step() -> None:
    net = Net(13)
    x = net.qdq(net.input("x", [100]), 0.5, I8(0))
    net.output(net.q(net.qdq(x, 0.1, U8(128)), 0.3, I8(-4), out="y"), dtype=I8)
    agrees(net.model(), {"x": floats(9, 100) * 40})


def test_shared_nodes_serve_all_their_users() -> None:
    net = Net(13)
    q = net.q(net.input("x", [2, 5]), 0.1, I8(3))
    a = net.dq(q, 0.1, I8(3))
    net.op("Add", net.op("Relu", a), net.op("Mul", a, net.dq(q, 0.1, I8(3))), out="y")
    net.op("Identity", a, out="z")
    net.output("y", "z")
    module = agrees(net.model(), {"x": floats(10, 2, 5) * 9})
    assert len(list(module.graph.walk(Quantize))) == 1


def conv_net(weight: str, net: Net, bias: str = "") -> Net:
    x = net.qdq("x", 0.1, U8(120))
    net.op("Conv", x, weight, *([bias] if bias else []), out="y", pads=[1, 1, 1, 1])
    net.output("y")
    return net


@pytest.mark.parametrize("bias", ["none", "float", "i32"])
def test_conv_weights_and_biases(bias: str) -> None:
    net = Net(13)
    net.input("x", [1, 3, 5, 6])
    scale = F32([0.01, 0.02, 0.04, 0.08])
    w = net.dq(net.const(integers(11, I8, 4, 3, 3, 3), "w"), scale, I8([0] * 4), axis=0)
    b = ""
    if bias == "float":
        b = net.const(floats(12, 4))
    if bias == "i32":
        b = net.dq(net.const(integers(13, I16, 4).astype(I32), "b"), scale * F32(0.1), axis=0)
    module = agrees(conv_net(w, net, b).model(), {"x": floats(14, 1, 3, 5, 6) * 5}, atol=1e-5)
    (conv,) = module.graph.walk(Conv2d)
    const = conv.weight.defined_by(Dequantize).x.defined_by(Const)
    assert const.out.name == "w"
    assert const.out.type.quant == Quant(tuple(map(float, scale)), (0,) * 4, 0)
    assert (conv.bias is None) == (bias == "none")


def test_weights_with_zero_points_per_channel() -> None:
    net = Net(13)
    net.input("x", [1, 2, 4, 4])
    w = net.dq(net.const(integers(15, U8, 3, 2, 3, 3)), F32([0.1, 0.2, 0.3]), U8([5, 90, 200]), axis=0)
    agrees(conv_net(w, net).model(), {"x": floats(16, 1, 2, 4, 4)}, atol=1e-5)


def test_one_weight_read_by_two_scales_becomes_two_constants() -> None:
    net = Net(13)
    x = net.input("x", [2, 6])
    w = net.const(integers(17, I8, 6, 4), "w")
    net.op("Add", net.op("MatMul", x, net.dq(w, 0.1, I8(0))), net.op("MatMul", x, net.dq(w, 0.2, I8(0))), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(18, 2, 6)}, atol=1e-5)
    assert len({c.out.type.quant for c in module.graph.walk(Const)}) == 2


def test_a_fake_quantised_float_weight_stays_quantize_and_dequantize() -> None:
    net = Net(13)
    x = net.input("x", [2, 6])
    w = net.const(floats(19, 4, 6), "w")
    scale, zero = F32([0.01, 0.02, 0.03, 0.04]), I8([0] * 4)
    net.op("Gemm", x, net.dq(net.q(w, scale, zero, axis=0), scale, zero, axis=0), out="y", transB=1)
    net.output("y")
    module = agrees(net.model(), {"x": floats(20, 2, 6)}, atol=1e-5)
    (linear,) = module.graph.walk(Linear)
    assert linear.weight.defined_by(Dequantize).x.defined_by(Quantize).x.defined_by(Const).out.name == "w"


def test_layout_ops_between_a_weight_and_its_conv_move_the_integers() -> None:
    """HWIO weights with scales on the last axis, transposed behind and before their DequantizeLinear."""
    net = Net(13)
    net.input("x", [1, 3, 6, 6])
    w = net.const(integers(21, I8, 3, 3, 3, 5))
    scale, zero = F32([0.1, 0.2, 0.3, 0.4, 0.5]), I8([0] * 5)
    behind = net.op("Transpose", net.dq(w, scale, zero, axis=3), perm=[3, 2, 0, 1])
    before = net.dq(net.op("Transpose", w, perm=[3, 2, 0, 1]), scale, zero, axis=0)
    net.op("Conv", "x", behind, out="y")
    net.op("Conv", "x", before, out="z")
    net.output("y", "z")
    module = agrees(net.model(), {"x": floats(22, 1, 3, 6, 6)}, atol=1e-5)
    for conv in module.graph.walk(Conv2d):
        assert conv.weight.defined_by(Dequantize).x.defined_by(Const).out.type.quant.axis == 0


def test_reshapes_of_weights_keep_their_scales_where_the_axis_survives() -> None:
    net = Net(13)
    x = net.input("x", [3, 5])
    w = net.dq(net.const(integers(23, I8, 5, 2, 3)), F32([0.1, 0.2, 0.3, 0.4, 0.5]), I8([0] * 5), axis=0)
    flat = net.op("Reshape", w, net.const(np.int64([5, -1])))
    net.op("MatMul", x, net.qdq(flat, 0.2, I8(0)), out="y")
    net.op("MatMul", x, flat, out="z")
    net.output("y", "z")
    module = agrees(net.model(), {"x": floats(24, 3, 5)}, atol=1e-5)
    first, second = module.graph.walk(Linear)
    assert second.weight.defined_by(Dequantize).x.type.quant.axis == 1  # transposed: [N, K]
    assert isinstance(first.weight.op, Dequantize)


def test_a_reshape_that_tears_the_axis_stays_behind_the_dequantize() -> None:
    net = Net(13)
    x = net.input("x", [3, 6])
    w = net.dq(net.const(integers(25, I8, 4, 6)), F32([0.1, 0.2, 0.3, 0.4]), I8([0] * 4), axis=0)
    net.op("MatMul", x, net.op("Reshape", w, net.const(np.int64([6, 4]))), out="y")
    net.output("y")
    agrees(net.model(), {"x": floats(26, 3, 6)}, atol=1e-5)


def test_clips_between_quantize_and_dequantize_limit_the_integers() -> None:
    net = Net(17)
    q = net.q(net.input("x", [60]), 0.1, U8(20))
    net.dq(net.op("Clip", q, net.const(U8(15)), net.const(U8(127))), 0.1, U8(20), out="y")
    w = net.op("Clip", net.const(integers(27, I8, 7)), net.const(I8(-127)), net.const(I8(127)))
    net.dq(w, 0.5, I8(0), out="z")
    net.output("y", "z")
    module = agrees(net.model(), {"x": floats(28, 60) * 8})
    assert names_of(module)[-3:] == ["quantize", "dequantize", "dequantize"]


def test_integers_keep_what_they_stand_for_through_moves() -> None:
    net = Net(13)
    q = net.q(net.input("x", [1, 2, 4, 6]), 0.1, U8(7))
    y = net.op("MaxPool", q, kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Concat", net.op("Transpose", y, perm=[0, 2, 3, 1]), net.op("Transpose", y, perm=[0, 2, 3, 1]), axis=3)
    net.dq(
        net.op("Slice", y, net.const(np.int64([1])), net.const(np.int64([3])), net.const(np.int64([3]))),
        0.1,
        U8(7),
        out="y",
    )
    net.output("y")
    module = agrees(net.model(), {"x": floats(29, 1, 2, 4, 6) * 9})
    assert names_of(module) == ["quantize", "max_pool", "transpose", "transpose", "concat", "slice", "dequantize"]


def test_a_channel_without_a_scale_is_a_channel_of_zeros() -> None:
    """Calibration of a dead channel leaves scale 0; nothing may be divided by it later, and its bias must survive."""
    net = Net(13)
    net.input("x", [1, 2, 3, 3])
    w = integers(30, I8, 3, 2, 1, 1)
    net.op(
        "Conv", "x", net.dq(net.const(w), F32([0.1, 0, 0.2]), I8([0] * 3), axis=0), net.const(F32([1, 2, 3])), out="y"
    )
    net.output("y")
    module = agrees(net.model(), {"x": floats(31, 1, 2, 3, 3)}, atol=1e-5)
    (const,) = (c for c in module.graph.walk(Const) if c.out.type.dtype is DType.I8)
    assert min(const.out.type.quant.scale) > 0.05
    assert not const.value[1].any()


def test_a_bias_zero_point_is_folded_into_its_integers() -> None:
    needs_young_onnxruntime("refuses i32 zero points")
    net = Net(13)
    net.input("x", [1, 2, 3, 3])
    w = net.dq(net.const(integers(32, I8, 3, 2, 1, 1)), 0.1, I8(0))
    net.op("Conv", "x", w, net.dq(net.const(I32([5, 600, -7])), 0.01, I32(500)), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(33, 1, 2, 3, 3)}, atol=1e-5)
    (bias,) = (c for c in module.graph.walk(Const) if c.out.type.dtype is DType.I32)
    assert bias.value.tolist() == [-495, 100, -507]
    assert bias.out.type.quant.is_symmetric


def test_float16_scales_and_tensors() -> None:
    needs_young_onnxruntime("rounds float16 scales in another way")
    net = Net(19)
    x = net.input("x", [2, 8], np.float16)
    q = net.op("QuantizeLinear", x, net.const(np.float16(0.125)), net.const(I8(2)))
    net.dq(q, 0.125, I8(2), out="y")
    net.op("DequantizeLinear", q, net.const(np.float16(0.25)), net.const(I8(2)), out="h")
    net.output("y")
    net.output("h", dtype=np.float16)
    agrees(net.model(), {"x": (floats(34, 2, 8) * 8).astype(np.float16)})


def test_int4_weights_are_carried_as_bytes() -> None:
    values = np.arange(-8, 8).astype(I8)
    packed = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [4, 4], values.tolist())
    net = Net(21)
    net.constants.append(packed)
    net.op("MatMul", net.input("x", [2, 4]), net.dq("w", 0.5), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(35, 2, 4)}, atol=1e-5)
    const = next(module.graph.walk(Linear)).weight.defined_by(Dequantize).x.defined_by(Const)
    assert const.value.dtype == I8
    assert np.array_equal(const.value, values.reshape(4, 4).T)


def test_a_reshaped_zero_point_of_4_bits_still_limits_the_integers() -> None:
    """Against the formula: ONNX Runtime has no Reshape of 4 bit integers."""
    net = Net(21)
    net.constants.append(onnx.helper.make_tensor("z", onnx.TensorProto.INT4, [1], [2]))
    z, s = net.op("Reshape", "z", net.const(np.int64([]))), net.const(F32(0.25))
    net.op("DequantizeLinear", net.op("QuantizeLinear", net.input("x", [80]), s, z), s, z, out="y")
    net.output("y")
    x = floats(36, 80) * 4
    want = (np.clip(np.rint(x / F32(0.25)) + 2, -8, 7) - 2) * F32(0.25)
    assert (want.min(), want.max()) == (-2.5, 1.25)  # both ends are met
    assert np.array_equal(run_module(load(net.model()), {"x": x})["y"], want)


def test_blocked_scales_of_a_constant_give_its_reals() -> None:
    net = Net(21)
    w = net.const(integers(36, I8, 6, 4))
    scale = net.const((np.arange(12).reshape(3, 4) + 1).astype(F32) / 64)
    net.op("MatMul", net.input("x", [2, 6]), net.op("DequantizeLinear", w, scale, axis=0, block_size=2), out="y")
    net.output("y")
    agrees(net.model(), {"x": floats(37, 2, 6)}, atol=1e-4)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_scales_computed_at_run_time_stay_on_the_cpu(domain: str) -> None:
    net = Net(13, com_microsoft=1)
    net.op("DynamicQuantizeLinear", net.input("x", [4, 8]), out=["q", "s", "z"])
    net.op("DequantizeLinear", "q", "s", "z", out="y", domain=domain)
    net.output("y")
    module = agrees(net.model(), {"x": floats(38, 4, 8)})
    assert names_of(module) == ["call DynamicQuantizeLinear", "call DequantizeLinear"]


@pytest.mark.parametrize(
    ("scale", "zero", "attrs", "says"),
    [
        (F32([-0.5, 0.5, 0.5]), I8([0, 0, 0]), {"axis": 1}, "holds -0.5"),
        (F32(np.nan), I8(0), {}, "holds nan"),
        (F32(np.inf), I8(0), {}, "holds inf"),
        (F32([0.1, 0.2]), I8([0, 0]), {"axis": 1}, "has 2 entries"),
        (F32([0.1, 0.2, 0.3]), I8([0, 0, 0]), {"axis": 4}, "axis 4"),
        (F32(0.5), U8(0), {}, "differ in type"),
        (F32([0.1, 0.2, 0.3]), I8([0, 0]), {"axis": 1}, "its zero point 2"),
    ],
    ids=["mixed-signs", "nan", "inf", "length", "axis", "dtype", "zero-points"],
)
def test_scales_that_contradict_their_tensor_are_refused_by_name(
    scale: Any, zero: Any, attrs: dict[str, int], says: str
) -> None:
    net = Net(13)
    x = net.input("x", [2, 3], I8)
    net.op("DequantizeLinear", x, net.const(scale, "the scale"), net.const(zero, "the zero"), out="y", **attrs)
    net.output("y")
    with pytest.raises(FrontendError, match=says) as raised:
        load(net.model())
    assert "DequantizeLinear_0" in str(raised.value)
    assert "the scale" in str(raised.value) or "the zero" in str(raised.value) or "axis 4" in str(raised.value)


def test_an_activation_cannot_be_quantised_by_zero() -> None:
    net = Net(13)
    net.q(net.input("x", [2]), 0.0, I8(0), out="y")
    net.output("y", dtype=I8)
    with pytest.raises(FrontendError, match="a scale is 0"):
        load(net.model())


def test_a_bias_that_is_not_finite_is_refused_by_name() -> None:
    net = Net(13)
    w = net.dq(net.const(integers(39, I8, 2, 2, 1, 1)), 0.1, I8(0))
    net.op("Conv", net.input("x", [1, 2, 3, 3]), w, net.const(F32([np.nan, 1]), "head.bias"), out="y")
    net.output("y")
    with pytest.raises(FrontendError, match=r"head\.bias"):
        load(net.model())
