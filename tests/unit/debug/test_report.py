"""A report as table, CSV, page and JSON: the same rows, names as text, nothing fetched."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from hbc.debug import DETAIL, Column, Figure, Report, write_page
from hbc.debug.cells import blocks, number, quanta
from hbc.debug.figures import bars, ranges, spark
from hbc.diagnostics import OptionError


@dataclass(frozen=True)
class Row:
    name: str
    loss: float
    shape: tuple[int, ...]
    counts: tuple[int, ...]
    why: tuple[str, ...]
    share: float | None = None

    flagged = property(lambda self: bool(self.why))


EVIL = "<script>alert(1)</script>\x1b[31m"
ROWS = (
    Row("a", 0.5, (1, 3), (1, 2, 3), ("wide",), 0.25),
    Row(EVIL, math.inf, (), (), ()),
    Row("c", 1e-9, (2,), (0, 9), ("x", "y; z")),
)
COLUMNS = (
    Column("name", "name"),
    Column("loss", "loss", "number", "what it costs", rank=2),
    Column("shape", "shape", "shape", rank=DETAIL),
    Column("values", "counts", "histogram", rank=1),
    Column("why", "why", "words"),
    Column("share", "share", "share"),
)
REPORT: Report[Row] = Report(
    "A report", "of three", COLUMNS, ROWS, ("a note & more",), (Figure("F", bars([("a", 1, "one", True)])),)
)


class Parsed(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_csv_has_every_column_in_full(tmp_path: Path) -> None:
    REPORT.to_csv(tmp_path / "r.csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "r.csv").read_text(encoding="utf-8"))))
    assert rows[0] == ["name", "loss", "shape", "counts", "why", "share"]
    assert rows[1] == ["a", "0.5", "1x3", "1x2x3", "wide", "0.25"]
    assert rows[2][1] == "inf"
    assert rows[3] == ["c", "1e-09", "2", "0x9", "x; y; z", ""]


def test_json_has_no_infinities() -> None:
    text = json.dumps(REPORT.as_dict(), allow_nan=False)
    assert json.loads(text)["rows"][1]["loss"] == "inf"


def test_page_needs_nothing_and_escapes_names(tmp_path: Path) -> None:
    REPORT.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Parsed(text)
    assert "default-src 'none'" in text
    assert [a for _, a in page.tags if "src" in a or str(a.get("href", "")).startswith("http")] == []
    assert "<script>alert" not in text
    assert "\x1b" not in text
    rows = [a for tag, a in page.tags if tag == "tr" and "id" in a]
    assert [r["id"] for r in rows] == ["r0-t0", "r0-t1", "r0-t2"]
    assert [r.get("class") for r in rows] == ["flagged", None, "flagged"]
    assert "what it costs" in page.texts
    assert "2 flagged" in page.texts


def test_reports_share_a_page(tmp_path: Path) -> None:
    write_page(tmp_path / "r.html", [REPORT, REPORT], "Both")
    page = Parsed((tmp_path / "r.html").read_text(encoding="utf-8"))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"r0", "r1", "r1-t2"} <= set(ids)


def test_a_report_without_rows_has_no_table(tmp_path: Path) -> None:
    Report("Empty", "", COLUMNS, (), ("nothing is flagged",)).to_html(tmp_path / "r.html")
    page = Parsed((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert [tag for tag, _ in page.tags if tag == "table"] == []
    assert {"nothing is flagged", "none flagged"} <= set(page.texts)


def test_str_is_the_table_and_the_notes() -> None:
    text = str(REPORT)
    assert "a note & more" in text
    assert "∞" in text
    assert "shape" not in text
    assert "\x1b" not in text


def test_a_narrow_terminal_drops_the_columns_of_highest_rank() -> None:
    def shown(width: int) -> str:
        console = Console(width=width, force_terminal=False)
        with console.capture() as captured:
            console.print(REPORT)
        return captured.get()

    heads = [shown(w).splitlines()[1] for w in (120, 68, 40)]
    assert ["loss" in h for h in heads] == [True, False, False]
    assert ["values" in h for h in heads] == [True, True, False]
    assert all("why" in h for h in heads)


def test_everything_shows_details_and_limit_cuts() -> None:
    assert len(REPORT.table().columns) == 5
    assert len(REPORT.table(everything=True).columns) == 6
    assert REPORT.table(limit=1).row_count == 1


def test_rows_by_name_and_flags() -> None:
    assert REPORT.row("c") is ROWS[2]
    assert REPORT.flagged == (ROWS[0], ROWS[2])
    with pytest.raises(OptionError, match="nonesuch"):
        REPORT.row("nonesuch")


@pytest.mark.parametrize(("value", "text"), [(0.012345, "0.01235"), (-math.inf, "−∞"), (math.nan, "NaN"), (12.0, "12")])
def test_numbers_as_text(value: float, text: str) -> None:
    assert number(value) == text


def test_quanta_and_blocks_as_text() -> None:
    assert [quanta(v) for v in (3.0002, 3.93, math.inf)] == ["3", "3.93", "∞"]
    assert blocks((0, 0, 100, 1)) == "  █▁"
    assert len(blocks(tuple(range(48)))) == 12
    assert blocks(()) == ""


def test_figures_hold_what_they_are_given() -> None:
    svg = bars([("a<b", 2.0, "two", False), ("c", math.inf, "∞", True)], limit=1.0)
    assert "a&lt;b" in svg
    assert svg.count("<rect") == 2
    assert 'class="limit"' in svg
    assert bars([("a", 1e-3, "", False), ("b", 0.0, "", False)], logarithmic=True).count("<rect") == 2
    assert ranges([("a", -1.0, 2.0), ("b", 0.0, math.inf)], limit=(-1, 1)).count('class="whisker"') == 2
    assert spark((0, 1, 4)).count("<rect") == 2
    assert bars([]).startswith("<svg")
