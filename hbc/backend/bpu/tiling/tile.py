"""A segment's instructions → its command stream."""

from __future__ import annotations

from dataclasses import replace

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc_runtime.commands import CommandStream
from hbc_runtime.program import BpuSegment, Model, Program

from .options import TilingOptions
from .plan import Tiler
from .search import choose


def tile_program(program: Program, options: TilingOptions | None = None) -> Program:
    """The program with a command stream in every BPU segment. EmitError where an instruction cannot be tiled."""
    chosen = options or TilingOptions()
    march = MARCHES[program.march]
    return replace(program, models=tuple(_tiled(m, march, chosen) for m in program.models))


def _tiled(model: Model, march: MarchSpec, options: TilingOptions) -> Model:
    segments = tuple(
        replace(s, commands=tile_segment(model, s, march, options)) if isinstance(s, BpuSegment) else s
        for s in model.segments
    )
    return replace(model, segments=segments)


def tile_segment(model: Model, segment: BpuSegment, march: MarchSpec, options: TilingOptions) -> CommandStream:
    """The command stream of one BPU segment of `model`. EmitError where an instruction cannot be tiled."""
    return choose(Tiler(model, segment, march, options)).stream
