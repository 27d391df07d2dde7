"""Equalised channels: the float model stays what it computes, and int8 loses less of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="calibration runs the float model by ONNX Runtime")

import hbc
from hbc.options import CompileOptions
from hbc.ptq.collect import checked
from hbc.ptq.equalise import EQUALISED, equalise, pairs
from hbc.ptq.prepare import prepare
from hbc.ptq.runner import Runner
from tests.unit.frontend.net import Array, floats
from tests.unit.ptq.float_nets import NETS, Maker, samples_of

pytestmark = pytest.mark.ort
SPREAD = np.geomspace(1, 60, 8).astype(np.float32)  # of the channels between two products


def samples(*shape: int) -> list[dict[str, Array]]:
    return [{"x": floats(i, *shape)} for i in range(4)]


def scaled_conv(n: Maker, x: str, cin: int, cout: int, *, out: Array | float = 1, into: Array | float = 1) -> str:
    """A 3×3 convolution, its weights multiplied by output channel and divided by input channel."""
    w = floats(cin + cout, cout, cin, 3, 3) / np.float32(3 * np.sqrt(cin))
    w = w * np.reshape(out, (-1, 1, 1, 1)) / np.reshape(into, (1, -1, 1, 1))
    bias = 0.1 * np.broadcast_to(out, (cout,)).astype(np.float32)
    return n.op("Conv", x, n.const(w.astype(np.float32)), n.const(bias), pads=[1] * 4)


def uneven(kind: str) -> onnx.ModelProto:
    """Two products with channels up to 60 times each other between them, by `kind` of what else lies there."""
    n = Maker()
    y = scaled_conv(n, n.input("x", [1, 3, 8, 8]), 3, 8, out=SPREAD)
    if kind == "leaky":
        y = n.op("LeakyRelu", y, alpha=0.1)
    elif kind == "pool":
        y = n.op("MaxPool", n.op("Relu", y), kernel_shape=[2, 2], strides=[2, 2])
    elif kind == "transposed":
        w = floats(3, 8, 4, 2, 2) / SPREAD.reshape(-1, 1, 1, 1)
        return n.done(n.op("ConvTranspose", n.op("Relu", y), n.const(w), strides=[2, 2], out="y"))
    elif kind == "depthwise":
        w = floats(3, 8, 1, 3, 3) / SPREAD.reshape(-1, 1, 1, 1)
        return n.done(n.op("Conv", n.op("Relu", y), n.const(w), pads=[1] * 4, group=8, out="y"))
    else:
        y = n.op("Relu", y)
    return n.done(n.op("Identity", scaled_conv(n, y, 8, 4, into=SPREAD), out="y"))


def worst(model: onnx.ModelProto, *, on: bool) -> float:
    """The least SQNR of any output, in dB."""
    given = samples(1, 3, 8, 8)
    result = hbc.quantize(model, given, config={"equalise": on}, rank=False)
    return min(o.distance.sqnr for o in result.outputs)


@pytest.mark.parametrize("kind", ["relu", "leaky", "pool", "transposed", "depthwise"])
def test_uneven_channels_cost_less(kind: str) -> None:
    assert worst(uneven(kind), on=True) > worst(uneven(kind), on=False) + 6  # a bit and more


def test_reals_stay_what_they_were() -> None:
    plain, made = (prepare(NETS["residual"](), CompileOptions()) for _ in range(2))
    given = checked(made, samples_of("residual"))
    assert equalise(made, given) >= 1
    for sample in given:
        want, got = (Runner(m).results(sample) for m in (plain, made))
        for key, expected in want.items():
            assert float(np.abs(got[key] - expected).max()) <= 1e-5 * float(np.abs(expected).max())


def test_channels_before_a_depthwise_one_become_alike() -> None:
    module = prepare(uneven("depthwise"), CompileOptions())
    given = checked(module, samples(1, 3, 8, 8))
    (pair,) = pairs(module)
    value = pair.values[-1]
    assert equalise(module, given) == 1
    runner = Runner(module, [value])
    largest = np.max([runner.run(s, [value])[value].max((0, 2, 3)) for s in given], axis=0)
    assert largest.max() <= 1.0001 * largest.min()


def test_what_has_other_readers_or_bounds_is_left_alone() -> None:
    n = Maker()
    x = n.op("Relu", n.conv(n.input("x", [1, 3, 8, 8]), 3, 8))
    limited = n.op("Clip", n.conv(x, 8, 8), n.const(np.float32(0)), n.const(np.float32(6)))
    y = n.op("Add", n.conv(limited, 8, 8), n.op("Sigmoid", n.conv(x, 8, 8)))
    assert list(pairs(prepare(n.done(n.op("Identity", n.conv(y, 8, 2), out="y")), CompileOptions()))) == []


def test_tensors_of_the_configuration_keep_their_numbers() -> None:
    model, given = uneven("relu"), samples(1, 3, 8, 8)
    named = [t.name for t in hbc.quantize(model, given, rank=False).tensors if t.name.endswith(EQUALISED)]
    assert len(named) == 1
    name = named[0].removesuffix(EQUALISED)
    result = hbc.quantize(model, given, config={"tensors": {name: {"dtype": "int16"}}}, rank=False)
    assert {t.name: t.dtype for t in result.tensors}[name] == "i16"
    result = hbc.quantize(model, given, config={"tensors": {named[0]: {"dtype": "int16"}}}, rank=False)
    assert {t.name: t.dtype for t in result.tensors}[named[0]] == "i16"
