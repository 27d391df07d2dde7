"""`hbc inspect --commands`: command streams as text and as JSON, with the names of the source model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hbc.backend.bpu.march import MARCHES
from hbc.backend.bpu.tiling import Cost, command_cost
from hbc.diagnostics import OptionError, UnknownName, error, nearest
from hbc.options import pick
from hbc.words import human_bytes, human_count, plural, shape_text, shorten, some
from hbc_runtime.commands import IN_DDR, Command, CommandStream, Engine, Tile, View
from hbc_runtime.errors import HbmFormatError
from hbc_runtime.isa import Instruction
from hbc_runtime.program import BpuSegment, Model, Program
from hbc_runtime.stream import check_streams

NAMES = 44  # characters of a node's or tensor's name that a line shows
ENGINES = tuple(e.name.lower() for e in Engine)


@dataclass(frozen=True)
class Wanted:
    """Which commands are shown: of one segment (a number or a name), of nodes whose name holds a text, of an engine."""

    segment: str | None = None
    node: str | None = None
    engine: str | None = None

    def takes(self, segment: BpuSegment, command: Command) -> bool:
        """True where the command passes the filters on nodes and engines."""
        if self.engine is not None and command.engine.name.lower() != self.engine:
            return False
        return self.node is None or any(self.node in n for n in segment.instructions[command.instruction].loc)


@dataclass(frozen=True)
class Listed:
    """A segment with a stream, and the numbers of the commands that are shown."""

    model: Model
    number: int
    segment: BpuSegment
    stream: CommandStream
    shown: tuple[int, ...]

    @property
    def title(self) -> str:
        """`segment 0 bpu_0`."""
        return f"segment {self.number} {self.segment.name}"


def listed(program: Program, wanted: Wanted, path: str) -> list[Listed]:
    """The segments to show.

    Raises HbmFormatError, naming segment and command, where a stream is unsound; OptionError where the file has none,
    or nothing passes a filter.
    """
    _check(program, path)
    found = [
        Listed(m, n, s, s.commands, ())
        for m in program.models
        for n, s in enumerate(m.segments)
        if isinstance(s, BpuSegment) and s.commands is not None
    ]
    if not found:
        raise error(OptionError, f"{path} has no command streams", hint="compile the model again with this version")
    chosen = _of_segment(found, wanted.segment)
    if wanted.node is not None:
        _require_node(chosen, wanted.node)
    return [_filtered(part, wanted) for part in chosen]


def _check(program: Program, path: str) -> None:
    march = MARCHES.get(program.march)
    try:
        check_streams(program, None if march is None else march.on_chip_bytes)
    except ValueError as err:
        msg = f"{path} has a command stream that is not sound: {err}\n  try: compile the model again"
        raise HbmFormatError(msg) from err


def _of_segment(found: list[Listed], segment: str | None) -> list[Listed]:
    if segment is None:
        return found
    names = {str(part.number): part for part in found} | {part.segment.name: part for part in found}
    chosen = names[pick("segment with commands", segment, names)]
    return [part for part in found if part.segment is chosen.segment]


def _require_node(found: list[Listed], node: str) -> None:
    """OptionError unless some instruction's source has `node` in its name."""
    names = list(dict.fromkeys(n for part in found for op in part.segment.instructions for n in op.loc))
    if not any(node in name for name in names):
        guess = nearest(node, names, limit=3)
        hint = guess or f"nodes are {some(names, 6)}"
        title = f"no node of these segments has {node!r} in its name"
        raise OptionError(UnknownName(kind="node", name=node, title=title, hint=hint))


def _filtered(part: Listed, wanted: Wanted) -> Listed:
    shown = tuple(i for i, c in enumerate(part.stream.commands) if wanted.takes(part.segment, c))
    return Listed(part.model, part.number, part.segment, part.stream, shown)


# ---- text


def lines(part: Listed) -> Iterator[str]:
    """The stream of a segment as text: a head, the commands with their tiles, and what lies where without commands."""
    stream = part.stream
    yield f"{part.title}: " + ", ".join(
        (
            plural(len(part.segment.instructions), "instruction"),
            plural(len(stream.commands), "command"),
            f"{human_bytes(stream.on_chip_bytes)} on chip",
            f"loads {human_bytes(stream.loaded_bytes)}",
            f"stores {human_bytes(stream.stored_bytes)}",
            f"scratch {human_bytes(stream.scratch_bytes)}",
        )
    )
    count = Counter(c.engine for c in stream.commands)
    yield "  " + ", ".join(f"{e.name} {count[e]}" for e in Engine if count[e])
    if len(part.shown) < len(stream.commands):
        yield f"  shown: {len(part.shown)} of {plural(len(stream.commands), 'command')}"
    yield ""
    for number in part.shown:
        yield from _command_lines(part, number)
    if len(part.shown) == len(stream.commands):
        yield from _tail(part)


