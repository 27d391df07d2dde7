"""Resize and Upsample: every coordinate and rounding mode that becomes index lists or lines, against ONNX Runtime."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import ResizeNearest

from .net import Net, agrees, floats, integers, names_of

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SIZES = [(10, 7), (3, 5), (1, 1), (12, 14)]


def resize(
    shape: tuple[int, ...],
    *,
    sizes: Any = None,
    scales: Any = None,
    opset: int = 19,
    dtype: Any = np.float32,
    **attrs: Any,
) -> Net:
    net = Net(opset)
    x = net.input("x", shape, dtype)
    if sizes is not None:
        net.op("Resize", x, "", "", net.const(np.int64(sizes)), out="y", **attrs)
    else:
        net.op("Resize", x, "", net.const(np.float32(scales)), out="y", **attrs)
    net.output("y", dtype=dtype)
    return net


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_to_sizes(coordinates: str, rounding: str, size: tuple[int, int]) -> None:
    net = resize(
        (1, 2, 6, 7),
        sizes=(1, 2, *size),
        mode="nearest",
        nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )
    module = agrees(net.model(), {"x": floats(0, 1, 2, 6, 7)}, atol=0)
    assert names_of(module) == ["resize_nearest"]


@pytest.mark.parametrize("scale", [(2, 2), (1.5, 2.7), (0.6, 0.4), (3, 1)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_nearest_by_scales(coordinates: str, scale: tuple[float, float]) -> None:
    net = resize(
        (1, 2, 6, 7),
        scales=(1, 1, *scale),
        mode="nearest",
        coordinate_transformation_mode=coordinates,
        nearest_mode="floor",
    )
    agrees(net.model(), {"x": floats(1, 1, 2, 6, 7)}, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_linear_to_sizes(coordinates: str, size: tuple[int, int]) -> None:
    net = resize((1, 2, 6, 7), sizes=(1, 2, *size), mode="linear", coordinate_transformation_mode=coordinates)
    module = agrees(net.model(), {"x": floats(2, 1, 2, 6, 7)}, atol=1e-5)
    assert names_of(module) == ["resize_linear"]


@pytest.mark.parametrize("scale", [(2, 2), (1.5, 2.7), (0.6, 0.4)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "half_pixel_symmetric"])
def test_linear_by_scales(coordinates: str, scale: tuple[float, float]) -> None:
    net = resize((1, 2, 6, 7), scales=(1, 1, *scale), mode="linear", coordinate_transformation_mode=coordinates)
    agrees(net.model(), {"x": floats(3, 1, 2, 6, 7)}, atol=1e-5)


def test_tf_half_pixel_for_nn() -> None:
    """Removed from ONNX in opset 13."""
    for rounding in ("floor", "round_prefer_floor"):
        net = Net(11)
        net.op(
            "Resize", net.input("x", [1, 1, 4, 4]), net.const(np.float32([])), net.const(np.float32([1, 1, 1.7, 0.5])),
            out="y",
            coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode=rounding,
        )  # fmt: skip
        net.output("y")
        agrees(net.model(), {"x": floats(4, 1, 1, 4, 4)}, atol=0)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op_type", "scale"),
    [("Resize", (2, 2)), ("Resize", (1.5, 3)), ("Resize", (0.5, 0.5)), ("Upsample", (2, 2)), ("Upsample", (1.5, 3))],
)
def test_old_opsets_scale_asymmetrically(op_type: str, mode: str, scale: tuple[float, float]) -> None:
    net = Net(10 if op_type == "Resize" else 9)
    net.op(op_type, net.input("x", [1, 2, 4, 6]), net.const(np.float32([1, 1, *scale])), out="y", mode=mode)
    net.output("y")
    agrees(net.model(), {"x": floats(5, 1, 2, 4, 6)}, atol=1e-5)


def test_one_spatial_axis() -> None:
    agrees(resize((2, 3, 5), sizes=(2, 3, 8), mode="nearest").model(), {"x": floats(6, 2, 3, 5)}, atol=0)
    agrees(resize((2, 3, 5), sizes=(2, 3, 8), mode="linear").model(), {"x": floats(6, 2, 3, 5)}, atol=1e-5)


def test_named_axes_and_kept_aspect_ratio() -> None:
    for policy in ("not_larger", "not_smaller"):
        net = resize((1, 2, 6, 9), sizes=(4, 12), mode="nearest", axes=[2, 3], keep_aspect_ratio_policy=policy)
        agrees(net.model(), {"x": floats(7, 1, 2, 6, 9)}, atol=0)


def test_nearest_of_integers_keeps_them() -> None:
    net = resize((1, 2, 3, 3), scales=(1, 1, 2, 2), mode="nearest", dtype=np.uint8)
    agrees(net.model(), {"x": integers(8, np.uint8, 1, 2, 3, 3)})


def test_the_same_size_is_nothing() -> None:
    assert (
        names_of(agrees(resize((1, 2, 3, 3), scales=(1, 1, 1, 1), mode="linear").model(), {"x": floats(9, 1, 2, 3, 3)}))
        == []
    )


def test_doubling_by_nearest_repeats_every_index() -> None:
    module = load(resize((1, 2, 2, 3), scales=(1, 1, 2, 2), mode="nearest").model())
    (op,) = module.graph.walk(ResizeNearest)
    assert (op.rows, op.columns) == ((0, 0, 1, 1), (0, 0, 1, 1, 2, 2))


@pytest.mark.parametrize(
    ("shape", "sizes", "attrs"),
    [
        ((1, 2, 6, 7), (1, 2, 8, 8), {"mode": "cubic"}),
        ((1, 2, 6, 7), (1, 2, 3, 3), {"mode": "linear", "antialias": 1}),
        ((1, 1, 4, 4, 4), (1, 1, 8, 8, 8), {"mode": "linear"}),
    ],
)
def test_other_resizes_stay_on_the_cpu(shape: tuple[int, ...], sizes: tuple[int, ...], attrs: dict[str, Any]) -> None:
    module = agrees(resize(shape, sizes=sizes, **attrs).model(), {"x": floats(10, *shape)}, atol=1e-5)
    assert names_of(module) == ["call Resize"]


@pytest.mark.parametrize(
    ("shape", "sizes", "mode", "names"),
    [
        ((1, 6, 7, 2), (1, 8, 9, 2), "linear", ["transpose", "resize_linear", "transpose"]),
        ((2, 3, 5), (2, 3, 9), "linear", ["reshape", "resize_linear", "reshape"]),
        ((1, 2, 3, 4, 5), (1, 2, 3, 7, 9), "linear", ["reshape", "resize_linear", "reshape"]),
        ((1, 2, 3, 4, 5), (1, 2, 5, 4, 5), "linear", ["reshape", "resize_linear", "reshape"]),
        ((1, 1, 4, 4, 4), (1, 1, 8, 8, 8), "nearest", ["gather"] * 3),
        ((3, 4), (6, 4), "nearest", ["gather"]),
        ((1, 4, 3, 3), (1, 2, 3, 3), "nearest", ["slice"]),
    ],
)
def test_other_axes_are_gathered_or_brought_behind_the_others(
    shape: tuple[int, ...], sizes: tuple[int, ...], mode: str, names: list[str]
) -> None:
    module = agrees(resize(shape, sizes=sizes, mode=mode).model(), {"x": floats(11, *shape)}, atol=1e-5)
    assert names_of(module) == names


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_crop_is_taken_where_it_lies_inside(mode: str, inside: bool) -> None:
    roi = np.float32([0, 0, 0.1, 0.2, 1, 1, 0.8 if inside else 1.3, 0.9])
    net = Net(13)
    x, sizes = net.input("x", [1, 2, 5, 9]), net.const(np.int64([1, 2, 4, 7]))
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.3}
    net.op("Resize", x, net.const(roi), "", sizes, out="y", mode=mode, **crop)
    net.output("y")
    names = names_of(agrees(net.model(), {"x": floats(12, 1, 2, 5, 9)}, atol=1e-5))
    assert names == ([f"resize_{mode}"] if inside else ["call Resize"])


@pytest.mark.parametrize("scales", [(1, 1, 0, 2), (1, 1, -1, 2), (1, 1, np.nan, 2), (1, 1, 2)])
def test_scales_that_are_none_are_refused(scales: tuple[float, ...]) -> None:
    with pytest.raises(FrontendError, match="Resize_0"):
        load(resize((1, 2, 6, 7), scales=scales, mode="nearest").model())


@pytest.mark.parametrize("axes", [(2, 4), (2, 2)])
def test_axes_that_the_input_has_not_are_refused(axes: tuple[int, ...]) -> None:
    with pytest.raises(FrontendError, match=re.escape(f"axes {list(axes)}")):
        load(resize((1, 2, 6, 7), scales=(2, 2), mode="nearest", axes=axes, opset=18).model())
