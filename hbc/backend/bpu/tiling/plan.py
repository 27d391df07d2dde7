"""What a tiling chooses between, and how a choice becomes commands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hbc.backend.bpu.march import MarchSpec
from hbc.diagnostics import EmitError
from hbc_runtime import isa
from hbc_runtime.commands import CommandStream, Engine
from hbc_runtime.program import BpuSegment, Model

from .boxes import Box, is_empty, whole
from .cascade import Group, cascade
from .ddr import place_in_ddr
from .emit import Emitter, Policy
from .options import TilingOptions
from .split import FRACTIONS, Budget, cut, fits_alone, too_large
from .steps import Context, Step, engines_of, touched_elsewhere
from .timing import Timing, stream_timing
from .views import find_views

LIGHT = 64 << 10  # bytes of weights that are not worth more commands


@dataclass(frozen=True)
class Plan:
    """Choices for a segment: how much of on-chip memory moves with one tile, how many tiles of a kind there are room
    for, and which instructions are cascaded. Groups don't overlap.

    `weights`: a step's weights are at most this part of on-chip memory where channels can be cut, so that the next
    ones come while it computes.
    """

    buffers: int
    fractions: tuple[int, ...] = FRACTIONS
    weights: int = 1
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Tiled:
    """A plan and what came of it; `spilled` are the instructions of which a part left the chip and came back."""

    plan: Plan
    stream: CommandStream
    timing: Timing
    spilled: frozenset[int]


@dataclass
class Tiler:
    """Makes the streams of one segment. Boxes of an instruction are found once for each way of cutting."""

    model: Model
    segment: BpuSegment
    march: MarchSpec
    options: TilingOptions
    boxes: dict[tuple[int, int, tuple[int, ...], int], list[Box]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.options.on_chip_bytes or self.march.on_chip_bytes
        self.on_chip = size // self.march.tile_align * self.march.tile_align
        self.keeps = self.options.number >= 2
        engines = engines_of(self.model, self.segment)
        pairs = zip(self.segment.instructions, engines, strict=True)
        made = {op.outputs[0] for op, e in pairs if e is not Engine.HOST}
        fixed = touched_elsewhere(self.model, self.segment)
        views = find_views(self.model, self.segment, fixed, made, moves=self.keeps)
        self.context = Context(self.model, self.segment, views, engines)
        self.store = self._stored()

    def budget(self, plan: Plan) -> Budget:
        """The memory that tiles are cut for."""
        weights = max(self.on_chip // plan.weights, LIGHT)
        return Budget(self.on_chip, self.march.tile_align, plan.buffers, weights, keeps=self.keeps)

    def tile(self, plan: Plan) -> Tiled:
        """The stream of a plan. EmitError where an instruction cannot be tiled."""
        budget = self.budget(plan)
        steps = self._steps(plan, budget)
        policy = Policy(serial=self.options.number == 0, keeps=self.keeps, store=self.store)

        def refuse(step: Step) -> EmitError:
            return too_large(self.model, self.context.op(step.index), step.box, budget, self.march)

        def emitted(policy: Policy) -> Emitter:
            return Emitter(self.context, steps, policy, self.on_chip, self.march.tile_align, refuse).run()

        emitter = emitted(policy)
        spilled = frozenset(steps[n].index for n in emitter.spilled)
        if emitter.spilled:
            emitter = emitted(replace(policy, eager=frozenset(emitter.spilled)))
        ddr = place_in_ddr(self.context, emitter.commands)
        stream = CommandStream(ddr.commands, emitter.memory.top, self.context.views.listed(), ddr.places, ddr.size)
        return Tiled(plan, stream, stream_timing(self.model, self.segment, stream, self.march), spilled)

    def _stored(self) -> frozenset[int]:
        """The roots that go to DDR whatever happens: what others read, what the host reads; below O2 all."""
        needed = set(self.context.views.fixed)
        for op, engine in zip(self.segment.instructions, self.context.engines, strict=True):
            if engine is Engine.HOST:
                needed.update(i for i in op.inputs if i >= 0)
            if not self.keeps:
                needed.update(op.outputs)
        tensors = self.model.tensors
        return frozenset(self.context.views.root(i, whole(tensors[i].shape))[0] for i in needed)

    # ---- steps

    def _steps(self, plan: Plan, budget: Budget) -> list[Step]:
        """Instruction after instruction, groups band by band."""
        groups = {g.first: g for g in plan.groups}
        steps: list[Step] = []
        index = 0
        while index < len(self.segment.instructions):
            group = groups.get(index)
            if group is None:
                steps += [self.context.step(index, box) for box in self._boxes(index, plan, budget)]
                index += 1
                continue
            for step in cascade(self.context, group):
                op = self.context.op(step.index)
                parts = self._halved(op, step.box, budget)
                steps += [step] if len(parts) == 1 else [self.context.step(step.index, box) for box in parts]
            index = group.last + 1
        return steps

    def _boxes(self, index: int, plan: Plan, budget: Budget) -> list[Box]:
        key = index, plan.buffers, plan.fractions, plan.weights
        if key not in self.boxes:
            self.boxes[key] = self._cut(index, self.context.op(index), plan, budget)
        return self.boxes[key]

    def _cut(self, index: int, op: isa.Instruction, plan: Plan, budget: Budget) -> list[Box]:
        """The boxes of one instruction that commands make: none where views do, one for the host."""
        shape = self.context.shape(index)
        if is_empty(whole(shape)) or list(self.context.left(index, [whole(shape)])) == []:
            return []
        if self.context.engines[index] is Engine.HOST:
            return [whole(shape)]
        boxes = cut(self.model, op, budget, self.march, plan.fractions).boxes(shape)
        return [part for box in self.context.left(index, boxes) for part in self._halved(op, box, budget)]

    def _halved(self, op: isa.Instruction, box: Box, budget: Budget) -> list[Box]:
        """`box`, or halves of it where it reads more than the box in the middle did."""
        if fits_alone(self.model, op, box, budget):
            return [box]
        axis = next((i for i, (lo, hi) in enumerate(box) if hi - lo > 1), None)
        if axis is None:
            raise too_large(self.model, op, box, budget, self.march)
        lo, hi = box[axis]
        half = (lo + hi) // 2
        parts = [(*box[:axis], r, *box[axis + 1 :]) for r in ((lo, half), (half, hi))]
        return [b for part in parts for b in self._halved(op, part, budget)]
