"""Faults planted at random into sound streams.

Whatever is done to a stream, the checker refuses it, or it still computes the reference's integers in any order that
its waits allow. What breaks a property for certain is refused for certain.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc.backend.bpu.tiling import LEVELS, TilingOptions, tile_program
from hbc_runtime import Session
from hbc_runtime.commands import Command, CommandStream, Engine, Tile
from hbc_runtime.program import BpuSegment, Program
from hbc_runtime.stream import check_commands, check_streams, run_commands
from tests.nets import random_net
from tests.strategies import arrays_for

NETS = 6
COMPUTE = (Engine.TENSOR, Engine.VECTOR, Engine.POOL, Engine.LUT, Engine.MOVE)
Fault = Callable[[CommandStream, random.Random], CommandStream]
Outputs = dict[str, np.ndarray]


@cache
def sound(net: int, level: str) -> Program:
    program = tile_program(random_net(net, layers=5), TilingOptions(level, on_chip_bytes=6144))
    check_streams(program)
    return program


@cache
def wanted(net: int) -> Outputs:
    program = random_net(net, layers=5)
    with Session(program, engine="reference") as session:
        return session.run(arrays_for(program.models[0]))


def stream_of(program: Program) -> CommandStream:
    (segment,) = program.models[0].segments
    assert isinstance(segment, BpuSegment)
    assert segment.commands is not None
    return segment.commands


def with_stream(program: Program, stream: CommandStream) -> Program:
    (segment,) = program.models[0].segments
    assert isinstance(segment, BpuSegment)
    model = replace(program.models[0], segments=(replace(segment, commands=stream),))
    return replace(program, models=(model,))


def in_another_order(stream: CommandStream, rng: random.Random) -> CommandStream:
    """The commands in some order in which engines and waits let them run."""
    queues = {e: [i for i, _ in stream.of_engine(e)] for e in Engine}
    done: dict[int, int] = {}
    while any(queues.values()):
        ready = [q for q in queues.values() if q and all(w in done for w in stream.commands[q[0]].waits)]
        done[rng.choice(ready).pop(0)] = len(done)
    commands = [stream.commands[i] for i in sorted(done, key=done.__getitem__)]
    moved = (replace(c, waits=tuple(sorted(done[w] for w in c.waits))) for c in commands)
    return replace(stream, commands=tuple(moved))


def refused(program: Program) -> str:
    """What the checker says; empty where it finds nothing."""
    try:
        check_commands(program.models[0], 0)
    except ValueError as err:
        return str(err)
    return ""


def computes(program: Program, net: int) -> bool:
    got = run_commands(program, arrays_for(program.models[0]))
    return all(np.array_equal(got[k], y) for k, y in wanted(net).items())


# ---- faults


def changed(s: CommandStream, at: int, **fields: object) -> CommandStream:
    command = replace(s.commands[at], **fields)  # type: ignore[arg-type]
    return replace(s, commands=(*s.commands[:at], command, *s.commands[at + 1 :]))


def one(s: CommandStream, rng: random.Random, *engines: Engine, fits: Callable[[Command], bool] = bool) -> int:
    """The number of some command of `engines`."""
    return rng.choice([i for i, c in enumerate(s.commands) if c.engine in engines and fits(c)])


def without(s: CommandStream, at: int) -> CommandStream:
    """The stream less a command; who waited for it waits for what it waited for."""
    gone = s.commands[at].waits

    def renumbered(c: Command) -> Command:
        waits = {*c.waits, *(gone if at in c.waits else ())} - {at}
        return replace(c, waits=tuple(sorted(w - (w > at) for w in waits)))

    return replace(s, commands=tuple(renumbered(c) for i, c in enumerate(s.commands) if i != at))


def moved_output(s: CommandStream, at: int, address: int) -> CommandStream:
    first, *rest = s.commands[at].outputs
    return changed(s, at, outputs=(replace(first, address=address), *rest))


def a_load_less(s: CommandStream, rng: random.Random) -> CommandStream:
    return without(s, one(s, rng, Engine.LOAD))


def a_computation_less(s: CommandStream, rng: random.Random) -> CommandStream:
    return without(s, one(s, rng, *COMPUTE))


def the_last_store_less(s: CommandStream, rng: random.Random) -> CommandStream:
    return without(s, [i for i, c in enumerate(s.commands) if c.engine is Engine.STORE][-1])


def a_result_over_an_operand(s: CommandStream, rng: random.Random) -> CommandStream:
    at = one(s, rng, *COMPUTE)
    return moved_output(s, at, rng.choice(s.commands[at].inputs).address)


def a_tile_behind_the_memory(s: CommandStream, rng: random.Random) -> CommandStream:
    return moved_output(s, one(s, rng, Engine.LOAD, *COMPUTE), s.on_chip_bytes + 32 * rng.randrange(100))


def less_memory(s: CommandStream, rng: random.Random) -> CommandStream:
    end = max(t.address + t.nbytes for c in s.commands for t in (*c.inputs, *c.outputs) if t.address >= 0)
    return replace(s, on_chip_bytes=rng.randrange(end))


def a_result_twice(s: CommandStream, rng: random.Random) -> CommandStream:
    """The same again, elsewhere, and behind everything else."""
    again = s.commands[one(s, rng, *COMPUTE)]
    out = replace(again.outputs[0], address=-(-s.on_chip_bytes // 32) * 32)
    extra = replace(again, outputs=(out,), waits=(*range(len(s.commands)),))
    return replace(s, commands=(*s.commands, extra), on_chip_bytes=out.address + out.nbytes)


def waiting_for_what_comes(s: CommandStream, rng: random.Random) -> CommandStream:
    at = rng.randrange(len(s.commands))
    return changed(s, at, waits=(*s.commands[at].waits, rng.randrange(at, len(s.commands))))


def a_transfer_out_of_bounds(s: CommandStream, rng: random.Random) -> CommandStream:
    at = one(s, rng, Engine.LOAD, Engine.STORE)
    loads = s.commands[at].engine is Engine.LOAD
    tiles = s.commands[at].outputs if loads else s.commands[at].inputs
    far = 1 << rng.choice((10, 20, 40))
    start = tuple(lo + far for lo in tiles[0].start)
    return changed(s, at, **{"outputs" if loads else "inputs": (replace(tiles[0], start=start), *tiles[1:])})


def a_place_out_of_bounds(s: CommandStream, rng: random.Random) -> CommandStream:
    at = rng.randrange(len(s.places))
    far = replace(s.places[at], offset=s.scratch_bytes + 64 * rng.randrange(4))
    return replace(s, places=(*s.places[:at], far, *s.places[at + 1 :]))


CERTAIN: tuple[Fault, ...] = (
    a_load_less, a_computation_less, the_last_store_less, a_result_over_an_operand, a_tile_behind_the_memory,
    less_memory, a_result_twice, waiting_for_what_comes, a_transfer_out_of_bounds,
)  # fmt: skip


def a_wait_less(s: CommandStream, rng: random.Random) -> CommandStream:
    at = one(s, rng, *Engine, fits=lambda c: bool(c.waits))
    gone = rng.choice(s.commands[at].waits)
    return changed(s, at, waits=tuple(w for w in s.commands[at].waits if w != gone))


def two_swapped(s: CommandStream, rng: random.Random) -> CommandStream:
    at = rng.randrange(len(s.commands) - 1)
    a, b = s.commands[at : at + 2]
    return replace(s, commands=(*s.commands[:at], b, a, *s.commands[at + 2 :]))


def another_address_everywhere(s: CommandStream, rng: random.Random) -> CommandStream:
    """One tile at another address, for all that name it."""
    tile = rng.choice([t for c in s.commands for t in c.outputs if t.address >= 0])
    other = replace(tile, address=rng.randrange(0, s.on_chip_bytes, 4))

    def elsewhere(tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return tuple(other if t == tile else t for t in tiles)

    return replace(
        s,
        commands=tuple(replace(c, inputs=elsewhere(c.inputs), outputs=elsewhere(c.outputs)) for c in s.commands),
    )


def another_engine(s: CommandStream, rng: random.Random) -> CommandStream:
    return changed(s, rng.randrange(len(s.commands)), engine=rng.choice(tuple(Engine)))


def another_instruction(s: CommandStream, rng: random.Random) -> CommandStream:
    return changed(s, rng.randrange(len(s.commands)), instruction=rng.choice((0, 1, 2, 3, -1, 1 << 20)))


def a_number_in_a_tile(s: CommandStream, rng: random.Random) -> CommandStream:
    at = rng.randrange(len(s.commands))
    side = rng.choice([f for f in ("inputs", "outputs") if getattr(s.commands[at], f)])
    tiles = list(getattr(s.commands[at], side))
    n = rng.randrange(len(tiles))
    value = rng.choice((-1, 0, 1, 2, 3, 64, 1 << 31, 1 << 62))
    field = rng.choice(("tensor", "start", "size", "address", "nbytes"))
    old = getattr(tiles[n], field)
    if isinstance(old, tuple):
        axis = rng.randrange(len(old))
        tiles[n] = replace(tiles[n], **{field: (*old[:axis], value, *old[axis + 1 :])})
    else:
        tiles[n] = replace(tiles[n], **{field: value})
    return changed(s, at, **{side: tuple(tiles)})


def views_and_places(s: CommandStream, rng: random.Random) -> CommandStream:
    views, places = list(s.views), list(s.places)
    if views and rng.random() < 0.5:
        n = rng.randrange(len(views))
        views[n] = replace(views[n], **{rng.choice(("tensor", "of")): rng.choice((0, 1, 5, 1 << 20, -1))})
    elif places:
        n = rng.randrange(len(places))
        places[n] = replace(places[n], **{rng.choice(("tensor", "offset")): rng.choice((0, 1, 64, 1 << 20, -8))})
    return replace(s, views=tuple(views), places=tuple(places))


ANY: tuple[Fault, ...] = (
    a_wait_less, two_swapped, another_address_everywhere, another_engine, another_instruction, a_number_in_a_tile,
    views_and_places,
)  # fmt: skip
SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, NETS - 1), st.sampled_from(LEVELS), st.sampled_from(CERTAIN), SEEDS)
@example(0, "O0", a_load_less, 0)
@example(1, "O1", a_computation_less, 0)
@example(2, "O2", the_last_store_less, 0)
@example(3, "O2", a_result_over_an_operand, 0)
@example(4, "O3", a_tile_behind_the_memory, 0)
@example(5, "O1", less_memory, 0)
@example(0, "O2", a_result_twice, 0)
@example(1, "O3", waiting_for_what_comes, 0)
@example(2, "O1", a_transfer_out_of_bounds, 0)
def test_what_breaks_a_property_is_refused(net: int, level: str, fault: Fault, seed: int) -> None:
    program = sound(net, level)
    broken = with_stream(program, fault(stream_of(program), random.Random(seed)))
    assert refused(broken), fault.__name__


@pytest.mark.parametrize("net", range(NETS))
def test_a_place_out_of_bounds_is_refused(net: int) -> None:
    program = sound(net, "O1")
    broken = with_stream(program, a_place_out_of_bounds(stream_of(program), random.Random(net)))
    assert "outside the scratch memory" in refused(broken)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, NETS - 1), st.sampled_from(LEVELS), st.sampled_from(ANY), SEEDS)
@example(0, "O2", a_wait_less, 1)
@example(1, "O1", two_swapped, 2)
@example(2, "O2", another_address_everywhere, 3)
@example(5, "O2", another_address_everywhere, 1028902)  # what is left of a tile that another one overwrote in part
@example(3, "O1", another_engine, 4)
@example(4, "O0", another_instruction, 5)
@example(5, "O2", a_number_in_a_tile, 6)
@example(0, "O3", views_and_places, 7)
def test_what_the_checker_lets_pass_computes_the_same(net: int, level: str, fault: Fault, seed: int) -> None:
    program, rng = sound(net, level), random.Random(seed)
    broken = with_stream(program, fault(stream_of(program), rng))
    if refused(broken):
        return
    assert computes(with_stream(broken, in_another_order(stream_of(broken), rng)), net)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, NETS - 1), st.sampled_from(LEVELS), SEEDS)
@example(0, "O2", 0)
@example(3, "O3", 1)
def test_a_sound_stream_computes_the_same_in_every_order(net: int, level: str, seed: int) -> None:
    program = sound(net, level)
    shuffled = with_stream(program, in_another_order(stream_of(program), random.Random(seed)))
    assert refused(shuffled) == ""
    assert computes(shuffled, net)


def test_dropped_waits_are_found_mostly() -> None:
    """Hardly a wait is there that nobody needs: 19 of 20 that are dropped are missed."""
    found = [
        bool(refused(with_stream(sound(net, level), a_wait_less(stream_of(sound(net, level)), random.Random(seed)))))
        for net in range(NETS)
        for level in ("O1", "O2")
        for seed in range(20)
    ]
    assert sum(found) >= 0.95 * len(found)
