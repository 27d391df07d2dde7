"""The pass manager: what it checks, what it records, and what a failure leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from hbc.diagnostics import OptionError, PassError, VerifyError, render
from hbc.ir import load_module, ops, parse_module, print_module
from hbc.ir.core import Module
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType
from hbc.passes.base import Pass, Target
from hbc.passes.manager import PassEvent, PassManager, Stage, describe
from hbc.passes.pipeline_text import parse_pipeline, print_pipeline

from .graphs import PlainTarget

TEXT = """// hbir 1
module @model {march = "bayes-e"} {
  graph @main(%x: tensor<1x4xf32>) -> (%y) {
    %a = clip %x {low = 0.0} : tensor<1x4xf32>
    %y = abs %a : tensor<1x4xf32>
  }
}
"""


@dataclass(frozen=True)
class Raise(Pass):
    """Raises the low limit of every clip."""

    name: ClassVar[str] = "raise-low"
    by: float = 1.0
    only_once: bool = False

    def run(self, module: Module, target: Target) -> int:
        found = list(module.graph.walk(ops.Clip))
        for op in found:
            op.attrs["low"] = op.low + self.by
        return len(found)


@dataclass(frozen=True)
class Refuse(Pass):
    name: ClassVar[str] = "refuse"

    def run(self, module: Module, target: Target) -> int:
        raise PassError("add 'n1' cannot be requantised\n  why:  its scales are far apart\n  try: calibrate again")


@dataclass(frozen=True)
class Crash(Pass):
    name: ClassVar[str] = "crash"
    at: int = 0

    def run(self, module: Module, target: Target) -> int:
        return [][self.at]


@dataclass(frozen=True)
class Unsound(Pass):
    name: ClassVar[str] = "unsound"

    def run(self, module: Module, target: Target) -> int:
        module.graph.ops.reverse()
        return 1


@dataclass(frozen=True)
class Fancy(Pass):
    name: ClassVar[str] = "fancy"
    to: DType = DType.I8
    sizes: tuple[int, ...] = ()
    limit: int | None = None
    label: str = "plain"
    must: int = 0

    def __post_init__(self) -> None:
        if self.must < 0:
            msg = "must is negative"
            raise ValueError(msg)


REGISTRY: dict[str, type[Pass]] = {p.name: p for p in (Raise, Refuse, Crash, Unsound, Fancy)}


@pytest.fixture
def manager(tmp_path: Path) -> PassManager:
    return PassManager(PlainTarget(Semantics()), crash_dir=tmp_path / "hbc-crash")


def failure(manager: PassManager, *passes: Pass, **promises: object) -> PassError:
    with pytest.raises(PassError) as caught:
        manager.run(Stage("quantize", passes, **promises), parse_module(TEXT))  # type: ignore[arg-type]
    return caught.value


# ---- running


def test_passes_run_in_order_and_their_rewrites_are_counted(manager: PassManager) -> None:
    module = parse_module(TEXT)
    assert manager.run(Stage("fuse", (Raise(), Raise(by=2.0))), module) == 2
    assert next(module.graph.walk(ops.Clip)).low == 3.0
    assert [(e.stage, e.name, e.index, e.total, e.rewrites, e.ops) for e in manager.events] == [
        ("fuse", "raise-low", 1, 2, 1, 2),
        ("fuse", "raise-low", 2, 2, 1, 2),
    ]
    assert all(e.seconds >= 0 and e.verify_seconds > 0 for e in manager.events)


def test_events_are_told_as_they_happen_and_carry_the_text_where_asked(tmp_path: Path) -> None:
    told: list[PassEvent] = []
    asked = {"on_event": told.append, "print_after": {"raise-low"}, "dump_dir": tmp_path / "dump"}
    manager = PassManager(PlainTarget(Semantics()), **asked)  # type: ignore[arg-type]
    module = parse_module(TEXT)
    manager.run_all([Stage("a", (Raise(),)), Stage("b", (Raise(),))], module)
    assert [e.stage for e in told] == ["a", "b"]
    assert told[1].text == print_module(module)
    assert "low = 1.0" in (told[0].text or "")
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["01-a-raise-low.hbir", "01-b-raise-low.hbir"]


def test_passes_are_numbered_through_the_targets_pipeline() -> None:
    stages = (Stage("a", (Raise(), Raise())), Stage("b", (Raise(),)), Stage("c", (Raise(),)))

    class Piped(PlainTarget):
        pipeline = stages

    manager = PassManager(Piped(Semantics()))
    manager.run_all(stages, parse_module(TEXT))
    assert [(e.index, e.total) for e in manager.events] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_an_unsound_module_is_refused_before_any_pass(manager: PassManager) -> None:
    module = parse_module(TEXT.replace("%y = abs %a : tensor<1x4xf32>", "%y = abs %a : tensor<1x5xf32>"))
    with pytest.raises(VerifyError, match=r"abs \('%y'\) breaks C1"):
        manager.run(Stage("fuse", (Raise(),)), module)
    assert manager.events == []


def test_a_stage_is_described_with_its_options() -> None:
    stage = Stage("fuse", (Raise(by=3.0), Refuse()))
    assert describe([stage]) == "fuse       raise-low{by=3.0}, refuse"


# ---- failing


def test_a_refusal_keeps_its_words_and_says_which_pass(manager: PassManager) -> None:
    error = failure(manager, Raise(), Refuse())
    assert not error.is_bug
    assert isinstance(error.__cause__, PassError)
    assert render(error.diagnostic).split("\n") == [
        "error[E0400]: add 'n1' cannot be requantised",
        "   = why:  its scales are far apart",
        "   = try:  calibrate again",
        "   = in:   pass 'refuse' (stage quantize, 2 of 2)",
    ]
    assert not manager.crash_dir.exists()


def test_a_crash_is_our_bug_and_leaves_the_module_before_it(manager: PassManager) -> None:
    error = failure(manager, Raise(), Crash(at=3))
    assert error.is_bug
    assert isinstance(error.__cause__, IndexError)
    assert error.diagnostic.title == "pass 'crash' failed: IndexError: list index out of range"
    assert error.diagnostic.trail == "pass 'crash' (stage quantize, 2 of 2)"
    assert str(manager.crash_dir) in error.diagnostic.hint
    before = load_module(manager.crash_dir / "before.hbir")
    assert next(before.graph.walk(ops.Clip)).low == 1.0  # raise-low has run
    script = (manager.crash_dir / "repro.sh").read_text()
    assert "hbc opt -p 'crash{at=3}' --march bayes-e --arith bpu before.hbir" in script


def test_an_unsound_result_is_the_passs_bug(manager: PassManager) -> None:
    error = failure(manager, Unsound())
    assert error.is_bug
    assert isinstance(error.__cause__, VerifyError)
    assert "abs ('%y') breaks SSA" in str(error)
    assert (manager.crash_dir / "before.hbir").exists()


def test_a_reproducer_that_cannot_be_written_does_not_hide_the_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = failure(PassManager(PlainTarget(Semantics()), crash_dir=tmp_path / "file" / "crash"), Crash())
    assert (error.is_bug, error.reproducer, error.diagnostic.hint) == (True, "", "")


def test_a_stage_keeps_its_promises(manager: PassManager) -> None:
    error = failure(manager, Raise(), forbids={ops.Clip})
    assert error.is_bug
    assert error.diagnostic.title == "stage 'quantize' broke its promise: clip '%a' should be gone"
    error = failure(manager, Raise(), ensures=lambda module: f"{len(module.graph.ops)} ops are too many")
    assert "2 ops are too many" in str(error)
    assert manager.run(Stage("q", (Raise(),), ensures=lambda _: None, forbids={ops.Conv2d}), parse_module(TEXT)) == 1


# ---- text


def test_pipelines_read_back() -> None:
    for text in (
        "raise-low",
        "raise-low{by=2.5 only-once=true},refuse",
        'fancy{to=i16 sizes=[1,2] limit=3 label="a b=\\"c\\"\\\\"}',
        "fancy,fancy{must=4}",
    ):
        assert print_pipeline(parse_pipeline(text, REGISTRY)) == text


def test_pipelines_take_spaces_commas_and_bare_flags() -> None:
    passes = parse_pipeline(" raise-low { by = 2, only-once } , fancy{limit=none sizes=[]} ", REGISTRY)
    assert passes == (Raise(by=2.0, only_once=True), Fancy())


KNOWN = "   = why:  passes are crash, fancy, raise-low, refuse, unsound"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise-lwo", f"there is no pass named 'raise-lwo'\n{KNOWN}\n   = try:  did you mean 'raise-low'?"),
        ("zzz", f"there is no pass named 'zzz'\n{KNOWN}"),
        (
            "raise-low{bye=1}",
            "there is no option of 'raise-low' named 'bye'\n   = why:  its options are by, only-once\n   = try:",
        ),
        ("refuse{x=1}", "there is no option of 'refuse' named 'x'\n   = why:  it has no options"),
        ("raise-low{by=fast}", "option 'by' of pass 'raise-low': 'fast' is not a float"),
        ("raise-low{only-once=1}", "option 'only-once' of pass 'raise-low': '1' is none of true, false"),
        ("fancy{to=i9}", "option 'to' of pass 'fancy': 'i9' is none of i8, u8"),
        ("fancy{sizes=3}", "option 'sizes' of pass 'fancy': '3' is not a list, as in [1,2]"),
        ("fancy{must=-1}", "pass 'fancy': must is negative"),
        ("raise-low{by=1 by=2}", "expected 'by' once, found 'by=2}'"),
        ("raise-low{by=1", "expected an option, as in max-users=1, or '}', found the end"),
        ("raise-low refuse", "expected ',' or the end, found 'refuse'"),
        ("", "expected a pass's name, found the end"),
        ("a,,b", "there is no pass named 'a'"),
        ("refuse,,refuse", "expected a pass's name, found ',refuse'"),
    ],
)
def test_what_a_wrong_pipeline_is_told(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_pipeline(text, REGISTRY)
    assert str(caught.value).startswith(message)
