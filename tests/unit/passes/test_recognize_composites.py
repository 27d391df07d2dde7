"""What is taken for a composite, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hbc.ir import ops
from hbc.ir.core import Value
from hbc.ir.location import node_names
from hbc.ir.ops import PLAIN_UNARY
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.dce import Dce
from hbc.passes.recognize_composites import RecognizeComposites

from .graphs import Net, apply, random_inputs, run

SHAPE = (2, 3, 8)
AXES = (2,)


def scalar(net: Net, number: float) -> Value:
    return net.const(np.float32(number))


def unary(net: Net, name: str, x: Value) -> Value:
    return net.op(PLAIN_UNARY[name], x)


def mean(net: Net, x: Value, axes: tuple[int, ...] = AXES) -> Value:
    return net.op(ops.ReduceMean, x, axes=axes)


def layer_norm(net: Net, x: Value, *, again: bool = False, power: float = 0.5, axes: tuple[int, ...] = AXES) -> Value:
    """The last step is d / (v + ε)^power. `again`: the difference is computed a second time for the square."""
    d = net.op(ops.Sub, x, mean(net, x))
    other = net.op(ops.Sub, x, mean(net, x)) if again else d
    square = net.op(ops.Mul, other, other)
    total = net.op(ops.Add, mean(net, square, axes), scalar(net, 1e-3))
    return net.op(ops.Div, d, net.op(ops.Pow, total, scalar(net, power)))


def rms_norm(net: Net, x: Value) -> Value:
    total = net.op(ops.Add, scalar(net, 1e-3), mean(net, net.op(ops.Pow, x, scalar(net, 2.0))))
    return net.op(ops.Mul, unary(net, "reciprocal", unary(net, "sqrt", total)), x)


def softmax(net: Net, x: Value) -> Value:
    e = unary(net, "exp", net.op(ops.Sub, x, net.op(ops.ReduceMax, x, axes=AXES)))
    return net.op(ops.Div, e, net.op(ops.ReduceSum, e, axes=AXES))


def plain_softmax(net: Net, x: Value) -> Value:
    e = unary(net, "exp", x)
    return net.op(ops.Mul, e, unary(net, "reciprocal", net.op(ops.ReduceSum, e, axes=AXES)))


def log_softmax(net: Net, x: Value) -> Value:
    d = net.op(ops.Sub, x, net.op(ops.ReduceMax, x, axes=AXES))
    return net.op(ops.Sub, d, unary(net, "log", net.op(ops.ReduceSum, unary(net, "exp", d), axes=AXES)))


def group_norm(net: Net, x: Value) -> Value:
    one, zero = net.const(np.ones(3, np.float32)), net.const(np.zeros(3, np.float32))
    y = net.op(ops.InstanceNorm, net.op(ops.Reshape, x, shape=(2, 3, 8)), one, zero)
    return net.op(ops.Reshape, y, shape=(2, 6, 4))


Spell = Callable[[Net, Value], Value]


def affine(spell: Spell, shape: tuple[int, ...]) -> Spell:
    """With a scale and a bias behind it."""

    def spelled(net: Net, x: Value) -> Value:
        rng = np.random.default_rng(7)
        y = net.op(ops.Mul, net.const(rng.normal(size=shape).astype(np.float32)), spell(net, x))
        return net.op(ops.Add, y, net.const(rng.normal(size=shape).astype(np.float32)))

    return spelled


FOUND: dict[str, tuple[Spell, tuple[int, ...], str]] = {
    "layer_norm": (layer_norm, SHAPE, "layer_norm"),
    "layer_norm of a difference computed twice": (lambda n, x: layer_norm(n, x, again=True), SHAPE, "layer_norm"),
    "layer_norm with scale and bias": (affine(layer_norm, (8,)), SHAPE, "layer_norm"),
    "rms_norm": (rms_norm, SHAPE, "rms_norm"),
    "rms_norm with scale and bias": (affine(rms_norm, (3, 8)), SHAPE, "rms_norm"),
    "softmax": (softmax, SHAPE, "softmax"),
    "softmax without the largest": (plain_softmax, SHAPE, "softmax"),
    "log_softmax": (log_softmax, SHAPE, "log_softmax"),
    "log of a softmax": (lambda n, x: unary(n, "log", softmax(n, x)), SHAPE, "log_softmax"),
    "group_norm": (group_norm, (2, 6, 4), "group_norm"),
    "group_norm with scale and bias": (affine(group_norm, (6, 1)), (2, 6, 4), "group_norm"),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_spelled_composite_becomes_one_op(case: str) -> None:
    spell, shape, name = FOUND[case]
    net = Net()
    net.output(spell(net, net.arg(shape)))
    inputs = random_inputs(net.graph)
    (before,) = run(net.graph, inputs)
    assert apply(RecognizeComposites(), net) >= 1
    apply(Dce(), net)
    assert [n for n in net.names if n != "const"] == [name]
    (after,) = run(net.graph, inputs)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert len(node_names(net.graph.ops[-1].loc)) > 1  # it names every node that it stands for


def requantized(net: Net, x: Value) -> Value:
    t = TensorType(x.type.shape, DType.I8, Quant.per_tensor(0.02))
    return net.op(ops.Dequantize, net.op(ops.Quantize, x, type=t))


def fake_quantized(net: Net, x: Value) -> Value:
    e = requantized(net, unary(net, "exp", x))
    return net.op(ops.Div, e, net.op(ops.ReduceSum, e, axes=AXES))


def other_axis(net: Net, x: Value) -> Value:
    e = unary(net, "exp", net.op(ops.Sub, x, net.op(ops.ReduceMax, x, axes=(1,))))
    return net.op(ops.Div, e, net.op(ops.ReduceSum, e, axes=(1, 2)))


def of_another_tensor(net: Net, x: Value) -> Value:
    e = unary(net, "exp", x)
    return net.op(ops.Div, e, net.op(ops.ReduceSum, unary(net, "exp", net.arg(SHAPE)), axes=AXES))


LEFT: dict[str, Spell] = {
    "a quantize stands between the parts": fake_quantized,
    "the sum runs over two axes": other_axis,
    "the sum is another tensor's": of_another_tensor,
    "divided by 1/root": lambda n, x: layer_norm(n, x, power=-0.5),
    "the wrong power": lambda n, x: layer_norm(n, x, power=2.0),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_only_looks_like_one_is_left(case: str) -> None:
    net = Net()
    net.output(LEFT[case](net, net.arg(SHAPE)))
    names = net.names
    assert apply(RecognizeComposites(), net) == 0
    assert net.names == names


def test_a_variance_over_other_axes_is_no_layer_norm() -> None:
    """It is the norm of the differences by their mean square: true whatever the axes."""
    net = Net()
    net.output(layer_norm(net, net.arg(SHAPE), axes=(1,)))
    (before,) = run(net.graph, random_inputs(net.graph))
    apply(RecognizeComposites(), net)
    apply(Dce(), net)
    assert [n for n in net.names if n != "const"] == ["reduce_mean", "sub", "rms_norm"]
    np.testing.assert_allclose(run(net.graph, random_inputs(net.graph))[0], before, rtol=1e-5, atol=1e-6)


def test_a_scale_that_others_read_stays_behind() -> None:
    net = Net()
    y = layer_norm(net, net.arg(SHAPE))
    net.output(net.op(ops.Mul, y, net.const(np.ones(8, np.float32))), y)
    apply(RecognizeComposites(), net)
    apply(Dce(), net)
    assert [n for n in net.names if n != "const"] == ["layer_norm", "mul"]


def test_a_constant_that_makes_the_result_larger_is_no_scale() -> None:
    net = Net()
    y = layer_norm(net, net.arg((1, 3, 8)))
    net.output(net.op(ops.Mul, y, net.const(np.ones((4, 1, 1), np.float32))))
    apply(RecognizeComposites(), net)
    apply(Dce(), net)
    assert [n for n in net.names if n != "const"] == ["layer_norm", "mul"]


def test_onnx_arithmetic_keeps_what_is_spelled() -> None:
    net = Net()
    net.output(softmax(net, net.arg(SHAPE)))
    assert apply(RecognizeComposites(), net, Semantics(arith="onnx")) == 0
