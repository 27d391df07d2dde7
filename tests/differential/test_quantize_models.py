"""Real float models, quantised with one or two samples and compiled: all on the BPU, and near the float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the float models run in ONNX Runtime")

import onnxruntime as ort

import hbc
from hbc.backend.cpu.sessions import open_session
from hbc_runtime import Session
from tests.shared_data import shared

pytestmark = pytest.mark.ort

# Folder, float model, samples, and the least cosine of any output of the compiled program. What ONNX Runtime's own
# quantisation of them to symmetric int8 (`qdq_s8s8_pc.onnx`, calibrated alike) reaches in ONNX Runtime:
# 0.9993, 0.9995 and 0.99992.
MODELS = [
    ("mnist8_cntk", "mnist8.onnx", "io_mnist8.npz", 0.9997),
    ("ultraface_rfb320", "ultraface_rfb320.onnx", "io_ultraface_rfb320.npz", 0.9999),
    ("laneaf", "laneaf_compact_float.onnx", "laneaf_compact_float.npz", 0.9985),
]


def samples_in(path: Path, names: list[str]) -> list[dict[str, np.ndarray]]:
    data = np.load(path)
    if f"in_{names[0]}" in data:
        return [{n: data[f"in_{n}"] for n in names}]
    count = sum(key.startswith("in") and key.endswith(f"__{names[0]}") for key in data.files)
    return [{n: data[f"in{i}__{n}"] for n in names} for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "model", "io", "least"), MODELS, ids=[m[0] for m in MODELS])
def test_real_models(folder: str, model: str, io: str, least: float) -> None:
    path = shared("models", folder, model)
    session = open_session(ort, str(path), optimised=True)
    samples = samples_in(shared("models", folder, io), [i.name for i in session.get_inputs()])
    result = hbc.quantize(path, samples, rank=False)
    assert result.left == {}
    compiled = hbc.compile(result.data)
    assert {n.node for n in compiled.report.layers if n.device == "cpu"} == set()
    with Session(compiled.program) as ours:
        for sample in samples:
            got = ours.run(sample)
            for output, want in zip(session.get_outputs(), session.run(None, sample), strict=True):
                a, b = got[output.name].ravel().astype(np.float64), want.ravel().astype(np.float64)
                assert a @ b / np.sqrt((a @ a) * (b @ b)) > least, output.name
