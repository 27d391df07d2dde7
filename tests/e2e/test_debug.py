"""`hbc debug`, as a user calls it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from hbc.cli import main
from hbc.cli.debug import command

from .command import ROOT, hbc, on_terminal

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
MODEL, DATA = DIGITS / "digits_qat.onnx", DIGITS / "digits_test.npz"
ANALYSES = ("statistics", "weights", "sensitivity", "badcases")


def arguments(analysis: str) -> list[str]:
    return [analysis, str(MODEL), *([] if analysis == "weights" else ["-i", str(DATA), "--samples", "2"])]


@pytest.mark.parametrize("analysis", ANALYSES)
def test_an_analysis_shows_a_table_and_writes_files(
    analysis: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["debug", *arguments(analysis), "--html", "r.html", "--csv", "r.csv", "--json", "r.json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert str(MODEL) in out
    data = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text(encoding="utf-8"))))
    assert len(rows) == len(data["rows"]) > 1
    first = next(iter(rows[0].values()))
    assert first in out
    assert first in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert data["notes"][0] in out


def test_json_on_stdout_is_all_there_is(tmp_path: Path) -> None:
    done = hbc("debug", *arguments("weights"), "--json", "-", cwd=tmp_path)
    assert len(json.loads(done.out)["rows"]) == 5


def test_without_an_analysis_help_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"  {a} " in err for a in ANALYSES)


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        (["statics", "x.onnx"], 2, "did you mean 'statistics'?"),
        (["weights", "none.onnx"], 1, "there is no such file"),
        (["weights", str(MODEL), "--csv", "a", "--html", "a"], 2, "need a file each"),
        (["badcases", str(MODEL), "--to", "jitt"], 2, "did you mean 'jit'?"),
        (["sensitivity", str(MODEL), "--metric", "snr"], 2, "sqnr"),
    ],
)
def test_mistakes_are_named(line: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", *line]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_a_terminal_of_80_columns_is_not_overrun(tmp_path: Path) -> None:
    status, screen = on_terminal(["debug", *arguments("statistics")], tmp_path, COLUMNS="80")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen.splitlines()]
    table = [line for line in lines if "bits" in line or "pointwise" in line]
    assert status == 0
    assert len(table) == 2
    assert max(map(len, table)) <= 80


def test_the_manual_has_every_option_of_every_analysis() -> None:
    section = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split("\n## debug\n")[1].split("\n## ")[0]
    common = {"--help", "--quiet", "--verbose"}
    options = {o for c in command.commands.values() for p in c.params for o in p.opts if o.startswith("--")} - common
    assert len(options) > 15
    assert sorted(o for o in options if f"`{o}" not in section) == []
    assert sorted(a for a in command.commands if f"`{a}`" not in section) == []
