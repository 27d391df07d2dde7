"""Runs passes: verifies after every one, times them, counts rewrites, and keeps what reproduces a failure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hbc.diagnostics import HbcError, PassError, PassFailed, PromiseBroken, VerifyError
from hbc.ir.copying import clone
from hbc.ir.core import Gone, Module, Op
from hbc.ir.files import save_module
from hbc.ir.location import NodeLoc, source_nodes
from hbc.ir.printer import print_module
from hbc.ir.verifier import verify

from .base import Pass, Target
from .pipeline_text import print_pass, print_pipeline

Promise = Callable[[Module], "str | None"]
CRASH_DIR = Path("hbc-crash")


@dataclass(frozen=True)
class Stage:
    """A titled list of passes, and what holds after it.

    `ensures` says what is wrong with the module, or raises an HbcError that says it, or returns None. `forbids`: op
    classes that are gone, and their subclasses.
    """

    name: str
    passes: tuple[Pass, ...]
    ensures: Promise | None = None
    forbids: frozenset[type[Op]] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", tuple(self.passes))  # lists and sets read better in a table of stages
        object.__setattr__(self, "forbids", frozenset(self.forbids))

    def broken_promise(self, module: Module) -> str | None:
        """What the stage promised and `module` does not keep, or None."""
        for op in module.graph.ops:
            if isinstance(op, tuple(self.forbids)):
                return f"{op.NAME} {op.node!r} should be gone"
        return None if self.ensures is None else self.ensures(module)


@dataclass(frozen=True)
class PassEvent:
    """One pass that ran: `index` of `total` (from 1), how many rewrites it made, how long it and its verification took.

    `text` is the module after the pass, where it was asked for.
    """

    stage: str
    name: str
    index: int
    total: int
    rewrites: int
    seconds: float
    verify_seconds: float
    ops: int
    text: str | None = None


class PassManager:
    """Runs stages for one target. `events` records every pass that ran.

    `dump_dir`: a folder that gets the module's text after every pass. `print_after`: names of passes (or `all`) whose
    events carry the text. `on_event` is called with each event. `crash_dir`: where a bug leaves its reproducer.
    """

    def __init__(
        self,
        target: Target,
        *,
        dump_dir: Path | None = None,
        on_event: Callable[[PassEvent], None] | None = None,
        print_after: Collection[str] = (),
        crash_dir: Path = CRASH_DIR,
    ) -> None:
        self.target = target
        self.dump_dir = dump_dir
        self.on_event = on_event
        self.print_after = frozenset(print_after)
        self.crash_dir = crash_dir
        self.events: list[PassEvent] = []

    def run(self, stage: Stage, module: Module) -> int:
        """Run a stage's passes in place; returns the number of rewrites.

        Raises VerifyError where the module is not sound to begin with, and PassError where a pass fails: with the
        diagnostic of the HbcError it raised, or, for anything else and for what it leaves unsound, as a bug (`is_bug`).
        """
        verify(module)
        before = clone(module)
        rewrites = 0
        for position, p in enumerate(stage.passes):
            try:
                event = self._run_pass(stage, p, module)
            except Exception as cause:
                raise self._failure(stage, position, before, cause) from cause
            rewrites += event.rewrites
            self.events.append(event)
            if self.on_event is not None:
                self.on_event(event)
        self._check_promise(stage, module, before)
        return rewrites

    def run_all(self, stages: Sequence[Stage], module: Module) -> int:
        """Run stages one after the other; returns the number of rewrites."""
        return sum(self.run(stage, module) for stage in stages)

    def _run_pass(self, stage: Stage, p: Pass, module: Module) -> PassEvent:
        there = running_nodes(module)
        start = time.perf_counter()
        rewrites = p.run(module, self.target)
        ran = time.perf_counter()
        verify(module)
        gone = there - running_nodes(module)
        module.gone.update((node, Gone(p.name, p.absorbs)) for node in gone)
        verified = time.perf_counter()
        index, total = self._place(stage)
        text = None
        if self.print_after & {p.name, "all"}:
            text = print_module(module, consts="elide")
        if self.dump_dir is not None:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
            name = f"{index:02}-{stage.name}-{p.name}.hbir"
            (self.dump_dir / name).write_text(print_module(module, locs=True, consts="elide"), encoding="utf-8")
        ops = len(module.graph.ops)
        return PassEvent(stage.name, p.name, index, total, rewrites, ran - start, verified - ran, ops, text)

    def _place(self, stage: Stage) -> tuple[int, int]:
        """The running pass's number, and how many there are: in the target's pipeline, if the stage is part of it."""
        pipeline: Sequence[Stage] = getattr(self.target, "pipeline", ())
        names = [s.name for s in pipeline]
        if stage.name not in names:
            ran = sum(e.stage == stage.name for e in self.events)
            return ran % len(stage.passes) + 1, len(stage.passes)
        earlier = sum(len(s.passes) for s in pipeline[: names.index(stage.name)])
        ran = sum(e.stage == stage.name for e in self.events)
        return earlier + ran % len(stage.passes) + 1, sum(len(s.passes) for s in pipeline)

    # ---- failures

    def _failure(self, stage: Stage, position: int, before: Module, cause: Exception) -> PassError:
        p = stage.passes[position]
        index, total = self._place(stage)
        trail = f"pass {p.name!r} (stage {stage.name}, {index} of {total})"
        if isinstance(cause, HbcError) and not isinstance(cause, VerifyError):
            return PassError(replace(cause.diagnostic, trail=trail))
        what = str(cause) if isinstance(cause, HbcError) else f"{type(cause).__name__}: {cause}"
        where = self._reproduce(stage.passes[: position + 1], before)
        hint = f"report it with the files in {where}" if where else ""
        diagnostic = PassFailed(name=p.name, message=what.strip(), trail=trail, hint=hint)
        return PassError(diagnostic, is_bug=True, reproducer=where)

    def _check_promise(self, stage: Stage, module: Module, before: Module) -> None:
        try:
            broken = stage.broken_promise(module)
        except (AssertionError, HbcError) as cause:
            broken = str(cause) or "an assertion failed"
        if broken is None:
            return
        where = self._reproduce(stage.passes, before)
        hint = f"report it with the files in {where}" if where else ""
        raise PassError(PromiseBroken(stage=stage.name, message=broken, hint=hint), is_bug=True, reproducer=where)

    def _reproduce(self, passes: Sequence[Pass], start: Module) -> str:
        """Write `before.hbir` and `repro.sh`; returns the folder, or "" where the disk won't have them.

        `start` is the module before the stage; the passes before the last are run on it again, so that one is left.
        """
        module, left = clone(start), list(passes)
        while len(left) > 1 and (ahead := self._after(left[0], module)) is not None:
            module, left = ahead, left[1:]
        try:
            self.crash_dir.mkdir(parents=True, exist_ok=True)
            save_module(module, self.crash_dir / "before.hbir")
            script = self.crash_dir / "repro.sh"
            script.write_text(repro_script(left, module), encoding="utf-8")
            script.chmod(0o755)
        except OSError:
            return ""
        return str(self.crash_dir)

    def _after(self, pass_: Pass, start: Module) -> Module | None:
        """A copy of `start` after `pass_`; None where that is the pass that breaks."""
        ahead = clone(start)
        try:
            pass_.run(ahead, self.target)
            verify(ahead)
        except Exception:  # noqa: BLE001 - whatever a pass with a bug raises
            return None
        return ahead


def running_nodes(module: Module) -> set[NodeLoc]:
    """The user's nodes of which something is left to run; constants don't run."""
    return {node for op in module.graph.ops if op.NAME != "const" for node in source_nodes(op.loc)}


def repro_script(passes: Sequence[Pass], module: Module) -> str:
    """A shell script that runs `passes` on the `before.hbir` beside it."""
    pipeline = shlex.quote(print_pipeline(passes))
    options = f"--march {shlex.quote(module.march)} --arith {shlex.quote(module.arith)}"
    return f'#!/bin/sh\ncd "$(dirname "$0")" && exec hbc opt -p {pipeline} {options} before.hbir\n'


def describe(stages: Sequence[Stage]) -> str:
    """The pipeline as text, one stage a line: what `hbc passes` shows."""
    return "\n".join(f"{s.name:10} {', '.join(map(print_pass, s.passes))}" for s in stages)
