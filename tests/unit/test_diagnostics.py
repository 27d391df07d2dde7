"""Diagnostics: their words, their rendering, and the catalogue in docs/."""

from __future__ import annotations

import pickle
import string
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from hbc.diagnostics import (
    Diagnostic,
    FrontendError,
    HbcError,
    PassError,
    UnknownOp,
    VerifyError,
    catalogue,
    codes,
    error,
    from_text,
    nearest,
    render,
)

REPOSITORY = Path(__file__).parents[2]
FULL = Diagnostic(
    code="E0203",
    title="weights of this convolution are not quantised",
    loc="yolov5s.onnx: node 'Conv_142' (Conv)",
    why="nash multiplies i8 by i8;\nan f32 weight has no scale",
    hint="add QuantizeLinear on input 1",
    notes=("its scale is 0",),
    excerpt=("tensor<255x128x1x1xf32>",),
    trail="pass 'fold-qdq' (stage quantize, 6 of 21)",
)


def test_a_full_diagnostic_renders_line_by_line() -> None:
    assert render(FULL).split("\n") == [
        "error[E0203]: weights of this convolution are not quantised",
        "  --> yolov5s.onnx: node 'Conv_142' (Conv)",
        "   |  tensor<255x128x1x1xf32>",
        "   = why:  nash multiplies i8 by i8;",
        "           an f32 weight has no scale",
        "   = try:  add QuantizeLinear on input 1",
        "   = in:   pass 'fold-qdq' (stage quantize, 6 of 21)",
        "   = note: its scale is 0",
    ]


def test_colour_adds_nothing_but_escapes() -> None:
    coloured = render(FULL, color=True)
    plain = coloured
    for code in ("\x1b[1;31m", "\x1b[34m", "\x1b[1m", "\x1b[0m"):
        plain = plain.replace(code, "")
    assert plain == render(FULL)
    assert coloured.startswith("\x1b[1;31merror[E0203]\x1b[0m")


def test_an_error_is_its_diagnostic_without_the_code() -> None:
    made = HbcError(FULL)
    assert made.diagnostic == FULL
    assert f"error[E0203]: {made}" == render(FULL)


def test_a_plain_text_is_taken_apart() -> None:
    text = "it failed\n  --> m.onnx: node 'a'\n   = why:  because\n   = try:  this\n  try: or that\nsomething else"
    made = FrontendError(text)
    assert str(made) == text
    assert made.diagnostic == Diagnostic(
        title="it failed", loc="m.onnx: node 'a'", why="because", hint="this\nor that", notes=("something else",)
    )
    assert render(made.diagnostic).startswith("error: it failed\n  --> m.onnx: node 'a'\n   = why:  because\n")
    assert from_text("") == Diagnostic()


def test_an_error_from_its_parts() -> None:
    made = error(PassError, "no", where="m.onnx", why="so", hint="else", code="E0499")
    assert isinstance(made, PassError)
    assert not made.is_bug
    assert made.diagnostic == Diagnostic(code="E0499", title="no", loc="m.onnx", why="so", hint="else")


@pytest.mark.parametrize(
    "made",
    [
        FrontendError("plain"),
        VerifyError(op="conv2d", node="Conv_1", constraint="C1", message="braces {stay} as they are"),
        PassError(FULL, is_bug=True, reproducer="hbc-crash"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_pickling(made: HbcError) -> None:
    copy = pickle.loads(pickle.dumps(made))
    assert (type(copy), str(copy), copy.__dict__) == (type(made), str(made), made.__dict__)


def test_diagnostics_are_frozen_and_typed() -> None:
    made = UnknownOp(name="cnov2d", hint="did you mean 'conv2d'?")
    assert (made.code, made.title, made.hint) == ("E0102", "no op is named 'cnov2d'", "did you mean 'conv2d'?")
    assert UnknownOp(name="x").hint == "`hbc ops` lists every op"
    with pytest.raises(FrozenInstanceError):
        made.name = "conv2d"  # type: ignore[misc]


def test_nearest_names_are_offered_and_far_ones_are_not() -> None:
    assert nearest("abss", ["abs", "add"]) == "did you mean 'abs'?"
    assert nearest("zzz", ["abs", "add"]) == ""


@pytest.mark.parametrize("cls", codes(), ids=lambda c: c.CODE)
def test_every_template_uses_fields_that_exist(cls: type[Diagnostic]) -> None:
    known = {f.name for f in fields(cls)}
    for template in (cls.TITLE, cls.WHY, cls.HINT):
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        assert used <= known


def test_codes_are_distinct_and_documented() -> None:
    every = [c.CODE for c in codes()]
    assert len(set(every)) == len(every) > 10
    assert all(c.__doc__ and not c.__doc__.startswith(c.__name__ + "(") for c in codes())


def test_the_catalogue_in_docs_is_the_one_that_the_code_gives() -> None:
    assert (REPOSITORY / "docs" / "diagnostics.md").read_text(encoding="utf-8") == catalogue()
