"""Replays of command streams: engines wait, loads and stores share DDR, and tiles stay in the on-chip memory."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from hbc.backend.bpu.tiling import TilingOptions, tile_program
from hbc.cli import main
from hbc.perf import as_json, board_named, boards, estimate, page, replay
from hbc.perf.stream import Replay, sampled, with_streams
from hbc_runtime.program import BpuSegment, Program
from tests.unit.perf.nets import fast, net


@pytest.fixture(scope="module")
def program() -> Program:
    return fast(net(64))


def test_loads_and_stores_never_run_at_once(program: Program) -> None:
    found = replay(tile_program(program, TilingOptions("O1", 8192)), board_named("x5", "bayes-e"))
    spans = sorted((r.start, r.end) for r in found.ran if r.engine in {"load", "store"})
    assert len(spans) > 4
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))


def test_ddr_bytes_and_memory_are_the_streams_own(program: Program) -> None:
    tiled = with_streams(program)
    assert with_streams(tiled) is tiled
    streams = [s.commands for s in tiled.models[0].segments if isinstance(s, BpuSegment) and s.commands is not None]
    found = replay(tiled, board_named("x5", "bayes-e"))
    assert found.commands == sum(len(s.commands) for s in streams)
    assert (found.loaded, found.stored) == (streams[0].loaded_bytes, streams[0].stored_bytes)
    assert 0 < max(b for _, b in found.memory) <= streams[0].on_chip_bytes <= 2 << 20
    assert found.memory[-1][1] == 0


@pytest.mark.parametrize("name", sorted(boards()))
def test_no_replay_beats_the_memory_or_the_march(name: str) -> None:
    board = boards()[name]
    made = fast(net(64), board.march)
    found, layers = replay(made, board), estimate(made, board)
    assert found.end * board.ddr_peak >= found.loaded + found.stored
    assert found.end * board.spec.macs_per_cycle * board.spec.clock_mhz >= layers.macs
    assert all(0 <= share <= 1 + 1e-9 for share in found.busy().values())


def test_serial_commands_take_longer_than_overlapping_ones(program: Program) -> None:
    board = board_named("x5", "bayes-e")
    serial, overlapped = (replay(tile_program(program, TilingOptions(level)), board).end for level in ("O0", "O2"))
    assert serial > overlapped


def test_memory_is_sampled_by_its_peaks() -> None:
    assert sampled([(0.0, 5), (1.0, 9), (1.1, 0), (3.0, 2)], 4.0, 4) == [5, 9, 0, 2]
    assert sampled([], 1.0, 2) == [0, 0]


def test_the_page_and_the_figures_hold_the_replay(program: Program) -> None:
    board = board_named("x5", "bayes-e")
    e, found = estimate(program, board), replay(program, board)
    text = page(e, program.models[0], found)
    assert 'id="commands"' in text
    assert 'id="commands"' not in page(e, program.models[0])
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert sum(r[2] - r[1] for r in data["stream"]["ran"]) == pytest.approx(sum(r.end - r.start for r in found.ran))
    more = as_json(e, found)["hbc"]
    assert isinstance(more, dict)
    assert more["stream"]["commands"] == found.commands
    assert max(more["stream"]["memory"]) == max(b for _, b in found.memory)
    assert "stream" not in as_json(e)["hbc"]  # type: ignore[operator] # a dict


def test_the_command_replays_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(net())
    assert main(["perf", str(path), "--march", "bayes-e", "--fast-perf", "--commands"]) == 0
    assert re.search(r"^\d+ commands take \d\.\d+ ms \(busy: ", capsys.readouterr().out, re.MULTILINE)


def test_an_empty_replay_is_all_zeros() -> None:
    assert Replay(0, (), (), 0, 0, 0, 0.0).busy() == {}
