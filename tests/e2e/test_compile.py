"""`hbc compile`, `check` and `opt`: files, streams, statuses, and what is said about models that can't be taken."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import hbc as api
from hbc.cli import main
from hbc.passes.fuse_conv import FuseConv
from hbc_runtime import Session, hbm, load
from tests.e2e.command import MODELS, environment, hbc, on_terminal
from tests.e2e.tiny import WEIGHT, program, program_twin, qdq_model

STAGES = ["normalize", "fuse", "quantize", "place", "lower", "schedule"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small models."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "good": qdq_model(),
        "affine": qdq_model(affine=True),
        "open": qdq_model(batch="N"),
        "cpu": qdq_model(tail="Sin"),
        "twin": program_twin(),
        "other": program_twin(weight=-WEIGHT),
    }
    for name, model in made.items():
        onnx.save(model, folder / f"{name}.onnx")
    (folder / "tiny.hbm").write_bytes(hbm.write(program()))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- compile


def test_compile_adds_machine_code_that_runs_where_it_is_trusted(models: Path, tmp_path: Path) -> None:
    assert hbc("compile", models / "good.onnx", "--aot", cwd=tmp_path).status == 0
    (native,) = load(tmp_path / "good.hbm").natives
    told = json.loads(hbc("inspect", "good.hbm", "--json", cwd=tmp_path).out)["natives"]
    assert told == [
        {"model": "good", "cpu": native.cpu, "features": native.features, "made_by": native.made_by,
         "key": native.key, "bytes": len(native.data)}
    ]  # fmt: skip
    shown = hbc("inspect", "good.hbm", cwd=tmp_path, COLUMNS="200").out
    assert "machine code, run where it is trusted" in shown
    assert native.cpu in shown
    plain = hbc("run", "good.hbm", "--random", "0", cwd=tmp_path, HBC_CACHE="off")
    trusted = hbc("run", "good.hbm", "--random", "0", "--trust", cwd=tmp_path, HBC_CACHE="off")
    assert (plain.status, trusted.status) == (0, 0)
    assert plain.out == trusted.out


def test_machine_code_belongs_to_a_program(models: Path, tmp_path: Path) -> None:
    done = hbc("compile", models / "good.onnx", "--aot", "--emit", "hbir", cwd=tmp_path)
    assert done.status == 2
    assert "--aot" in done.err


def test_compile_writes_the_program_and_says_nothing_to_a_pipe(models: Path, tmp_path: Path) -> None:
    done = hbc("compile", models / "good.onnx", cwd=tmp_path)
    assert (done.status, done.out, done.err) == (0, "", "")
    made = load(tmp_path / "good.hbm")
    assert (made.march, made.arith, made.models[0].name) == ("nash-e", "bpu", "good")
    assert made.build.source == "good.onnx"
    assert [p.name for p in tmp_path.iterdir()] == ["good.hbm"]


def test_the_same_model_gives_the_same_bytes(models: Path, tmp_path: Path) -> None:
    runs = [hbc("compile", models / "good.onnx", "-o", f"{n}.hbm", cwd=tmp_path, PYTHONHASHSEED=n) for n in ("1", "2")]
    assert [r.status for r in runs] == [0, 0]
    assert (tmp_path / "1.hbm").read_bytes() == (tmp_path / "2.hbm").read_bytes()


def test_a_program_can_go_to_stdout(models: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "hbc", "compile", str(models / "good.onnx"), "-o", "-"]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, check=True)
    assert load(done.stdout).models[0].name == "good"
    assert list(tmp_path.iterdir()) == []


def test_json_holds_the_report_and_nothing_else_is_on_stdout(models: Path, tmp_path: Path) -> None:
    done = hbc("compile", models / "good.onnx", "--march", "bayes-e", "--json", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["march"], report["output"]) == ("bayes-e", "good.hbm")
    assert report["file_bytes"] == (tmp_path / "good.hbm").stat().st_size
    assert report["placed"] == {"bpu": 3}
    assert report["macs"] == 8 * 64 * 27 + 4 * 64 * 8
    assert report["affine"] == []
    nodes = {n["node"]: n for n in report["nodes"]}
    assert nodes["Conv_c1"]["device"] == "bpu"
    assert nodes["Conv_c1"]["fused_with"] == ["Relu_r1"]
    assert report["outputs"][0]["high_precision"] is True
    assert report["outputs"][0]["scales"] == 4


def test_explain_tells_where_each_node_runs_on_stdout(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(models / "cpu.onnx"), "--explain"]) == 0
    captured = capsys.readouterr()
    assert re.search(
        r"^Conv_c1 \+ Relu_r1 +Conv \+ Relu +bpu +.*conv2d +i8·i8 → i8 +13\.8 k$", captured.out, re.MULTILINE
    )
    assert re.search(r"^Sin_y +Sin +cpu +", captured.out, re.MULTILINE)
    assert re.search(r"^Sin_y \(Sin\) +.* isn't quantised +put QuantizeLinear", captured.out, re.MULTILINE)
    assert "1 node on the CPU, not the BPU: 'Sin_y' (Sin)" in captured.err


@pytest.mark.parametrize("suffix", [".json", ".md", ".html"])
def test_a_report_file_holds_what_explain_shows(
    suffix: str, models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(models / "cpu.onnx"), "--report", f"r{suffix}"]) == 0
    text = (here / f"r{suffix}").read_text(encoding="utf-8")
    assert "Sin_y" in text
    assert "put QuantizeLinear and DequantizeLinear between" in text
    assert capsys.readouterr().out == ""


def test_a_report_of_an_unknown_format_is_refused_before_the_work(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(models / "cpu.onnx"), "--report", "r.txt"]) == 2
    assert "give a name that ends in .json, .md, .html" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_explain_fits_a_terminal(models: Path, here: Path) -> None:
    status, screen = on_terminal(["compile", str(models / "cpu.onnx"), "--explain"], here)
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    shown = plain[plain.index("nodes ") : plain.index("MACs, ")]
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 100


def test_quiet_says_nothing_at_all(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(models / "affine.onnx"), "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_zero_point_is_warned_of_and_refused_under_strict(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "affine.hbm").write_bytes(b"old")
    assert main(["compile", str(models / "affine.onnx"), "--strict"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "with a zero point, which a real BPU would refuse" in err
    assert "x_quantized" in err
    assert "zero point -11" in err  # u8 with zero point 117, as i8
    assert (here / "affine.hbm").read_bytes() == b"old"
    assert main(["compile", str(models / "affine.onnx")]) == 0
    assert "a real BPU would refuse this model" in capsys.readouterr().err
    assert load(here / "affine.hbm").models[0].name == "affine"


def test_no_cpu_fallback_refuses_a_model_with_a_part_for_the_cpu(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(models / "cpu.onnx"), "--no-cpu-fallback"]) == 1
    err = capsys.readouterr().err
    assert "1 node would run on the CPU" in err
    assert "Sin_y" in err
    assert list(here.iterdir()) == []


def test_an_open_batch_is_asked_for_and_bound_by_shape(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(models / "open.onnx")]) == 1
    err = capsys.readouterr().err
    assert "'x'" in err
    assert "--shape" in err
    assert main(["compile", str(models / "open.onnx"), "--shape", "x=2x3x8x8"]) == 0
    assert load(here / "open.hbm").models[0].inputs[0].shape == (2, 3, 8, 8)
    assert ("shape.x", "2x3x8x8") in load(here / "open.hbm").build.options


def test_the_model_is_not_overwritten_by_its_program(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (models / "good.onnx").read_bytes()
    assert main(["compile", str(models / "good.onnx"), "-o", str(models / "good.onnx")]) == 2
    assert "is the model itself" in capsys.readouterr().err
    assert (models / "good.onnx").read_bytes() == before


# ---- what can't be compiled

FOREIGN = {
    "random": np.random.default_rng(3).bytes(5000),
    "empty": b"",
    "text": b"This is not a model.\n",
    "zip": b"PK\x03\x04" + b"\0" * 100,
    "pickle": b"\x80\x02}q\x00.",
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_model_has_status_1_and_a_reason(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "m.onnx").write_bytes(FOREIGN[kind])
    (here / "m.hbm").write_bytes(b"old")
    assert main(["compile", "m.onnx"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error")
    assert "m.onnx" in err
    assert "= try:" in err
    assert "bug" not in err
    assert (here / "m.hbm").read_bytes() == b"old"
    assert sorted(p.name for p in here.iterdir()) == ["m.hbm", "m.onnx"]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_model_cut_short_has_status_1(
    share: float, models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (models / "good.onnx").read_bytes()
    (here / "m.onnx").write_bytes(data[: int(len(data) * share)])
    assert main(["compile", "m.onnx"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error")
    assert "bug" not in err


@pytest.mark.parametrize(("name", "words"), [("none.onnx", "there is no such file"), (".", "this is a folder")])
def test_a_path_that_is_no_file_has_status_1(
    name: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", name, "-o", "m.hbm"]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert list(here.iterdir()) == []


def test_a_program_given_as_a_model_is_refused(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(models / "tiny.hbm"), "-o", "m.hbm"]) == 1
    assert capsys.readouterr().err.startswith("error")
    assert list(here.iterdir()) == []


def test_a_file_that_is_no_model_shows_no_traceback_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(FOREIGN["random"])
    done = hbc("compile", "m.onnx", cwd=tmp_path)
    assert (done.status, done.out) == (1, "")
    assert "Traceback" not in done.err


def test_a_killed_compilation_leaves_the_old_program(models: Path, tmp_path: Path) -> None:
    (tmp_path / "good.hbm").write_bytes(b"old")
    line = [sys.executable, "-m", "hbc", "compile", str(models / "good.onnx")]
    for delay in (0.2, 0.6, 1.0):
        process = subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=-1, stderr=-1)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        now = (tmp_path / "good.hbm").read_bytes()
        assert now == b"old" or load(now).models[0].name == "good"
        assert [p.name for p in tmp_path.iterdir()] == ["good.hbm"]
        assert process.returncode in {0, 143, -signal.SIGTERM}  # the last: before Python had its handler in place


def test_a_bug_in_a_pass_has_status_70_and_a_reproducer_that_shows_it(
    models: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> int:
        message = "the impossible happened"
        raise AssertionError(message)

    monkeypatch.setattr(FuseConv, "run", broken)
    (here / "good.hbm").write_bytes(b"old")
    assert main(["compile", str(models / "good.onnx")]) == 70
    err = capsys.readouterr().err
    assert "the impossible happened" in err
    assert "'fuse-conv'" in err
    assert "Traceback" not in err
    assert "hbc-crash" in err
    assert (here / "good.hbm").read_bytes() == b"old"
    assert "opt -p fuse-conv" in (here / "hbc-crash" / "repro.sh").read_text()
    monkeypatch.chdir(here / "hbc-crash")
    assert main(["opt", "-p", "fuse-conv", "before.hbir"]) == 70


# ---- the story


def test_a_terminal_sees_a_line_per_stage(models: Path, tmp_path: Path) -> None:
    status, seen = on_terminal(["compile", str(models / "good.onnx")], tmp_path)
    assert status == 0
    assert all(re.search(rf"  {stage} +\d+ pass(es)? +\d+ rewrites +[\d.]+ m?s", seen) for stage in STAGES)
    assert "wrote good.hbm" in seen


def test_verbose_tells_the_story_to_a_pipe_too(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(models / "good.onnx"), "-v"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"^ +\d+ fuse-conv +1 rewrites ", err, re.MULTILINE)


# ---- hbir


def emitted(model: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The text after a stage."""
    assert main(["compile", str(model), "--emit", "hbir", "--stop-after", stage]) == 0
    return capsys.readouterr().out


