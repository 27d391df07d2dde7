"""Bytes of a tile that another one overwrote in part: whoever used them may still be at it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hbc_runtime import isa
from hbc_runtime.commands import Command, CommandStream, Engine, Tile
from hbc_runtime.program import BpuSegment, Model
from hbc_runtime.stream import check_commands
from hbc_runtime.types import DType
from tests.sketch import Sketch


def model_with(*waits: int) -> Model:
    """`a` at bytes 0 to 64 is clamped, then `b` comes to 32 … 96, and a slice of `c` goes to 0 … 32 after `waits`."""
    m = Sketch()
    a, b, c = (m.input((64,)) for _ in range(3))
    y, z = (m.emit(isa.Clamp, [x], (64,), DType.I8, clamp_min=0, clamp_max=9) for x in (a, b))
    w = m.emit(isa.Slice, [c], (32,), DType.I8, starts=(0,), steps=(2,))
    model = m.program().models[0]

    def tile(tensor: int, address: int) -> Tile:
        (size,) = model.tensors[tensor].shape
        return Tile(tensor, (0,), (size,), address, size)

    commands = (
        Command(Engine.LOAD, 0, (), (tile(a, 0), tile(c, 256))),
        Command(Engine.VECTOR, 0, (tile(a, 0),), (tile(y, 128),), (0,)),
        Command(Engine.LOAD, 1, (), (tile(b, 32),), (1,)),
        Command(Engine.MOVE, 2, (tile(c, 256),), (tile(w, 0),), waits),
        Command(Engine.VECTOR, 1, (tile(b, 32),), (tile(z, 384),), (2,)),
        Command(Engine.STORE, 0, (tile(y, 128),), (), (1,)),
        Command(Engine.STORE, 2, (tile(w, 0),), (), (3,)),
        Command(Engine.STORE, 1, (tile(z, 384),), (), (4,)),
    )
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    return replace(model, segments=(replace(segment, commands=CommandStream(commands, 512)),))


@pytest.mark.parametrize("waits", [(1,), (2,)])
def test_waiting_for_the_user_will_do(waits: tuple[int, ...]) -> None:
    check_commands(model_with(*waits), 0)


def test_the_rest_of_a_tile_is_still_in_use() -> None:
    with pytest.raises(ValueError, match=r"command 3 \(MOVE .* may still be using"):
        check_commands(model_with(0), 0)
