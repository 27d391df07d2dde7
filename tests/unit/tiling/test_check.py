"""Faults planted in a sound command stream: the checker names each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hbc.backend.bpu.tiling import TilingOptions, tile_program
from hbc_runtime.commands import Command, CommandStream, Engine, Place, Tile, View
from hbc_runtime.program import BpuSegment, Model
from hbc_runtime.stream import check_commands
from tests.nets import random_net

COMPUTE = (Engine.TENSOR, Engine.VECTOR, Engine.POOL, Engine.LUT, Engine.MOVE)


def sound(level: str = "O1", seed: int = 1) -> tuple[Model, BpuSegment]:
    model = tile_program(random_net(seed), TilingOptions(level=level, on_chip_bytes=4096)).models[0]
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    check_commands(model, 0)
    return model, segment


def with_stream(model: Model, stream: CommandStream) -> Model:
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    return replace(model, segments=(replace(segment, commands=stream),))


def stream_of(segment: BpuSegment) -> CommandStream:
    assert segment.commands is not None
    return segment.commands


def first(stream: CommandStream, fits: Callable[[Command], bool]) -> int:
    return next(i for i, c in enumerate(stream.commands) if fits(c))


def with_command(stream: CommandStream, at: int, command: Command) -> CommandStream:
    return replace(stream, commands=(*stream.commands[:at], command, *stream.commands[at + 1 :]))


def without(stream: CommandStream, at: int) -> CommandStream:
    """The stream less one command, which nobody waits for any more."""

    def renumbered(c: Command) -> Command:
        return replace(c, waits=tuple(w - (w > at) for w in c.waits if w != at))

    return replace(stream, commands=tuple(renumbered(c) for i, c in enumerate(stream.commands) if i != at))


def no_load(s: CommandStream) -> CommandStream:
    return without(s, first(s, lambda c: c.engine is Engine.LOAD))


def no_store(s: CommandStream) -> CommandStream:
    return without(s, [i for i, c in enumerate(s.commands) if c.engine is Engine.STORE][-1])


def no_wait_for_a_load(s: CommandStream) -> CommandStream:
    at = first(s, lambda c: c.engine in COMPUTE and any(s.commands[w].engine is Engine.LOAD for w in c.waits))
    c = s.commands[at]
    return with_command(s, at, replace(c, waits=tuple(w for w in c.waits if s.commands[w].engine is not Engine.LOAD)))


def no_wait_before_a_store(s: CommandStream) -> CommandStream:
    at = first(s, lambda c: c.engine is Engine.STORE and bool(c.waits))
    return with_command(s, at, replace(s.commands[at], waits=()))


def no_wait_before_memory_is_used_again(s: CommandStream) -> CommandStream:
    at = [i for i, c in enumerate(s.commands) if c.engine is Engine.LOAD and c.waits][-1]
    return with_command(s, at, replace(s.commands[at], waits=()))


def wait_for_itself(s: CommandStream) -> CommandStream:
    return with_command(s, 3, replace(s.commands[3], waits=(3,)))


def output(s: CommandStream, change: Callable[[Tile], Tile], engines: tuple[Engine, ...] = COMPUTE) -> CommandStream:
    at = first(s, lambda c: c.engine in engines)
    c = s.commands[at]
    return with_command(s, at, replace(c, outputs=(change(c.outputs[0]), *c.outputs[1:])))


def outside_of_memory(s: CommandStream) -> CommandStream:
    return output(s, lambda t: replace(t, address=s.on_chip_bytes))


def at_an_operands_place(s: CommandStream) -> CommandStream:
    at = first(s, lambda c: c.engine in COMPUTE)
    c = s.commands[at]
    return with_command(s, at, replace(c, outputs=(replace(c.outputs[0], address=c.inputs[0].address),)))


def elsewhere_than_its_reader_thinks(s: CommandStream) -> CommandStream:
    return replace(output(s, lambda t: replace(t, address=s.on_chip_bytes)), on_chip_bytes=s.on_chip_bytes * 2)


def a_smaller_tile(s: CommandStream) -> CommandStream:
    def less(t: Tile) -> Tile:
        axis = next(i for i, n in enumerate(t.size) if n > 1)
        size = tuple(n - (i == axis) for i, n in enumerate(t.size))
        return replace(t, size=size, nbytes=t.nbytes // t.size[axis] * (t.size[axis] - 1))

    return output(s, less, (Engine.LOAD,))


def made_twice(s: CommandStream) -> CommandStream:
    at = [i for i, c in enumerate(s.commands) if c.engine in COMPUTE][-1]  # nobody overwrites what it reads
    again = replace(s.commands[at], waits=(at,))
    room = replace(again.outputs[0], address=s.on_chip_bytes)
    later = tuple(
        replace(c, waits=tuple(w + (w > at) for w in c.waits)) for c in s.commands[at + 1 :]
    )  # fmt: skip
    commands = (*s.commands[: at + 1], replace(again, outputs=(room,)), *later)
    return replace(s, commands=commands, on_chip_bytes=s.on_chip_bytes * 2)


def an_operand_less(s: CommandStream) -> CommandStream:
    at = first(s, lambda c: c.engine is Engine.TENSOR)
    return with_command(s, at, replace(s.commands[at], inputs=s.commands[at].inputs[:-1]))


def the_wrong_engine(s: CommandStream) -> CommandStream:
    at = first(s, lambda c: c.engine is Engine.TENSOR)
    return with_command(s, at, replace(s.commands[at], engine=Engine.LUT))


def no_place(s: CommandStream) -> CommandStream:
    return replace(s, places=s.places[1:])


def places_outside(s: CommandStream) -> CommandStream:
    return replace(s, places=tuple(Place(p.tensor, s.scratch_bytes) for p in s.places))


def places_that_overlap(s: CommandStream) -> CommandStream:
    return replace(s, places=tuple(Place(p.tensor, 0) for p in s.places))


def a_view_of_nothing(s: CommandStream) -> CommandStream:
    tile = s.commands[0].outputs[0]
    free = next(t.tensor for c in s.commands if c.engine is Engine.STORE for t in c.inputs)
    return replace(s, views=(*s.views, View(free, tile.tensor, None)))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (no_load, "not on chip"),
        (no_store, r"before all of it is there|not all in DDR"),
        (no_wait_for_a_load, "does not wait for command"),
        (no_wait_before_a_store, "does not wait for command"),
        (no_wait_before_memory_is_used_again, r"may still be using|before all of it is there"),
        (wait_for_itself, "waits for command 3"),
        (outside_of_memory, "outside the on-chip memory"),
        (at_an_operands_place, "may still be using"),
        (elsewhere_than_its_reader_thinks, "not on chip"),
        (a_smaller_tile, "not on chip"),
        (made_twice, "made twice"),
        (an_operand_less, "do not hold all that it needs"),
        (the_wrong_engine, "no work for this engine"),
        (no_place, "no place in DDR"),
        (places_outside, "outside the scratch memory"),
        (places_that_overlap, r"overwrit|may still be using"),
        (a_view_of_nothing, "view"),
    ],
)
def test_a_planted_fault_is_found(fault: Callable[[CommandStream], CommandStream], says: str) -> None:
    model, segment = sound()
    with pytest.raises(ValueError, match=says):
        check_commands(with_stream(model, fault(stream_of(segment))), 0)


def test_more_memory_than_the_march_has() -> None:
    model, _ = sound()
    with pytest.raises(ValueError, match="the march has 64"):
        check_commands(model, 0, 64)


def test_a_view_that_no_instruction_explains() -> None:
    """Views of O2 are those of slices and concatenations; one taken away leaves their results unmade."""
    seed = next(s for s in range(200) if stream_of(sound("O2", s)[1]).views)
    model, segment = sound("O2", seed)
    stream = stream_of(segment)
    with pytest.raises(ValueError, match=r"made exactly once|not on chip|do not hold|leans on|which the instruction"):
        check_commands(with_stream(model, replace(stream, views=stream.views[1:])), 0)