def test_opt_stage_by_stage_gives_what_compile_gives(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = emitted(models / "good.onnx", "load", capsys)
    for stage in STAGES:
        (here / "in.hbir").write_text(text)
        assert main(["opt", "in.hbir", "--verify-only"]) == 0
        assert main(["opt", "in.hbir", "--stage", stage]) == 0
        text = capsys.readouterr().out
        assert text == emitted(models / "good.onnx", stage, capsys)


def test_opt_prints_what_it_reads(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(models / "good.onnx"), "--locs"]) == 0
    text = capsys.readouterr().out
    (here / "in.hbir").write_text(text)
    assert main(["opt", "in.hbir", "--locs"]) == 0
    assert capsys.readouterr().out == text
    assert 'loc("Conv_c1"' in text


def test_opt_writes_large_constants_beside_the_text(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", str(models / "good.onnx"), "-o", "out.hbir"]) == 0
    assert sorted(p.name for p in here.iterdir()) == ["out.hbir", "out.npz"]
    assert main(["opt", "out.hbir"]) == 0
    text = capsys.readouterr().out
    assert main(["opt", str(models / "good.onnx")]) == 0
    assert capsys.readouterr().out == text


def test_opt_runs_named_passes_and_shows_the_module_after_one(
    models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["opt", str(models / "good.onnx"), "-p", "canonicalize,fuse-conv,dce", "--print-after", "fuse-conv"]) == 0
    )
    out, err = capsys.readouterr()
    assert out.count("conv2d") == 2
    assert err.startswith("// after fuse-conv\n")
    assert err.count("// after") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-p", "fuse-con"], "did you mean 'fuse-conv'"),
        (["-p", "fuse-conv,"], "expected a pass's name"),
        (["--stage", "quantise"], "did you mean 'quantize'?"),
        (["-p", "dce", "--print-after", "cde"], "did you mean 'dce'?"),
        (["--march", "nash-x"], "there is no march 'nash-x'"),
    ],
)
def test_opt_answers_an_unknown_name_with_the_nearest(
    args: list[str], words: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", str(models / "good.onnx"), *args]) == 2
    assert words in capsys.readouterr().err


def test_malformed_text_is_shown_with_its_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "in.hbir").write_text("graph @g(%x: tensor<4xf32>) -> (%y) {\n  %y = add %x, %z : tensor<4xf32>\n}\n")
    assert main(["opt", "in.hbir"]) == 1
    err = capsys.readouterr().err
    assert "in.hbir" in err
    assert "%z" in err
    assert "^" in err


