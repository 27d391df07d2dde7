"""`hbc` as a process: exit statuses, streams, and what it says to what it can't take."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hbc.cli.app import VERBS
from hbc_runtime import hbm
from tests.e2e.command import ROOT, environment, hbc, on_terminal
from tests.e2e.tiny import program, reference_output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.hbm` file."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.hbm"
    path.write_bytes(hbm.write(program()))
    return path


# ---- the command itself


def test_help_lists_every_verb_on_stdout(tmp_path: Path) -> None:
    done = hbc("--help", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    assert all(re.search(rf"^  {verb} ", done.out, re.MULTILINE) for verb in VERBS)


def test_without_a_verb_help_is_a_usage_error(tmp_path: Path) -> None:
    done = hbc(cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert "Commands:" in done.err


def test_version(tmp_path: Path) -> None:
    done = hbc("--version", cwd=tmp_path)
    assert done.status == 0
    assert re.fullmatch(r"hbc \d+\.\d+\.\d+\n", done.out)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from hbc.cli import main

    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: hbc {verb}" in out
    assert "--help" in out
    assert "\\b" not in out
    assert not re.search(r"hbc \S+ \S+ +hbc", out), "the examples ran together"


@pytest.mark.parametrize("verb", VERBS)
def test_the_manual_has_every_option(verb: str) -> None:
    command = importlib.import_module(f"hbc.cli.{verb.replace('-', '_')}").command
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = manual.split(f"\n## {verb}\n")[1].split("\n## ")[0]
    common = {"--help", "--quiet", "--verbose"}
    options = {o for p in command.params for o in p.opts if o.startswith("--")} - common
    assert sorted(o for o in options if o not in section) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["complie"], "there is no command 'complie'"),
        (["complie"], "did you mean 'compile'?"),
        (["run"], "Missing argument 'PROGRAM'"),
        (["run", "x.hbm", "--theads", "2"], "No such option"),
        (["run", "x.hbm", "--threads", "0"], "Invalid value for '--threads'"),
        (["run", "x.hbm", "--threads", "100000"], "Invalid value for '--threads'"),
        (["run", "x.hbm", "--random", "-1"], "Invalid value for '--random'"),
        (["check", "m.onnx", "--tolerance", "nan"], "--tolerance is not a number"),
        (["compile", "m.onnx", "--march", "nahs"], "did you mean 'nash'?"),
        (["compile", "m.onnx", "--march", "x86"], "one of bernoulli2, bayes, bayes-e, nash-e, nash-m, nash-p, nash"),
        (["compile", "m.onnx", "--arith", "onxx"], "did you mean 'onnx'?"),
        (["compile", "m.onnx", "--shape", "1x3x8x8"], "write it as NAME=1x3x224x224"),
        (["compile", "m.onnx", "--shape", "x=1x3xHxW"], "isn't a list of sizes"),
        (["compile", "m.onnx", "--shape", "x=0x3"], "every size must be 1 or more"),
        (["compile", "m.onnx", "-o", "no/such/folder/m.hbm"], "the output's folder doesn't exist"),
        (["compile", "m.onnx", "-o", "."], "the output is a folder"),
        (["compile", "m.onnx", "--stop-after", "fuse"], "need --emit hbir"),
        (["compile", "m.onnx", "--emit", "hbir", "--json"], "leave out --emit hbir"),
        (["compile", "m.onnx", "-o", "-", "--json"], "stdout can't hold both"),
        (["opt", "m.onnx", "-p", "dce", "--stage", "fuse"], "exclude each other"),
        (["passes", "--march", "bays"], "did you mean 'bayes'?"),
    ],
)
def test_a_usage_error_has_status_2_and_says_what_would_do(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hbc.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error[E00")
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


# ---- run


def test_run_on_a_file_saves_the_outputs_and_shows_them_on_stdout(tiny: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0, 8, (1, 3, 2, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = hbc("run", tiny, "--input", "x=x.npy", "--output", "out.npz", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    assert re.search(r"^y +f32 +1x2x2x2 ", done.out, re.MULTILINE)
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_array_equal(saved["y"], reference_output(x))


@pytest.mark.parametrize("name", ["x=x.npy", "x.npy"])
def test_run_takes_several_batches_at_once(tiny: Path, tmp_path: Path, name: str) -> None:
    x = np.random.default_rng(1).normal(0, 8, (5, 3, 2, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = hbc("run", tiny, "--input", name, "--threads", "2", "--output", "out.npz", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_array_equal(saved["y"], np.concatenate([reference_output(x[n : n + 1]) for n in range(5)]))


def test_run_with_both_engines_gives_the_same_figures(tiny: Path, tmp_path: Path) -> None:
    done = [hbc("run", tiny, "--random", "3", "--json", *more, cwd=tmp_path) for more in ([], ["--reference"])]
    jit, slow = (json.loads(d.out)["outputs"] for d in done)
    assert jit == slow
    assert jit[0]["name"] == "y"
    assert jit[0]["shape"] == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        ([], 2, "no value for 1 input"),
        (["--input", "z=x.npy"], 2, "there is no input 'z'"),
        (["--input", "none.npy"], 1, "there is no such file"),
        (["--input", "x=bad.npy"], 1, "no .npy or .npz file"),
        (["--input", "x=wide.npy"], 1, "it has shape (1, 3, 2, 3)"),
        (["--random", "0", "-o", "no/out.npz"], 2, "the output's folder doesn't exist"),
    ],
)
def test_run_says_what_is_wrong_with_its_inputs(
    tiny: Path, tmp_path: Path, args: list[str], status: int, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from hbc.cli import main

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1, 3, 2, 2), np.float32))
    np.save("wide.npy", np.zeros((1, 3, 2, 3), np.float32))
    Path("bad.npy").write_bytes(b"rubbish")
    assert main(["run", str(tiny), *args]) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("verb", ["run", "inspect"])
def test_a_file_that_is_no_program_has_status_1_and_no_traceback(verb: str, tmp_path: Path) -> None:
    (tmp_path / "m.hbm").write_bytes(np.random.default_rng(1).bytes(4000))
    done = hbc(verb, "m.hbm", cwd=tmp_path)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error[R0102]: m.hbm is not a sound .hbm file")
    assert "Traceback" not in done.err


def test_whether_a_file_may_be_read_is_no_question_of_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a file of mode 0; but tests may run as root, who may read everything."""
    from hbc.cli import main

    (tmp_path / "m.hbm").write_bytes(b"rubbish")
    monkeypatch.setattr(os, "access", lambda *_: False)
    for verb in ("inspect", "run", "opt", "check"):
        assert main([verb, str(tmp_path / "m.hbm")]) == 1
        assert "Invalid value" not in capsys.readouterr().err


