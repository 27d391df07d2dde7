"""`hbc inspect --commands`: streams with the names of the source, filters, JSON, and streams that are not sound."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hbc.backend.bpu.tiling import TilingOptions, stream_costs, tile_program
from hbc.cli import main
from hbc_runtime import hbm
from hbc_runtime.commands import Engine
from hbc_runtime.hbm.writer import encode_program
from hbc_runtime.program import BpuSegment, Program
from tests.e2e.command import on_terminal
from tests.e2e.tiny import program


@pytest.fixture(scope="module")
def tiled() -> Program:
    return tile_program(program(), TilingOptions(level="O2"))


@pytest.fixture
def file(tiled: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.hbm"
    path.write_bytes(hbm.write(tiled))
    return path


def segment_of(tiled: Program) -> BpuSegment:
    (segment,) = tiled.models[0].segments
    assert isinstance(segment, BpuSegment)
    return segment


def test_every_command_has_a_line_with_engine_node_and_dependencies(
    file: Path, tiled: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(file), "--commands"]) == 0
    out = capsys.readouterr().out
    stream = segment_of(tiled).commands
    assert stream is not None
    heads = re.findall(r"^ *(\d+)  ([A-Z]+) +(.*)$", out, re.MULTILINE)
    assert [(int(n), e) for n, e, _ in heads] == [(n, c.engine.name) for n, c in enumerate(stream.commands)]
    conv = next(rest for _, engine, rest in heads if engine == "TENSOR")
    assert re.fullmatch(r"conv \+ relu \(conv2d\)  24 MACs  after \d+(, \d+)*", conv)
    assert re.search(r"^ +makes  0x[0-9a-f]{6} +6 B  %\d+ w 2x1x1x3$", out, re.MULTILINE)
    assert not re.search(r" $", out, re.MULTILINE), "piped lines end in blanks"


def test_filters_choose_commands(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--commands", "--node", "relu", "--engine", "tensor", "--json"]) == 0
    (stream,) = json.loads(capsys.readouterr().out)["streams"]
    assert [(c["engine"], c["loc"]) for c in stream["commands"]] == [("tensor", ["conv", "relu"])]
    assert main(["inspect", str(file), "--commands", "--segment", "0", "--engine", "lut", "--json"]) == 0
    (stream,) = json.loads(capsys.readouterr().out)["streams"]
    assert stream["commands"] == []


def test_json_is_the_stream(file: Path, tiled: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--commands", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["streams"]
    segment = segment_of(tiled)
    stream = segment.commands
    assert stream is not None
    assert [(Engine[c["engine"].upper()], tuple(c["waits"])) for c in found["commands"]] == [
        (c.engine, c.waits) for c in stream.commands
    ]
    assert [t["address"] for c in found["commands"] for t in c["outputs"] if t["address"] is not None] == [
        t.address for c in stream.commands for t in c.outputs if t.address >= 0
    ]
    costs = stream_costs(tiled.models[0], segment, stream)
    assert [c["macs"] for c in found["commands"]] == [c.macs for c in costs]
    assert sum(c.macs for c in costs) == 2 * 2 * 2 * 3, "2 × 2 pixels, 2 channels of 3 products"
    assert found["loaded_bytes"] == sum(c.ddr for c in costs if c.read == 0)


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--segment", "bpu_7"], 2, "there is no segment with commands 'bpu_7'"),
        (["--node", "cnov"], 2, "did you mean 'conv'?"),
        (["--locs"], 2, "leave out --commands"),
    ],
)
def test_what_cannot_be_shown(
    file: Path, options: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(file), "--commands", *options]) == status
    assert says in capsys.readouterr().err


def test_a_filter_without_commands(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--node", "conv"]) == 2
    assert "add --commands" in capsys.readouterr().err


def test_a_file_without_streams(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bare.hbm").write_bytes(hbm.write(program()))
    assert main(["inspect", "bare.hbm", "--commands"]) == 2
    assert "bare.hbm has no command streams" in capsys.readouterr().err


def test_an_unsound_stream_is_named_by_segment_and_command(
    file: Path, tiled: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = segment_of(tiled)
    assert segment.commands is not None
    commands = tuple(replace(c, waits=()) for c in segment.commands.commands)
    broken = replace(segment, commands=replace(segment.commands, commands=commands))
    made = replace(tiled, models=(replace(tiled.models[0], segments=(broken,)),))
    (tmp_path / "bad.hbm").write_bytes(encode_program(made))
    assert main(["inspect", "bad.hbm", "--commands"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"error\[R0102\]: bad.hbm has a command stream that is not sound: .*segment 0 \('bpu0'\)", said)
    assert re.search(r"command \d+ \((LOAD|TENSOR|MOVE|HOST|STORE|VECTOR) for instruction \d+\)", said)


def test_a_terminal_of_100_columns_folds_no_line(file: Path, tmp_path: Path) -> None:
    status, screen = on_terminal(["inspect", str(file), "--commands"], tmp_path)
    assert status == 0
    assert max(map(len, screen.split("\r\n"))) <= 100
