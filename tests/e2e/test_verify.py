"""`hbc verify` as a process: statuses, tables, files."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import hbc as compiler
from hbc.ir.printer import print_module
from hbc.options import CompileOptions
from hbc.verify.ir_stage import module_after
from hbc_runtime import hbm
from tests.e2e.command import environment, hbc, on_terminal
from tests.e2e.tiny import program, program_twin, qdq_model
from tests.unit.verify.test_compare import broken

pytestmark = pytest.mark.ort


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its program with the second convolution broken, and samples."""
    path = tmp_path_factory.mktemp("verify")
    onnx.save(qdq_model(), path / "m.onnx")
    (path / "broken.hbm").write_bytes(hbm.write(broken(compiler.compile(path / "m.onnx").program, 0)))
    x = np.random.default_rng(1).normal(0, 0.3, (1, 3, 8, 8)).astype(np.float32)
    np.savez(path / "samples.npz", in0__x=x, in1__x=-x)
    (path / "m.hbir").write_text(
        print_module(module_after(path / "m.onnx", CompileOptions(), "load")), encoding="utf-8"
    )
    return path


def test_a_sound_compilation_passes_and_shows_every_tensor(folder: Path) -> None:
    done = hbc("verify", "m.onnx", "--input", "samples.npz", cwd=folder)
    assert (done.status, done.err) == (0, "")
    assert "2 samples (samples.npz)" in done.out
    assert re.search(r"^ +x_quantized +quantize +i8 +0\.02 +0 +EQUAL ", done.out, re.MULTILINE)
    assert "passed: every op by itself, at most 1 quantum" in done.out
    assert re.search(r"tensors of ort without a row of their own: .*inside fused ops", done.out)


