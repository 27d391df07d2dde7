"""From the vendor's calibrated models hbc derives exactly the integers in the vendor's quantized models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hbc
from hbc_runtime import Session, isa, numerics
from hbc_runtime.program import BpuSegment, Model
from tests.shared_data import shared

onnx = pytest.importorskip("onnx")

MARCH_OF = {"x5": "bayes-e", "x3": "bernoulli2"}


def vendor_file(board: str, stage: str) -> Path:
    return shared("data", "vendor", board, f"simple_net_{board}_{stage}_model.onnx")


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def instruction_of(model: Model, node: str) -> isa.Instruction:
    found = [
        i
        for s in model.segments
        if isinstance(s, BpuSegment)
        for i in s.instructions
        if isinstance(i, (isa.Conv2d, isa.AvgPool)) and node in i.loc
    ]
    assert len(found) == 1, f"{node} is {len(found)} instructions"
    return found[0]


def parameter(model: Model, instruction: isa.Instruction, operand: str, channels: int) -> np.ndarray:
    names = [o.rstrip("?*") for o in instruction.operands]
    value = model.constant(instruction.inputs[names.index(operand)])
    return np.broadcast_to(value, (channels,)) if value.ndim == 1 else value


@pytest.mark.parametrize("board", MARCH_OF)
def test_conv_integers_equal_the_vendors(board: str) -> None:
    quantized = onnx.load(vendor_file(board, "quantized"))
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in quantized.graph.initializer}
    model = hbc.compile(vendor_file(board, "calibrated"), march=MARCH_OF[board]).program.models[0]
    nodes = [n for n in quantized.graph.node if n.op_type == "HzSQuantizedConv"]
    assert len(nodes) == {"x5": 2, "x3": 6}[board]
    for node in nodes:
        attrs, instruction = attributes(node), instruction_of(model, node.name)
        weight, stored, b_scale = (constants[name] for name in node.input[1:4])
        channels = len(weight)
        np.testing.assert_array_equal(parameter(model, instruction, "weight", channels), weight)
        bias = parameter(model, instruction, "bias", channels)
        np.testing.assert_array_equal(bias, stored.astype(np.int64) << b_scale.astype(np.int64))
        if board == "x3":
            ours = numerics.bias_b_scale(bias)
            np.testing.assert_array_equal(ours[0], stored)
            np.testing.assert_array_equal(ours[1], b_scale)
        else:
            assert not b_scale.any()
        if attrs["high_precision_output"]:
            assert instruction.scheme is isa.Scheme.NONE
            continue
        for name, theirs in (("multiplier", "scale"), ("pre_shift", "right_shift"), ("post_shift", "out_shift")):
            ours = parameter(model, instruction, name, channels)
            np.testing.assert_array_equal(ours, attrs[theirs], err_msg=f"{node.name} {name}")


def test_global_average_pool_integers_equal_the_vendors() -> None:
    quantized = onnx.load(vendor_file("x5", "quantized"))
    node = next(n for n in quantized.graph.node if n.op_type == "HzSQuantizedGlobalAveragePool")
    model = hbc.compile(vendor_file("x5", "calibrated"), march="bayes-e").program.models[0]
    instruction, attrs = instruction_of(model, node.name), attributes(node)
    assert instruction.scheme is isa.Scheme.FORM_B
    names = {"multiplier": "output_scale", "pre_shift": "accu_right_shift", "post_shift": "output_right_shift"}
    for name, theirs in names.items():
        np.testing.assert_array_equal(parameter(model, instruction, name, 16), attrs[theirs])


def test_high_precision_output_carries_the_vendors_scales() -> None:
    quantized = onnx.load(vendor_file("x3", "quantized"))
    scale = next(onnx.numpy_helper.to_array(t) for t in quantized.graph.initializer if t.name == "/fc/Gemm_x_scale")
    model = hbc.compile(vendor_file("x3", "calibrated"), march="bernoulli2").program.models[0]
    wide = next(t for t in model.tensors if t.quant is not None and t.dtype.name == "I32" and t.quant.axis is not None)
    np.testing.assert_array_equal(np.float32(wide.quant.scale), scale)


@pytest.mark.parametrize("board", MARCH_OF)
def test_calibrated_and_quantized_models_give_equal_results(board: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32) * 2
    results = [
        Session(hbc.compile(vendor_file(board, stage), march=MARCH_OF[board]).program).run({"input": x})["output"]
        for stage in ("calibrated", "quantized")
    ]
    assert results[0].shape == (1, 2)
    np.testing.assert_array_equal(results[0], results[1])
