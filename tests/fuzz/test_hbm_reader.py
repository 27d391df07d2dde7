"""For any bytes, `hbm.read` returns a Program or raises HbmError, in bounded time and memory.

Files that once broke that, and a few that are worth keeping, lie in `seeds/`. A seed is never removed.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbc_runtime import HbmError, Program, hbm
from tests.fuzz.mutations import mutate
from tests.strategies import programs

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.bin"))
SOUND = [p for p in SEEDS if p.stem.startswith("sound")]
SECONDS = 2  # of this process's own time, for a file of a few kilobytes; they take milliseconds


def read(data: bytes) -> Program | None:
    """The contract: a Program that can be written again, or an HbmError; anything else fails the test."""
    start = time.process_time()
    program = None
    with contextlib.suppress(HbmError):
        program = hbm.read(data)
    assert time.process_time() - start < SECONDS
    return program


@pytest.mark.parametrize("path", SEEDS, ids=lambda p: p.stem)
def test_seeds(path: Path) -> None:
    program = read(path.read_bytes())
    assert (program is not None) == (path in SOUND)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 2**32))
def test_damaged_programs(program: Program, seed: int) -> None:
    data = hbm.write(program)
    for i in range(20):
        got = read(mutate(seed + i, data))
        assert got is None or hbm.read(hbm.write(got)) == got


@pytest.mark.parametrize("path", SOUND, ids=lambda p: p.stem)
def test_damaged_seeds(path: Path) -> None:
    data = path.read_bytes()
    outcomes = [read(mutate(seed, data)) for seed in range(1500)]
    assert sum(o is None for o in outcomes) > 1000  # most damage is noticed; the rest changed names or numbers


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    assert read(data) is None
    assert read(b"\x10\x00\x00\x00HBM1" + data) is None


def test_two_files_spliced_are_refused() -> None:
    first, second = (SOUND[i].read_bytes() for i in (0, -1))
    for cut in range(0, min(len(first), len(second)), 37):
        read(first[:cut] + second[cut:])
        assert read(first + second[cut:]) is None


def test_memory_stays_in_proportion_to_the_file() -> None:
    data = SOUND[0].read_bytes()
    tracemalloc.start()
    try:
        for seed in range(150):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            read(mutate(seed, data))
            assert tracemalloc.get_traced_memory()[1] - before < 40 * len(data) + (1 << 20), seed
    finally:
        tracemalloc.stop()
