"""A float model becomes a quantised one that compiles as it is: placement, fidelity, integers, determinism."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="calibration runs the float model by ONNX Runtime")

import hbc
from hbc.check import check_program
from hbc.options import CompileOptions
from hbc.opwise import check_ops
from hbc.ptq import QuantizeResult
from hbc.ptq.run import quantize_model
from hbc_runtime import Session
from tests.unit.frontend.net import onnxruntime_outputs
from tests.unit.ptq.float_nets import NETS, Maker, samples_of

pytestmark = pytest.mark.ort

# Off integers by what the marches' manuals say: softmax and norms on bayes and bernoulli2, subtraction on bernoulli2.
LEFT = {
    ("hardswish", "bayes"): {"Softmax_16"},
    ("hardswish", "bernoulli2"): {"Softmax_16"},
    ("detector", "bayes"): {"Softmax_17"},
    ("detector", "bernoulli2"): {"Softmax_17"},
    ("branches", "bernoulli2"): {"Sub_11"},
    ("attention", "bayes"): {"ReduceMean_3", "Softmax_17", "ReduceMean_24"},
    ("attention", "bernoulli2"): {"ReduceMean_3", "Softmax_17", "ReduceMean_24"},
}
# The least SQNR in dB of any output. Noise of int8 alone is about 40 dB below the signal; what several layers add up to
# leaves 30; `best` of `branches` is a position, which is right or wrong.
LEAST = {"branches": 20.0}


def quantised(name: str, march: str = "nash", **more: object) -> QuantizeResult:
    more.setdefault("rank", False)
    return quantize_model(NETS[name](), CompileOptions(march), calib=list(samples_of(name)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("march", ["nash", "bayes", "bernoulli2"])
@pytest.mark.parametrize("name", NETS)
def test_nothing_lands_on_the_cpu_unexpectedly(name: str, march: str) -> None:
    result = quantised(name, march)
    assert set(result.left) == LEFT.get((name, march), set())
    report = hbc.compile(result.data, march=march).report
    on_cpu = {n.node for n in report.layers if n.device == "cpu"}
    assert on_cpu == set(result.left)
    assert report.affine == ()


@pytest.mark.parametrize("name", NETS)
def test_the_quantised_model_is_near_the_float_one(name: str) -> None:
    result = quantised(name)
    assert [o.name for o in result.outputs] == [o.name for o in NETS[name]().graph.output]
    assert all(o.distance.sqnr > LEAST.get(name, 30.0) for o in result.outputs), result.outputs
    with Session(hbc.compile(result.data, march="nash").program) as session:
        for sample in samples_of(name):
            want, got = onnxruntime_outputs(NETS[name](), sample), session.run(sample)
            for output in want:
                if want[output].dtype.kind == "f":
                    noise = np.square(got[output] - want[output]).sum() / np.square(want[output]).sum()
                    assert -10 * np.log10(noise) > LEAST.get(name, 30.0) - 3, output  # one sample of four


@pytest.mark.parametrize("name", ["residual", "pyramid", "detector"])
def test_every_op_computes_onnx_runtimes_integers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    quantised(name, config={"activations": {"tail": "int8"}}).save(path)  # a step of int16 is no step to count in
    options = CompileOptions("nash")
    program = hbc.compile(path, march="nash").program
    assert max(o.quanta for o in check_ops(path, options, samples_of(name)[0])) <= 1
    assert check_program(program, path, samples_of(name)[:1], look_inside=False).passed


def test_the_same_input_gives_the_same_bytes() -> None:
    assert quantised("pyramid").data == quantised("pyramid").data


def test_the_model_says_what_the_report_says() -> None:
    result = quantised("residual")
    model = onnx.load_model_from_string(result.data)
    onnx.checker.check_model(model, full_check=True)
    assert next(o.version for o in model.opset_import if o.domain == "") == 19
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    quantizes = {n.input[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear"}
    activations = [t for t in result.tensors if t.kind == "activation"]
    assert set(quantizes) == {t.name for t in activations}
    for t in activations:
        node = quantizes[t.name]
        assert float(scales[node.input[1]]) == t.scale
        assert scales[node.input[2]].dtype == {"i8": np.int8, "i16": np.int16}[t.dtype]
    weights = [t for t in result.tensors if t.kind == "weight"]
    assert {t.channels for t in weights} == {8, 5}
    assert all(np.abs(a.astype(int)).max() <= 127 for n, a in scales.items() if n.endswith("weight_quantized"))
    biases = [a for n, a in scales.items() if a.dtype == np.int32 and n.endswith("_quantized")]
    assert len(biases) == 5  # every product's, batch norms folded in


def test_bytes_paths_and_protos_are_one(tmp_path: Path) -> None:
    model, samples = NETS["image"](), list(samples_of("image"))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", **{f"in{i}__x": s["x"] for i, s in enumerate(samples)})
    by_path = hbc.quantize(tmp_path / "m.onnx", tmp_path / "s.npz", rank=False)
    assert hbc.quantize(str(tmp_path / "m.onnx"), samples, rank=False).outputs == by_path.outputs
    assert hbc.quantize(model.SerializeToString(), samples, rank=False).outputs == by_path.outputs
    assert by_path.model == str(tmp_path / "m.onnx")
    assert by_path.save(tmp_path / "q.onnx") == len(by_path.data)
    assert (tmp_path / "q.onnx").read_bytes() == by_path.to_bytes()


def test_pixels_get_sixteen_bits_where_there_are() -> None:
    kinds = {t.name: t.dtype for t in quantised("image").tensors}
    assert kinds["x"] == "i16"
    assert set({t.name: t.dtype for t in quantised("image", "bernoulli2").tensors}.values()) == {"i8"}
    narrow = quantised("image", config={"activations": {"image": None}})
    assert {t.name: t.dtype for t in narrow.tensors}["x"] == "i8"


def test_open_sizes_are_bound() -> None:
    n = Maker()
    model = n.done(n.conv(n.input("x", ["batch", 3, "h", 8]), 3, 4, 1))
    sample = {"x": np.ones((1, 3, 6, 8), np.float32)}
    with pytest.raises(hbc.FrontendError, match="leaves sizes of its inputs open"):
        hbc.quantize(model, [sample])
    result = hbc.quantize(model, [sample], shapes={"x": (1, 3, 6, 8)})
    assert result.tensors[0].shape == (1, 3, 6, 8)


def test_dead_channels_and_large_biases_fit_the_accumulator() -> None:
    """A channel of tiny weights has a tiny scale, in whose steps its bias would pass 2^31."""
    n = Maker()
    w = np.ones((3, 2, 1, 1), np.float32)
    w[1], w[2] = 0, 1e-12
    x = n.input("x", [1, 2, 4, 4])
    y = n.op("Conv", x, n.const(w), n.const(np.float32([1, 2, -3])))
    result = hbc.quantize(n.done(n.op("Relu", y, out="y")), [{"x": np.full((1, 2, 4, 4), 0.5, np.float32)}])
    assert result.outputs[0].distance.sqnr > 40
    with Session(hbc.compile(result.data).program) as session:
        got = session.run({"x": np.full((1, 2, 4, 4), 0.5, np.float32)})["y"]
    assert np.abs(got[0, :, 0, 0] - [2, 2, 0]).max() < 2 / 127 + 1e-3  # a step of the tensor


def test_nodes_that_only_the_cpu_has_stay_as_they_are() -> None:
    n = Maker()
    y = n.op("Relu", n.conv(n.input("x", [1, 4, 6, 6]), 4, 4))
    y = n.op("Einsum", y, n.weights(4, 4), equation="nchw,cd->ndhw")
    model = n.done(n.op("Identity", n.conv(y, 4, 2), out="y"))
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 4, 6, 6)).astype(np.float32)} for i in range(3)]
    result = hbc.quantize(model, samples)
    assert result.outputs[0].distance.sqnr > 30
    report = hbc.compile(result.data).report
    assert [n.op_type for n in report.layers if n.device == "cpu"] == ["Einsum"]


def test_int16_before_opset_21_is_microsofts() -> None:
    """A call keeps the model in an opset in which it means what it meant; QuantizeLinear there knows no int16."""
    n = Maker(19)
    y = n.op("Relu", n.conv(n.input("x", [1, 4, 6, 6]), 4, 4))
    y = n.op("Einsum", y, n.weights(4, 4), equation="nchw,cd->ndhw")
    model = n.done(n.op("Identity", n.conv(y, 4, 2), out="y"))
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 4, 6, 6)).astype(np.float32)} for i in range(3)]
    result = hbc.quantize(model, samples, config={"activations": {"dtype": "int16"}})
    made = onnx.load_model_from_string(result.data)
    opset = next(o.version for o in made.opset_import if o.domain == "")
    domains = {node.domain for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert (opset, domains) == (19, {"com.microsoft"})
    assert result.outputs[0].distance.sqnr > 38  # only weights are int8
    hbc.compile(result.data)


def test_a_detectors_last_nodes_stay_in_reals() -> None:
    """What non-maximum suppression leaves has sizes that depend on the data: measured, too, and never rounded."""
    n = Maker()
    x = n.op("Relu", n.conv(n.input("x", [1, 3, 16, 16]), 3, 8))
    shape = [n.const(np.int64([1, c, 256])) for c in (2, 4)]
    scores = n.op("Sigmoid", n.op("Reshape", n.conv(x, 8, 2), shape[0]))
    boxes = n.op("Transpose", n.op("Reshape", n.conv(x, 8, 4), shape[1]), perm=[0, 2, 1])
    limits = [n.const(np.int64([5])), n.const(np.float32([0.5])), n.const(np.float32([0.6]))]
    kept = n.op("NonMaxSuppression", boxes, scores, *limits)
    index = n.op("Gather", kept, n.const(np.int64(2)), axis=1)
    n.op("Gather", n.op("Squeeze", boxes, n.const(np.int64([0]))), index, axis=0, out="y")
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 3, 16, 16)).astype(np.float32)} for i in range(3)]
    result = hbc.quantize(n.done("y"), samples)
    assert "NonMaxSuppression_8" in result.left
    assert "reshape4" not in {t.name for t in result.tensors}  # box distances reach the CPU as 32-bit accumulators
    with Session(hbc.compile(result.data).program) as session:
        assert session.run(samples[0])["y"].shape[1:] == (4,)


def test_convolutions_along_one_axis_and_recurrent_tails() -> None:
    n = Maker()
    y = n.op("Conv", n.input("x", [1, 4, 20]), n.weights(8, 4, 3), n.weights(8), pads=[1, 1])
    y = n.op("Transpose", n.op("Relu", n.batch_norm(y, 8)), perm=[2, 0, 1])
    n.op("LSTM", y, n.weights(1, 24, 8), n.weights(1, 24, 6), out=["states", "last"], hidden_size=6)
    y = n.op("Squeeze", "states", n.const(np.int64([1])))
    model = n.done(n.op("Identity", n.op("MatMul", y, n.weights(6, 3)), out="y"))
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 4, 20)).astype(np.float32)} for i in range(3)]
    result = hbc.quantize(model, samples)
    assert set(result.left) == {"LSTM_4"}
    assert result.outputs[0].distance.sqnr > 30


def test_a_branch_that_depends_on_the_data() -> None:
    n = Maker()
    y = n.conv(n.input("x", [1, 3, 8, 8]), 3, 4)
    positive = n.op("Greater", n.op("ReduceSum", y, keepdims=0), n.const(np.float32(0)))

    def branch(op_type: str) -> onnx.GraphProto:
        info = onnx.helper.make_tensor_value_info(f"{op_type}_out", onnx.TensorProto.FLOAT, None)
        node = onnx.helper.make_node(op_type, [y], [info.name])
        return onnx.helper.make_graph([node], op_type, [], [info])

    y = n.op("If", positive, then_branch=branch("Relu"), else_branch=branch("Neg"))
    model = n.done(n.op("Identity", n.conv(y, 4, 2), out="y"))
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32)} for i in range(3)]
    result = hbc.quantize(model, samples)
    assert set(result.left) == {"If_3"}
    assert result.outputs[0].distance.sqnr > 30


def test_token_ids_and_masks() -> None:
    """An input of integers is no activation; a mask of reals is one."""
    n = Maker()
    e = n.op("Gather", n.weights(10, 8), n.input("ids", [1, 6], np.int64), axis=0)
    a = n.op("MatMul", n.op("MatMul", e, n.weights(8, 8)), n.op("Transpose", e, perm=[0, 2, 1]))
    a = n.op("Softmax", n.op("Add", a, n.input("mask", [1, 6, 6])), axis=-1)
    model = n.done(n.op("Identity", n.op("Relu", n.op("MatMul", a, e)), out="y"))
    rng = np.random.default_rng(0)
    samples = [{"ids": rng.integers(0, 10, (1, 6)), "mask": np.float32(rng.normal(size=(1, 6, 6)))} for _ in range(3)]
    result = hbc.quantize(model, samples)
    assert result.outputs[0].distance.sqnr > 30
    assert "ids" not in {t.name for t in result.tensors}


def test_a_float_model_that_onnx_runtime_refuses_is_named() -> None:
    n = Maker()
    y = n.op("Relu", n.conv(n.input("x", [1, 3, 4, 4]), 3, 4))
    y = n.op("LSTM", n.op("Reshape", y, n.const(np.int64([4, 1, 16]))), n.weights(1, 24, 16), n.weights(1, 24, 6))
    with pytest.raises(hbc.QuantizeError, match="ONNX Runtime does not take this model") as caught:
        hbc.quantize(n.done(y), [{"x": np.zeros((1, 3, 4, 4), np.float32)}])
    assert "hidden_size" in caught.value.diagnostic.why
    assert "check that it runs there" in caught.value.diagnostic.hint
