"""A segment's instructions → its command stream."""

from __future__ import annotations

from dataclasses import replace

from hbc.backend.bpu.march import MARCHES, MarchSpec
from hbc.diagnostics import EmitError
from hbc_runtime import isa
from hbc_runtime.commands import CommandStream, Engine
from hbc_runtime.program import BpuSegment, Model, Program

from .boxes import Box, is_empty, starts, whole
from .ddr import place_in_ddr
from .emit import Emitter, Policy
from .options import TilingOptions
from .split import Budget, cut, fits_alone, too_large
from .steps import Context, Step, engines_of, touched_elsewhere
from .views import find_views


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
    on_chip = (options.on_chip_bytes or march.on_chip_bytes) // march.tile_align * march.tile_align
    budget = Budget(on_chip, march.tile_align, 1 if options.number == 0 else 2, keeps=options.number >= 2)
    context = _context(model, segment, options)
    steps = _layer_by_layer(context, budget, march)
    policy = Policy(serial=options.number == 0, keeps=budget.keeps, store=_stored(context, keeps=budget.keeps))

    def refuse(step: Step) -> EmitError:
        return too_large(model, context.op(step.index), step.box, budget, march)

    emitter = Emitter(context, steps, policy, on_chip, march.tile_align, refuse).run()
    if emitter.spilled:
        policy = replace(policy, eager=frozenset(emitter.spilled))
        emitter = Emitter(context, steps, policy, on_chip, march.tile_align, refuse).run()
    ddr = place_in_ddr(context, emitter.commands)
    return CommandStream(ddr.commands, emitter.memory.top, context.views.listed(), ddr.places, ddr.size)


def _context(model: Model, segment: BpuSegment, options: TilingOptions) -> Context:
    engines = engines_of(model, segment)
    made = {
        op.outputs[0] for op, e in zip(segment.instructions, engines, strict=True) if e is not Engine.HOST
    }  # fmt: skip
    fixed = touched_elsewhere(model, segment)
    views = find_views(model, segment, fixed, made, moves=options.number >= 2)
    return Context(model, segment, views, engines)


def _stored(context: Context, *, keeps: bool) -> frozenset[int]:
    """The roots that go to DDR whatever happens: what others read, what the host reads, without `keeps` all."""
    model = context.model
    needed = set(context.views.fixed)
    for op, engine in zip(context.segment.instructions, context.engines, strict=True):
        if engine is Engine.HOST:
            needed.update(i for i in op.inputs if i >= 0)
        if not keeps:
            needed.update(op.outputs)
    return frozenset(context.views.root(i, whole(model.tensors[i].shape))[0] for i in needed)


def _layer_by_layer(context: Context, budget: Budget, march: MarchSpec) -> list[Step]:
    """Every instruction's boxes, one instruction after another."""
    steps: list[Step] = []
    for index, op in enumerate(context.segment.instructions):
        steps += [context.step(index, box) for box in boxes_of(context, index, op, budget, march)]
    return steps


def boxes_of(context: Context, index: int, op: isa.Instruction, budget: Budget, march: MarchSpec) -> list[Box]:
    """The boxes of one instruction that commands make: none where views do, one for the host."""
    shape = context.shape(index)
    if is_empty(whole(shape)) or list(context.left(index, [whole(shape)])) == []:
        return []
    if context.engines[index] is Engine.HOST:
        return [whole(shape)]
    boxes = cut(context.model, op, budget, march).boxes(shape)
    found: list[Box] = []
    for box in context.left(index, boxes):
        found += _halved(context, op, box, budget, march)
    return found


def _halved(context: Context, op: isa.Instruction, box: Box, budget: Budget, march: MarchSpec) -> list[Box]:
    """`box`, or halves of it where it reads more than the box in the middle did."""
    if fits_alone(context.model, op, box, budget):
        return [box]
    axis = next((i for i, (lo, hi) in enumerate(box) if hi - lo > 1), None)
    if axis is None:
        raise too_large(context.model, op, box, budget, march)
    lo, hi = box[axis]
    half = (lo + hi) // 2
    parts = [(*box[:axis], r, *box[axis + 1 :]) for r in ((lo, half), (half, hi))]
    return [b for part in parts for b in _halved(context, op, part, budget, march)]


__all__ = ["boxes_of", "starts", "tile_program", "tile_segment"]
