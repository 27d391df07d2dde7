"""An independent checker of command streams: replays who holds which bytes, and shares no code with the tiler.

What it proves of a stream, in whatever order the engines run its commands as far as `waits` allow: every tile is loaded
or made before it is read, holds what it was given while somebody reads it, and lies inside the on-chip memory; each
command finds all that it needs; each element of each result is made exactly once; DDR is written before it is read, and
not overwritten before it was; at the end it holds all that others read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from .. import isa
from ..commands import IN_DDR, Command, CommandStream, Engine, Tile, engine_of
from ..program import BpuSegment, Model, Storage
from ..types import DType
from .needs import Spans, full, needs
from .views import Roots

ENGINES = len(Engine)
MOST_STEPS = 1 << 25  # comparisons; what compilers write takes a thousandth, and a forged file must not hang a reader
MOST_CELLS = 1 << 24


@dataclass
class _Held:
    """Bytes on chip: the tile that they hold, who wrote it, and who read it.

    Where a part of a tile is overwritten, the rest holds no tile any more, but whoever used it may still be at it.
    """

    begin: int
    end: int
    tile: Tile | None
    writer: int
    readers: list[int] = field(default_factory=list)
    name: str = ""


@dataclass
class _Home:
    """A root in DDR: which bytes, who wrote which part, who touched it; `lost_to` is the root that overwrote it."""

    buffer: tuple[str, int]
    begin: int
    end: int
    given: bool  # whole from the start
    written: list[tuple[Spans, int]] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    lost_to: int | None = None


def check_commands(model: Model, number: int, limit: int | None = None) -> None:
    """Raise ValueError, naming the command, unless the stream of segment `number` is sound. No stream is.

    `limit`: bytes of on-chip memory that the march has. Expects a model that passed `hbm.checks`.
    """
    segment = model.segments[number]
    if not isinstance(segment, BpuSegment) or segment.commands is None:
        return
    stream = segment.commands
    if limit is not None and stream.on_chip_bytes > limit:
        msg = f"the stream takes {stream.on_chip_bytes} bytes of on-chip memory, the march has {limit}"
        raise ValueError(msg)
    _Check(model, segment, stream).run()


class _Check:
    def __init__(self, model: Model, segment: BpuSegment, stream: CommandStream) -> None:
        self.model, self.segment, self.stream = model, segment, stream
        self.roots = Roots(model, stream)
        self.ended: list[list[int]] = []  # per command and engine: the last command that has ended when it has
        self.begun: list[list[int]] = []  # … when it begins
        self.last = [-1] * ENGINES
        self.held: dict[int, _Held] = {}  # on chip, by address
        self.addresses: list[int] = []  # theirs, ascending
        self.steps = 0
        self.homes: dict[int, _Home] = {}
        self.places = {p.tensor: p.offset for p in stream.places}
        self.made: dict[int, list[Spans]] = defaultdict(list)  # per root: boxes that commands make
        self.by_instruction: dict[int, list[Spans]] = defaultdict(list)  # in the result's own positions
        self.where = "the stream"

    def run(self) -> None:
        self._check_places()
        for number, command in enumerate(self.stream.commands):
            self.where = f"command {number} ({Engine(command.engine).name} for instruction {command.instruction})"
            self._order(number, command)
            self._tiles(command)
            self._execute(number, command)
        self.where = "the stream"
        self._check_results()
        self._check_end()

    def _fail(self, what: str) -> NoReturn:
        msg = f"{self.where}: {what}"
        raise ValueError(msg)

    def _spend(self, steps: int) -> None:
        """Count comparisons. ValueError where the stream takes too many."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            self._fail(f"checking the stream takes more than {MOST_STEPS} comparisons")

    def _name(self, tensor: int) -> str:
        return f"{self.model.tensors[tensor].name!r} (tensor {tensor})"

    # ---- order

    def _order(self, number: int, command: Command) -> None:
        """What has ended when the command begins: what it waits for, what its engine did, and all that these imply."""
        own = self.last[command.engine]
        known = list(self.ended[own]) if own >= 0 else [-1] * ENGINES
        for wait in command.waits:
            if not 0 <= wait < number:
                self._fail(f"it waits for command {wait}")
            known = [max(pair) for pair in zip(known, self.ended[wait], strict=True)]
        self.begun.append(known)
        ended = list(known)
        ended[command.engine] = number
        self.ended.append(ended)
        self.last[command.engine] = number

    def _after(self, first: int, second: int) -> bool:
        """True where `first` has ended for certain when `second` begins."""
        return self.begun[second][self.stream.commands[first].engine] >= first

    # ---- form

    def _tiles(self, c: Command) -> None:
        if not 0 <= c.instruction < len(self.segment.instructions):
            self._fail("there is no such instruction")
        op = self.segment.instructions[c.instruction]
        if c.engine in {Engine.LOAD, Engine.STORE}:
            here, other = (c.outputs, c.inputs) if c.engine is Engine.LOAD else (c.inputs, c.outputs)
            if not here or other:
                self._fail("it moves no tiles, or has some on both sides")
        elif engine_of(op, self._dtypes(op)) is not c.engine:
            self._fail(f"{op.opcode.name} is no work for this engine")
        for tile in (*c.inputs, *c.outputs):
            self._tile(tile, in_ddr=c.engine is Engine.HOST)

    def _dtypes(self, op: isa.Instruction) -> Iterator[DType]:
        return (self.model.tensors[i].dtype for i in (*op.inputs[:1], *op.outputs) if i >= 0)

    def _tile(self, tile: Tile, *, in_ddr: bool) -> None:
        if not 0 <= tile.tensor < len(self.model.tensors):
            self._fail(f"there is no tensor {tile.tensor}")
        t = self.model.tensors[tile.tensor]
        fits = len(tile.start) == len(tile.size) == len(t.shape) and all(
            lo >= 0 and n >= 1 and lo + n <= d for lo, n, d in zip(tile.start, tile.size, t.shape, strict=True)
        )
        if not fits or tile.nbytes != math.prod(tile.size) * t.dtype.size:
            self._fail(f"{tile.start} + {tile.size} of {tile.nbytes} bytes is no tile of {self._name(tile.tensor)}")
        if in_ddr != (tile.address == IN_DDR):
            self._fail(f"its tile of {self._name(tile.tensor)} is on the wrong side of the on-chip memory")
        end = tile.address + tile.nbytes
        if not in_ddr and (tile.address < 0 or tile.address % t.dtype.size or end > self.stream.on_chip_bytes):
            self._fail(f"bytes {tile.address} to {end} are outside the on-chip memory, or not aligned")

    # ---- one command

    def _execute(self, number: int, c: Command) -> None:
        if c.engine is Engine.HOST:
            self._host(number, c)
            return
        for tile in c.inputs:
            self._read(number, tile)
        if c.engine is Engine.LOAD:
            for tile in c.outputs:
                self._load(number, tile)
        elif c.engine is Engine.STORE:
            for tile in c.inputs:
                self._write_home(number, tile.tensor, _spans(tile))
        else:
            self._compute(c)
        for tile in c.outputs:
            self._write(number, tile)

    def _read(self, number: int, tile: Tile) -> None:
        """A tile that is on chip, written by someone who has ended."""
        held = self.held.get(tile.address)
        if held is None or held.tile != tile:
            self._fail(f"it reads {self._text(tile)}, which is not on chip")
        if not self._after(held.writer, number):
            self._fail(f"it does not wait for command {held.writer}, which writes {self._text(tile)}")
        held.readers.append(number)

    def _write(self, number: int, tile: Tile) -> None:
        """A tile in memory that nobody uses any more. Whatever lay there is gone."""
        begin, end = tile.address, tile.address + tile.nbytes
        first = bisect_left(self.addresses, begin)
        if first and self.held[self.addresses[first - 1]].end > begin:
            first -= 1
        last = bisect_left(self.addresses, end)
        rest = [_Held(begin, end, tile, number, name=self._text(tile))]
        for held in [self.held.pop(a) for a in self.addresses[first:last]]:
            if held.writer == number:
                self._fail(f"two of its results overlap: {self._text(tile)}, {held.name}")
            self._spend(1 + len(held.readers))
            for other in (held.writer, *held.readers):
                if other == number or not self._after(other, number):
                    self._fail(f"it overwrites {held.name}, which command {other} may still be using")
            if held.begin < begin:
                rest.insert(0, replace(held, end=begin, tile=None))
            if end < held.end:
                rest.append(replace(held, begin=end, tile=None))
        self.addresses[first:last] = [r.begin for r in rest]
        self.held.update((r.begin, r) for r in rest)

    def _text(self, tile: Tile) -> str:
        return f"{self._name(tile.tensor)} from {tile.start} at byte {tile.address}"

    def _compute(self, c: Command) -> None:
        op = self.segment.instructions[c.instruction]
        if len(c.outputs) != 1 or c.outputs[0].tensor != op.outputs[0]:
            self._fail("it does not make one tile of the instruction's result")
        box = _spans(c.outputs[0])
        self._makes(c.instruction, op.outputs[0], box)
        pieces: dict[int, list[Spans]] = defaultdict(list)
        self._spend(len(c.inputs) * (1 + len(op.inputs)))
        for tile in c.inputs:
            pieces[self.roots.root(tile.tensor)].append(self._in_root(tile.tensor, _spans(tile)))
        try:
            read = needs(self.model, op, box)
        except ValueError as err:
            self._fail(str(err))
        wanted = {self.roots.root(i) for i in op.inputs if i >= 0}
        if not pieces.keys() <= wanted:
            self._fail(f"it reads {self._name((pieces.keys() - wanted).pop())}, which the instruction does not")
        for tensor, spans in zip(op.inputs, read, strict=True):
            if spans is not None and all(lo < hi for lo, hi in spans):
                root = self.roots.root(tensor)
                if not covers(pieces[root], self.roots.locate(tensor, spans)):
                    self._fail(f"its tiles do not hold all that it needs of {self._name(tensor)}: {spans}")

    def _in_root(self, tensor: int, box: Spans) -> Spans:
        """Where a tile lies in the root; through a reshape none does."""
        if self.roots.offset(tensor) is None:
            self._fail(f"a tile of {self._name(tensor)}, which is another tensor under a new shape")
        return self.roots.locate(tensor, box)

    def _makes(self, index: int, tensor: int, box: Spans) -> None:
        self.by_instruction[index].append(box)
        self.made[self.roots.root(tensor)].append(self._in_root(tensor, box))

    def _host(self, number: int, c: Command) -> None:
        op = self.segment.instructions[c.instruction]
        if {t.tensor for t in c.inputs} != {i for i in op.inputs if i >= 0} or [t.tensor for t in c.outputs] != list(
            op.outputs
        ):
            self._fail("its tiles are not the instruction's operands and results")
        for tile in (*c.inputs, *c.outputs):
            if tile.size != self.model.tensors[tile.tensor].shape:
                self._fail(f"the host takes {self._name(tile.tensor)} whole")
        for tile in c.inputs:
            self._read_home(number, tile.tensor, _spans(tile))
        for tile in c.outputs:
            self._makes(c.instruction, tile.tensor, _spans(tile))
            self._write_home(number, tile.tensor, _spans(tile))

    # ---- DDR

    def _load(self, number: int, tile: Tile) -> None:
        self._in_root(tile.tensor, _spans(tile))
        self._read_home(number, tile.tensor, _spans(tile))

    def _read_home(self, number: int, tensor: int, box: Spans) -> None:
        home = self._home(self.roots.root(tensor))
        box = self.roots.locate(tensor, box)
        if home.lost_to is not None:
            self._fail(f"it reads {self._name(tensor)} from DDR, which {self._name(home.lost_to)} has overwritten")
        home.touched.append(number)
        if home.given:
            return
        self._spend(len(home.written))
        before = [b for b, writer in home.written if self._after(writer, number)]
        if not covers(before, box):
            self._fail(f"it reads {self._name(tensor)} from DDR before all of it is there")

    def _write_home(self, number: int, tensor: int, box: Spans) -> None:
        root = self.roots.root(tensor)
        home = self._home(root)
        if home.buffer[0] in {"INPUT", "CONSTANT"} or (home.given and not home.written):
            self._fail(f"it writes {self._name(tensor)}, which is given")
        self._spend(len(self.homes))
        for other, found in list(self.homes.items()):
            if other == root or found.buffer != home.buffer or found.end <= home.begin or home.end <= found.begin:
                continue
            self._spend(len(found.touched))
            for user in found.touched:
                if not self._after(user, number):
                    self._fail(f"in DDR it overwrites {self._name(other)}, which command {user} may still be using")
            found.lost_to = root
        home.written.append((self._in_root(tensor, box), number))
        home.touched.append(number)
        home.lost_to = None

    def _home(self, root: int) -> _Home:
        if root not in self.homes:
            t = self.model.tensors[root]
            fixed = root in self._fixed
            if fixed == (root in self.places):
                self._fail(f"{self._name(root)} has {'two places' if fixed else 'no place'} in DDR")
            begin = t.offset if fixed else self.places[root]
            buffer = (t.storage.name, t.index) if fixed else ("scratch", 0)
            given = fixed and root not in self._written_here
            self.homes[root] = _Home(buffer, begin, begin + t.nbytes, given)
        return self.homes[root]

    def _check_places(self) -> None:
        model = self.model
        outputs = {i for op in self.segment.instructions for i in op.outputs}
        self._written_here = {i for i in outputs if self.roots.root(i) == i}
        self._others = _of_others(model, self.segment)
        self._fixed = {self.roots.root(i) for i in self._others} | {
            i for i, t in enumerate(model.tensors) if t.storage is Storage.CONSTANT
        }
        if len({p.tensor for p in self.stream.places}) < len(self.stream.places):
            self._fail("a tensor has two places")
        for place in self.stream.places:
            if not 0 <= place.tensor < len(model.tensors) or model.tensors[place.tensor].is_dynamic:
                self._fail(f"a place for tensor {place.tensor}, which there is not, or whose size is open")
            end = place.offset + model.tensors[place.tensor].nbytes
            if place.offset < 0 or place.offset % 8 or end > self.stream.scratch_bytes:
                self._fail(f"the place of {self._name(place.tensor)} is outside the scratch memory, or not aligned")
        for i in self._others:
            root = self.roots.root(i)
            a, b = model.tensors[i], model.tensors[root]
            apart = (a.storage, a.index, a.offset, a.nbytes) != (b.storage, b.index, b.offset, b.nbytes)
            if root != i and apart:
                self._fail(f"others read {self._name(i)} where no command writes it")
        for root in self._fixed:
            if model.tensors[root].storage is not Storage.CONSTANT and root not in self._written_here:
                self._home(root)  # it holds what came before, until somebody writes there

    # ---- the end

    def _check_results(self) -> None:
        """Every element of every result is made once: by a command of its instruction, or by a view."""
        for root, boxes in self.made.items():
            if overlap(boxes):
                self._fail(f"a part of {self._name(root)} is made twice")
        used = {v.tensor for v in self.stream.views}
        for index, op in enumerate(self.segment.instructions):
            viewed = list(self._viewed(op, used))
            boxes = [*self.by_instruction[index], *viewed]
            shape = self.model.tensors[op.outputs[0]].shape
            if math.prod(shape) and (overlap(boxes) or sum(map(_volume, boxes)) != math.prod(shape)):
                self._fail(f"instruction {index} ({op.opcode.name}): its result is not made exactly once")
        if used:
            self._fail(f"{self._name(used.pop())} lies in another tensor, and no instruction says so")

    def _viewed(self, op: isa.Instruction, used: set[int]) -> Iterator[Spans]:
        """The parts of the result that views make; what explains a view is taken out of `used`."""
        y = op.outputs[0]
        view = self.roots.views.get(y)
        if isinstance(op, isa.Reshape) and view is not None and view.of == op.inputs[0] and view.start is None:
            used.discard(y)
            yield full(self.model.tensors[y].shape)
        elif isinstance(op, isa.Slice) and view is not None and view.of == op.inputs[0] and view.start == op.starts:
            if all(s == 1 for s in op.steps):
                used.discard(y)
                yield full(self.model.tensors[y].shape)
        elif isinstance(op, isa.Concat):
            yield from self._joined(op, used)

    def _joined(self, op: isa.Concat, used: set[int]) -> Iterator[Spans]:
        y, at = op.outputs[0], 0
        for x in op.inputs:
            shape = self.model.tensors[x].shape
            box = tuple((at, at + d) if i == op.axis else (0, d) for i, d in enumerate(shape))
            at += shape[op.axis]
            same = self.roots.root(x) == self.roots.root(y) and None not in {self.roots.offset(x), self.roots.offset(y)}
            if x != y and same and self.roots.whole(x) == self.roots.locate(y, box):
                used -= self._way(x, y)
                yield box

    def _way(self, x: int, y: int) -> set[int]:
        """The views from `x` to `y`."""
        found: set[int] = set()
        while x != y and (view := self.roots.views.get(x)) is not None:
            found.add(x)
            x = view.of
        return found

    def _check_end(self) -> None:
        for i in sorted(self._others):
            root = self.roots.root(i)
            if root not in self._written_here:
                continue
            home = self._home(root)
            if home.lost_to is not None:
                self._fail(f"{self._name(i)} is overwritten by {self._name(home.lost_to)} at the end")
            if math.prod(self.model.tensors[i].shape) and not covers([b for b, _ in home.written], self.roots.whole(i)):
                self._fail(f"{self._name(i)} is not all in DDR at the end")


