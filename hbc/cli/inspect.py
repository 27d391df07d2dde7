"""`hbc inspect`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from hbc.analysis import macs
from hbc.words import human_bytes, human_count, plural, shape_text
from hbc_runtime import load
from hbc_runtime.isa import Instruction
from hbc_runtime.program import BpuSegment, CpuSegment, Model, Program, Segment, Storage, TensorInfo
from hbc_runtime.types import Layout, Quant

from .console import Screen
from .disassembly import ENGINES, Listed, Wanted, lines, listed
from .disassembly import as_json as stream_as_json
from .params import PATH, SETTINGS, json_flag, screen, verbosity
from .render import table

PLUMBING = {"inputs", "outputs", "loc"}  # an instruction's fields that are no attributes


@click.command(context_settings=SETTINGS)
@click.argument("program", type=PATH)
@click.option("--locs", is_flag=True, help="Show the source nodes of each instruction.")
@click.option("--arena", is_flag=True, help="Show where each tensor lies in the arena.")
@click.option("--commands", is_flag=True, help="Show the command streams instead: what each engine does, tile by tile.")
@click.option("--segment", metavar="S", help="With --commands: of this segment alone, a number or a name.")
@click.option("--node", metavar="TEXT", help="With --commands: for nodes that have TEXT in their names.")
@click.option("--engine", type=click.Choice(ENGINES), help="With --commands: of this engine.")
@json_flag
@verbosity
def command(
    program: Path,
    locs: bool,
    arena: bool,
    commands: bool,
    segment: str | None,
    node: str | None,
    engine: str | None,
    as_json: bool,
) -> None:
    """Show what is in PROGRAM (.hbm): its border, its segments, its instructions, its memory, its machine code.

    \b
    hbc inspect model.hbm --commands                    what the engines do, with addresses and dependencies
    hbc inspect model.hbm --commands --node /conv1
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    if not commands and (segment, node, engine) != (None, None, None):
        raise click.UsageError("--segment, --node and --engine choose commands; add --commands")
    if commands and (locs or arena):
        raise click.UsageError("--locs and --arena belong to the instructions; leave out --commands")
    loaded = load(program)
    out = screen()
    size = program.stat().st_size
    if commands:
        _show_commands(out, program, listed(loaded, Wanted(segment, node, engine), str(program)), as_json)
        return
    if as_json:
        out.json({"file": str(program), "file_bytes": size, **describe(loaded)})
        return
    for line in _header(loaded, program, size):
        out.result(line)
    for model in loaded.models:
        _show_model(out, model, locs, arena)
    if loaded.natives:
        out.result("")
        out.result(_natives_table(loaded))


def _show_commands(out: Screen, path: Path, parts: list[Listed], as_json: bool) -> None:
    if as_json:
        out.json({"file": str(path), "streams": [stream_as_json(part) for part in parts]})
        return
    for n, part in enumerate(parts):
        if n:
            out.result("")
        for line in lines(part):
            out.result(line)


def _header(program: Program, path: Path, size: int) -> Iterable[str]:
    b = program.build
    yield f"{path}: {human_bytes(size)}, march {program.march}, arith {program.arith}"
    yield f"made by {b.producer or 'unknown'} from {b.source or 'unknown'} (sha256 {b.source_sha256[:16] or 'unknown'})"
    if b.options:
        yield "options " + ", ".join(f"{k}={v}" for k, v in b.options)


def _show_model(out: Screen, model: Model, locs: bool, arena: bool) -> None:
    out.result(
        f"\nmodel {model.name}: arena {human_bytes(model.arena_size)}, constants {human_bytes(len(model.constants))}, "
        f"{human_count(macs(model))} MACs"
    )
    columns = ("", "name", "dtype", "shape", "layout", "scale", "zero point")
    rows = [("in", *_info_cells(i)) for i in model.inputs] + [("out", *_info_cells(o)) for o in model.outputs]
    out.result(table(columns, rows))
    for number, segment in enumerate(model.segments):
        out.result("")
        out.result(_segment_table(model, number, segment, locs))
    if arena:
        out.result("")
        out.result(_arena_table(model))


def _info_cells(info: TensorInfo) -> tuple[object, ...]:
    layout = "" if info.layout is Layout.ANY else info.layout.name
    return info.name, info.dtype.text, shape_text(info.shape), layout, *quant_cells(info.quant)


def quant_cells(quant: Quant | None) -> tuple[str, str]:
    """Scale and zero point in few characters: per-channel ones as a count and a range."""
    if quant is None:
        return "", ""
    if quant.axis is None:
        return f"{quant.scale[0]:.6g}", str(quant.zero_point[0])
    scales = f"{len(quant.scale)} along axis {quant.axis}: {min(quant.scale):.4g}…{max(quant.scale):.4g}"
    low, high = min(quant.zero_point), max(quant.zero_point)
    return scales, str(low) if low == high else f"{low}…{high}"


