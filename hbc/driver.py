"""The straight line: a model file → typed IR → stages of passes → a program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hbc import frontend
from hbc.backend.bpu.fast_perf import FastPerfTarget
from hbc.backend.bpu.march import MARCHES
from hbc.backend.bpu.target import Target
from hbc.backend.bpu.tiling import TilingOptions, stream_timing, tile_what_fits
from hbc.diagnostics import CpuRefused, EmitError, ZeroPointRefused, error
from hbc.ir.core import Module
from hbc.ir.location import NodeLoc
from hbc.passes.manager import PassEvent, PassManager
from hbc_runtime import hbm
from hbc_runtime.native import with_native_code
from hbc_runtime.program import BpuSegment, Program

from .files import write_atomically
from .options import CompileOptions, pick
from .report import Constants, Report, StreamRow, constant_operands, constant_rows, source_nodes
from .words import plural, shape_text

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class StageBegun:
    """A stage is about to run: `load`, one of the target's stages, `emit`, `tile`, or `native`."""

    name: str


@dataclass(frozen=True)
class StageDone:
    """A stage is over: how many passes it has, how many rewrites they made, and how long it took."""

    name: str
    passes: int
    rewrites: int
    seconds: float


Event = StageBegun | StageDone | PassEvent  # a PassEvent for every pass, between its stage's two
LISTED = 20  # tensors that a message names before it counts the rest
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Compiled:
    """A compiled model: the program, the report on it, and the module that the program was emitted from."""

    program: Program
    report: Report
    module: Module = field(repr=False, compare=False)

    def to_bytes(self) -> bytes:
        """The program as the bytes of a `.hbm` file; the same program gives the same bytes."""
        return hbm.write(self.program)

    def save(self, path: str | Path) -> int:
        """Write the `.hbm` file, whole or not at all, and return its size. Raises OSError; an older file then stays."""
        data = self.to_bytes()
        write_atomically(Path(path), data)
        return len(data)


def compile_model(
    source: str | Path | bytes | ModelProto | object, options: CompileOptions, *, on_event: OnEvent | None = None
) -> Compiled:
    """Compile `source`: a path, a file's bytes, or a model in memory. Raises HbcError where it cannot be compiled."""
    target = _target(options)
    lowered = _lowered(source, options, target, None, on_event)
    with stage("emit", 0, on_event):
        program = target.emit(lowered.module)
    report = Report.of(lowered.module, program, lowered.nodes, constant_rows(lowered.read, lowered.placed))
    _refuse(report, options)
    with stage("tile", 0, on_event):
        program, streams = _streams(program, options)
    report = report.with_streams(streams)
    if options.aot:
        with stage("native", 0, on_event):
            program = with_native_code(program)
    return Compiled(program, report, lowered.module)


def _streams(program: Program, options: CompileOptions) -> tuple[Program, tuple[StreamRow, ...]]:
    """The program with command streams, and a row for each BPU segment."""
    march = MARCHES[program.march]
    tiled, refused = tile_what_fits(program, TilingOptions(options.optimize_level, options.objective))
    rows = []
    for m, model in enumerate(tiled.models):
        for n, segment in enumerate(model.segments):
            if (m, n) in refused:
                rows.append(StreamRow(segment.name, refused=str(refused[m, n])))
            elif isinstance(segment, BpuSegment) and (stream := segment.commands) is not None:
                us = stream_timing(model, segment, stream, march).cycles / march.clock_mhz
                moved = stream.loaded_bytes, stream.stored_bytes
                rows.append(StreamRow(segment.name, len(stream.commands), stream.on_chip_bytes, *moved, round(us, 3)))
    return tiled, tuple(rows)


def lower_model(
    source: str | Path | bytes | ModelProto | object,
    options: CompileOptions,
    *,
    stop_after: str | None = None,
    on_event: OnEvent | None = None,
) -> Module:
    """The module after stage `stop_after` (`load` for none; by default after the last one)."""
    target = _target(options)
    if stop_after is not None:
        pick("stage", stop_after, ["load", *(s.name for s in target.pipeline)])
    return _lowered(source, options, target, stop_after, on_event).module


def _target(options: CompileOptions) -> Target:
    kind = FastPerfTarget if options.fast_perf else Target
    return kind(options.march, options.arith)


@dataclass(frozen=True)
class _Lowered:
    """A module after the stages, the user's nodes, and the constants that ops read: as read, and as placed."""

    module: Module
    nodes: tuple[NodeLoc, ...]
    read: Constants
    placed: Constants


def _lowered(
    source: str | Path | bytes | ModelProto | object,
    options: CompileOptions,
    target: Target,
    stop_after: str | None,
    on_event: OnEvent | None,
) -> _Lowered:
    with stage("load", 0, on_event):
        module = frontend.load(source, options.shape_map, options.example, options.output_names)
    module.march, module.arith = options.march, options.arith
    module.name = options.name or module.name
    module.metadata.update({f"option.shape.{name}": shape_text(dims) for name, dims in options.shape_map.items()})
    if options.example:
        module.metadata["option.example"] = " ".join(map(str, options.example))
    if options.output_names:
        module.metadata["option.output-names"] = ",".join(options.output_names)
    nodes = source_nodes(module)
    read = placed = constant_operands(module)
    manager = PassManager(target, on_event=on_event)
    for step in () if stop_after == "load" else target.pipeline:
        with stage(step.name, len(step.passes), on_event) as done:
            done.rewrites = manager.run(step, module)
        placed = constant_operands(module) or placed  # once ops are instructions there are none
        if step.name == stop_after:
            break
    return _Lowered(module, nodes, read, placed)


@dataclass
class _Tally:
    rewrites: int = 0


@contextmanager
def stage(name: str, passes: int, on_event: OnEvent | None) -> Iterator[_Tally]:
    """Tell that a stage begins and ends; the body counts its rewrites."""
    tell = on_event or (lambda _event: None)
    tell(StageBegun(name))
    tally, start = _Tally(), time.perf_counter()
    yield tally
    tell(StageDone(name, passes, tally.rewrites, time.perf_counter() - start))


def _refuse(report: Report, options: CompileOptions) -> None:
    """EmitError for what the options rule out."""
    if options.strict and report.affine:
        rows = [f"{t.tensor!r}, {t.detail} (node {t.node!r})" for t in report.affine]
        rest = [f"and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
        why = "\n".join(["the BPU multiplies integers that stand for reals without an offset:", *rows[:LISTED], *rest])
        hint = "quantise activations symmetrically (i8, zero point 0), or compile without --strict"
        raise error(
            EmitError,
            f"{plural(len(rows), 'tensor')} with a zero point, which a real BPU would refuse",
            why=why,
            hint=hint,
            kind=ZeroPointRefused,
        )
    reasons = [r for s in report.segments if s.device == "cpu" for r in s.reasons]
    if reasons and not options.cpu_fallback:
        hint = "change these nodes, or allow the CPU (leave out --no-cpu-fallback)"
        title = f"{plural(len(reasons), 'node')} would run on the CPU"
        raise error(EmitError, title, why="\n".join(reasons), hint=hint, kind=CpuRefused)
