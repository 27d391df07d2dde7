"""Reports on model files, their numbers against ONNX Runtime and NumPy on the same file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from hbc.backend.cpu.sessions import open_session
from hbc.debug.file_cases import file_cases
from hbc.debug.file_sensitivity import file_sensitivity
from hbc.debug.file_statistics import file_statistics
from hbc.debug.file_weights import file_weights
from hbc.debug.model_files import opened
from hbc.diagnostics import HbcError
from hbc.options import CompileOptions

ort = pytest.importorskip("onnxruntime", reason="heavy ops of a float model run in ONNX Runtime")
DIGITS = Path(__file__).parents[3] / "examples" / "digits"
MODEL = DIGITS / "digits_qat.onnx"
OPTIONS = CompileOptions("nash")


def samples(count: int) -> list[dict[str, np.ndarray]]:
    with np.load(DIGITS / "digits_test.npz") as data:
        name = next(n for n in data.files if data[n].ndim == 4)
        return [{"image": data[name][i : i + 1].astype(np.float32)} for i in range(count)]


def reader(count: int) -> Any:
    return lambda _infos: samples(count)


def run(model: ModelProto, sample: Mapping[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """Tensors of a model by ONNX Runtime, optimiser off."""
    twin = ModelProto()
    twin.CopyFrom(model)
    known = {o.name for o in twin.graph.output}
    twin.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names if n not in known)
    session = open_session(ort, twin.SerializeToString())
    return dict(zip(names, session.run(names, dict(sample)), strict=True))


def weights_of(model: ModelProto) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(integers, scales) by name of the dequantised integer weights."""
    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in values]
    return {n.input[0]: (values[n.input[0]], values[n.input[1]]) for n in nodes if values[n.input[0]].ndim > 1}


def test_statistics_are_those_of_the_tensors_before_their_quantize_nodes() -> None:
    model = onnx.load(MODEL)
    nodes = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    initial = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    with opened(MODEL, OPTIONS, reader(3), None) as case:
        report = file_statistics(case)
    assert [r.name for r in report.rows] == [n.input[0] for n in nodes]
    for node, row in zip(nodes, report.rows, strict=True):
        if node.input[0] == "image":
            found = [s["image"] for s in samples(3)]
        else:
            found = [run(model, s, [node.input[0]])[node.input[0]] for s in samples(3)]
        x, scale = np.concatenate(found).astype(np.float64), float(initial[node.input[1]])
        assert row.scale == pytest.approx(scale)
        assert row.high == pytest.approx(x.max(), abs=1.01 * scale)  # float32 sums: single roundings before it
        assert row.std == pytest.approx(x.std(), rel=1e-2)
        assert row.used == pytest.approx(np.abs(np.rint(x / scale)).max() / 128, abs=0.01)


def test_weights_are_those_of_the_file() -> None:
    known = weights_of(onnx.load(MODEL))
    report = file_weights(MODEL, OPTIONS)
    assert {r.name for r in report.rows} == set(known)
    for row in report.rows:
        q, scale = known[row.name]
        reals = np.abs(q.astype(np.float64) * scale.reshape([-1] + [1] * (q.ndim - 1))).reshape(len(scale), -1)
        assert row.scale == pytest.approx(scale.max(), rel=1e-6)
        assert row.spread == pytest.approx(reals.max(1).max() / reals.max(1).min(), rel=1e-6)
        usual = np.array([np.median(r[r > 0]) for r in reals])
        assert row.peak == pytest.approx((reals.max(1) / usual).max(), rel=1e-6)
        bits = np.log2(usual / 0.6745 * math.sqrt(12) / scale)
        assert (row.worst, row.bits) == (int(np.argmin(bits)), pytest.approx(bits.min(), rel=1e-5))
        assert row.sqnr is None
    assert "5 weights" in report.notes[-1]


def dequantised(model: ModelProto, keep: str = "") -> ModelProto:
    """The model without its activations' quantize and dequantize nodes, but those behind tensor `keep`."""
    twin = ModelProto()
    twin.CopyFrom(model)
    quantize = {n.output[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] != keep}
    renamed = {}
    kept = []
    for node in twin.graph.node:
        if node.output[0] in quantize:
            continue
        if node.op_type == "DequantizeLinear" and node.input[0] in quantize:
            source = quantize[node.input[0]].input[0]
            renamed[node.output[0]] = renamed.get(source, source)
            continue
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        kept.append(node)
    del twin.graph.node[:]
    twin.graph.node.extend(kept)
    return twin