def _segment_table(model: Model, number: int, segment: Segment, locs: bool) -> Table:
    title = f"segment {number} {segment.name}"
    if isinstance(segment, CpuSegment):
        reasons = [(r,) for r in segment.reasons or segment.loc]
        title += f": cpu, {human_bytes(len(segment.onnx))} of ONNX"
        return table(("node, and why it is here",), reasons, title=title)
    columns = ("#", "instruction", "reads", "makes", "attributes", *(["from"] if locs else []))
    rows: list[tuple[object, ...]] = [
        (i, op.opcode.name.lower(), *_instruction_cells(model, op), *([", ".join(op.loc)] if locs else []))
        for i, op in enumerate(segment.instructions)
    ]
    return table(columns, rows, title=f"{title}: bpu, {plural(len(rows), 'instruction')}", right=("#",))


def _instruction_cells(model: Model, op: Instruction) -> tuple[str, str, str]:
    reads = ", ".join(f"%{i}" for i in op.inputs if i >= 0)
    makes = ", ".join(f"%{o} {model.tensors[o].dtype.text}[{shape_text(model.tensors[o].shape)}]" for o in op.outputs)
    return reads, makes, ", ".join(f"{k}={v}" for k, v in attributes(op).items())


def attributes(op: Instruction) -> dict[str, Any]:
    """The attributes that differ from their defaults; enums by name."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(op):
        value = getattr(op, f.name)
        if f.name not in PLUMBING and value != f.default:
            out[f.name] = value.name.lower() if isinstance(value, enum.Enum) else value
    return out


def _arena_table(model: Model) -> Table:
    placed = [(t.offset, t.offset + t.nbytes, i, t) for i, t in enumerate(model.tensors) if t.storage is Storage.ARENA]
    rows = []
    for begin, end, i, t in sorted(placed, key=lambda row: row[:3]):
        kind = f"{t.dtype.text}[{shape_text(t.shape)}]"
        rows.append((begin, end, f"%{i}", t.name, kind, *quant_cells(t.quant)))
    title = f"arena: {model.arena_size} bytes"
    return table(("from", "to", "", "tensor", "type", "scale", "zero point"), rows, title=title, right=("from", "to"))


def _natives_table(program: Program) -> Table:
    """Machine code made ahead of time. Where it was made is what the file says of it; nothing of it is run here."""
    rows = [
        (program.models[n.model].name, n.cpu, _enabled(n.features), human_bytes(len(n.data)), n.made_by)
        for n in program.natives
    ]
    columns = ("model", "CPU", "features", "size", "made by")
    return table(columns, rows, title="machine code, run where it is trusted", right=("size",))


def _enabled(features: str) -> str:
    return " ".join(f[1:] for f in features.split(",") if f.startswith("+"))


# ---- JSON


def describe(program: Program) -> dict[str, Any]:
    """The program as JSON values; constants by their size."""
    return {
        "march": program.march,
        "arith": program.arith,
        "build": {**dataclasses.asdict(program.build), "options": dict(program.build.options)},
        "models": [_model(m) for m in program.models],
        "natives": [
            {"model": program.models[n.model].name, "cpu": n.cpu, "features": n.features, "made_by": n.made_by,
             "key": n.key, "bytes": len(n.data)}
            for n in program.natives
        ],
    }  # fmt: skip


def _model(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "arena_bytes": model.arena_size,
        "constant_bytes": len(model.constants),
        "macs": macs(model),
        "inputs": [_info(i) for i in model.inputs],
        "outputs": [_info(o) for o in model.outputs],
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype.text, "storage": t.storage.name.lower(),
             "offset": t.offset, "index": t.index, "quant": _quant(t.quant)}
            for t in model.tensors
        ],
        "segments": [_segment(s) for s in model.segments],
    }  # fmt: skip


def _info(info: TensorInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "shape": list(info.shape),
        "dtype": info.dtype.text,
        "layout": info.layout.name,
        "quant": _quant(info.quant),
        "tensor": info.tensor,
    }


def _quant(quant: Quant | None) -> dict[str, Any] | None:
    return None if quant is None else dataclasses.asdict(quant)


def _segment(segment: Segment) -> dict[str, Any]:
    if isinstance(segment, BpuSegment):
        return {"name": segment.name, "device": "bpu", "instructions": [_instruction(i) for i in segment.instructions]}
    return {
        "name": segment.name,
        "device": "cpu",
        "inputs": list(segment.inputs),
        "outputs": list(segment.outputs),
        "onnx_bytes": len(segment.onnx),
        "reasons": list(segment.reasons),
        "loc": list(segment.loc),
    }


def _instruction(op: Instruction) -> dict[str, Any]:
    return {
        "opcode": op.opcode.name.lower(),
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "attributes": {k: _number(v) for k, v in attributes(op).items()},
        "loc": list(op.loc),
    }


def _number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
