"""Options and fixtures of all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`: write what came out into the golden files, for a person to read in the diff."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected part of golden files")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True where golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))
