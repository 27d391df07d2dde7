"""The planted mistakes still fit the code: each edit's text stands exactly once. `scripts/mutation` runs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_an_edit_has_exactly_one_place(mutant: Mutant) -> None:
    for edit in mutant.edits:
        assert (ROOT / edit.file).read_text(encoding="utf-8").count(edit.old) == 1, edit.file
        assert edit.new != edit.old


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_tests_asked_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for name in mutant.tests:
        assert (ROOT / name.split("::")[0]).is_file(), name


def test_names_are_unique_and_there_are_many() -> None:
    assert max(Counter(m.name for m in MUTANTS).values()) == 1
    assert len(MUTANTS) >= 20
