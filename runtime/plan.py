"""An independent checker of memory plans: replays who writes which bytes, and shares no code with the planner.

A step is a BPU instruction or a CPU segment. Every tensor that a step reads must still hold the bytes that its producer
wrote; a step's results overlap neither its operands nor one another; every output of the model is whole at the end.
A Reshape at its operand's very place writes nothing: the bytes then belong to both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .isa import Reshape
from .program import BpuSegment, Model, Storage, Tensor


@dataclass(frozen=True)
class _Step:
    where: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    reshape: bool


class _Buffer:
    """The intact values of one buffer: disjoint byte ranges in ascending order, each with its owner.

    A value that loses a byte is dropped as a whole, so a look-up is one question: is the owner still here?
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.owners: list[int] = []

    def write(self, start: int, end: int, owner: int) -> list[int]:
        """Give the range to `owner`; return the owners that lost bytes."""
        low = bisect_right(self.ends, start)
        high = bisect_left(self.starts, end)
        lost = self.owners[low:high]
        self.starts[low:high] = [start]
        self.ends[low:high] = [end]
        self.owners[low:high] = [owner]
        return lost


class _Replay:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.buffers: dict[tuple[Storage, int], _Buffer] = {}
        self.intact: set[int] = set()  # owners whose bytes are all there
        self.owner: dict[int, int] = {}  # tensor → the tensor that wrote its bytes
        self.lost_to: dict[int, tuple[int, str]] = {}  # owner → the tensor that overwrote it, and the step
        written = {i for step in _steps(model) for i in step.writes}  # a reshape in place may make a constant's twin
        for i, t in enumerate(model.tensors):
            if t.storage is Storage.CONSTANT and i not in written:
                self._own(i)
        for info in model.inputs:
            self._own(info.tensor)

    def _own(self, tensor: int) -> None:
        self.owner[tensor] = tensor
        self.intact.add(tensor)

    def name(self, tensor: int) -> str:
        return f"{self.model.tensors[tensor].name!r} (tensor {tensor})"

    def step(self, step: _Step) -> None:
        for i in step.reads:
            self.read(i, step.where)
        x, y = step.reads[:1], step.writes[:1]
        if step.reshape and x and y and _same_place(self.model.tensors[x[0]], self.model.tensors[y[0]]):
            self._refuse_second_write(y[0], step.where)
            self.owner[y[0]] = self.owner[x[0]]
            return
        taken = {self.owner[i]: f"operand {self.name(i)}" for i in step.reads}
        for i in step.writes:
            self._refuse_second_write(i, step.where)
            self.write(i, step.where, taken)
            taken[i] = f"result {self.name(i)}"

    def read(self, tensor: int, where: str) -> None:
        if tensor not in self.owner:
            msg = f"{where} reads {self.name(tensor)} before anything writes it"
            raise ValueError(msg)
        owner = self.owner[tensor]
        if owner not in self.intact:
            by, step = self.lost_to[owner]
            msg = f"{where} reads {self.name(tensor)}, whose bytes {self.name(by)} overwrote in {step}"
            raise ValueError(msg)

    def _refuse_second_write(self, tensor: int, where: str) -> None:
        if tensor in self.owner:
            msg = f"{where} writes {self.name(tensor)}, which already has a value"
            raise ValueError(msg)

    def write(self, tensor: int, where: str, taken: Mapping[int, str]) -> None:
        """Write a result; `taken` are the owners whose bytes this step needs, and what they are to it."""
        t = self.model.tensors[tensor]
        if t.storage not in {Storage.ARENA, Storage.OUTPUT}:
            msg = f"{where} writes {self.name(tensor)}, which lies in {t.storage.name}"
            raise ValueError(msg)
        self._own(tensor)
        if t.is_dynamic or t.nbytes == 0:  # nothing to lose, nothing to overwrite
            return
        buffer = self.buffers.setdefault((t.storage, t.index), _Buffer())
        for other in buffer.write(t.offset, t.offset + t.nbytes, tensor):
            if other in taken:
                msg = f"in {where} the result {self.name(tensor)} overlaps the {taken[other]}"
                raise ValueError(msg)
            self.intact.discard(other)
            self.lost_to[other] = tensor, where


def _same_place(x: Tensor, y: Tensor) -> bool:
    return (x.storage, x.index, x.offset, x.nbytes) == (y.storage, y.index, y.offset, y.nbytes)


def _steps(model: Model) -> Iterator[_Step]:
    for number, segment in enumerate(model.segments):
        if not isinstance(segment, BpuSegment):
            yield _Step(f"segment {number} ({segment.name!r})", segment.inputs, segment.outputs, reshape=False)
            continue
        for i, op in enumerate(segment.instructions):
            where = f"instruction {i} ({op.opcode.name}) of segment {number}"
            yield _Step(where, tuple(x for x in op.inputs if x >= 0), op.outputs, isinstance(op, Reshape))


def check_plan(model: Model) -> None:
    """Raise ValueError, naming the tensors and the step, where a step of `model` would read bytes that are not there.

    Expects tensors that lie inside their buffers and indices that exist (`hbm.checks`). Takes n·log n in the steps.
    """
    replay = _Replay(model)
    for step in _steps(model):
        replay.step(step)
    for info in model.outputs:
        replay.read(info.tensor, f"the end of the model (output {info.name!r})")
