"""PyTorch models on the command line: compiled, run, checked and verified in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hbc_runtime import Session
from tests.e2e.command import hbc
from tests.torch_scripts import Blocks
from tests.torch_sketch import saved, script, torch, trace

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch")
    torch.manual_seed(0)
    (path / "net.pt").write_bytes(saved(script(Blocks())))
    return path


def test_a_model_is_compiled_and_run(folder: Path) -> None:
    done = hbc(
        "compile", "net.pt", "--example", "1x3x8x8", "--march", "nash", "--output-names", "seen,total", cwd=folder
    )
    assert (done.status, done.out) == (0, "")
    with Session(folder / "net.hbm") as session:
        assert [o.name for o in session.model.outputs] == ["seen", "total"]
    run = hbc("run", "net.hbm", "--random", "0", "-o", "out.npz", cwd=folder)
    assert run.status == 0
    with np.load(folder / "out.npz") as outputs:
        assert {k: v.shape for k, v in outputs.items()} == {"seen": (1, 9, 8, 8), "total": (1, 768)}


def test_nodes_of_the_report_are_the_users_modules(folder: Path) -> None:
    done = hbc("compile", "net.pt", "--example", "1x3x8x8", "--json", cwd=folder)
    assert done.status == 0
    report = json.loads(done.out)
    assert "blocks.0.conv/conv2d" in done.out
    assert "aten::conv2d" in done.out
    assert report["output"] == "net.hbm"


def test_check_compares_with_pytorch(folder: Path) -> None:
    done = hbc("check", "net.pt", "--example", "1x3x8x8", "--by", "op", cwd=folder)
    assert done.status == 0, done.out + done.err
    assert "on PyTorch's own integers" in done.out
    assert "ORT's own" not in done.out
    assert "passed: 2 samples, every op within 1 quantum of PyTorch" in done.out


def test_check_finds_another_models_program(folder: Path) -> None:
    torch.manual_seed(1)
    (folder / "other.pt").write_bytes(saved(script(Blocks())))
    assert hbc("compile", "other.pt", "--example", "1x3x8x8", cwd=folder).status == 0
    done = hbc("check", "net.pt", "--hbm", "other.hbm", cwd=folder)  # the example is in the program
    assert done.status == 3, done.out + done.err
    assert "DIFFERENT" in done.out


def test_verify_goes_tensor_by_tensor(folder: Path) -> None:
    done = hbc("verify", "net.pt", "--example", "1x3x8x8", "--json", "-", cwd=folder)
    assert done.status == 0, done.out + done.err
    result = json.loads(done.out)
    assert "torch" in (result.get("from"), result.get("source"))
    assert any("blocks.1" in json.dumps(row) for row in result["rows"])
    floats = hbc("verify", "net.pt", "--example", "1x3x8x8", "--from", "float", cwd=folder)
    assert floats.status in {0, 3}, floats.err
    wrong = hbc("verify", "net.pt", "--example", "1x3x8x8", "--from", "ort", cwd=folder)
    assert wrong.status in {1, 2}
    assert "--from torch" in wrong.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["net.pt"], "--example x=1x3x224x224"),
        (["net.pt", "--example", "1x3xa"], "isn't a list of sizes"),
        (["net.pt", "--example", "1x3x8x8", "--output-names", "a"], "the model has 2"),
        (["none.pt", "--example", "1x3x8x8"], "there is no such file"),
    ],
    ids=range(4),
)
def test_mistakes_are_answered(folder: Path, args: list[str], words: str) -> None:
    done = hbc("compile", *args, cwd=folder)
    assert done.status in {1, 2}
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model as TorchScript, and samples of its input."""
    path = tmp_path_factory.mktemp("floats")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                                torch.nn.Conv2d(4, 2, 1))  # fmt: skip
    (path / "net.pt").write_bytes(saved(trace(model, torch.randn(1, 3, 8, 8))))
    np.savez(path / "samples.npz", input=np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32))
    return path


def test_a_float_model_is_quantised_without_onnx_between(floats: Path) -> None:
    pytest.importorskip("onnxruntime", reason="calibration runs the float model in ONNX Runtime")
    done = hbc("quantize", "net.pt", "--example", "1x3x8x8", "--output-names", "y", "-c", "samples.npz", cwd=floats)
    assert done.status == 0, done.out + done.err
    compiled = hbc("compile", "net_quantised.onnx", "--no-cpu-fallback", cwd=floats)
    assert compiled.status == 0, compiled.err
    with Session(floats / "net_quantised.hbm") as session:
        assert [o.name for o in session.outputs] == ["y"]


@pytest.mark.parametrize("verb", [("opt",), ("perf", "--fast-perf")])
def test_every_verb_that_reads_a_model_takes_an_example(floats: Path, verb: tuple[str, ...]) -> None:
    without = hbc(*verb, "net.pt", cwd=floats)
    assert without.status == 1
    assert "--example" in without.err
    done = hbc(*verb, "net.pt", "--example", "1x3x8x8", cwd=floats)
    assert done.status == 0, done.err
    assert "0/convolution" in done.out


def test_hints_are_in_the_words_of_pytorch(floats: Path) -> None:
    done = hbc("compile", "net.pt", "--example", "1x3x8x8", "--explain", cwd=floats)
    assert "put a fake_quantize" in done.out
    assert "QuantizeLinear" not in done.out
