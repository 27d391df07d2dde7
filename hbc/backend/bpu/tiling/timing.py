"""How long a stream takes, roughly, on the march's peak rates: what tilings are chosen by.

Engines work side by side, each on one command at a time; LOAD and STORE share the memory. No board is in it:
`hbc.perf` knows those.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hbc.backend.bpu.march import MarchSpec
from hbc_runtime import isa
from hbc_runtime.commands import Command, CommandStream, Engine
from hbc_runtime.program import BpuSegment, Model

from .costs import command_cost

OVERHEAD = 200  # cycles that a command takes beside its work, assumed: fits of layers give 500 to 2000 (docs/perf.md)
DEPTHWISE = 20  # times slower than dense products, as fitted boards are (docs/perf.md)
DDR = (Engine.LOAD, Engine.STORE)


@dataclass(frozen=True)
class Timing:
    """Cycles from the first command's beginning to the last one's end, and the bytes that DDR moves meanwhile."""

    cycles: float
    ddr_bytes: int


def stream_timing(model: Model, segment: BpuSegment, stream: CommandStream, march: MarchSpec) -> Timing:
    """The timing of a stream of `segment`. What the host computes takes no time here, as no tiling changes it."""
    work = [command_cycles(model, segment, c, march) for c in stream.commands]
    return Timing(makespan(stream.commands, work), stream.loaded_bytes + stream.stored_bytes)


def command_cycles(model: Model, segment: BpuSegment, command: Command, march: MarchSpec) -> float:
    """Cycles that a command takes of its engine once it may begin, with the memory for itself."""
    if command.engine is Engine.HOST:
        return 0.0
    if command.engine in DDR:
        return OVERHEAD + command.ddr_bytes * march.clock_mhz / march.ddr_mb_per_s
    if command.engine is Engine.TENSOR:
        return OVERHEAD + _products(model, segment, command, march) / march.macs_per_cycle
    return OVERHEAD + command_cost(model, segment, command).elements / march.lanes


def _products(model: Model, segment: BpuSegment, command: Command, march: MarchSpec) -> float:
    """MACs of the shapes that the march rounds up to; depthwise ones count more."""
    op = segment.instructions[command.instruction]
    cost = command_cost(model, segment, command)
    size = command.outputs[0].size
    deep, wide, width = march.work_align
    if isinstance(op, isa.Matmul):
        k = model.tensors[op.inputs[0]].shape[-1]
        return cost.macs * _up(k, deep) * _up(size[-1], wide)
    channels = model.tensors[op.inputs[1]].shape[3]
    if op.group > 1 and channels == 1:  # type: ignore[attr-defined]  # TENSOR commands are convolutions otherwise
        return cost.macs * _up(size[3], wide) * DEPTHWISE
    across = _up(size[2], width) if size[2] > 1 else 1.0
    return cost.macs * _up(channels, deep) * _up(size[3], wide) * across


def _up(size: int, multiple: int) -> float:
    """By how much `size` grows where it is rounded up."""
    return math.ceil(size / multiple) * multiple / size


def makespan(commands: Sequence[Command], work: Sequence[float]) -> float:
    """Cycles until all commands have ended: each begins when its engine is free and what it waits for has ended."""
    return _Run(commands, work).end()


class _Run:
    """Commands from event to event. A LOAD and a STORE that overlap have half of the memory each."""

    def __init__(self, commands: Sequence[Command], work: Sequence[float]) -> None:
        self.commands, self.work = commands, work
        self.missing = [len(set(c.waits)) for c in commands]
        self.followers: list[list[int]] = [[] for _ in commands]
        self.queue: list[list[int]] = [[] for _ in Engine]
        for number, c in enumerate(commands):
            self.queue[c.engine].append(number)
            for wait in set(c.waits):
                self.followers[wait].append(number)
        self.next = [0] * len(Engine)
        self.busy = [False] * len(Engine)
        self.events: list[tuple[float, int]] = []  # ends of commands that compute
        self.moving: dict[int, float] = {}  # LOAD and STORE at work → cycles of the whole memory that are left
        self.now = 0.0

    def end(self) -> float:
        for engine in range(len(Engine)):
            self._begin(engine)
        while self.events or self.moving:
            done = self._advance()
            engine = self.commands[done].engine
            self.busy[engine] = False
            self._begin(engine)
            for number in self.followers[done]:
                self.missing[number] -= 1
                if not self.missing[number]:
                    self._begin(self.commands[number].engine)
        return self.now

    def _begin(self, engine: int) -> None:
        """The engine's next command, where it is free and nothing is missing."""
        queue, at = self.queue[engine], self.next[engine]
        if self.busy[engine] or at == len(queue) or self.missing[queue[at]]:
            return
        number = queue[at]
        self.next[engine] = at + 1
        self.busy[engine] = True
        if engine in DDR:
            self.moving[number] = self.work[number]
        else:
            heapq.heappush(self.events, (self.now + self.work[number], number))

    def _advance(self) -> int:
        """Go on to the next end of a command, which is returned."""
        share = len(self.moving)
        first = min(self.moving, key=lambda n: self.moving[n], default=-1)
        ends = self.now + self.moving[first] * share if share else math.inf
        if self.events and self.events[0][0] <= ends:
            then, done = heapq.heappop(self.events)
        else:
            then, done = ends, first
        for number in self.moving:
            self.moving[number] = max(0.0, self.moving[number] - (then - self.now) / share)
        self.moving.pop(done, None)
        self.now = then
        return done