@pytest.fixture(scope="module")
def float_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits without integers: other weights, by a hundredth of a step and less."""
    model = dequantised(onnx.load(MODEL))
    rng = np.random.default_rng(0)
    known = weights_of(model)
    for node in list(model.graph.node):
        if node.op_type == "DequantizeLinear" and node.input[0] in known:
            q, scale = known[node.input[0]]
            axis = scale.reshape([-1] + [1] * (q.ndim - 1))
            value = ((q + rng.uniform(-0.4, 0.4, q.shape)) * axis).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
            model.graph.node.remove(node)
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    onnx.save(model, path)
    return path


def test_float_weights_come_from_the_float_model(float_digits: Path) -> None:
    values = {i.name: numpy_helper.to_array(i) for i in onnx.load(float_digits).graph.initializer}
    known = weights_of(onnx.load(MODEL))
    names = {n.input[0]: n.output[0] for n in onnx.load(MODEL).graph.node if n.op_type == "DequantizeLinear"}
    for row in file_weights(MODEL, OPTIONS, float_digits).rows:
        q, scale = known[row.name]
        rounded = q.astype(np.float64) * scale.reshape([-1] + [1] * (q.ndim - 1))
        real = values[names[row.name]].astype(np.float64)
        want = 10 * math.log10(np.square(real).sum() / np.square(real - rounded).sum())
        assert row.sqnr == pytest.approx(want, abs=1e-3)


def test_a_float_weight_that_was_changed_is_told_from_a_rounded_one(float_digits: Path, tmp_path: Path) -> None:
    model = onnx.load(float_digits)
    weight = next(
        i for i in model.graph.initializer if i.name.startswith("wide.weight") and i.data_type == 1 and len(i.dims) == 4
    )
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(2), weight.name))
    onnx.save(model, tmp_path / "folded.onnx")
    report = file_weights(MODEL, OPTIONS, tmp_path / "folded.onnx")
    assert [r.name for r in report.rows if r.sqnr is None] == ["wide.weight_q"]
    assert "batch norm folded in: wide.weight_q" in report.notes[-1]


def test_sensitivity_is_the_model_with_one_tensor_rounded() -> None:
    model = onnx.load(MODEL)
    output = model.graph.output[0].name
    plain = dequantised(model)
    want = [run(plain, s, [output])[output].astype(np.float64) for s in samples(2)]
    with opened(MODEL, OPTIONS, reader(2), None) as case:
        report = file_sensitivity(case)
    assert len(report.rows) == sum(n.op_type == "QuantizeLinear" for n in model.graph.node)
    assert [r.loss for r in report.rows] == sorted((r.loss for r in report.rows), reverse=True)
    for row in report.rows:
        alone = dequantised(model, row.name)
        got = [run(alone, s, [output])[output] for s in samples(2)]
        sqnr = min(10 * math.log10(np.square(w).sum() / np.square(w - g).sum()) for w, g in zip(want, got, strict=True))
        assert row.sqnr == pytest.approx(sqnr, abs=0.5)  # dB; single roundings fall the other way in float32


def test_left_real_alone_is_never_far_from_everything_rounded() -> None:
    with opened(MODEL, OPTIONS, reader(1), None) as case:
        report = file_sensitivity(case, metric="mse", alone="float")
    assert all(r.loss == -r.mse for r in report.rows)
    assert report.rows[0].mse == min(r.mse for r in report.rows)


def test_the_worst_sample_is_the_one_that_saturates() -> None:
    given = samples(4)
    given[2]["image"] = given[2]["image"] * 30
    with opened(MODEL, OPTIONS, lambda _: given, None) as case:
        report = file_cases(case)
    assert report.rows[0].index == 2
    assert len(report.rows) == 4
    assert "2 by mse" in report.notes[0]


def test_equal_stages_have_no_bad_case() -> None:
    with opened(MODEL, OPTIONS, reader(2), None) as case:
        report = file_cases(case, "reference", "jit")
    assert {r.mse for r in report.rows} == {0.0}


def test_a_float_model_is_refused(float_digits: Path) -> None:
    with opened(float_digits, OPTIONS, reader(1), None) as case:
        for analysis in (file_statistics, file_sensitivity):
            with pytest.raises(HbcError, match="no quantize nodes"):
                analysis(case)  # type: ignore[operator]
    with pytest.raises(HbcError, match="no layer of the model has a weight of integers"):
        file_weights(float_digits, OPTIONS)


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    with opened(MODEL, OPTIONS, reader(2), None) as case:
        file_statistics(case, lambda *step: told.append(step))
    assert told == [("running", 1, 2), ("running", 2, 2)]
