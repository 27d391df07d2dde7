"""`hbc quantize` as a process: from a float model to a program, statuses, tables, files, errors."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e.command import environment, hbc, on_terminal
from tests.unit.ptq.float_nets import NETS, samples_of

pytestmark = pytest.mark.ort


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float models, and samples."""
    path = tmp_path_factory.mktemp("quantize")
    for name in ("residual", "branches"):
        onnx.save(NETS[name](), path / f"{name}.onnx")
        np.savez(path / f"{name}.npz", **{f"in{i}__x": s["x"] for i, s in enumerate(samples_of(name))})
    (path / "hbc.yaml").write_text("nodes: {Conv_3: int16}\nsamples: 3\n", encoding="utf-8")
    return path


def test_from_float_to_program(folder: Path) -> None:
    done = hbc("quantize", "residual.onnx", "--calib", "residual.npz", "-o", "q.onnx", cwd=folder)
    assert (done.status, done.err) == (0, "")
    assert "11 tensors (11 i8), 4 samples" in done.out
    assert re.search(r"^ +relu2 +clip +i8 +\d\d\.\d", done.out, re.MULTILINE)
    assert re.search(r"^y +\d\d\.\d +0\.9999", done.out, re.MULTILINE)
    assert "next: hbc compile q.onnx --march nash-e" in done.out
    assert hbc("compile", "q.onnx", "--march", "nash", "--no-cpu-fallback", cwd=folder).status == 0
    assert hbc("check", "q.onnx", "-i", "residual.npz", cwd=folder).status == 0
    assert hbc("verify", "q.onnx", "--float", "residual.onnx", "-i", "residual.npz", cwd=folder).status == 0


def test_files_and_configuration(folder: Path) -> None:
    args = ("quantize", "residual.onnx", "-c", "residual.npz", "--config", "hbc.yaml", "-o", "c.onnx")
    done = hbc(*args, "--json", "-", "--html", "c.html", cwd=folder)
    assert (done.status, done.err) == (0, "")
    report = json.loads(done.out)
    assert report["samples"] == 3
    assert {t["name"] for t in report["tensors"] if t["dtype"] == "i16"} == {"relu2", "relu5/equalised"}
    assert report["bytes"] == (folder / "c.onnx").stat().st_size
    page = (folder / "c.html").read_text(encoding="utf-8")
    assert "http:" not in page.replace('"http:" + ', "")  # nothing is fetched
    assert page.count('<tr id="t') == len(report["tensors"])
    assert '"histogram":{' in page
    again = hbc(*args, "--samples", "2", "--no-rank", "--json", "r.json", cwd=folder)
    assert (again.status, again.err) == (0, "")
    read = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    assert (read["samples"], {t["output"] for t in read["tensors"]}) == (2, {None})


def test_automatic_precision_and_what_stays_off_integers(folder: Path) -> None:
    args = ("quantize", "branches.onnx", "-c", "branches.npz", "--march", "bernoulli2", "-o", "b.onnx")
    done = hbc(*args, cwd=folder)
    assert done.status == 0
    assert "1 node off integers: 'Sub_11'" in done.out
    args = ("quantize", "residual.onnx", "-c", "residual.npz", "--auto-precision", "--top", "2", "-o", "a.onnx")
    assert "i16 raised" in hbc(*args, "--bias-correction", cwd=folder).out


def test_on_a_terminal(folder: Path) -> None:
    status, shown = on_terminal(["quantize", "residual.onnx", "-c", "residual.npz", "-o", "t.onnx"], folder)
    assert status == 0
    assert "calibrating" in shown
    assert "wrote t.onnx" in shown


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["-c", "none.npz"], 1, "there is no such file"),
        ([], 2, "Missing option '-c' / '--calib'"),
        (["-c", "branches.npz"], 1, "input 'x' does not fit: it has shape (1, 4, 8, 8)"),
        (["-c", "residual.npz", "--config", "none.yaml"], 1, "error[E0805]: the configuration can't be read"),
        (["-c", "residual.npz", "--top", "3"], 2, "--target and --top go with --auto-precision"),
        (["-c", "residual.npz", "--auto-precision", "--top", "3", "--target", "3"], 2, "exclude each other"),
        (["-c", "residual.npz", "--march", "nahs"], 2, "did you mean 'nash'"),
        (["-c", "residual.npz", "-o", "none/q.onnx"], 2, "the output's folder doesn't exist"),
        (["-c", "residual.npz", "--auto-precision", "--march", "bernoulli2"], 1, "bernoulli2 has no int16"),
    ],
)
def test_errors(folder: Path, args: list[str], status: int, said: str) -> None:
    done = hbc("quantize", "residual.onnx", *args, cwd=folder)
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_quantised_model_is_refused(folder: Path) -> None:
    hbc("quantize", "residual.onnx", "-c", "residual.npz", "-o", "twice.onnx", "-q", cwd=folder)
    done = hbc("quantize", "twice.onnx", "-c", "residual.npz", cwd=folder)
    assert done.status == 1
    assert "error[E0802]: the model is quantised already" in done.err


def test_an_interrupt_ends_it_and_leaves_no_file(folder: Path) -> None:
    code = (
        "import os, signal, hbc.ptq.run as run, hbc.cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "run.collect = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "raise SystemExit(hbc.cli.main(['quantize', 'residual.onnx', '-c', 'residual.npz', '-o', 'i.onnx']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 128 + signal.SIGINT
    assert b"interrupted" in done.stderr
    assert not (folder / "i.onnx").exists()