def _command_lines(part: Listed, number: int) -> Iterator[str]:
    command = part.stream.commands[number]
    op = part.segment.instructions[command.instruction]
    node = shorten(" + ".join(op.loc), NAMES) or f"instruction {command.instruction}"
    facts = [f"{node} ({op.opcode.name.lower()})", *_work(command, command_cost(part.model, part.segment, command))]
    if command.waits:
        facts.append(f"after {', '.join(map(str, command.waits))}")
    yield f"{number:>5}  {command.engine.name:<6}  {'  '.join(facts)}"
    for word, tiles in (("reads", command.inputs), ("makes", command.outputs)):
        for tile in tiles:
            what = tile_text(part.model, tile, _role(op, tile.tensor))
            yield f"         {word}  {_place(tile):<8}  {human_bytes(tile.nbytes):>8}  {what}"


def _work(command: Command, cost: Cost) -> list[str]:
    if command.engine in {Engine.LOAD, Engine.STORE}:
        return [human_bytes(cost.ddr)]
    return [f"{human_count(cost.macs)} MACs"] if cost.macs else []


def _place(tile: Tile) -> str:
    return "in DDR" if tile.address == IN_DDR else f"0x{tile.address:06x}"


def tile_text(model: Model, tile: Tile, role: str = "") -> str:
    """`name 1x8x8x16`, or of a part `name [0:1, 0:4, 0:8, 0:16] of 1x8x8x16`; a nameless tensor goes by its role."""
    shape = model.tensors[tile.tensor].shape
    name = _name(model, tile.tensor, role)
    if tile.size == shape:
        return f"{name} {shape_text(shape)}"
    ranges = ", ".join(f"{lo}:{lo + n}" for lo, n in zip(tile.start, tile.size, strict=True))
    return f"{name} [{ranges}] of {shape_text(shape)}"


def _name(model: Model, tensor: int, role: str = "") -> str:
    name = model.tensors[tensor].name or role
    return f"%{tensor} {shorten(name, NAMES // 2)}" if name else f"%{tensor}"


def _role(op: Instruction, tensor: int) -> str:
    """What an instruction calls its operand: `weight`, `bias`."""
    names = [n.rstrip("?*") for n in op.operands]
    return next((n for n, i in zip(names, op.inputs, strict=False) if i == tensor), "")


def _tail(part: Listed) -> Iterator[str]:
    model, stream = part.model, part.stream
    if stream.views:
        yield "\nwithout commands, inside another tensor:"
        yield from (f"  {_name(model, v.tensor)} in {_name(model, v.of)} {_where(v)}" for v in stream.views)
    if stream.places:
        yield "\nin scratch memory in DDR:"
        yield from (f"  byte {p.offset:<9} {_name(model, p.tensor)}" for p in stream.places)


def _where(view: View) -> str:
    return "under another shape" if view.start is None else f"from [{', '.join(map(str, view.start))}]"


# ---- JSON


def as_json(part: Listed) -> dict[str, Any]:
    """The stream of a segment as JSON values."""
    stream = part.stream
    return {
        "segment": part.number,
        "name": part.segment.name,
        "model": part.model.name,
        "on_chip_bytes": stream.on_chip_bytes,
        "scratch_bytes": stream.scratch_bytes,
        "loaded_bytes": stream.loaded_bytes,
        "stored_bytes": stream.stored_bytes,
        "commands": [_command(part, n) for n in part.shown],
        "views": [
            {"tensor": v.tensor, "of": v.of, "start": None if v.start is None else list(v.start)} for v in stream.views
        ],
        "places": [{"tensor": p.tensor, "offset": p.offset} for p in stream.places],
    }


def _command(part: Listed, number: int) -> dict[str, Any]:
    command = part.stream.commands[number]
    op = part.segment.instructions[command.instruction]
    cost = command_cost(part.model, part.segment, command)
    return {
        "number": number,
        "engine": command.engine.name.lower(),
        "instruction": command.instruction,
        "opcode": op.opcode.name.lower(),
        "loc": list(op.loc),
        "inputs": [_tile(part.model, t) for t in command.inputs],
        "outputs": [_tile(part.model, t) for t in command.outputs],
        "waits": list(command.waits),
        "macs": cost.macs,
        "elements": cost.elements,
        "ddr_bytes": cost.ddr,
    }


def _tile(model: Model, tile: Tile) -> dict[str, Any]:
    return {
        "tensor": tile.tensor,
        "name": model.tensors[tile.tensor].name,
        "start": list(tile.start),
        "size": list(tile.size),
        "address": None if tile.address == IN_DDR else tile.address,
        "bytes": tile.nbytes,
    }
