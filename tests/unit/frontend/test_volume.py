"""Three spatial axes: what becomes 2-D ops between moves, what stays one call; and GridSample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.frontend.onnx_ops.volume import OUTSIDE, scatter_table, window_table
from tests.unit.frontend.net import Array, Net, agrees, floats, integers, names_of

X = [1, 2, 4, 5, 3]


def weighted(op: str, shape: tuple[int, ...], **attrs: Any) -> Net:
    """A 3-D product of a dequantised input by dequantised weights, in reals behind that."""
    net = Net(18)
    x = net.dq(net.input("x", X, np.int8), 0.05, np.int8(3))
    w = net.dq(net.const(integers(1, np.int8, *shape)), np.float32(0.01), np.int8(0))
    net.op(op, x, w, net.const(floats(2, 3)), out="y", **attrs)
    net.output("y")
    return net


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("Conv", (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 0], "strides": [2, 1, 2]}),
        ("Conv", (3, 2, 1, 1, 1), {}),
        ("Conv", (3, 2, 2, 1, 2), {"dilations": [3, 1, 1]}),
        ("Conv", (3, 2, 4, 2, 2), {}),
        ("ConvTranspose", (2, 3, 2, 3, 2), {"strides": [2, 1, 3], "pads": [1, 0, 0, 0, 2, 0]}),
        ("ConvTranspose", (2, 3, 3, 1, 2), {"strides": [2, 2, 1], "output_padding": [1, 0, 0], "dilations": [2, 1, 1]}),
    ],
)
def test_a_volume_of_integers_is_convolved_as_images(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    module = agrees(weighted(op, shape, **attrs).model(), {"x": integers(0, np.int8, *X)}, atol=2e-5)
    assert ("conv2d" if op == "Conv" else "conv_transpose2d") in names_of(module)


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("Conv", [(3, 2, 2, 2, 2)], {}),
        ("ConvTranspose", [(2, 3, 2, 2, 2)], {}),
        ("AveragePool", [], {"kernel_shape": [2, 2, 2]}),
    ],
)
def test_a_volume_of_reals_is_one_call(op: str, operands: list[tuple[int, ...]], attrs: dict[str, Any]) -> None:
    net = Net(18)
    net.op(op, net.input("x", X), *(net.const(floats(1, *s)) for s in operands), out="y", **attrs)
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(0, *X)}, atol=1e-5)) == [f"call {op}"]


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_a_maximum_is_taken_plane_by_plane_then_along_the_depth(dtype: Any) -> None:
    net = Net(18)
    attrs = {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1], "pads": [1, 1, 0, 0, 1, 1], "ceil_mode": 1}
    net.op("MaxPool", net.input("x", X, dtype), out="y", **attrs)
    net.output("y", dtype=dtype)
    x = floats(0, *X) if dtype is np.float32 else integers(0, dtype, *X)
    module = agrees(net.model(), {"x": x}, atol=0, exported=dtype is np.float32)
    assert names_of(module).count("max_pool") == 2


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_mean_may_drop_pads_along_any_one_axis(axis: int) -> None:
    net = Net(18)
    x = net.dq(net.input("x", X, np.int8), 0.05, np.int8(3))
    pads = [int(i % 3 == axis) for i in range(6)]
    net.op("AveragePool", x, out="y", kernel_shape=[2, 2, 2], pads=pads)
    net.output("y")
    assert "avg_pool" in names_of(agrees(net.model(), {"x": integers(0, np.int8, *X)}, atol=1e-5))


def test_tables_name_the_position_that_each_tap_reads() -> None:
    got = window_table(size=4, out=3, kernel=2, stride=2, pad=1, dilation=2)
    np.testing.assert_array_equal(got, [[OUTSIDE, 1], [1, 3], [3, OUTSIDE]])
    got = scatter_table(size=2, out=5, kernel=3, stride=2, pad=0, dilation=1)
    np.testing.assert_array_equal(
        got,
        [[0, OUTSIDE, OUTSIDE], [OUTSIDE, 0, OUTSIDE], [1, OUTSIDE, 0], [OUTSIDE, 1, OUTSIDE], [OUTSIDE, OUTSIDE, 1]],
    )


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "says"),
    [
        ("Conv", (3, 2, 9, 1, 1), {}, "doesn't fit the padded input"),
        ("Conv", (3, 2, 2, 2, 2), {"strides": [1, 1]}, "strides"),
        ("Conv", (3, 2, 2, 2, 2), {"group": 7}, "C2"),
        ("ConvTranspose", (2, 3, 1, 2, 2), {"pads": [2, 0, 0, 2, 0, 0]}, "leave nothing"),
    ],
)
def test_windows_that_do_not_fit_are_refused(op: str, shape: tuple[int, ...], attrs: dict[str, Any], says: str) -> None:
    with pytest.raises(FrontendError, match=says) as raised:
        load(weighted(op, shape, **attrs).model())
    assert f"{op}_2" in str(raised.value)


# ---- GridSample


def sampled(grid: Array, opset: int = 20, x: tuple[int, ...] = (2, 3, 5, 6), **attrs: Any) -> list[str]:
    net = Net(opset)
    net.op("GridSample", net.input("x", x), net.input("g", grid.shape), out="y", **attrs)
    net.output("y")
    return names_of(agrees(net.model(), {"x": floats(0, *x), "g": grid}, atol=2e-5))


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize(("mode", "opset"), [("bilinear", 16), ("linear", 20), ("nearest", 16), ("nearest", 20)])
def test_grid_sample(mode: str, opset: int, padding: str, align: int) -> None:
    grid = (0.8 * floats(1, 2, 4, 3, 2)).astype(np.float32)
    assert sampled(grid, opset, mode=mode, padding_mode=padding, align_corners=align) == ["grid_sample"]


def test_other_grid_samples_are_calls() -> None:
    grid = (0.5 * floats(1, 2, 4, 3, 2)).astype(np.float32)
    for attrs in ({"padding_mode": "reflection"}, {"mode": "cubic"}):
        assert sampled(grid, **attrs) == ["call GridSample"]
    volume = (0.5 * floats(1, 2, 2, 4, 3, 3)).astype(np.float32)
    assert sampled(volume, x=(2, 3, 4, 5, 6)) == ["call GridSample"]


def test_a_grid_of_another_batch_is_refused() -> None:
    net = Net(20)
    net.op("GridSample", net.input("x", [2, 3, 5, 6]), net.input("g", [1, 4, 3, 2]), out="y")
    net.output("y")
    with pytest.raises(FrontendError, match="GridSample_0"):
        load(net.model())
