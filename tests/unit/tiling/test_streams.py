"""Command streams of random programs: sound by the checker, and the reference's integers by the emulator."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc.backend.bpu.tiling import LEVELS, TilingOptions, tile_program
from hbc.diagnostics import EmitError
from hbc_runtime import Session, hbm
from hbc_runtime.program import Program
from hbc_runtime.stream import check_commands, run_commands
from tests.nets import random_net
from tests.strategies import arrays_for, programs

ROOM = (128, 256, 1024, 1 << 20)  # bytes on chip: from hardly a tile to everything
NET_ROOM = (2048, 6144, 16384, 1 << 20)


def tiled(program: Program, level: str, on_chip: int) -> Program | None:
    """The program with command streams; None where a tile needs more than `on_chip`."""
    try:
        return tile_program(program, TilingOptions(level=level, on_chip_bytes=on_chip))
    except EmitError as err:
        if on_chip == ROOM[-1] or "cannot be cut into tiles" not in str(err):
            raise
        return None


def hold_to_reference(program: Program, level: str, on_chip: int) -> None:
    """Its streams are sound, and compute what its instructions do."""
    made = tiled(program, level, on_chip)
    if made is None:
        return
    for number in range(len(made.models[0].segments)):
        check_commands(made.models[0], number, on_chip)
    arrays = arrays_for(program.models[0])
    with Session(program, engine="reference") as session:
        want = session.run(arrays)
    got = run_commands(made, arrays)
    assert got.keys() == want.keys()
    for name, y in want.items():
        assert got[name].dtype == y.dtype
        assert np.array_equal(got[name], y, equal_nan=y.dtype.kind == "f"), name


@settings(max_examples=200, deadline=None)
@given(programs(cpu=False, max_models=1), st.sampled_from(LEVELS), st.sampled_from(ROOM))
def test_every_instruction(program: Program, level: str, on_chip: int) -> None:
    hold_to_reference(program, level, on_chip)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(LEVELS), st.sampled_from(NET_ROOM))
@example(1, "O1", 2048)
@example(2, "O2", 2048)
@example(3, "O2", 6144)
def test_nets(seed: int, level: str, on_chip: int) -> None:
    hold_to_reference(random_net(seed), level, on_chip)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(LEVELS))
@example(856, "O2")
def test_a_file_gives_back_what_was_written(seed: int, level: str) -> None:
    made = tile_program(random_net(seed), TilingOptions(level=level, on_chip_bytes=16384))
    data = hbm.write(made)
    assert hbm.read(data) == made
    assert hbm.write(hbm.read(data)) == data
