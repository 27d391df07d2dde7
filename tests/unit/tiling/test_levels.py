"""What the levels and objectives do: less traffic and less time, the same integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from hbc.backend.bpu.march import MARCHES
from hbc.backend.bpu.tiling import LEVELS, OBJECTIVES, TilingOptions, stream_costs, stream_timing, tile_program
from hbc.backend.bpu.tiling.timing import OVERHEAD, makespan
from hbc_runtime import Session, isa
from hbc_runtime.commands import Command, CommandStream, Engine, Tile
from hbc_runtime.program import BpuSegment, Program
from hbc_runtime.stream import check_streams, run_commands
from hbc_runtime.types import DType
from tests.nets import Net, add, attention, conv, pool, random_net, split_and_join, squeeze, table
from tests.strategies import arrays_for

ROOM = 12 << 10


@dataclass(frozen=True)
class Facts:
    """What a tiling comes to."""

    cycles: float
    ddr: int
    commands: int


def chain(*layers: Callable[[Net], None], seed: int = 0) -> Program:
    net = Net(seed)
    for layer in layers:
        layer(net)
    return net.m.program()


def wide_image() -> Program:
    """Convolutions of 3 × 3 and tables over an image that does not fit on chip, with weights that do: for cascades."""
    net = Net(5)
    x = net.m.input((1, 48, 32, 8))
    for _ in range(5):
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1, "pad_value": 0}
        more = {"scheme": isa.Scheme.FORM_A, "clamp_min": -128, "clamp_max": 127}
        x = net.m.emit(
            isa.Conv2d, [x, *net.weights((8, 3, 3, 8)), -1, -1, -1], (1, 48, 32, 8), DType.I8, **window, **more
        )
        values = net.m.constant(net.rng.integers(-128, 128, 256), DType.I8)
        x = net.m.emit(isa.Lut, [x, values], (1, 48, 32, 8), DType.I8)
    return net.m.program()


NETS: dict[str, Callable[[], Program]] = {
    "wide image": wide_image,
    "chain": lambda: chain(conv, table, conv, add, pool, conv, seed=3),
    "split and join": lambda: chain(conv, split_and_join, conv, split_and_join, conv, seed=9),
    "squeeze": lambda: chain(conv, squeeze, conv, add, seed=4),
    "attention": lambda: chain(conv, attention, conv, seed=6),
    "random": lambda: random_net(11, layers=12),
}


@cache
def program_of(name: str) -> Program:
    return NETS[name]()


@cache
def tiled(name: str, level: str, objective: str = "latency", room: int = ROOM) -> Program:
    return tile_program(program_of(name), TilingOptions(level, objective, room))


def facts(program: Program) -> Facts:
    model = program.models[0]
    cycles, ddr, commands = 0.0, 0, 0
    for segment in model.segments:
        assert isinstance(segment, BpuSegment)
        assert segment.commands is not None
        timing = stream_timing(model, segment, segment.commands, MARCHES[program.march])
        cycles, ddr = cycles + timing.cycles, ddr + timing.ddr_bytes
        commands += len(segment.commands.commands)
    return Facts(cycles, ddr, commands)


@pytest.mark.parametrize("name", NETS)
def test_a_higher_level_takes_no_more_time_and_o2_moves_fewer_bytes(name: str) -> None:
    found = {level: facts(tiled(name, level)) for level in LEVELS}
    assert found["O3"].cycles <= found["O2"].cycles <= found["O1"].cycles <= found["O0"].cycles
    assert found["O2"].ddr < found["O1"].ddr
    assert found["O1"].cycles < found["O0"].cycles, "nothing overlaps"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETS)
def test_every_level_gives_the_reference_s_integers(name: str, level: str) -> None:
    program = tiled(name, level, "balance")
    check_streams(program, ROOM)
    arrays = arrays_for(program.models[0])
    with Session(program_of(name), engine="reference") as session:
        want = session.run(arrays)
    got = run_commands(program, arrays)
    assert got.keys() == want.keys()
    assert all(np.array_equal(got[k], want[k]) for k in want)


def test_a_cascade_keeps_what_lies_between_layers_on_chip() -> None:
    """Ten layers of 12 kB each, of which the memory holds one: all of it but input and output stays on chip."""
    image, room = 48 * 32 * 8, 22 << 10
    low, high = (facts(tiled("wide image", level, "bandwidth", room)) for level in ("O1", "O2"))
    assert low.ddr > 18 * image
    assert high.ddr <= 2 * image + sum(len(m.constants) for m in program_of("wide image").models)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_objectives_save_what_they_say(name: str, level: str) -> None:
    found = {o: facts(tiled(name, level, o)) for o in OBJECTIVES}
    assert found["bandwidth"].ddr <= found["latency"].ddr
    if level == "O3":
        assert found["latency"].cycles <= found["bandwidth"].cycles


def test_objectives_differ_where_time_and_bytes_do() -> None:
    latency, bandwidth = (facts(tiled("wide image", "O3", o, 8 << 10)) for o in ("latency", "bandwidth"))
    assert bandwidth.ddr <= latency.ddr
    assert latency.cycles <= bandwidth.cycles
    assert latency != bandwidth


def test_the_same_program_gives_the_same_stream() -> None:
    for level in LEVELS:
        options = TilingOptions(level, on_chip_bytes=ROOM)
        assert tile_program(random_net(5), options) == tile_program(random_net(5), options)


def test_macs_of_the_commands_are_those_of_the_instructions() -> None:
    for level in LEVELS:
        program = tiled("wide image", level)
        (segment,) = program.models[0].segments
        assert isinstance(segment, BpuSegment)
        assert segment.commands is not None
        costs = stream_costs(program.models[0], segment, segment.commands)
        assert sum(c.macs for c in costs) == 5 * 48 * 32 * 8 * 9 * 8
        assert sum(c.ddr for c in costs) == facts(program).ddr


# ---- time


def command(engine: Engine, *waits: int) -> Command:
    return Command(engine, 0, (), (Tile(0, (0,), (1,), 0, 1),), waits)


@pytest.mark.parametrize(
    ("commands", "work", "end"),
    [
        ([command(Engine.TENSOR), command(Engine.TENSOR)], [3, 4], 7),
        ([command(Engine.TENSOR), command(Engine.LUT)], [3, 4], 4),
        ([command(Engine.TENSOR), command(Engine.LUT, 0)], [3, 4], 7),
        ([command(Engine.LOAD), command(Engine.STORE)], [4, 4], 8),  # half of the memory each
        ([command(Engine.LOAD), command(Engine.STORE)], [2, 6], 8),  # both until 4, then one alone
        ([command(Engine.LOAD), command(Engine.TENSOR)], [4, 4], 4),
        ([command(Engine.LOAD), command(Engine.TENSOR, 0), command(Engine.LOAD)], [2, 5, 5], 7),
        ([], [], 0),
    ],
)
def test_engines_work_side_by_side_and_share_the_memory(commands: list[Command], work: list[float], end: float) -> None:
    assert makespan(commands, work) == end


def test_no_stream_is_faster_than_its_busiest_engine() -> None:
    for level in LEVELS:
        program = tiled("wide image", level)
        (segment,) = program.models[0].segments
        assert isinstance(segment, BpuSegment)
        stream: CommandStream | None = segment.commands
        assert stream is not None
        march = MARCHES[program.march]
        moved = (stream.loaded_bytes + stream.stored_bytes) * march.clock_mhz / march.ddr_mb_per_s
        tensor = OVERHEAD * len(list(stream.of_engine(Engine.TENSOR)))
        assert facts(program).cycles >= max(moved, tensor)
