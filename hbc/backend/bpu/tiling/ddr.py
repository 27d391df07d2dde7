"""Where in DDR the tensors lie that only this segment knows, and who has to wait because bytes are used again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hbc_runtime.commands import Command, Engine, Place
from hbc_runtime.program import ALIGN, Storage

from .boxes import whole
from .steps import Context


@dataclass
class _Life:
    """What the commands do to a root in DDR."""

    first: int  # the first command that touches it
    last: dict[Engine, int] = field(default_factory=dict)  # per engine the last one that does
    writers: dict[Engine, int] = field(default_factory=dict)  # per engine the first one that writes it

    def touch(self, number: int, engine: Engine, *, writes: bool) -> None:
        """Another command."""
        self.last[engine] = number
        if writes:
            self.writers.setdefault(engine, number)

    @property
    def end(self) -> int:
        """The last command that touches it."""
        return max(self.last.values())


@dataclass(frozen=True)
class Ddr:
    """Places in the scratch memory, its size, and the commands with what they have to wait for besides."""

    places: tuple[Place, ...]
    size: int
    commands: tuple[Command, ...]


def place_in_ddr(context: Context, commands: list[Command]) -> Ddr:
    """Places for all that goes to DDR and has none: the first that is free while it lives, large tensors first."""
    lives = _lives(context, commands)
    fixed = context.views.fixed
    free = sorted((r for r in lives if r not in fixed), key=lambda r: (-context.model.tensors[r].nbytes, r))
    offsets: dict[int, int] = {}
    for root in free:
        others = [r for r in offsets if lives[r].first <= lives[root].end and lives[root].first <= lives[r].end]
        taken = sorted((offsets[r], offsets[r] + _room(context, r)) for r in others)
        offsets[root] = _gap(taken, _room(context, root))
    size = max((offsets[r] + _room(context, r) for r in offsets), default=0)
    waits = _hazards(context, lives, offsets)
    done = tuple(
        replace(c, waits=tuple(sorted({*c.waits, *waits[i]}))) if i in waits else c for i, c in enumerate(commands)
    )
    return Ddr(tuple(Place(r, offsets[r]) for r in sorted(offsets)), size, done)


def _lives(context: Context, commands: Iterable[Command]) -> dict[int, _Life]:
    lives: dict[int, _Life] = {}
    for number, c in enumerate(commands):
        if c.engine not in {Engine.LOAD, Engine.STORE, Engine.HOST}:
            continue
        for tiles, writes in ((c.inputs, c.engine is Engine.STORE), (c.outputs, c.engine is Engine.HOST)):
            for tile in tiles:
                root, _ = context.views.root(tile.tensor, whole(context.model.tensors[tile.tensor].shape))
                if context.model.tensors[root].storage is not Storage.CONSTANT:
                    lives.setdefault(root, _Life(number)).touch(number, c.engine, writes=writes)
    return lives


def _room(context: Context, root: int) -> int:
    return -(-context.model.tensors[root].nbytes // ALIGN) * ALIGN


def _gap(taken: list[tuple[int, int]], room: int) -> int:
    """The first offset at which `room` bytes are free."""
    at = 0
    for begin, end in taken:
        if begin - at >= room:
            break
        at = max(at, end)
    return at


def _hazards(context: Context, lives: Mapping[int, _Life], offsets: Mapping[int, int]) -> dict[int, set[int]]:
    """Command → others that must have ended, because they touch what lay in the same bytes before."""
    waits: dict[int, set[int]] = defaultdict(set)
    spans: dict[object, list[tuple[int, int, int]]] = defaultdict(list)
    for root in lives:
        t = context.model.tensors[root]
        buffer: object = "scratch" if root in offsets else (t.storage, t.index)
        begin = offsets.get(root, t.offset)
        spans[buffer].append((begin, begin + t.nbytes, root))
    for rows in spans.values():
        rows.sort(key=lambda row: lives[row[2]].first)
        for i, (begin, end, root) in enumerate(rows):
            for low, high, other in rows[:i]:
                if low < end and begin < high:
                    for engine, writer in lives[root].writers.items():
                        waits[writer].update(n for e, n in lives[other].last.items() if e is not engine and n < writer)
    return waits


__all__ = ["Ddr", "place_in_ddr"]