def _of_others(model: Model, segment: BpuSegment) -> set[int]:
    """Tensors that somebody outside of the segment places: inputs, outputs, and what other segments read or write."""
    found = {i for i, t in enumerate(model.tensors) if t.storage in {Storage.INPUT, Storage.OUTPUT}}
    for other in model.segments:
        if isinstance(other, BpuSegment):
            if other is not segment:
                found.update(i for op in other.instructions for i in (*op.inputs, *op.outputs) if i >= 0)
        else:
            found.update((*other.inputs, *other.outputs))
    mine = {i for op in segment.instructions for i in (*op.inputs, *op.outputs) if i >= 0}
    return {i for i in found & mine if model.tensors[i].storage is not Storage.CONSTANT}


def _spans(tile: Tile) -> Spans:
    return tuple((s, s + d) for s, d in zip(tile.start, tile.size, strict=True))


def _volume(box: Spans) -> int:
    return math.prod(hi - lo for lo, hi in box)


def covers(pieces: Sequence[Spans], box: Spans) -> bool:
    """True where each element of `box` is in one of `pieces`: their borders cut it into cells to look at."""
    near = [p for p in pieces if all(a < hi and lo < b for (a, b), (lo, hi) in zip(p, box, strict=True))]
    if any(all(a <= lo and hi <= b for (a, b), (lo, hi) in zip(p, box, strict=True)) for p in near):
        return True
    if not near:
        return False
    cuts = [sorted({lo, hi, *(min(max(e, lo), hi) for p in near for e in p[k])}) for k, (lo, hi) in enumerate(box)]
    if math.prod(len(c) - 1 for c in cuts) > MOST_CELLS:
        msg = f"a read of {len(near)} tiles, which cut one another into more than {MOST_CELLS} cells"
        raise ValueError(msg)
    places = [{at: n for n, at in enumerate(c)} for c in cuts]
    cells = np.zeros([len(c) - 1 for c in cuts], bool)
    for p in near:
        span = [(max(a, lo), min(b, hi)) for (a, b), (lo, hi) in zip(p, box, strict=True)]
        cells[tuple(slice(places[k][a], places[k][b]) for k, (a, b) in enumerate(span))] = True
    return bool(cells.all())


def overlap(boxes: Sequence[Spans]) -> bool:
    """True where two boxes share an element."""
    if len(boxes) < 2 or not boxes[0]:
        return len(boxes) > 1
    array = np.array(boxes, np.int64)
    axis = int(np.argmax([len(np.unique(array[:, k, 0])) for k in range(array.shape[1])]))
    array = array[np.argsort(array[:, axis, 0], kind="stable")]
    behind = np.searchsorted(array[:, axis, 0], array[:, axis, 1])  # whoever begins later shares nothing
    for i in range(len(array) - 1):
        rest = array[i + 1 : behind[i]]
        if ((rest[:, :, 0] < array[i, :, 1]) & (array[i, :, 0] < rest[:, :, 1])).all(axis=1).any():
            return True
    return False
