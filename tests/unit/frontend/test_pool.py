"""Pools: ONNX's own count of windows in every mode, and what padding counts for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.ir.ops import AvgPool, MaxPool
from tests.ort_age import needs_young_onnxruntime

from .net import Net, agrees, floats, integers, names_of

WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ((1, 2, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 8, 7), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ((1, 2, 6, 6), {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 2, 7, 10), {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 7, 10), {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 7, 10), {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "VALID"}),
    ((2, 3, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((2, 3, 11), {"kernel_shape": [4], "strides": [3], "ceil_mode": 1}),
]


@pytest.mark.parametrize(("shape", "attrs"), [*WINDOWS, ((1, 2, 8, 8), {"kernel_shape": [2, 3], "dilations": [3, 2]})])
def test_max_pool(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    net = Net(17)
    net.op("MaxPool", net.input("x", shape), out="y", **attrs)
    net.output("y")
    module = agrees(net.model(), {"x": floats(0, *shape) - 9}, atol=0)
    assert len(list(module.graph.walk(MaxPool))) == 1


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
def test_average_pool(shape: tuple[int, ...], attrs: dict[str, Any], count: int) -> None:
    """In opset 19, whose kernel of ONNX Runtime follows the operator text also where ceil mode meets counted pads."""
    if count and attrs.get("ceil_mode"):
        needs_young_onnxruntime("counts padding beyond the input's other end")
    net = Net(19)
    net.op("AveragePool", net.input("x", shape), out="y", count_include_pad=count, **attrs)
    net.output("y")
    module = agrees(net.model(), {"x": floats(1, *shape)})
    assert len(list(module.graph.walk(AvgPool))) == 1


def test_average_pool_with_dilations() -> None:
    net = Net(19)
    attrs = {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [1, 1, 1, 1]}
    net.op("AveragePool", net.input("x", [1, 2, 8, 8]), out="y", **attrs)
    net.output("y")
    agrees(net.model(), {"x": floats(1, 1, 2, 8, 8)})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_integers(dtype: Any) -> None:
    net = Net(17)
    net.op(
        "MaxPool", net.input("x", [1, 2, 7, 7], dtype), out="y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]
    )
    net.output("y", dtype=dtype)
    agrees(net.model(), {"x": integers(2, dtype, 1, 2, 7, 7)})


def test_indices_and_three_axes_stay_on_the_cpu() -> None:
    net = Net(17)
    net.op("MaxPool", net.input("x", [1, 2, 6, 6]), out=["y", "i"], kernel_shape=[2, 2])
    net.op("AveragePool", net.input("v", [1, 2, 4, 4, 4]), out="z", kernel_shape=[2, 2, 2])
    net.output("y", "z")
    net.output("i", dtype=np.int64)
    module = agrees(net.model(), {"x": floats(3, 1, 2, 6, 6), "v": floats(4, 1, 2, 4, 4, 4)})
    assert names_of(module) == ["call MaxPool", "call AveragePool"]


def test_indices_that_nobody_reads_do_not_matter() -> None:
    net = Net(17)
    net.op("MaxPool", net.input("x", [1, 2, 6, 6]), out=["y", "i"], kernel_shape=[2, 2])
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(3, 1, 2, 6, 6)})) == ["max_pool"]


@pytest.mark.parametrize("shape", [(1, 3, 5, 4), (2, 3, 7), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(kind: str, shape: tuple[int, ...]) -> None:
    net = Net(17)
    net.op(kind, net.input("x", shape), out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(5, *shape)})
    assert "call" not in names_of(module)[0]
