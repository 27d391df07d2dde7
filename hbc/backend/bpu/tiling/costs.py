"""What a command asks of its engine: products, elements, bytes. Facts of shapes, without a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hbc.analysis import instruction_macs
from hbc_runtime import isa
from hbc_runtime.commands import Command, CommandStream, Engine, Tile
from hbc_runtime.program import BpuSegment, Model


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one command.

    `macs`: multiply-accumulates, an instruction's spread evenly over its result. `elements`: what a compute command
    makes (of a pool: reads, so its kernel times what it makes). `read` and `written`: bytes of its tiles on chip.
    `ddr`: bytes that a LOAD or STORE moves.
    """

    macs: int
    elements: int
    read: int
    written: int
    ddr: int


def command_cost(model: Model, segment: BpuSegment, command: Command) -> Cost:
    """The work of a command of `segment`."""
    read, written = _bytes(command.inputs), _bytes(command.outputs)
    if command.engine in {Engine.LOAD, Engine.STORE}:
        return Cost(0, 0, read, written, command.ddr_bytes)
    op = segment.instructions[command.instruction]
    made = sum(t.elements for t in command.outputs)
    whole = max(model.tensors[op.outputs[0]].elements, 1)
    elements = made * math.prod(op.kernel) if isinstance(op, isa.MaxPool | isa.AvgPool) else made
    return Cost(instruction_macs(model, op) * made // whole, elements, read, written, 0)


def stream_costs(model: Model, segment: BpuSegment, stream: CommandStream) -> tuple[Cost, ...]:
    """The work of every command of a stream of `segment`, in order."""
    return tuple(command_cost(model, segment, c) for c in stream.commands)


def _bytes(tiles: tuple[Tile, ...]) -> int:
    return sum(t.nbytes for t in tiles)
