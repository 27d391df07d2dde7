"""Where a graph is quantised: by what the compiler fuses, nothing inside a fused op or a table is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")

from hbc.ir import ops
from hbc.options import CompileOptions
from hbc.ptq.points import Plan, plan
from hbc.ptq.prepare import prepare
from tests.unit.ptq.float_nets import NETS, Maker


def planned(model: onnx.ModelProto, **more: object) -> tuple[Plan, dict[str, list[str]]]:
    """The plan, and the names of activations by what shares a scale."""
    module = prepare(model, CompileOptions())
    floats = [op for op in module.graph.ops if op.node in more.get("floats", ())]  # type: ignore[operator]
    made = plan(module.graph, floats)
    groups: dict[str, list[str]] = {}
    for v in made.activations:
        groups.setdefault(str(made.joined[v].name), []).append(str(v.name))
    return made, groups


def names(made: Plan) -> set[str]:
    return {str(v.name) for v in made.activations}


def test_nothing_is_rounded_inside_a_fused_convolution() -> None:
    made, _ = planned(NETS["residual"]())
    # relu outputs, the pool, the input; no convolution, batch norm or addition, and the head is an accumulator
    assert names(made) == {"x", "relu2", "relu5", "relu8", "clip10", "globalaveragepool11"}
    assert len(made.weights) == 5
    assert {type(op) for op in made.weights} == {ops.Conv2d, ops.Linear}


def test_nothing_is_rounded_inside_a_function_of_one_tensor() -> None:
    made, _ = planned(NETS["hardswish"]())
    assert "div4" in names(made)  # x · clip(x + 3, 0, 6) / 6
    assert "conv0" in names(made)  # the table's operand
    assert not names(made) & {"add1", "clip2", "mul3"}
    assert not names(made) & {"conv5", "mul6"}  # scalar factor and addend went into the weights


def test_data_moves_keep_scales_and_heads_stay_wide() -> None:
    made, groups = planned(NETS["pyramid"]())
    assert {"heat"} <= names(made)
    assert "offset" not in names(made)  # the accumulator of a convolution
    assert not any(n.startswith("maxpool") for n in names(made))
    (resized,) = (g for g in groups.values() if "resize6" in g)
    assert "relu4" in resized  # a bilinear resize has its operand's scale
    assert any("concat8" in g and "convtranspose7" in g for g in groups.values())


def test_heads_that_are_joined_stay_wide_where_nothing_reads_integers() -> None:
    made, _ = planned(NETS["detector"](), floats=("Softmax_17",))
    assert "concat16" not in names(made)  # scores go to the CPU as accumulators
    made, groups = planned(NETS["detector"]())
    assert len(groups["conv4"]) == 3  # both score heads and what joins them
    assert {"scores", "add22"} <= {str(v.name) for v in made.tail}  # what no product multiplies again
    assert "relu3" not in {str(v.name) for v in made.tail}


def test_a_product_that_is_returned_and_read_is_rounded_once() -> None:
    made, _ = planned(NETS["branches"]())
    assert "inner" in names(made)
    assert "best" not in names(made)


def test_the_later_of_two_products_takes_the_addition() -> None:
    n = Maker()
    x = n.input("x", [1, 3, 4, 4])
    made, _ = planned(n.done(n.op("Add", n.conv(x, 3, 4), n.conv(x, 3, 4), out="y")))
    assert names(made) == {"x", "conv0", "y"}


def test_a_float_node_ends_the_integers() -> None:
    n = Maker()
    y = n.op("Tanh", n.op("Relu", n.conv(n.input("x", [1, 3, 4, 4]), 3, 4)))
    model = n.done(n.op("Identity", n.conv(y, 4, 4), out="y"))
    assert names(planned(model)[0]) == {"x", "relu1", "tanh2"}
    assert names(planned(model, floats=("Tanh_2",))[0]) == {"x", "relu1", "tanh2"}
    assert names(planned(model, floats=("Tanh_2", "Relu_1"))[0]) == {"x", "tanh2"}  # the convolution returns i32


def test_affine_parts_go_into_the_weights_exactly() -> None:
    n = Maker()
    weights = n.weights(4, 2, 1, 1)
    y = n.op("Conv", n.input("x", [1, 2, 3, 3]), weights)
    y = n.op("Div", y, n.const(np.float32([2, 4, -1, 8]).reshape(4, 1, 1)))
    y = n.op("Sub", y, n.const(np.float32(1.5)))
    module = prepare(n.done(n.op("Identity", y, out="y")), CompileOptions())
    (conv,) = module.graph.walk(ops.Conv2d)
    original = onnx.numpy_helper.to_array(n.constants[0])
    factors = [0.5, 0.25, -1, 0.125]  # powers of two: exact
    assert conv.weight.op.value.tolist() == [(f * row).tolist() for f, row in zip(factors, original, strict=True)]
    assert conv.bias.op.value.tolist() == [-1.5] * 4
    assert [op.NAME for op in module.graph.ops if not isinstance(op, ops.Const)] == ["conv2d"]
