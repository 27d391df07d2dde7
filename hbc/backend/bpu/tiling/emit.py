"""Steps → commands: tiles get addresses, loads and stores come in where something is not on chip or has to leave.

A step's result stays on chip while somebody reads it later and nobody needs its place more (which piece of memory is
given up is `memory.py`'s). So what a cascade of layers hands on never sees DDR, weights are loaded ahead as far as
there is room, and the overlap of two tiles is not loaded twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hbc_runtime.commands import IN_DDR, Command, Engine, Tile

from .boxes import Box, meets, sizes, starts, uncovered, volume, whole
from .clocks import Clocks
from .memory import Memory, Piece
from .steps import Context, Read, Step


class FullError(Exception):
    """The tiles of one step do not fit beside one another as memory is cut up now."""


@dataclass(frozen=True)
class Policy:
    """How commands are written.

    `serial`: one after another. `keeps`: tiles stay on chip from layer to layer. `store`: roots that go to DDR whatever
    happens; `eager`: steps whose result is stored as soon as it is made, because it is known to leave later.
    """

    serial: bool
    keeps: bool
    store: frozenset[int]
    eager: frozenset[int] = frozenset()


@dataclass
class Emitter:
    """Writes the commands of steps, given in order."""

    context: Context
    steps: Sequence[Step]
    policy: Policy
    on_chip: int
    align: int
    refuse: Callable[[Step], Exception]
    commands: list[Command] = field(default_factory=list)
    spilled: set[int] = field(default_factory=set)  # steps whose result had to leave

    def __post_init__(self) -> None:
        self.memory = Memory(self.on_chip)
        self.clocks = Clocks()
        self.pieces: dict[int, list[Piece]] = defaultdict(list)  # by root
        self.written: dict[int, list[tuple[Box, int]]] = defaultdict(
            list
        )  # by root: what DDR holds, since which command
        self.uses: dict[int, list[tuple[int, Box]]] = defaultdict(list)  # by root: which steps read what
        self.origin: dict[Piece, int] = {}  # the step that made a piece
        self.begun = [0, 0]  # the first command of the step before this one, and of this one
        for number, step in enumerate(self.steps):
            for read in step.reads:
                self.uses[read.root].append((number, read.box))
        self.cursor: dict[int, int] = defaultdict(int)

    def run(self) -> Emitter:
        """All steps."""
        for number, step in enumerate(self.steps):
            if not self.policy.keeps and number and self.steps[number - 1].index != step.index:
                self._leave_all()
            self.begun = [self.begun[1], len(self.commands)]
            if step.engine is Engine.HOST:
                self._host(step)
                continue
            try:
                self._step(number, step)
            except FullError:
                self._leave_all()
                self.memory.join()
                try:
                    self._step(number, step)
                except FullError:
                    raise self.refuse(step) from None
        return self

    # ---- one step

    def _step(self, number: int, step: Step) -> None:
        used = self._gather(number, step)
        box, tensor = step.box, step.tensor
        needs = [p.writer for p in used]
        out = self._place(number, tensor, box, step.root, step.root_box, needs)
        inputs = tuple(p.tile for p in used)
        command = self._add(step.engine, step.index, inputs, (out.tile,), needs)
        out.writer = command
        for piece in (*used, out):
            piece.touched[step.engine] = command
            piece.pinned = False
        self.origin[out] = number
        if step.root in self.policy.store or number in self.policy.eager:
            self._store(out, step.index)
        self._settle([*used, out], number)

    def _gather(self, number: int, step: Step) -> list[Piece]:
        """The pieces that a step reads, pinned; loaded where they are not on chip: constants first."""
        used: dict[Piece, None] = {}
        missing: list[Read] = []
        for read in step.reads:
            found = [p for p in self.pieces[read.root] if meets(p.box, read.box)]
            for piece in found:
                piece.pinned = True
                used[piece] = None
            missing += [Read(read.root, b, read.constant) for b in uncovered(read.box, [p.box for p in found])]
        for constant in (True, False):
            wanted = [r for r in missing if r.constant is constant]
            if wanted:
                used.update(dict.fromkeys(self._load(number, step, wanted)))
        return list(used)

    def _load(self, number: int, step: Step, wanted: list[Read]) -> list[Piece]:
        """One command that brings all of `wanted`."""
        needs: list[int] = []
        loaded: list[Piece] = []
        for read in dict.fromkeys(wanted):
            for box in uncovered(read.box, [p.box for p in loaded if p.root == read.root]):
                piece = self._place(number, read.root, box, read.root, box, needs)
                piece.constant, piece.stored = read.constant, True
                loaded.append(piece)
                needs += [c for b, c in self.written[read.root] if meets(b, box)]
        command = self._add(Engine.LOAD, step.index, (), tuple(p.tile for p in loaded), needs)
        for piece in loaded:
            piece.writer = piece.touched[Engine.LOAD] = command
        return loaded

    def _place(self, number: int, tensor: int, box: Box, root: int, root_box: Box, needs: list[int]) -> Piece:
        """A new pinned piece; `needs` gets the commands that must end before its memory may be written."""
        nbytes = volume(box) * self.context.model.tensors[tensor].dtype.size
        room = -(-nbytes // self.align) * self.align
        found = self.memory.find(room, number, self.begun[0])
        if found is None:
            raise FullError
        address, leaving = found
        for piece in leaving:
            self._leave(piece)
        tile = Tile(tensor, starts(box), sizes(box), address, nbytes)
        piece = Piece(tile, root, root_box, room, -1, [-1] * len(Engine), pinned=True)
        needs += [c for c in self.memory.put(piece) if c >= 0]
        self.pieces[root].append(piece)
        return piece

    def _settle(self, pieces: list[Piece], number: int) -> None:
        """Let go of what nobody reads any more."""
        for piece in dict.fromkeys(pieces):
            piece.next = self._next_use(piece, number)
            if piece.next is None:
                self._drop(piece)

    def _next_use(self, piece: Piece, number: int) -> int | None:
        """The next step that reads it; without `keeps` within the same instruction."""
        uses = self.uses[piece.root]
        at = self.cursor[piece.root]
        while at < len(uses) and uses[at][0] <= number:
            at += 1
        self.cursor[piece.root] = at
        found = next((n for n, box in uses[at:] if meets(box, piece.box)), None)
        if found is None or self.policy.keeps or self.steps[found].index == self.steps[number].index:
            return found
        return None

    # ---- leaving

    def _leave_all(self) -> None:
        for piece in self.memory.pieces:
            piece.pinned = False
            self._leave(piece)

    def _leave(self, piece: Piece) -> None:
        """Give up a piece, stored where DDR has it not and somebody reads it later."""
        if not piece.stored and piece.next is not None:
            origin = self.origin[piece]
            self.spilled.add(origin)
            self._store(piece, self.steps[origin].index)
        self._drop(piece)

    def _drop(self, piece: Piece) -> None:
        self.memory.free(piece)
        self.pieces[piece.root].remove(piece)
        self.origin.pop(piece, None)

    def _store(self, piece: Piece, index: int) -> None:
        command = self._add(Engine.STORE, index, (piece.tile,), (), [piece.writer])
        piece.touched[Engine.STORE] = command
        piece.stored = True
        self.written[piece.root].append((piece.box, command))

    # ---- commands

    def _host(self, step: Step) -> None:
        """A step of the host: whole tensors, from DDR to DDR."""
        op = self.context.op(step.index)
        model = self.context.model
        tensors = dict.fromkeys(i for i in op.inputs if i >= 0)
        inputs = [_in_ddr(i, model.tensors[i].shape, model.tensors[i].nbytes) for i in tensors]
        needs = [c for r in step.reads for b, c in self.written[r.root] if meets(b, r.box)]
        y = model.tensors[step.tensor]
        outputs = (_in_ddr(step.tensor, y.shape, y.nbytes),)
        command = self._add(Engine.HOST, step.index, tuple(inputs), outputs, needs)
        self.written[step.root].append((step.root_box, command))

    def _add(
        self, engine: Engine, index: int, inputs: tuple[Tile, ...], outputs: tuple[Tile, ...], needs: list[int]
    ) -> int:
        if self.policy.serial and self.commands:
            needs = [*needs, len(self.commands) - 1]
        waits = self.clocks.add(engine, needs)
        self.commands.append(Command(engine, index, inputs, outputs, waits))
        return len(self.commands) - 1


def _in_ddr(tensor: int, shape: tuple[int, ...], nbytes: int) -> Tile:
    return Tile(tensor, starts(whole(shape)), shape, IN_DDR, nbytes)
