"""Golden files: small programs through passes, compared as text and by execution. `--update-golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_case import FOLDER, Case, assert_same_meaning


def cases(pattern: str) -> list[pytest.ParameterSet]:
    return [pytest.param(p, id=str(p.relative_to(FOLDER).with_suffix(""))) for p in sorted(FOLDER.rglob(pattern))]


@pytest.mark.parametrize("path", cases("*.hbir"))
def test_program(path: Path, update_golden: bool) -> None:
    case = Case.read(path)
    module, passes = case.run()
    text = case.print(module)
    if update_golden:
        case.update(text)
    else:
        assert text == case.expected
        assert_same_meaning(case.parse(case.given), case.parse(case.expected), exact=case.is_exact(passes))


@pytest.mark.parametrize("path", cases("*.err"))
def test_message(path: Path, update_golden: bool) -> None:
    case = Case.read(path)
    message = case.message()
    if update_golden:
        case.update(message)
    else:
        assert message == case.expected
