"""Diagnostics: their words, their rendering, and the catalogue in docs/."""

from __future__ import annotations

import ast
import importlib
import pickle
import string
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from hbc.cli import main
from hbc.diagnostics import (
    BadModel,
    BadPlan,
    Diagnostic,
    Failed,
    FrontendError,
    HbcError,
    PassError,
    UnknownOp,
    VerifyError,
    catalogue,
    codes,
    describe,
    entries,
    error,
    from_text,
    nearest,
    render,
)
from hbc.diagnostics.catalogue import GROUPS, Entry
from hbc_runtime.errors import HbmError

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
    assert made.diagnostic == BadModel(
        title="it failed", loc="m.onnx: node 'a'", why="because", hint="this\nor that", notes=("something else",)
    )
    assert render(made.diagnostic).startswith("error[E0203]: it failed\n  --> m.onnx: node 'a'\n   = why:  because\n")
    assert from_text("") == Diagnostic()


def test_an_error_from_its_parts() -> None:
    made = error(PassError, "no", where="m.onnx", why="so", hint="else", kind=BadPlan)
    assert isinstance(made, PassError)
    assert not made.is_bug
    assert made.diagnostic == BadPlan(title="no", loc="m.onnx", why="so", hint="else")
    assert made.diagnostic.code == "E0404"
    assert error(PassError, "no").diagnostic.code == "E0400"


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
    assert len(set(every)) == len(every) > 50
    assert all(c.__doc__ and not c.__doc__.startswith(c.__name__ + "(") for c in codes())
    assert {code[:3] for code in entries()} == set(GROUPS)


@pytest.mark.parametrize("entry", entries().values(), ids=lambda e: e.code)
def test_every_code_has_an_example_that_says_something(entry: Entry) -> None:
    title = entry.example.split("\n")[0]
    assert title.startswith(f"error[{entry.code}]: ")
    assert len(title) > len(f"error[{entry.code}]: ") + 5
    assert "{" not in title, "a field of the template is not filled in"


def test_the_catalogue_in_docs_is_the_one_that_the_code_gives() -> None:
    page = (REPOSITORY / "docs" / "diagnostics.md").read_text(encoding="utf-8")
    assert page == catalogue(), "run: bash scripts/docs"
    assert all(f"### {entry.code} {entry.name}\n" in page for entry in entries().values())


def test_a_code_is_described_and_an_unknown_one_is_not() -> None:
    text = describe("e0207")
    assert text is not None
    assert text.startswith("E0207 OpenSizes\n")
    assert "error[E0207]: the model leaves sizes of its inputs open" in text
    assert describe("E9999") is None


@pytest.mark.parametrize("code", ["E0207", "r0102"])
def test_help_explains_a_code(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", code]) == 0
    out, err = capsys.readouterr()
    assert out.rstrip() == describe(code)
    assert err == ""


def test_help_lists_every_code_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == list(entries())
    assert main(["help", "E0270"]) == 2
    assert "error[E0001]: there is no error code named 'E0270'" in capsys.readouterr().err


# ---- every error has a code

# Raised to be caught nearby, or by a caller who passed a wrong argument to a Python function; `hbc` turns what is left
# into E0009, an internal error.
PLAIN = {"ValueError", "TypeError", "AssertionError", "AttributeError", "LookupError"}
# never leave their package: an EmitError is made of the first, of the second the unit's program makes its PassError,
# and where there is the third, an operation is read by the front end for PyTorch, whose errors have codes
CAUGHT = {"FullError", "ScaleRangeError", "NoForm"}
USAGE = {"UsageError", "BadCommand"}  # click's; the command line gives them E0006
SOURCES = [
    p
    for p in sorted((REPOSITORY / "hbc").rglob("*.py"))
    if "diagnostics" not in p.parts and p.name != "__main__.py"  # importing that runs hbc
]
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in SOURCES}


def errors() -> dict[str, type[BaseException]]:
    """Every error class of hbc and its runtime by name."""
    for path in SOURCES:
        importlib.import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"))
    found: dict[str, type[BaseException]] = {}
    waiting: list[type[BaseException]] = [HbcError, HbmError]
    while waiting:
        cls = waiting.pop()
        found[cls.__name__] = cls
        waiting += cls.__subclasses__()
    return found


def name_of(node: ast.expr | None) -> str:
    """`x.y.Name(…)` → Name."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def makers() -> dict[str, dict[Path, set[str]]]:
    """What functions of hbc are said to return, by the function's name and its file."""
    found: dict[str, dict[Path, set[str]]] = {}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                returned = ast.unparse(node.returns) if node.returns else ""
                found.setdefault(node.name, {}).setdefault(path, set()).add(returned)
    return found


ERRORS = errors()
MAKERS = makers()
CODED = {c.__name__ for c in codes()}


def is_coded(path: Path, raised: ast.expr) -> bool:
    """True for `raise Error(…)`, `raise error(Error, …)` and `raise maker(…)` of a class whose code is known."""
    name = name_of(raised)
    if name in {"error", "together"} and isinstance(raised, ast.Call) and isinstance(raised.func, ast.Name):
        return name == "together" or (bool(raised.args) and name_of(raised.args[0]) in ERRORS)
    made = MAKERS.get(name, {})
    returned = made.get(path) or {r for of_file in made.values() for r in of_file}
    return name in ERRORS or (bool(returned) and returned <= ERRORS.keys() | CAUGHT)


RAISES = [(p, n) for p, tree in TREES.items() for n in ast.walk(tree) if isinstance(n, ast.Raise) and n.exc is not None]


def test_raises_are_found() -> None:
    assert len(RAISES) > 200


def test_every_error_raised_on_purpose_has_a_code() -> None:
    bare = [
        f"{p.relative_to(REPOSITORY)}:{n.lineno} raises {ast.unparse(n.exc)[:60]}"
        for p, n in RAISES
        if n.exc is not None and name_of(n.exc) not in PLAIN | USAGE | CAUGHT and not is_coded(p, n.exc)
    ]
    assert bare == []


def test_every_family_has_a_code_of_its_own() -> None:
    for cls in ERRORS.values():
        code = cls.FAMILY.CODE if issubclass(cls, HbcError) else cls.CODE  # type: ignore[attr-defined]
        assert code in entries(), cls
    shared = [c for c in ERRORS.values() if issubclass(c, HbcError) and c is not HbcError and c.FAMILY is Failed]
    assert shared == [], "give it a FAMILY"


def test_every_kind_that_is_named_is_a_code_and_every_code_is_used() -> None:
    kinds = {
        name_of(k.value)
        for tree in TREES.values()
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and name_of(n) in {"error", "problem", "fail", "together"}
        for k in n.keywords
        if k.arg == "kind"
    }
    assert kinds - {"kind", "type", ""} <= CODED
    used = {n.id for tree in TREES.values() for n in ast.walk(tree) if isinstance(n, ast.Name)}
    families = {c.FAMILY.__name__ for c in ERRORS.values() if issubclass(c, HbcError)}
    assert CODED - used - families == set()
