"""Options and fixtures of all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ["HBC_CACHE"] = "off"  # machine code is made anew: a test must not run what an earlier one left behind
# The same examples in every run; `--hypothesis-profile default` draws new ones each time.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`: write what came out into the golden files, for a person to read in the diff."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected part of golden files")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True where golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def small_models_are_shared() -> None:
    """Threads share the smallest models, too, which they would leave to one of them: tests are about their sharing."""
    from hbc_runtime.jit import engine

    engine.WORTH = 0
