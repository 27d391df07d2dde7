"""What docs/ir.md shows is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from hbc.ir import DType, interpret, parse_module, print_module, verify
from hbc.ir.dense import PRINTED_SEEDS

PAGE = (Path(__file__).parents[3] / "docs" / "ir.md").read_text(encoding="utf-8")


def test_the_opening_program_is_canonical_and_runs() -> None:
    match = re.search(r"```\n(// hbir 1\n.*?)```", PAGE, re.DOTALL)
    assert match is not None
    module = parse_module(match[1])
    verify(module)
    assert print_module(module) == match[1]
    image = np.full((1, 1, 28, 28), 100, np.int8)
    assert list(interpret(module, {"image": image})) == ["logits", "scores"]


def test_the_dtypes_are_all_there() -> None:
    assert f"dtype     = {' '.join(d.text for d in DType)}\n" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    assert f"a seed below {PRINTED_SEEDS} makes" in PAGE
