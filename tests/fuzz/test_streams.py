"""Damaged files with command streams: the reader refuses them, or the checker does, or nothing that counts changed."""

from __future__ import annotations

import contextlib
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc.backend.bpu.tiling import TilingOptions, tile_program
from hbc.cli import main
from hbc_runtime import HbmError, Program, Session, hbm
from hbc_runtime.program import BpuSegment
from hbc_runtime.stream import check_streams, run_commands
from tests.fuzz.mutations import mutate
from tests.nets import random_net
from tests.strategies import arrays_for

LEVELS = ("O1", "O2", "O3")
SECONDS = 3  # of this process's own time, for a file of a few kilobytes; they take milliseconds


@cache
def file(net: int, level: str) -> bytes:
    return hbm.write(tile_program(random_net(net, layers=4), TilingOptions(level, on_chip_bytes=8192)))


def opened(data: bytes) -> Program | None:
    """The program, where reader and checker find nothing; they raise nothing but HbmError and ValueError."""
    start = time.process_time()
    program = None
    with contextlib.suppress(HbmError, ValueError):
        found = hbm.read(data)
        check_streams(found)
        program = found
    assert time.process_time() - start < SECONDS
    return program


def has_streams(program: Program) -> bool:
    return all(isinstance(s, BpuSegment) and s.commands is not None for m in program.models for s in m.segments)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.sampled_from(LEVELS), st.integers(0, 1 << 32))
@example(0, "O2", 0)
@example(1, "O1", 20)
def test_damage_is_refused_or_changes_nothing(net: int, level: str, seed: int) -> None:
    """What passes still computes, by its commands, what its own instructions say."""
    for i in range(10):
        program = opened(mutate(seed + i, file(net, level)))
        if program is None or not has_streams(program):
            continue
        arrays = arrays_for(program.models[0])
        with Session(program, engine="reference") as session:
            want = session.run(arrays)
        got = run_commands(program, arrays)
        assert all(np.array_equal(got[k], y) for k, y in want.items()), seed + i


@pytest.mark.parametrize("net", range(3))
def test_inspect_says_what_is_wrong_and_never_crashes(
    net: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    statuses = []
    for seed in range(40):
        Path("m.hbm").write_bytes(mutate(seed, file(net, "O2")))
        statuses.append(main(["inspect", "m.hbm", "--commands"]))
        err = capsys.readouterr().err
        assert statuses[-1] in {0, 1, 2}, (seed, err)
        assert statuses[-1] != 1 or "m.hbm" in err, (seed, err)
    assert statuses.count(1) > 20
