"""The program of docs/debug.md runs, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from hbc.quantization import set_march  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PAGE = Path(__file__).parents[2] / "docs" / "debug.md"
FENCE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"[-+]?\d[\d.e%+-]*")


def printed(blocks: list[str]) -> str:
    out = io.StringIO()
    space: dict[str, object] = {}
    with contextlib.redirect_stdout(out):
        for block in blocks:
            exec(block, space)
    return out.getvalue()


def test_the_page_shows_what_its_program_prints() -> None:
    """Words and rows to the letter; figures to 1 %, as another machine's float32 sums differ."""
    set_march("nash-e")
    found = FENCE.findall(PAGE.read_text(encoding="utf-8"))
    shown = "".join(text for kind, text in found if kind == "text").split("\n")
    got = printed([text for kind, text in found if kind == "python"]).split("\n")
    assert len(shown) == len(got) > 20
    for a, b in zip(shown, got, strict=True):
        assert FIGURE.sub("#", " ".join(a.split())) == FIGURE.sub("#", " ".join(b.split()))
        for x, y in zip(FIGURE.findall(a), FIGURE.findall(b), strict=True):
            with contextlib.suppress(ValueError):
                assert float(x.rstrip("%")) == pytest.approx(float(y.rstrip("%")), rel=0.01, abs=0.11)
