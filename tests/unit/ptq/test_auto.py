"""The loss table flags what 8 bits can't hold, automatic precision rescues it, and biases are corrected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="calibration runs the float model by ONNX Runtime")

import hbc
from hbc_runtime import Session
from tests.unit.frontend.net import Array, onnxruntime_outputs
from tests.unit.ptq.float_nets import NETS, Maker, samples_of

pytestmark = pytest.mark.ort
RNG = np.random.default_rng(5)
Samples = list[dict[str, Array]]


def wide_weights() -> tuple[onnx.ModelProto, Samples]:
    """In every channel one weight is 2000 times the others, and reads an input that is always 0."""
    n = Maker()
    w = RNG.normal(size=(8, 4, 1, 1)).astype(np.float32)
    w[:, 0] *= 2000
    y = n.op("Relu", n.op("Conv", n.input("x", [1, 4, 8, 8]), n.const(w, "wide")))
    samples = [{"x": RNG.normal(size=(1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
    for s in samples:
        s["x"][:, 0] = 0
    return n.done(n.op("Identity", n.conv(y, 8, 3, 1), out="y")), samples


def offset_inputs() -> tuple[onnx.ModelProto, Samples]:
    """A small signal on a large offset that the first convolution takes away, by weights that int8 holds exactly."""
    n = Maker()
    pairs = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)]
    w = np.zeros((6, 3, 1, 1), np.float32)
    for channel, (plus, minus) in enumerate(pairs):
        w[channel, plus], w[channel, minus] = 1, -1
    y = n.op("Relu", n.op("Conv", n.input("x", [1, 3, 8, 8]), n.const(w)))
    samples = [{"x": (50 + RNG.normal(size=(1, 3, 8, 8))).astype(np.float32)} for _ in range(4)]
    return n.done(n.op("Identity", n.conv(y, 6, 2, 1), out="y")), samples


def sqnr_of(result: hbc.QuantizeResult, model: onnx.ModelProto, samples: Samples) -> float:
    """Of the compiled program against the float model."""
    with Session(hbc.compile(result.data).program) as session:
        pairs = [(session.run(s)["y"], onnxruntime_outputs(model, s)["y"]) for s in samples]
    noise = sum(float(np.square(got - want).sum()) for got, want in pairs)
    signal = sum(float(np.square(want).sum()) for _, want in pairs)
    return 10 * np.log10(signal / noise)


@pytest.mark.parametrize(("make", "guilty"), [(wide_weights, "wide"), (offset_inputs, "x")], ids=["weights", "inputs"])
def test_what_eight_bits_cannot_hold_is_flagged_and_rescued(
    make: Callable[[], tuple[onnx.ModelProto, Samples]], guilty: str
) -> None:
    model, samples = make()
    plain = hbc.quantize(model, samples)
    assert plain.ranking[0].name == guilty
    assert guilty in {t.name for t in plain.flagged}
    before = sqnr_of(plain, model, samples)
    assert before < 20
    result = hbc.quantize(model, samples, config={"auto": {"target": 28}})
    raised = {t.name for t in result.tensors if t.raised}
    assert guilty in raised
    assert next(t for t in result.tensors if t.name == guilty).dtype == "i16"
    after = sqnr_of(result, model, samples)
    assert after > 27  # the target, less what integers differ from reals in ONNX Runtime
    assert after > before + 10
    assert len(raised) <= 2


def test_as_few_as_reach_the_target_are_raised() -> None:
    counts = []
    for target in (20.0, 36.0, 42.0):
        model, samples = NETS["residual"](), list(samples_of("residual"))
        result = hbc.quantize(model, samples, config={"auto": {"target": target}})
        counts.append(sum(t.raised for t in result.tensors))
    assert counts[0] == 0
    assert counts == sorted(counts)


def test_a_target_out_of_reach_is_noted() -> None:
    result = hbc.quantize(NETS["residual"](), list(samples_of("residual")), config={"auto": {"target": 300}})
    assert any("the outputs reach" in note and "not 300" in note for note in result.notes)


def test_the_worst_are_raised_by_number() -> None:
    plain = hbc.quantize(NETS["pyramid"](), list(samples_of("pyramid")))
    joined = {"relu4", "resize6", "convtranspose7", "concat8"}  # a bilinear resize reads one, in 8 bits: none is raised
    order = [t.name for t in plain.ranking if t.dtype == "i8"]
    assert set(order[:4]) == joined
    result = hbc.quantize(NETS["pyramid"](), list(samples_of("pyramid")), config={"auto": {"top": 2}})
    assert {t.name for t in result.tensors if t.raised} == set(order[4:6])
    assert {t.dtype for t in result.tensors if t.name in joined} == {"i8"}
    assert result.left == {}


def test_ranking_is_by_what_each_does_to_the_outputs() -> None:
    result = hbc.quantize(NETS["residual"](), list(samples_of("residual")))
    outputs = [t.output for t in result.ranking]
    assert all(o is not None for o in outputs)
    assert outputs == sorted(outputs)  # type: ignore[type-var]
    bare = hbc.quantize(NETS["residual"](), list(samples_of("residual")), rank=False)
    assert {t.output for t in bare.tensors} == {None}
    assert [t.own.sqnr for t in bare.ranking] == sorted(t.own.sqnr for t in bare.tensors)


def test_a_gate_opens_one_tensor_alone() -> None:
    """Rounding the input alone by hand is what its gate measures."""
    model, samples = NETS["residual"](), list(samples_of("residual"))
    result = hbc.quantize(model, samples)
    x = next(t for t in result.tensors if t.name == "x")
    signal = noise = 0.0
    for s in samples[:2]:
        rounded = np.clip(np.rint(s["x"] / np.float32(x.scale)), -128, 127) * np.float32(x.scale)
        want, got = (onnxruntime_outputs(model, {"x": v})["y"] for v in (s["x"], rounded.astype(np.float32)))
        signal, noise = signal + float(np.square(want).sum()), noise + float(np.square(got - want).sum())
    assert x.output == pytest.approx(10 * np.log10(signal / noise), abs=0.1)


def test_corrected_biases_take_the_mean_error_out() -> None:
    """Weights of which rounding moves the mean: with a constant input, nothing but the mean is wrong."""
    n = Maker()
    w = RNG.normal(size=(4, 6, 1, 1)).astype(np.float32)
    model = n.done(n.op("Conv", n.input("x", [1, 6, 4, 4]), n.const(w), n.const(np.zeros(4, np.float32)), out="y"))
    samples = [{"x": np.full((1, 6, 4, 4), 0.75, np.float32)}]
    plain, corrected = (hbc.quantize(model, samples, config={"bias_correction": c}) for c in (False, True))
    assert (plain.corrected, corrected.corrected) == (0, 1)
    assert corrected.outputs[0].distance.sqnr > plain.outputs[0].distance.sqnr + 20


def test_corrections_give_a_bias_where_there_was_none() -> None:
    n = Maker()
    y = n.op("ConvTranspose", n.input("x", [1, 3, 4, 4]), n.weights(3, 4, 2, 2), strides=[2, 2])
    y = n.op("MatMul", n.op("Reshape", y, n.const(np.int64([1, 4, 64]))), n.weights(64, 5))
    model = n.done(n.op("Identity", y, out="y"))
    samples = [{"x": RNG.normal(size=(1, 3, 4, 4)).astype(np.float32)} for _ in range(3)]
    result = hbc.quantize(model, samples, config={"bias_correction": True})
    assert result.corrected == 2
    assert result.outputs[0].distance.sqnr > 30
    assert {n.node for n in hbc.compile(result.data).report.layers if n.device == "cpu"} == set()
