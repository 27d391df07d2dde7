"""The page: one file that asks nobody for anything, escapes what a model file says, and works in a browser."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hbc.verify.histogram import Histogram
from hbc.verify.measure import Distance
from hbc.verify.page import page
from hbc.verify.pairing import Absent
from hbc.verify.result import TensorRow, Tolerance, VerifyResult

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\x1b[31m\u2028&amp;\x00'
VOID = {"meta", "input", "br", "img", "link"}
SHAPES = {"line", "circle", "path", "rect", "polyline"}


def row(name: str, own: Distance | None, total: Distance, **more: object) -> TensorRow:
    made = TensorRow(
        name,
        "",
        "conv2d",
        (f"node of {name}",),
        "i8",
        (1, 2, 3, 4),
        0.5,
        1,
        0.25,
        own,
        total,
        passed=True,
        starts=False,
    )
    return dataclasses.replace(made, **more)


EQUAL = Distance(1.0, 0.0, 0.0, 1.0, math.inf)
OFF = Distance(0.25, 4.0, 8.0, 0.9, 7.5)


@pytest.fixture
def result() -> VerifyResult:
    """Three tensors: an equal one, one where an error starts, one that inherits it and can't be run alone."""
    rows = (
        row("a", EQUAL, EQUAL),
        row(EVIL, OFF, OFF, passed=False, starts=True),
        row("c", None, Distance(0.5, math.inf, None, 0.0, -math.inf), scale=None, channels=0),
    )
    histogram = Histogram(-1.0, 1.0, (1,) * 48, (2,) * 48, 8.5, in_quanta=True, difference=(1, *[0] * 15, 7))
    return VerifyResult(
        model=f"folder/{EVIL}.onnx", source="ort", to="jit", about=("ONNX Runtime", "machine code"), march="nash-e",
        arith="bpu", samples=2, inputs="random, seed 0", by="op", tolerance=Tolerance(quanta=1), rows=rows,
        absent=(Absent(EVIL, "Relu", ("r",), "inside", "conv2d 'a'"),), histograms={"a": histogram, EVIL: histogram},
    )  # fmt: skip


class Reader(HTMLParser):
    """Checks that tags nest; collects tags with their attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_sound_and_needs_nothing_else(result: VerifyResult) -> None:
    text = page(result)
    reader = read(text)
    assert not re.search(r"https?://", text)
    assert not re.search(r"@import|url\(", text)
    for tag, attributes in reader.tags:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_names_of_the_model_are_text_only(result: VerifyResult) -> None:
    text = page(result)
    assert len(read(text).scripts) == 2  # the data and the page's own
    assert "<script>alert" not in text
    assert "<img" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u2028]", text)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text


def test_the_data_has_a_row_and_a_histogram_for_every_tensor(result: VerifyResult) -> None:
    data = json.loads(read(page(result)).scripts[0])
    assert [bool(r["histogram"]) for r in data["rows"]] == [True, True, False]
    assert data["rows"][1]["name"].startswith("</script>")
    assert data["rows"][0]["histogram"]["difference"][-1] == 7
    assert data["rows"][2]["max_abs"] == "inf"


def test_rows_carry_what_sorting_and_filtering_ask(result: VerifyResult) -> None:
    rows = [a for tag, a in read(page(result)).tags if tag == "tr" and (a.get("id") or "").startswith("t")]
    assert [(a["id"], a["data-own"], a["data-total"], a["data-starts"]) for a in rows] == [
        ("t0", "equal", "equal", ""),
        ("t1", "different", "different", "1"),
        ("t2", "", "different", ""),
    ]
    assert "node of a" in (rows[0]["data-words"] or "")


def test_the_plot_has_a_point_per_tensor_and_marks_where_errors_start(result: VerifyResult) -> None:
    tags = [(tag, a.get("class")) for tag, a in read(page(result)).tags]
    assert tags.count(("circle", "own")) == 2
    assert tags.count(("circle", "own unknown")) == 1
    assert tags.count(("path", "start")) == 1
    (line,) = [a["points"] for tag, a in read(page(result)).tags if tag == "polyline"]
    assert line is not None
    heights = [float(p.split(",")[1]) for p in line.split()]
    assert heights[0] > heights[1] > heights[2]  # y grows downwards: equal lies lowest


def test_a_page_without_rows_is_sound(result: VerifyResult) -> None:
    nothing = dataclasses.replace(result, rows=(), absent=(), histograms={})
    read(page(nothing))
    assert not nothing.passed
    assert "nothing compared" in page(nothing)


PROBE = """<script>
addEventListener("load", () => {
  document.querySelector("thead [data-column='14']").click();
  const order = [...document.querySelectorAll("tbody tr[id]")].map((r) => r.id).join();
  document.querySelector("#t1 .open").click();
  const bars = document.querySelectorAll(".detail .difference").length;
  document.querySelector("#own").value = "equal";
  document.querySelector("#own").dispatchEvent(new Event("input"));
  const shown = [...document.querySelectorAll("tbody tr[id]:not([hidden])")].map((r) => r.id).join();
  document.body.dataset.probe = [order, bars, shown, window.hacked || "safe"].join(" | ");
});
</script></body>"""


def test_a_browser_sorts_filters_and_opens_histograms(result: VerifyResult, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here: the page is checked as text only")
    path = tmp_path / "page.html"
    path.write_text(page(result).replace("</body>", PROBE), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run(
        [browser, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found is not None
    assert found[1] == "t2,t1,t0 | 17 | t0 | safe"
