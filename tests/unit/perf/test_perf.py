"""Estimates: what the vendor's own figures say, physical limits, and that more work takes more time."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hbc.driver import compile_model
from hbc.options import CompileOptions
from hbc.perf import as_json, board_named, boards, estimate, page
from hbc.perf.estimate import Estimate
from hbc.perf.simulate import run_segment
from hbc.perf.work import Work
from hbc_runtime.commands import Engine
from tests.e2e.command import hbc
from tests.shared_data import shared
from tests.unit.perf.nets import fast, net

ROOT = Path(__file__).parents[3]


def bpu_layers(e: Estimate) -> list[tuple[Work, float]]:
    return [(t.work, t.end - t.start) for t in e.layers if t.work.engine is not Engine.HOST]


def test_a_float_model_goes_to_the_bpu_whole() -> None:
    e = estimate(fast(net()), board_named("x5", "bayes-e"))
    assert [w.kind for w, _ in bpu_layers(e) if w.macs] == ["dense", "dense"]
    assert [w.kind for w, _ in bpu_layers(e) if w.engine is Engine.LUT] == ["lut"]  # sigmoid and product are one table
    assert e.macs == 16 * 16 * (8 * 27 + 4 * 8)
    assert not e.cpu


def test_a_softmax_runs_on_the_cpu_of_bayes_and_on_the_bpu_of_nash() -> None:
    on_bayes = estimate(fast(net(tail="Softmax")), board_named("x5", "bayes-e"))
    on_nash = estimate(fast(net(tail="Softmax"), "nash-e"), board_named("s100", "nash-e"))
    assert [c.nodes for c in on_bayes.cpu] == [("tail",)]
    assert on_bayes.cpu_us > 0
    assert not on_nash.cpu


@pytest.mark.parametrize("name", sorted(boards()))
def test_no_layer_is_free_and_none_beats_the_march(name: str) -> None:
    board = boards()[name]
    e = estimate(fast(net(64), board.march), board)
    peak, layers = board.spec.macs_per_cycle * board.spec.clock_mhz, [t for t in e.layers if t.work.engine != 7]
    assert len(layers) >= 3
    for t in layers:
        took = t.end - t.start
        assert took > 0
        assert took >= t.work.macs / peak
        assert took * board.ddr_peak >= (t.loaded + t.stored) * (1 - 1e-9)


def work(macs: int, nbytes: int, elements: int = 0) -> Work:
    return Work(
        "l", "dense", Engine.TENSOR if macs else Engine.LUT, (1, 1, 1, 1), (1, 1, 1, 1), macs, macs, nbytes, nbytes,
        nbytes, nbytes, elements,
    )  # fmt: skip


@given(st.integers(1, 10**12), st.integers(0, 10**9), st.integers(1, 10**12), st.integers(0, 10**9))
@example(1, 0, 1, 0)
def test_time_grows_with_macs_and_with_bytes(macs: int, nbytes: int, more_macs: int, more_bytes: int) -> None:
    for board in boards().values():
        less = run_segment([work(macs, nbytes)], board, 0.0)[0].end
        assert run_segment([work(macs + more_macs, nbytes)], board, 0.0)[0].end >= less
        assert run_segment([work(macs, nbytes + more_bytes)], board, 0.0)[0].end >= less
        far = run_segment([work(macs + 10**13, nbytes + 10**10)], board, 0.0)[0].end
        assert far > less
        assert far >= (macs + 10**13) / (board.spec.macs_per_cycle * board.spec.clock_mhz)


def test_the_fit_and_the_simulation_are_one_formula() -> None:
    pytest.importorskip("scipy", reason="scripts/fit_boards.py needs scipy (pip install hbc[fit])")
    spec = importlib.util.spec_from_file_location("fit_boards", ROOT / "scripts" / "fit_boards.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    board = boards()["x5"]
    program = fast(net(tail="Softmax"))
    e = estimate(program, board, nv12=True)
    works = tuple(t.work for t in e.layers)
    cpu = 4 * 16 * 16
    row = script.Row("net", "x5", 1.0, works, cpu, e.output_mb)
    x = np.array([getattr(board.rates, n) for n in script.NAMES])
    assert script.predictor(board, row)(x) == pytest.approx(e.latency_us / 1e3, rel=1e-9)


TINY = [("x5", 43_352_064, 173_264, 92.7), ("x3", 43_352_064, 237_280, 177.4)]


@pytest.mark.parametrize(("name", "ops", "ddr", "latency"), TINY)
def test_the_vendors_tiny_net(name: str, ops: int, ddr: int, latency: float) -> None:
    """Against the vendor's own perf.json: operations exact, DDR bytes within 10 %, latency within 25 %."""
    path = shared("data", "vendor", name, f"simple_net_{name}_quantized_model.onnx")
    theirs = json.loads(shared("data", "vendor", name, "perf.json").read_text())["summary"]
    board = boards()[name]
    e = estimate(compile_model(path, CompileOptions(march=board.march)).program, board)
    ours = as_json(e)["summary"]
    assert isinstance(ours, dict)
    assert next(2 * t.work.macs for t in e.layers if t.work.macs) == ops
    assert ours["BPU OPs per frame (effective)"] == theirs["BPU OPs per frame (effective)"]
    assert abs(e.loaded + e.stored - ddr) <= 0.1 * ddr
    assert abs(e.bpu_us - latency) <= 0.25 * latency
    absent = set(theirs) - set(ours)
    allowed = {
        "BPU PE number", "HBDK version", "compiling options", "model json CRC", "model json file", "model param CRC",
        "multicore sync time (ms)", "worst FPS", "interval computing unit utilization",
    }  # fmt: skip
    assert absent <= allowed
    assert ours["layer details"][0] == theirs["layer details"][0]


