"""A segment's instructions → its command stream."""

from __future__ import annotations

from dataclasses import replace

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.diagnostics import EmitError
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


def tile_what_fits(program: Program, options: TilingOptions) -> tuple[Program, dict[tuple[int, int], EmitError]]:
    """The program with command streams where there can be one; and by model and segment, why there is none."""
    march = MARCHES[program.march]
    refused: dict[tuple[int, int], EmitError] = {}
    models = []
    for m, model in enumerate(program.models):
        segments = list(model.segments)
        for n, segment in enumerate(segments):
            if not isinstance(segment, BpuSegment):
                continue
            try:
                segments[n] = replace(segment, commands=tile_segment(model, segment, march, options))
            except EmitError as err:
                refused[m, n] = err
        models.append(replace(model, segments=tuple(segments)))
    return replace(program, models=tuple(models)), refused


def _tiled(model: Model, march: MarchSpec, options: TilingOptions) -> Model:
    segments = tuple(
        replace(s, commands=tile_segment(model, s, march, options)) if isinstance(s, BpuSegment) else s
        for s in model.segments
    )
    return replace(model, segments=segments)


def tile_segment(model: Model, segment: BpuSegment, march: MarchSpec, options: TilingOptions) -> CommandStream:
    """The command stream of one BPU segment of `model`. EmitError where an instruction cannot be tiled."""
    return choose(Tiler(model, segment, march, options)).stream
