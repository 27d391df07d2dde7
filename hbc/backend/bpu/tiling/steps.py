"""What is to be done, before it is said where tiles lie: steps in order, each one box of one instruction's result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hbc_runtime import isa
from hbc_runtime.commands import Engine, engine_of
from hbc_runtime.program import BpuSegment, Model, Storage

from .boxes import Box, uncovered, volume, whole
from .regions import regions
from .views import Views


@dataclass(frozen=True, slots=True)
class Read:
    """A box of a tensor's root that a step reads."""

    root: int
    box: Box
    constant: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One box of the result of instruction `index`, what is read for it, and where it lies in the result's root."""

    index: int
    engine: Engine
    box: Box
    reads: tuple[Read, ...]
    tensor: int
    root: int
    root_box: Box


@dataclass(frozen=True)
class Context:
    """A segment of a model, with what is known of it beforehand."""

    model: Model
    segment: BpuSegment
    views: Views
    engines: tuple[Engine, ...]  # per instruction

    def op(self, index: int) -> isa.Instruction:
        """An instruction by its index."""
        return self.segment.instructions[index]

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an instruction's result."""
        return self.model.tensors[self.op(index).outputs[0]].shape

    def step(self, index: int, box: Box) -> Step:
        """The step that makes `box` of the result of instruction `index`."""
        op = self.op(index)
        reads: dict[Read, None] = {}
        for tensor, part in zip(op.inputs, regions(self.model, op, box), strict=True):
            if part is not None:
                root, inner = self.views.root(tensor, part)
                reads[Read(root, inner, self.model.tensors[root].storage is Storage.CONSTANT)] = None
        y = op.outputs[0]
        return Step(index, self.engines[index], box, tuple(reads), y, *self.views.root(y, box))

    def left(self, index: int, boxes: list[Box]) -> Iterator[Box]:
        """What of `boxes` no view makes."""
        covered = self.views.covered.get(index)
        for box in boxes:
            yield from uncovered(box, covered) if covered else [box]


def engines_of(model: Model, segment: BpuSegment) -> tuple[Engine, ...]:
    """Which engine executes each instruction."""
    return tuple(
        engine_of(op, [model.tensors[i].dtype for i in (*op.inputs[:1], *op.outputs) if i >= 0])
        for op in segment.instructions
    )


def touched_elsewhere(model: Model, segment: BpuSegment) -> frozenset[int]:
    """Tensors whose bytes in DDR others place: inputs, outputs, and what other segments write or read."""
    fixed = {i for i, t in enumerate(model.tensors) if t.storage in {Storage.INPUT, Storage.OUTPUT}}
    for other in model.segments:
        if other is segment:
            continue
        if isinstance(other, BpuSegment):
            fixed.update(i for op in other.instructions for i in (*op.inputs, *op.outputs) if i >= 0)
        else:
            fixed.update((*other.inputs, *other.outputs))
    fixed = {i for i in fixed if model.tensors[i].storage is not Storage.CONSTANT}
    for op in reversed(segment.instructions):
        if isinstance(op, isa.Reshape) and op.outputs[0] in fixed:
            x, y = model.tensors[op.inputs[0]], model.tensors[op.outputs[0]]
            if (x.storage, x.index, x.offset, x.nbytes) == (y.storage, y.index, y.offset, y.nbytes):
                fixed.add(op.inputs[0])
    return frozenset(fixed)


def is_whole(box: Box, shape: tuple[int, ...]) -> bool:
    """True where a box is all of its tensor."""
    return box == whole(shape)


__all__ = ["Context", "Read", "Step", "engines_of", "is_whole", "touched_elsewhere", "volume"]