# ---- check


@pytest.mark.ort
def test_check_passes_with_status_0_and_names_the_farthest_tensor(models: Path, tmp_path: Path) -> None:
    done = hbc("check", models / "good.onnx", "--arith", "onnx", "--tensors", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    assert re.search(r"^y +\S+%.* ok$", done.out, re.MULTILINE)
    assert "farthest tensor: " in done.out
    assert "passed: 2 samples" in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ort
def test_check_of_another_models_program_has_status_3(models: Path, tmp_path: Path) -> None:
    done = hbc("check", models / "other.onnx", "--hbm", models / "tiny.hbm", cwd=tmp_path)
    assert (done.status, done.err) == (3, "")
    assert "DIFFERENT" in done.out
    assert "farthest tensor: 'y'" in done.out


@pytest.mark.ort
def test_check_as_json(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(models / "twin.onnx"), "--json", "--samples", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["samples"]) == (True, 3)
    assert found["outputs"][0]["name"] == "y"


@pytest.mark.ort
def test_check_on_samples_from_a_file(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    np.savez("s.npz", **{f"in{i}__x": rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32) for i in range(3)})
    assert main(["check", str(models / "good.onnx"), "--input", "s.npz"]) == 0
    assert "passed: 3 samples" in capsys.readouterr().out


@pytest.mark.ort
def test_check_on_an_open_batch_binds_it_for_both(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(models / "open.onnx"), "--shape", "x=2x3x8x8", "--samples", "1"]) == 0
    assert "passed: 1 sample," in capsys.readouterr().out