def test_a_broken_program_is_caught_at_the_right_op(folder: Path) -> None:
    args = ("verify", "m.onnx", "--hbm", "broken.hbm", "-i", "samples.npz", "--json", "r.json", "--csv", "r.csv")
    done = hbc(*args, "--html", "r.html", cwd=folder)
    assert (done.status, done.err) == (3, "")
    assert "errors start here" in done.out
    assert re.search(r"^► +r1_quantized +conv2d ", done.out, re.MULTILINE)
    assert re.search(
        r"^DIFFERENT: 1 of \d tensors outside at most 1 quantum; first at conv2d 'r1_quantized'", done.out, re.MULTILINE
    )
    report = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    assert report["passed"] is False
    assert report["starts"] == ["r1_quantized"]
    rows = {r["name"]: r for r in report["rows"]}
    assert rows["r1_quantized"]["own"]["max_quanta"] > 1
    assert rows["y"]["passed"] is True
    assert rows["y"]["own"]["verdict"] != "DIFFERENT"
    assert rows["x_quantized"]["total"]["verdict"] == "EQUAL"
    with (folder / "r.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [r["tensor"] for r in table] == list(rows)
    assert [r["tensor"] for r in table if r["starts"] == "1"] == ["r1_quantized"]
    assert "<!DOCTYPE html>" in (folder / "r.html").read_text(encoding="utf-8")


def test_the_tolerance_decides_the_status(folder: Path) -> None:
    args = ("verify", "m.onnx", "--hbm", "broken.hbm", "-i", "samples.npz")
    assert hbc(*args, "--tolerance", "300", cwd=folder).status == 0
    assert hbc(*args, "--cosine", "0.9999", cwd=folder).status == 3
    exact = hbc("verify", "m.onnx", "--from", "reference", "--tolerance", "0", "-i", "samples.npz", cwd=folder)
    assert exact.status == 0


def test_json_on_stdout_is_nothing_else(folder: Path) -> None:
    done = hbc("verify", "m.onnx", "--from", "reference", "--json", "-", "--samples", "3", "--seed", "4", cwd=folder)
    assert (done.status, done.err) == (0, "")
    report = json.loads(done.out)
    assert report["samples"] == 3
    assert report["inputs"] == "random, seed 4"
    assert report["verdicts"]["total"]["EQUAL"] == len(report["rows"])


def test_a_program_and_its_twin_are_equal_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "tiny.hbm").write_bytes(hbm.write(program()))
    onnx.save(program_twin(), tmp_path / "m.onnx")
    done = hbc("verify", "m.onnx", "--hbm", "tiny.hbm", "--all", cwd=tmp_path)
    assert done.status == 0
    assert re.search(r"with what it inherits +2 EQUAL$", done.out, re.MULTILINE)
    assert re.search(r"^x_dequantized +DequantizeLinear +a copy of 'x_q'$", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["m.onnx", "--to", "jitt"], 2, "did you mean 'jit'?"),
        (["m.onnx", "--to", "ir:nowhere"], 2, "there is no stage 'nowhere'"),
        (["m.onnx", "--tolerance", "nan"], 2, "--tolerance is not a number"),
        (["m.onnx", "--json", "a", "--csv", "a"], 2, "need a file each"),
        (["m.onnx", "--html", "no/such/x.html"], 2, "the output's folder doesn't exist"),
        (["m.onnx", "--preprocess", "colour=rgb"], 1, "did you mean 'color'?"),
        (["m.onnx", "--input", "none.npz"], 1, "there is no such file"),
        (["none.onnx"], 1, "none.onnx"),
        (["m.hbir"], 1, "this is no sound ONNX model"),
        (["m.onnx", "--from", "float", "--float", "none.onnx"], 1, "none.onnx"),
    ],
)
def test_what_cannot_be_says_why(
    folder: Path, args: list[str], status: int, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from hbc.cli import main

    monkeypatch.chdir(folder)
    assert main(["verify", *args]) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_a_text_of_ir_has_stages_too(folder: Path) -> None:
    done = hbc("verify", "m.hbir", "--from", "ir:load", "--to", "reference", cwd=folder)
    assert done.status == 0
    assert re.search(r"^.? +r1_quantized +conv2d ", done.out, re.MULTILINE)


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_table_fits_the_terminal(folder: Path, columns: int) -> None:
    status, seen = on_terminal(["verify", "m.onnx", "-i", "samples.npz"], folder, COLUMNS=str(columns), NO_COLOR="1")
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    start = plain.index("in running order")
    rows = plain[start : plain.index("tensors of ort", start)].splitlines()[1:-1]
    assert any("r1_quantized" in line for line in rows)
    assert max(len(line.rstrip()) for line in rows) <= columns
    assert not any(line.strip() in {"QUANTUM", "antized"} for line in rows)  # no cell is folded


# SIGINT as a terminal gives it: a shell's background job, perhaps this test, starts with it ignored.
INTERRUPTIBLE = """
import signal, sys
import hbc.cli
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(hbc.cli.main(sys.argv[1:]))
"""


def test_an_interrupt_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-c", INTERRUPTIBLE, "verify", str(folder / "m.onnx"), "-v", "--html", "r.html"]
    line += ["--samples", "20000", "--json", "r.json", "--csv", "r.csv"]
    with subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        told = iter(process.stderr.readline, "")
        assert any(word.strip() == "jit" for word in told)  # the comparison begins; it takes a minute
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_images_feed_verify_check_and_run(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image", reason="images are read with Pillow: pip install 'hbc[images]'")
    pytest.importorskip("pydantic", reason="it checks specifications: pip install 'hbc[images]'")
    onnx.save(qdq_model(), tmp_path / "m.onnx")
    (tmp_path / "m.hbm").write_bytes(hbm.write(compiler.compile(tmp_path / "m.onnx").program))
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    pil.fromarray(pixels).save(tmp_path / "photos" / "a.png")
    pil.fromarray(pixels[::-1]).save(tmp_path / "photos" / "b.png")
    spec = ("--preprocess", "mean=127.5,scale=1/127.5")
    x = ((pixels.astype(np.float32) - np.float32(127.5)) * np.float32(1 / 127.5)).transpose(2, 0, 1)[None]
    np.save(tmp_path / "x.npy", x)
    seen = hbc("verify", "m.onnx", "-i", "photos", *spec, cwd=tmp_path)
    assert seen.status == 0
    assert "2 samples (photos)" in seen.out
    checked = hbc("check", "m.onnx", "-i", "photos", *spec, "--json", cwd=tmp_path)
    assert json.loads(checked.out)["samples"] == 2
    runs = [
        json.loads(hbc("run", "m.hbm", "--json", *args, cwd=tmp_path).out)["outputs"]
        for args in (("-i", "x=photos/a.png", *spec), ("-i", "x.npy"))
    ]
    assert runs[0] == runs[1]
