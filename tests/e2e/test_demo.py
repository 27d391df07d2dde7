"""The example: its files are what they claim, and the compiled network reads the digits as the QAT model does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import hbc
from hbc.backend.cpu.sessions import open_session
from hbc_runtime import Session

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"
MODEL = DIGITS / "digits_qat.onnx"
MARCHES = ("bernoulli2", "bayes", "bayes-e", "nash-e", "nash-m", "nash-p")
Array = npt.NDArray[np.generic]


@pytest.fixture(scope="module")
def held_out() -> dict[str, Array]:
    with np.load(DIGITS / "digits_test.npz") as data:
        return dict(data)


def answers(session: Session, images: Array) -> Array:
    return np.concatenate([session.run({"image": image[None]})["logits"] for image in images])


def accuracy(logits: Array, labels: Array) -> float:
    return float((logits.argmax(1) == labels).mean())


def test_the_example_is_small_and_whole(held_out: dict[str, Array]) -> None:
    artefacts = [*DIGITS.glob("*.onnx"), *DIGITS.glob("*.npz")]
    assert len(artefacts) == 2
    assert sum(p.stat().st_size for p in artefacts) < 100_000
    assert held_out["image"].shape == (360, 1, 8, 8)
    assert held_out["label"].shape == (360,)
    assert held_out["logits"].shape == (360, 10)
    assert accuracy(held_out["logits"], held_out["label"]) >= 0.97


def test_the_example_has_what_makes_it_worth_compiling() -> None:
    model = onnx.load(MODEL)
    kinds = [node.op_type for node in model.graph.node]
    assert {"QuantizeLinear", "DequantizeLinear", "Conv", "Add", "MaxPool", "Gemm"} <= set(kinds)
    groups = {a.i for n in model.graph.node if n.op_type == "Conv" for a in n.attribute if a.name == "group"}
    assert 16 in groups, "no depthwise convolution"
    (gemm,) = [n for n in model.graph.node if n.op_type == "Gemm"]
    assert list(gemm.output) == ["logits"], "the last layer must stay unquantised"


@pytest.mark.ort
def test_the_exported_model_is_the_trained_one(held_out: dict[str, Array]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="comparing the export needs ONNX Runtime")
    session = open_session(onnxruntime, str(MODEL), optimised=True)
    logits = np.concatenate([session.run(None, {"image": image[None]})[0] for image in held_out["image"]])
    # float sums in another order: the same integers at every Q, and float32's last digits behind the final layer
    np.testing.assert_allclose(logits, held_out["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("march", MARCHES)
def test_integers_read_the_digits_as_the_qat_model_does(march: str, held_out: dict[str, Array]) -> None:
    """The closest call of the 360 is 0.26 apart; fixed point moves no logit by half of that, so no answer changes."""
    with Session(hbc.compile(MODEL, march=march).to_bytes()) as session:
        logits = answers(session, held_out["image"])
    qat = held_out["logits"]
    second, first = np.sort(qat, axis=1)[:, -2:].T
    assert np.abs(logits - qat).max() < (first - second).min() / 2
    assert np.array_equal(logits.argmax(1), qat.argmax(1))


def test_onnx_arithmetic_gives_the_qat_models_logits(held_out: dict[str, Array]) -> None:
    """All but what a tie between two integers, decided by float32 sums in PyTorch, can move: at most 1 % of images."""
    with Session(hbc.compile(MODEL, arith="onnx").to_bytes()) as session:
        logits = answers(session, held_out["image"])
    apart = (np.abs(logits - held_out["logits"]) > 1e-5).any(1)
    assert int(apart.sum()) <= 3


def test_every_node_runs_on_the_bpu() -> None:
    report = hbc.compile(MODEL).report
    assert {row.node for row in report.nodes if row.device == "cpu"} == set()


def test_the_tail_keeps_its_accumulator() -> None:
    (output,) = hbc.compile(MODEL).report.outputs
    assert output.high_precision
    assert output.scales == 10


def test_engines_agree_on_real_images(held_out: dict[str, Array]) -> None:
    program = hbc.compile(MODEL).to_bytes()
    images = held_out["image"][:40]
    with Session(program) as jit, Session(program, engine="reference") as reference:
        assert np.array_equal(answers(jit, images), answers(reference, images))


def test_run_py_prints_both_accuracies(tmp_path: Path, held_out: dict[str, Array]) -> None:
    hbc.compile(MODEL).save(tmp_path / "digits.hbm")
    command = [sys.executable, str(DIGITS / "run.py"), str(tmp_path / "digits.hbm")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    qat = int((held_out["logits"].argmax(1) == held_out["label"]).sum())
    assert lines[0].startswith("360 held-out digits")
    assert lines[1].startswith("  integers (hbc) ")
    assert lines[2].endswith(f"({qat} of 360)")


@pytest.mark.torch
def test_training_code_fake_quantises_as_onnx_says() -> None:
    """Half to even, saturating, and gradients only inside the range."""
    torch = pytest.importorskip("torch", reason="the example's training code needs PyTorch")
    sys.path.insert(0, str(DIGITS))
    try:
        from network import fake_quantize  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DIGITS))
    x = torch.tensor([0.25, 0.75, 1.25, 100.0, -100.0], requires_grad=True)
    y = fake_quantize(x, torch.tensor(0.5))
    y.sum().backward()
    assert y.tolist() == [0.0, 1.0, 1.0, 63.5, -63.5]
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.slow
def test_demo_script_works_in_a_fresh_checkout(tmp_path: Path) -> None:
    """From another folder, with nothing but this Python: its own environment, the compiles, lanes and accuracies."""
    checkout = tmp_path / "fresh checkout"  # a space in the path must not matter
    copy_tree(checkout)
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(checkout / "scripts" / "demo")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if done.returncode and "pip could not install" in done.stderr:
        pytest.skip("the package index is out of reach, so a fresh environment can't be made")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "360 held-out digits" in done.stdout
    assert "integers (hbc)" in done.stdout
    assert (checkout / "build" / "digits.hbm").stat().st_size > 0
    assert "3 lanes in examples/laneaf/scenes/car.png" in done.stdout
    assert "100 held-out scenes: F1 9" in done.stdout
    assert (checkout / "build" / "lanes.png").read_bytes().startswith(b"\x89PNG")
    python = checkout / ".venv-demo" / "bin" / "python"
    has_torch = [python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"]
    assert subprocess.run(has_torch, cwd=tmp_path, check=False).returncode == 0, "the demo installed PyTorch"


def copy_tree(to: Path) -> None:
    """What a clone of the working tree as it is now would hold."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: there is no list of the files that a clone would hold")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, to / name
        if source.is_symlink() or source.is_file():  # a deleted file is listed still
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
