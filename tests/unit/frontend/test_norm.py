"""Softmax and the normalisations, imported and written back."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from tests.ort_age import needs_young_onnxruntime

from .net import Net, agrees, floats, names_of

MS = "com.microsoft"
CLOSE = 1e-5


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_is_of_one_axis_since_opset_13(op: str, axis: int) -> None:
    net = Net(13)
    net.op(op, net.input("x", [2, 3, 4]), out="y", axis=axis)
    net.output("y")
    (only,) = agrees(net.model(), {"x": floats(0, 2, 3, 4)}).graph.ops
    assert (only.NAME, only.attrs["axis"]) == ({"Softmax": "softmax", "LogSoftmax": "log_softmax"}[op], axis % 3)


@pytest.mark.parametrize(("axis", "rows"), [(0, (1, 24)), (1, (2, 12)), (2, None)])
def test_softmax_was_of_all_axes_behind(axis: int, rows: tuple[int, int] | None) -> None:
    net = Net(11)
    net.op("Softmax", net.input("x", [2, 3, 4]), out="y", axis=axis)
    net.output("y")
    module = agrees(net.model(), {"x": floats(1, 2, 3, 4)})
    assert names_of(module) == (["softmax"] if rows is None else ["reshape", "softmax", "reshape"])
    assert rows is None or module.graph.ops[0].out.type.shape == rows


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization(axis: int, bias: bool) -> None:
    net = Net(17)
    affine = [net.const(floats(i, 3, 4)[: None if axis == 1 else 1]) for i in range(1 + bias)]
    affine = affine if axis == 1 else [net.const(floats(i, 4)) for i in range(1 + bias)]
    net.op("LayerNormalization", net.input("x", [2, 3, 4]), *affine, out="y", axis=axis, epsilon=0.01)
    net.output("y")
    module = agrees(net.model(), {"x": floats(2, 2, 3, 4)}, atol=CLOSE)
    assert names_of(module) == ["layer_norm"]


def test_a_layer_normalization_whose_mean_is_read_is_called() -> None:
    net = Net(17)
    x = net.input("x", [2, 3, 4])
    net.op("LayerNormalization", x, net.const(floats(0, 4)), out=["y", "mean", ""])
    net.output("y", "mean")
    assert names_of(agrees(net.model(), {"x": floats(3, 2, 3, 4)}, atol=CLOSE)) == ["call LayerNormalization"]


def test_rms_normalization() -> None:
    needs_young_onnxruntime("has no opset 23")
    net = Net(23)
    net.op("RMSNormalization", net.input("x", [2, 3, 4]), net.const(floats(0, 4)), out="y", axis=-1)
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(4, 2, 3, 4)}, atol=CLOSE)) == ["rms_norm"]


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("outputs", [["y"], ["y", "", "", "sum"]])
def test_skip_normalizations_are_a_sum_and_a_norm(op: str, outputs: list[str]) -> None:
    net = Net(17, com_microsoft=1)
    x, skip = net.input("x", [2, 3, 4]), net.input("skip", [2, 3, 4])
    beta = [net.const(floats(1, 4))] if op == "SkipLayerNormalization" else []
    net.op(op, x, skip, net.const(floats(0, 4)), *beta, net.const(floats(2, 4)), out=outputs, domain=MS)
    net.output(*filter(None, outputs))
    module = agrees(net.model(), {"x": floats(5, 2, 3, 4), "skip": floats(6, 2, 3, 4)}, atol=CLOSE)
    assert names_of(module) == ["add", "add", "rms_norm" if "Simplified" in op else "layer_norm"]


def test_instance_normalization() -> None:
    net = Net(13)
    net.op(
        "InstanceNormalization", net.input("x", [2, 3, 4, 5]), net.const(floats(0, 3)), net.const(floats(1, 3)), out="y"
    )
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(7, 2, 3, 4, 5)}, atol=CLOSE)) == ["instance_norm"]


def test_group_normalization() -> None:
    net = Net(21)
    x = net.input("x", [2, 6, 4, 5])
    net.op("GroupNormalization", x, net.const(floats(0, 6)), net.const(floats(1, 6)), out="y", num_groups=3)
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(8, 2, 6, 4, 5)}, atol=CLOSE)) == ["group_norm"]


@pytest.mark.parametrize("op", ["MeanVarianceNormalization", "LpNormalization"])
def test_other_normalizations_are_called(op: str) -> None:
    net = Net(13)
    net.op(op, net.input("x", [2, 3, 4, 5]), out="y")
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(9, 2, 3, 4, 5)}, atol=CLOSE)) == [f"call {op}"]


def test_an_axis_that_is_none_is_an_error_with_the_nodes_name() -> None:
    net = Net(13)
    net.op("Softmax", net.input("x", [2, 3]), out="y", axis=2)
    net.output("y")
    with pytest.raises(FrontendError, match=r"Softmax_0") as caught:
        load(net.model(), {})
    assert "axis" in str(caught.value)


def test_an_empty_tensor_stays_in_reals() -> None:
    net = Net(17)
    net.op("LayerNormalization", net.input("x", [0, 4]), net.const(floats(0, 4)), out="y")
    net.output("y")
    agrees(net.model(), {"x": np.zeros((0, 4), np.float32)})