@pytest.mark.ort
def test_check_of_a_program_knows_the_shapes_that_it_was_compiled_with(models: Path, here: Path) -> None:
    model = str(models / "open.onnx")
    assert main(["compile", model, "--shape", "x=2x3x8x8", "-o", "m.hbm"]) == 0
    assert main(["check", model, "--hbm", "m.hbm", "--samples", "1"]) == 0


@pytest.mark.ort
@pytest.mark.parametrize("variant", ["qdq_s8s8_pc", "qdq_u8s8_pc", "qop_u8s8_pc"])
def test_a_real_model_compiles_and_checks(variant: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = MODELS / "mnist8_cntk"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: real models lie beside the checkout, not in it")
    args = [str(folder / f"{variant}.onnx"), "--input", str(folder / f"{variant}_io.npz")]
    assert main(["check", *args]) == 0
    assert "100.00%   ok" in capsys.readouterr().out  # every argmax agrees


# ---- the Python API


def test_compile_takes_a_path_bytes_and_a_model(models: Path) -> None:
    data = (models / "good.onnx").read_bytes()
    made = [
        api.compile(s) for s in (models / "good.onnx", str(models / "good.onnx"), data, onnx.load_from_string(data))
    ]
    x = np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    outputs = [Session(c.program).run({"x": x})["y"] for c in made]
    assert all(np.array_equal(y, outputs[0]) for y in outputs)
    assert made[0].program == made[1].program


def test_save_writes_what_to_bytes_gives(models: Path, tmp_path: Path) -> None:
    compiled = api.compile(models / "good.onnx", march="nash-p", name="net")
    assert compiled.save(tmp_path / "m.hbm") == len(compiled.to_bytes())
    assert load(tmp_path / "m.hbm") == compiled.program
    assert compiled.program.models[0].name == "net"
    assert compiled.report.march == "nash-p"


def test_compile_raises_option_errors_for_options(models: Path) -> None:
    with pytest.raises(api.OptionError, match="did you mean 'march'"):
        api.compile(models / "good.onnx", marsh="nash")
    with pytest.raises(api.OptionError, match="there is no march 'j5'"):
        api.compile(models / "good.onnx", march="j5")


def test_parse_reads_text() -> None:
    module = api.parse("graph @g(%x: tensor<4xf32>) -> (%y) {\n  %y = clip %x {low = 0.0} : tensor<4xf32>\n}\n")
    assert [op.NAME for op in module.graph.ops] == ["clip"]
    with pytest.raises(api.ParseError):
        api.parse("graph")
