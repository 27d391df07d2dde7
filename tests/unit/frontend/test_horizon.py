"""The vendor's domain: calibrated models as quantize and dequantize, quantized ones as `bpu.*` with their integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.core import Module
from hbc.ir.interpreter import interpret
from hbc.ir.ops import Const, Conv2d, Dequantize, Quantize
from hbc.ir.types import DType, Quant
from hbc.ir.verifier import verify
from hbc_runtime import numerics
from hbc_runtime.isa import Scheme
from tests.shared_data import shared

from .net import Net, floats, integers, names_of

HZ = "horizon"
I8, I32, F32 = np.int8, np.int32, np.float32


def horizon() -> Net:
    return Net(11, horizon=1)


def imported(net: Net) -> Module:
    module = load(net.model())
    verify(module)
    return module


def calibrated_conv(**weight_attrs: Any) -> Net:
    net = horizon()
    x = net.op(
        "HzCalibration",
        net.input("x", [1, 3, 5, 5]),
        domain=HZ,
        scales=[0.04],
        thresholds=[5.08],
        qtype="int8",
        switch="ON",
    )
    attrs = {"scales": [0.01, 0.02], "axis": 0, "qtype": "int8", "constant": 1, **weight_attrs}
    w = net.op("HzCalibration", net.const(floats(1, 2, 3, 3, 3), "w"), domain=HZ, **attrs)
    net.op("Conv", x, w, out="y", kernel_shape=[3, 3])
    net.output("y")
    return net


def test_a_calibrated_activation_is_quantised_and_dequantised() -> None:
    module = imported(calibrated_conv())
    (quantize,) = module.graph.walk(Quantize)
    assert quantize.out.type.dtype is DType.I8
    assert quantize.out.type.quant == Quant.per_tensor(0.04)


def test_a_calibrated_weight_is_its_integers_by_the_law() -> None:
    (conv,) = imported(calibrated_conv()).graph.walk(Conv2d)
    const = conv.weight.defined_by(Dequantize).x.defined_by(Const)
    scale = F32([0.01, 0.02]).reshape(2, 1, 1, 1)
    assert np.array_equal(const.value, numerics.quantize_weight(floats(1, 2, 3, 3, 3), scale))
    assert const.value.min() >= -127
    assert const.out.type.quant == Quant((float(F32(0.01)), float(F32(0.02))), (0, 0), 0)
    assert const.out.name == "w"


def test_a_calibration_that_is_off_is_nothing() -> None:
    module = imported(calibrated_conv(switch="OFF"))
    (conv,) = module.graph.walk(Conv2d)
    assert conv.weight.defined_by(Const).value.dtype == F32


def test_a_channel_of_zeros_may_have_no_scale() -> None:
    (conv,) = imported(calibrated_conv(scales=[0.0, 0.02])).graph.walk(Conv2d)
    const = conv.weight.defined_by(Dequantize).x.defined_by(Const)
    assert not const.value[0].any()
    assert const.value[1].any()
    assert min(const.out.type.quant.scale) > 0


@pytest.mark.parametrize(
    "attrs", [{"scales": [0.0]}, {"scales": [0.1, -1.0]}, {"scales": [0.1] * 3}, {"axis": 7}, {"qtype": "int4"}]
)
def test_calibrations_that_do_not_fit_are_refused(attrs: dict[str, Any]) -> None:
    with pytest.raises(FrontendError, match="HzCalibration"):
        load(calibrated_conv(**attrs).model())


def quantized_conv(*, group: int = 1, relu: bool = False, wide: bool = False, bias_shift: int = 0, **attrs: Any) -> Net:
    net = horizon()
    x = net.op("Transpose", net.input("x", [1, 4, 6, 6]), perm=[0, 2, 3, 1])
    q = net.op("HzQuantize", x, net.const(F32([0.05])), domain=HZ, bits=8, axis=3)
    w = net.const(integers(1, I8, 4, 3, 3, 4 // group))
    bias = net.const(I32([1000, -1000, 7, 0]))
    form = {"output_bit": 32, "high_precision_output": 1} if wide else {
        "output_bit": 8, "high_precision_output": 0, "scale": [20000, 21000, 22000, 32767], "right_shift": [3, 2, 1, 0],
        "out_shift": [22, 23, 22, 21],
    }  # fmt: skip
    window = {
        "kernel_shape": [3, 3],
        "pads": [1, 1, 1, 1],
        "strides": [2, 2],
        "dilations": [1, 1],
        "group": group,
        "use_bias": 1,
    }
    activation = {"activation": "relu"} if relu else {}
    every = {"data_format": "NHWC", **window, **form, **activation, **attrs}
    y = net.op("HzSQuantizedConv", q, w, bias, net.const(I8([bias_shift] * 4)), domain=HZ, **every)
    net.op("HzDequantize", y, net.const(F32([0.1, 0.2, 0.3, 0.4] if wide else [0.1])), out="y", domain=HZ, axis=3)
    net.output("y")
    return net


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("relu", [False, True])
def test_a_quantized_conv_is_the_instruction_with_the_files_integers(relu: bool, group: int) -> None:
    module = imported(quantized_conv(relu=relu, group=group, bias_shift=2))
    (conv,) = (op for op in module.graph.ops if op.NAME == "bpu.conv2d")
    assert conv.attrs["scheme"] is Scheme.FORM_A
    assert (conv.attrs["clamp_min"], conv.attrs["clamp_max"]) == (0 if relu else -128, 127)
    assert conv.bias.defined_by(Const).value.tolist() == [4000, -4000, 28, 0]
    assert conv.multiplier.defined_by(Const).value.dtype == np.int16
    x = floats(2, 1, 4, 6, 6) * 3
    y = interpret(module, {"x": x})["y"]
    assert np.array_equal(y, by_hand(x, module, relu=relu, group=group))


def by_hand(x: np.ndarray, module: Module, *, relu: bool, group: int) -> np.ndarray:
    """NUMERICS 4, form A, written out over windows."""
    q = np.clip(np.rint(x / F32(0.05)), -128, 127).astype(np.int64).transpose(0, 2, 3, 1)
    w = integers(1, I8, 4, 3, 3, 4 // group).astype(np.int64)
    padded = np.pad(q, ((0, 0), (1, 1), (1, 1), (0, 0)))
    acc = np.zeros((1, 3, 3, 4), np.int64)
    for o in range(4):
        first = o // (4 // group) * (4 // group)
        for i, j in np.ndindex(3, 3):
            acc[0, i, j, o] = (padded[0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3, first : first + 4 // group] * w[o]).sum()
    acc += np.int64([4000, -4000, 28, 0])
    y = (np.clip(acc >> np.int64([3, 2, 1, 0]), -32768, 32767) * np.int64([20000, 21000, 22000, 32767])) >> np.int64(
        [22, 23, 22, 21]
    )
    return np.clip(y, 0 if relu else -128, 127).astype(F32) * F32(0.1)


def test_a_high_precision_output_is_the_accumulator() -> None:
    module = imported(quantized_conv(wide=True))
    (conv,) = (op for op in module.graph.ops if op.NAME == "bpu.conv2d")
    assert conv.attrs["scheme"] is Scheme.NONE
    assert conv.out.type.dtype is DType.I32
    assert names_of(module)[-2:] == ["reinterpret", "dequantize"]
    assert next(module.graph.walk(Dequantize)).x.type.quant.axis == 3


@pytest.mark.parametrize(
    ("attrs", "says"),
    [
        ({"activation": "relu6"}, "relu6"),
        ({"output_bit": 16}, "16 bits"),
        ({"data_format": "NCHW"}, "NCHW"),
        ({"scale": [1, 2]}, "2 entries"),
        ({"scale": [1 << 20] * 4}, "int16"),
        ({"wide": True, "relu": True}, "relu"),
    ],
)
def test_quantized_convs_that_are_not_understood_are_refused(attrs: dict[str, Any], says: str) -> None:
    with pytest.raises(FrontendError, match=says):
        load(quantized_conv(**attrs).model())


def test_a_quantized_average_is_form_b() -> None:
    net = horizon()
    x = net.op("Transpose", net.input("x", [1, 3, 4, 4]), perm=[0, 2, 3, 1])
    q = net.op("HzQuantize", x, net.const(F32([0.05])), domain=HZ, bits=8)
    form = {"accu_right_shift": [1] * 3, "output_scale": [20000] * 3, "output_right_shift": [18] * 3}
    y = net.op(
        "HzSQuantizedGlobalAveragePool", q, domain=HZ, rounding_method="ROUND", output_bit=8, data_format="NHWC", **form
    )
    net.op("HzDequantize", y, net.const(F32([0.05])), out="y", domain=HZ)
    net.output("y")
    module = imported(net)
    x_array = floats(3, 1, 3, 4, 4)
    q_array = np.clip(np.rint(x_array / F32(0.05)), -128, 127).astype(np.int64).sum(axis=(2, 3))
    want = np.clip(((q_array >> 1) * 20000 + (1 << 17)) >> 18, -128, 127).astype(F32) * F32(0.05)
    assert np.array_equal(interpret(module, {"x": x_array})["y"].reshape(1, 3), want)


def test_unknown_vendor_operators_are_named() -> None:
    net = horizon()
    net.op("HzSomethingNew", net.input("x", [1]), out="y", domain=HZ)
    net.output("y")
    with pytest.raises(FrontendError, match="HzSomethingNew") as raised:
        load(net.model())
    assert "HzSomethingNew_0" in str(raised.value)


@pytest.mark.parametrize("board", ["x3", "x5"])
@pytest.mark.parametrize("stage", ["original_float", "optimized_float", "calibrated", "quantized"])
def test_the_vendors_own_files_are_taken(board: str, stage: str) -> None:
    module = load(shared("data", "vendor", board, f"simple_net_{board}_{stage}_model.onnx"))
    verify(module)
    assert not any(name.startswith("call") for name in names_of(module))
    assert module.graph.outputs[0].value.type.shape == (1, 2)
