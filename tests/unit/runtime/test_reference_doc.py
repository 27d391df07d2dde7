"""The examples in docs/numerics.md give what they say, and its table of decisions points at code that exists."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "numerics.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_worked_examples_are_right() -> None:
    test = doctest.DocTestParser().get_doctest(TEXT, {}, "numerics.md", str(PAGE), 0)
    assert len(test.examples) >= 20
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.failed == 0, "".join(report)


def test_every_decision_has_a_row() -> None:
    assert re.findall(r"^\| (D\d+) \|", TEXT, re.MULTILINE) == [f"D{i}" for i in range(1, 14)]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:numerics|reference)\.[\w.]+)`", TEXT))))
def test_code_named_by_the_page_exists(path: str) -> None:
    module, name = f"hbc_runtime.{path}".rsplit(".", 1)
    assert callable(getattr(importlib.import_module(module), name))
