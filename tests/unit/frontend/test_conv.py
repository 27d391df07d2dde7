"""Convolutions and matrix products, in every attribute form."""

from __future__ import annotations

from typing import Any

import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.ops import Conv2d, ConvTranspose2d, Linear, Matmul

from .net import Net, agrees, floats, names_of


def conv(
    op_type: str, x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = True, opset: int = 17, **attrs: Any
) -> Net:
    net = Net(opset)
    more = [net.const(floats(2, w[0] if op_type == "Conv" else w[1] * attrs.get("group", 1)))] if bias else []
    net.op(op_type, net.input("x", x), net.const(floats(1, *w)), *more, out="y", **attrs)
    net.output("y")
    return net


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 3, 8, 9), (4, 3, 3, 3), {}),
        ((2, 3, 8, 9), (4, 3, 3, 2), {"strides": [2, 3], "pads": [0, 2, 3, 1], "dilations": [2, 1]}),
        ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
        ((1, 4, 5, 5), (6, 2, 1, 1), {"group": 2}),
        ((1, 2, 7, 10), (3, 2, 4, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((1, 2, 7, 10), (3, 2, 4, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        ((1, 2, 7, 10), (3, 2, 4, 2), {"auto_pad": "VALID", "strides": [1, 2]}),
        ((2, 4, 23), (6, 2, 3), {"strides": [2], "pads": [1, 4], "dilations": [3], "group": 2}),
        ((1, 3, 9), (2, 3, 2), {"auto_pad": "SAME_LOWER"}),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_conv(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], bias: bool) -> None:
    module = agrees(conv("Conv", x, w, bias=bias, **attrs).model(), {"x": floats(0, *x)}, atol=1e-5)
    assert len(list(module.graph.walk(Conv2d))) == 1


def test_negative_pads_crop_the_input() -> None:
    """ONNX Runtime refuses them, so the same conv over a sliced input is what must come out."""
    module = load(conv("Conv", (1, 2, 6, 7), (3, 2, 3, 3), pads=[-1, 1, 0, -2]).model())
    assert names_of(module) == ["slice", "conv2d"]
    assert next(module.graph.walk(Conv2d)).pads == (0, 1, 0, 0)
    assert module.graph.outputs[0].value.type.shape == (1, 3, 3, 4)


def test_a_conv_of_three_axes_stays_on_the_cpu() -> None:
    module = agrees(conv("Conv", (1, 2, 4, 4, 4), (3, 2, 2, 2, 2)).model(), {"x": floats(0, 1, 2, 4, 4, 4)}, atol=1e-5)
    assert names_of(module) == ["call Conv"]


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 3, 4, 5), (3, 4, 2, 2), {"strides": [2, 2]}),
        (
            (1, 4, 3, 4),
            (4, 3, 2, 3),
            {"strides": [3, 2], "pads": [1, 0, 0, 2], "dilations": [2, 1], "group": 2, "output_padding": [2, 1]},
        ),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [8, 10]}),
        ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [7, 9], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 5), (2, 3, 4), {"strides": [2], "pads": [1, 1]}),
        ((1, 2, 3, 3), (2, 3, 3, 2), {"strides": [2, 3], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 3, 3), (2, 3, 3, 2), {"strides": [2, 3], "output_shape": [7, 10]}),
    ],
)
def test_conv_transpose(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    module = agrees(conv("ConvTranspose", x, w, **attrs).model(), {"x": floats(0, *x)}, atol=1e-5)
    assert len(list(module.graph.walk(ConvTranspose2d))) == 1


@pytest.mark.parametrize(
    ("attrs", "says"),
    [
        ({"strides": [0, 1]}, "strides"),
        ({"kernel_shape": [5, 5]}, "kernel_shape"),
        ({"group": 5}, "C2"),
        ({"group": 0}, "group"),
        ({"pads": [1, 1]}, "pads"),
        ({"dilations": [1, 1, 1]}, "dilations"),
        ({"auto_pad": "SAME"}, "auto_pad"),
        ({"dilations": [9, 9]}, "C3"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attrs: dict[str, Any], says: str) -> None:
    with pytest.raises(FrontendError, match=says) as raised:
        load(conv("Conv", (1, 3, 8, 8), (4, 3, 3, 3), **attrs).model())
    assert "Conv_0" in str(raised.value)


@pytest.mark.parametrize("padding", [[1], [-1, 0], [0, 1 << 40]])
def test_output_paddings_that_do_not_fit_are_refused(padding: list[int]) -> None:
    with pytest.raises(FrontendError, match="output_padding"):
        load(conv("ConvTranspose", (1, 3, 4, 5), (3, 4, 2, 2), output_padding=padding).model())


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("bias", [(4,), (1, 4), (3, 4), (3, 1), ()])
def test_gemm(trans_a: int, trans_b: int, bias: tuple[int, ...], opset: int) -> None:
    net = Net(opset)
    x = net.input("x", [5, 3] if trans_a else [3, 5])
    w = net.const(floats(1, *([4, 5] if trans_b else [5, 4])))
    net.op("Gemm", x, w, net.const(floats(2, *bias)), out="y", alpha=0.5, beta=-2.0, transA=trans_a, transB=trans_b)
    net.output("y")
    module = agrees(net.model(), {"x": floats(0, *([5, 3] if trans_a else [3, 5]))}, atol=1e-5)
    (linear,) = module.graph.walk(Linear)
    assert (linear.bias is not None) == (bias in {(4,), (1, 4)})


def test_gemm_without_bias_and_of_two_computed_matrices() -> None:
    net = Net(13)
    a, b = net.input("a", [3, 5]), net.input("b", [4, 5])
    net.op("Gemm", a, net.const(floats(1, 5, 2)), out="y")
    net.op("Gemm", a, b, net.const(floats(2, 4)), out="z", transB=1, alpha=2.0)
    net.output("y", "z")
    module = agrees(net.model(), {"a": floats(3, 3, 5), "b": floats(4, 4, 5)}, atol=1e-5)
    assert len(list(module.graph.walk(Matmul))) == 1


@pytest.mark.parametrize(
    ("lhs", "rhs", "weight"),
    [
        ((3, 5), (5, 4), True),
        ((2, 3, 5), (5, 4), True),
        ((5,), (5, 4), True),
        ((3, 5), (5,), True),
        ((5,), (5,), True),
        ((2, 3, 5), (2, 5, 4), True),
        ((2, 3, 5), (5, 4), False),
        ((2, 1, 3, 5), (4, 5, 2), False),
        ((5,), (2, 5, 4), False),
        ((2, 3, 5), (5,), False),
    ],
)
def test_matmul(lhs: tuple[int, ...], rhs: tuple[int, ...], weight: bool) -> None:
    net = Net(13)
    feeds = {"x": floats(0, *lhs)}
    b = net.const(floats(1, *rhs)) if weight else net.input("b", rhs)
    if not weight:
        feeds["b"] = floats(1, *rhs)
    net.op("MatMul", net.input("x", lhs), b, out="y")
    net.output("y")
    module = agrees(net.model(), feeds, atol=1e-5)
    assert bool(list(module.graph.walk(Linear))) == (weight and len(rhs) < 3)