def test_intervals_hold_all_the_bytes() -> None:
    e = estimate(fast(net(64)), board_named("x5", "bayes-e"))
    summary = as_json(e)["summary"]
    assert isinstance(summary, dict)
    step = summary["interval time (ms)"] / 1e3
    loaded = sum(summary["interval loading bandwidth (megabytes/s)"]) * step * (1 << 20)
    assert loaded == pytest.approx(e.loaded, rel=0.05)
    assert all(0 <= u <= 1 for u in summary["interval computing units utilization"])


def test_the_command_prints_writes_and_refuses(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(net())
    files = ("--json", "p.json", "--html", "p.html")
    done = hbc("perf", model, "--march", "bayes-e", "--fast-perf", *files, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "RDK X5" in done.out
    assert json.loads((tmp_path / "p.json").read_text())["hbc"]["board"] == "x5"
    assert "conv&lt;0&gt;" not in (tmp_path / "p.html").read_text()  # names stand in the JSON, its < escaped
    assert "conv\\u003c0>" in (tmp_path / "p.html").read_text()
    wrong = hbc("perf", model, "--march", "nash", "--board", "x5", "--fast-perf", cwd=tmp_path)
    assert wrong.status == 2
    assert "compile for bayes-e" in wrong.err
    cores = hbc("perf", model, "--board", "x5", "--cores", "2", "--fast-perf", cwd=tmp_path)
    assert cores.status == 2
    assert "--cores 1" in cores.err


PROBE = """<script>
addEventListener("load", () => {
  const ids = ["timeline", "roofline", "traffic", "memory", "graph"];
  const drawn = ids.map((i) => document.querySelectorAll(`#${i} svg rect, #${i} svg circle`).length > 0);
  const head = document.querySelectorAll("#table th");
  head[5].click();
  const rows = [...document.querySelectorAll("#table tbody tr")];
  const us = rows.map((r) => Number(r.cells[5].textContent.replace(/,/g, "")));
  const sorted = us.every((v, i) => !i || us[i - 1] >= v);
  document.body.dataset.probe = [drawn.every(Boolean), us.length, sorted].join(" | ");
});
</script></body>"""


def test_a_browser_draws_every_part_and_sorts(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here: the page is not drawn")
    program = fast(net(tail="Softmax"))
    e = estimate(program, board_named("x5", "bayes-e"))
    text = page(e, program.models[0])
    assert not re.search(r"""(?:src|href)=|url\((?!#)""", text)
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [browser, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'data-probe="([^"]*)"', shown.stdout)
    assert found is not None
    assert found[1] == f"true | {len(e.layers)} | true"


def test_rates_never_pass_the_march() -> None:
    board = boards()["x5"]
    wild = dataclasses.replace(board.rates, dense=1e9, ddr=1e9).checked(board.spec, board.ddr_peak)
    assert wild.dense == board.spec.macs_per_cycle
    assert wild.ddr == board.ddr_peak
