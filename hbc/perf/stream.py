"""A replay of command streams: engines side by side, one DDR between loads and stores, tiles alive on chip.

What the tiler would have the engines do, tile by tile, at a board's rates. Latency is estimated layer by layer all the
same (`simulate.py`): against published figures the replay does worse, as docs/perf.md says with numbers. It shows what
that estimate cannot: what overlaps, what is spilled, and how full the on-chip memory is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hbc.backend.bpu.tiling import tile_program
from hbc_runtime.commands import IN_DDR, Command, CommandStream, Engine, Tile
from hbc_runtime.program import BpuSegment, Model, Program

from .boards import Board
from .simulate import CPU_TABLES, cycles
from .work import Border, Work, border_of, work_of

ENGINES = len(Engine)
MERGED = 1e-4  # of the run: commands of one engine and one layer that are closer than this are shown as one


@dataclass(frozen=True)
class Ran:
    """One command, or several of one engine and one layer in a row: from `start` to `end` in microseconds."""

    engine: str
    layer: str
    start: float
    end: float
    count: int = 1


@dataclass(frozen=True)
class Replay:
    """A run of a model's command streams.

    `memory`: (microseconds, bytes of tiles alive on chip from then on). `on_chip_bytes`: the highest byte that any tile
    takes. `loaded`, `stored`: bytes over DDR, spills and second loads among them.
    """

    commands: int
    ran: tuple[Ran, ...]
    memory: tuple[tuple[float, int], ...]
    on_chip_bytes: int
    loaded: int
    stored: int
    end: float

    def busy(self) -> dict[str, float]:
        """The share of the run in which each engine works."""
        found: dict[str, float] = {}
        for r in self.ran:
            found[r.engine] = found.get(r.engine, 0.0) + r.end - r.start
        return {engine: us / max(self.end, 1e-9) for engine, us in found.items()}


@dataclass(frozen=True)
class _Timed:
    """A command with its times."""

    command: Command
    layer: str
    start: float
    end: float


def with_streams(program: Program) -> Program:
    """`program`, tiled where a segment has no command stream yet. EmitError where an instruction cannot be tiled."""
    segments = (s for m in program.models for s in m.segments if isinstance(s, BpuSegment))
    return program if all(s.commands is not None for s in segments) else tile_program(program)


def replay(program: Program, board: Board, *, nv12: bool = False) -> Replay:
    """The first model's streams, one segment after another. EmitError where an instruction cannot be tiled."""
    model = with_streams(program).models[0]
    border = border_of(model, board.spec, nv12=nv12)
    timed: list[_Timed] = []
    streams: list[CommandStream] = []
    now = 0.0
    for segment in model.segments:
        if isinstance(segment, BpuSegment) and segment.commands is not None:
            made = list(_run(model, segment, segment.commands, board, border, now))
            now = max([now, *(t.end for t in made)])
            timed += made
            streams.append(segment.commands)
    return Replay(
        commands=len(timed),
        ran=tuple(_merged(timed, now)),
        memory=tuple(_memory(timed)),
        on_chip_bytes=max((s.on_chip_bytes for s in streams), default=0),
        loaded=sum(s.loaded_bytes for s in streams),
        stored=sum(s.stored_bytes for s in streams),
        end=now,
    )


def _run(
    model: Model, segment: BpuSegment, stream: CommandStream, board: Board, border: Border, begin: float
) -> Iterator[_Timed]:
    """Every command as early as its engine, what it waits for, and DDR allow."""
    works = [work_of(model, op, board.spec, border) for op in segment.instructions]
    free, bus = [begin] * ENGINES, begin
    ends: list[float] = []
    met: set[int] = set()
    for c in stream.commands:
        start = max([free[c.engine], *(ends[w] for w in c.waits)])
        work = works[c.instruction]
        if c.engine in {Engine.LOAD, Engine.STORE}:
            start = max(start, bus)  # loads and stores share DDR
            bus = end = start + c.ddr_bytes / board.rates.ddr
        else:
            end = start + (_microseconds(model, c, work, board, first=c.instruction not in met) if work else 0.0)
            met.add(c.instruction)
        free[c.engine] = end
        ends.append(end)
        op = segment.instructions[c.instruction]
        yield _Timed(c, work.layer if work else (op.loc[0] if op.loc else op.opcode.name.lower()), start, end)


def _microseconds(model: Model, c: Command, work: Work, board: Board, *, first: bool) -> float:
    """What a command computes, as its share of the instruction's result; an instruction's overhead counts once."""
    if work.engine is Engine.HOST or c.engine is Engine.HOST:
        return work.elements * board.cpu / 1e3 if work.kind in CPU_TABLES else 0.0
    whole = max(1, model.tensors[c.outputs[0].tensor].elements)
    share = sum(t.elements for t in c.outputs) / whole
    part = replace(
        work, padded_macs=round(work.padded_macs * share), feature_bytes=round(work.feature_bytes * share),
        elements=round(work.elements * share),
    )  # fmt: skip
    return (cycles(part, board) + (board.rates.command if first else 0.0)) / board.spec.clock_mhz


def _merged(timed: Iterable[_Timed], end: float) -> Iterator[Ran]:
    """The commands as they are shown: neighbours of one engine and layer joined."""
    last: dict[Engine, Ran] = {}
    for t in timed:
        engine = t.command.engine
        before = last.get(engine)
        if before is not None and before.layer == t.layer and t.start - before.end <= MERGED * end:
            last[engine] = replace(before, end=t.end, count=before.count + 1)
            continue
        if before is not None:
            yield before
        last[engine] = Ran(engine.name.lower(), t.layer, t.start, t.end)
    yield from last.values()


def _memory(timed: Iterable[_Timed]) -> Iterator[tuple[float, int]]:
    """Bytes of tiles that are written and still to be read, whenever that changes."""
    alive: dict[Tile, list[float]] = {}
    lives: list[tuple[float, float, int]] = []
    for t in timed:
        for tile in t.command.inputs:
            if tile in alive:
                alive[tile][1] = max(alive[tile][1], t.end)
        for tile in t.command.outputs:
            if tile.address != IN_DDR:
                if tile in alive:
                    lives.append((*alive[tile], tile.nbytes))  # type: ignore[arg-type] # two numbers
                alive[tile] = [t.start, t.end]
    lives += [(start, end, tile.nbytes) for tile, (start, end) in alive.items()]
    changes = sorted([(start, size) for start, _, size in lives] + [(end, -size) for _, end, size in lives])
    now = 0
    for i, (at, change) in enumerate(changes):
        now += change
        if i + 1 == len(changes) or changes[i + 1][0] > at:
            yield at, now


def sampled(memory: Iterable[tuple[float, int]], end: float, count: int) -> list[int]:
    """The most bytes alive in each of `count` equal intervals of the run."""
    found = [0] * count
    at, alive = 0, 0
    for when, after in memory:
        upto = min(count - 1, int(when / max(end, 1e-9) * count))
        for i in range(at, upto + 1):
            found[i] = max(found[i], alive)
        at, alive = upto, after
        found[upto] = max(found[upto], after)
    for i in range(at, count):
        found[i] = max(found[i], alive)
    return found