def test_a_damaged_program_is_refused(tiny: Path, tmp_path: Path) -> None:
    data = bytearray(tiny.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.hbm").write_bytes(data)
    done = hbc("inspect", "m.hbm", cwd=tmp_path)
    assert (done.status, done.out) == (1, "")
    assert "error[R0102]: " in done.err


# ---- inspect


def test_inspect_shows_border_instructions_sources_and_arena(tiny: Path, tmp_path: Path) -> None:
    done = hbc("inspect", tiny, "--locs", "--arena", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    assert "march nash-e, arith bpu" in done.out
    assert re.search(r"^in +x +f32 +1x3x2x2 +NCHW", done.out, re.MULTILINE)
    assert re.search(r"^2 +conv2d .* conv, relu$", done.out, re.MULTILINE)
    assert re.search(r"^ *128 +160 +%8 +acc +i32\[1x2x2x2\] +2 along axis 3", done.out, re.MULTILINE)
    assert not re.search(r" $", done.out, re.MULTILINE), "piped lines end in blanks"


def test_inspect_as_json_has_everything_but_the_constants(tiny: Path, tmp_path: Path) -> None:
    done = hbc("inspect", tiny, "--json", cwd=tmp_path)
    found = json.loads(done.out)
    assert (done.status, done.err) == (0, "")
    assert (found["march"], found["file_bytes"]) == ("nash-e", tiny.stat().st_size)
    model = found["models"][0]
    assert [i["opcode"] for i in model["segments"][0]["instructions"]][2] == "conv2d"
    assert model["segments"][0]["instructions"][2]["loc"] == ["conv", "relu"]
    assert model["outputs"][0]["name"] == "y"
    assert model["arena_bytes"] == 192


def test_a_reader_that_stops_reading_is_no_error_message(tiny: Path, tmp_path: Path) -> None:
    line = f"{sys.executable} -m hbc inspect {tiny} --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode in {0, 141}  # 0 where the pipe took everything before its reader was gone


# ---- the tables


def test_ops_lists_every_op_instruction_and_operator(capsys: pytest.CaptureFixture[str]) -> None:
    from hbc.cli import main

    assert main(["ops", "--march", "bernoulli2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["march"] == "bernoulli2"
    how = {r["name"]: r["bpu"] for r in found["ops"]}
    assert (how["conv2d"], how["sigmoid"], how["call"]) == ("integers", "look-up table", "cpu")
    assert all(r["reference"] and r["jit"] and r["summary"] for r in found["instructions"])
    assert all(r["summary"] for r in found["ops"])
    assert all(r["text"] and r["ops"] for r in found["limits"])
    assert "Conv" in found["onnx"][""]
    assert "HzSQuantizedConv" in found["onnx"]["horizon"]


def test_ops_for_the_docs_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    from hbc.cli import main

    assert main(["ops", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("## Ops\n\n| op | on the BPU | what it is |\n| --- | --- | --- |\n")
    assert "\n## Limits of nash-e\n" in out


def test_passes_are_listed_in_running_order(capsys: pytest.CaptureFixture[str]) -> None:
    from hbc.backend.bpu.pipelines import PIPELINES
    from hbc.cli import main

    assert main(["passes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["passes"]
    assert [(r["stage"], r["name"]) for r in rows if r["stage"]] == [
        (s.name, p.name) for s in PIPELINES["nash-e"] for p in s.passes
    ]
    assert all(r["summary"] for r in rows)
    assert main(["passes"]) == 0
    assert re.search(r"^normalize +canonicalize ", capsys.readouterr().out, re.MULTILINE)


# ---- signals and terminals


# The command with SIGINT as a terminal gives it: a shell's background job, perhaps this test, starts with it ignored.
# Its inputs take a minute to be read, so that there's time for a signal.
INTERRUPTIBLE = """
import pathlib, signal, sys, time
import hbc.cli.run
signal.signal(signal.SIGINT, signal.default_int_handler)
hbc.cli.run.read_given = lambda *_: (pathlib.Path("reading").touch(), time.sleep(60))
sys.exit(hbc.cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "status", "words"), [(signal.SIGINT, 130, "hbc: interrupted\n"), (signal.SIGTERM, 143, "")]
)
def test_a_signal_ends_the_command_quietly(number: int, status: int, words: str, tiny: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-c", INTERRUPTIBLE, "run", str(tiny), "--input", "x.npy"]
    process = subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=-1, stderr=-1, text=True)
    try:
        _wait_for(tmp_path / "reading", process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (status, "", words)


def _wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        assert process.poll() is None
        if file.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"the process never came as far as {file}")


def test_errors_are_coloured_on_a_terminal_and_plain_under_no_color(tmp_path: Path) -> None:
    status, screen = on_terminal(["inspect", "none.hbm"], tmp_path)
    assert status == 1
    assert "\x1b[" in screen
    status, screen = on_terminal(["inspect", "none.hbm"], tmp_path, NO_COLOR="1")
    assert status == 1
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", screen), "a colour under NO_COLOR"


def test_names_in_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    import dataclasses

    old = program()
    model = dataclasses.replace(old.models[0], name="evil\x1b[2Jname")
    (tmp_path / "m.hbm").write_bytes(hbm.write(dataclasses.replace(old, models=(model,))))
    done = hbc("inspect", "m.hbm", cwd=tmp_path)
    assert done.status == 0
    assert "\x1b" not in done.out
    assert "evil\\x1b[2Jname" in done.out


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_are_done_without(closed: str, tiny: Path, tmp_path: Path) -> None:
    for command, status in ((f"inspect {tiny}", 0), ("inspect none.hbm", 1)):
        line = f"{sys.executable} -m hbc {command} {closed}"
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment(), capture_output=True, check=False)
        assert done.returncode == status
        assert b"Traceback" not in done.stderr


def test_json_stays_json_where_stdout_is_ascii(tmp_path: Path) -> None:
    import dataclasses

    old = program()
    model = dataclasses.replace(old.models[0], name="Zähler 💥")
    (tmp_path / "m.hbm").write_bytes(hbm.write(dataclasses.replace(old, models=(model,))))
    done = hbc("inspect", "m.hbm", "--json", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert json.loads(done.out)["models"][0]["name"] == "Zähler 💥"


# ---- bugs


def test_a_bug_has_status_70_and_a_folder_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    from hbc.cli import main

    def broken(*_: object, **__: object) -> None:
        message = "the impossible happened"
        raise AssertionError(message)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("hbc.cli.inspect.describe", broken)
    assert main(["inspect", str(tiny), "--json"]) == 70
    err = capsys.readouterr().err
    assert "internal error: AssertionError: the impossible happened" in err
    assert "not in your model" in err
    (folder,) = tmp_path.glob("hbc-crash-*")
    assert str(folder) in err
    assert "Traceback" not in err
    assert "the impossible happened" in (folder / "traceback.txt").read_text()
    assert f"inspect {tiny} --json" in (folder / "repro.sh").read_text()


def test_hbc_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = hbc("inspect", "none.hbm", cwd=tmp_path, HBC_DEBUG="1")
    assert done.status == 1
    assert "Traceback" in done.err
