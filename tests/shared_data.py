"""Where the real models and vendor files lie: `../shared` beside the repository.

Tests skip with a message where it is absent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    """The path of a shared file or folder; skips the test where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real inputs are not here: {path}")
    return path
