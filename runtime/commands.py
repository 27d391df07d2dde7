"""`CommandStream`: what the engines of a BPU do for one segment, tile by tile. Frozen, plain values.

The machine behind it is a model, as the vendor's is not public (docs/commands.md): engines that work side by side, one
on-chip memory that all of them read and write, and DDR, which LOAD and STORE alone reach.

Order: each engine takes its commands in the order of the stream and begins one when its previous one has ended. Across
engines nothing is ordered but by `waits`. A command reads all of its inputs before it writes its first output.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import isa
from .types import DType

IN_DDR = -1  # the address of a tile that is not on chip: where its tensor lies is said by the model or by a Place


class Engine(enum.IntEnum):
    """Who executes a command. The numbers are the container's; never renumber."""

    LOAD = 0  # DDR → on-chip memory: `outputs`, one dense tile after another; nothing in `inputs`
    STORE = 1  # on-chip memory → DDR: `inputs`; nothing in `outputs`
    TENSOR = 2  # sums of products: convolutions, matrix products
    VECTOR = 3  # elementwise arithmetic, comparisons, reductions
    POOL = 4  # pooling, resizing, warping
    LUT = 5  # tables
    MOVE = 6  # transposes, concatenations, and other moves inside the on-chip memory
    HOST = 7  # what computes with reals: the host's CPU (or a DSP), from DDR to DDR, whole tensors at once


_TENSOR = (isa.Conv2d, isa.ConvTranspose2d, isa.Matmul)
_POOL = (isa.MaxPool, isa.AvgPool, isa.ResizeNearest, isa.ResizeBilinear, isa.GridSample)
_LUT = (isa.Lut, isa.SegmentLut)
_MOVE = (isa.Concat, isa.Slice, isa.Pad, isa.Transpose, isa.Reshape, isa.Gather, isa.Expand)
_HOST = (isa.Quantize, isa.Dequantize)
_KINDS = ((_TENSOR, Engine.TENSOR), (_POOL, Engine.POOL), (_LUT, Engine.LUT), (_MOVE, Engine.MOVE))


def engine_of(op: isa.Instruction, dtypes: Iterable[DType]) -> Engine:
    """Who executes `op`, whose data (not its parameters) have `dtypes`: reals are the host's."""
    if isinstance(op, _HOST) or any(d.is_float for d in dtypes):
        return Engine.HOST
    return next((engine for kinds, engine in _KINDS if isinstance(op, kinds)), Engine.VECTOR)


@dataclass(frozen=True, slots=True)
class Tile:
    """The box `start` … `start + size` of a tensor, dense and row-major, at a byte address of the on-chip memory.

    A tile that a command reads is named exactly as the command that wrote it named it; the reader may need a part only.
    """

    tensor: int  # index into Model.tensors
    start: tuple[int, ...]  # one entry per axis of the tensor
    size: tuple[int, ...]
    address: int  # bytes, or IN_DDR
    nbytes: int

    @property
    def elements(self) -> int:
        """How many elements the tile holds."""
        return math.prod(self.size)


@dataclass(frozen=True, slots=True)
class Command:
    """One piece of work of one engine.

    `instruction` is the index, within the segment, of the instruction that the command computes a part of; of a LOAD
    the one that it first loads for, of a STORE the one whose result it stores. Inputs are the pieces of operands that
    lie on chip: together they hold all that the instruction reads for `outputs`; parameters are among them. An operand
    that contributes nothing to `outputs` (of a concat, outside of a pad) has none.

    What a command costs follows from these: an instruction's MACs are spread evenly over the elements of its result.
    """

    engine: Engine
    instruction: int
    inputs: tuple[Tile, ...]
    outputs: tuple[Tile, ...]
    waits: tuple[int, ...] = ()  # ascending indices of earlier commands that must have ended

    @property
    def ddr_bytes(self) -> int:
        """Bytes that a LOAD or STORE moves between DDR and on-chip memory; 0 for other engines."""
        if self.engine is Engine.LOAD:
            return sum(t.nbytes for t in self.outputs)
        return sum(t.nbytes for t in self.inputs) if self.engine is Engine.STORE else 0


@dataclass(frozen=True, slots=True)
class View:
    """`tensor` is the box of `of` that begins at `start`, in DDR and on chip: no command makes it.

    An operand of a concatenation inside its result, or the result of a slice inside its operand. Where `start` is None
    it is all of `of` under another shape. `of` may itself be a view, of an earlier entry of `CommandStream.views`.
    """

    tensor: int
    of: int
    start: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor that only this segment knows lies in DDR: at byte `offset` of the stream's scratch memory."""

    tensor: int
    offset: int


@dataclass(frozen=True)
class CommandStream:
    """The commands of one BPU segment, and the memory that they take.

    `on_chip_bytes` is the end of the highest tile. Inputs, outputs and constants of the model, and what other segments
    read or write, lie in DDR where the model says; other tensors that go to DDR have a Place. A tensor with neither
    stays on chip. An instruction that `views` covers has no commands.
    """

    commands: tuple[Command, ...]
    on_chip_bytes: int
    views: tuple[View, ...] = ()
    places: tuple[Place, ...] = ()
    scratch_bytes: int = 0

    def of_engine(self, engine: Engine) -> Iterator[tuple[int, Command]]:
        """The commands of one engine in its order, with their indices."""
        return ((i, c) for i, c in enumerate(self.commands) if c.engine is engine)

    @property
    def loaded_bytes(self) -> int:
        """Bytes that the LOADs bring from DDR."""
        return sum(c.ddr_bytes for c in self.commands if c.engine is Engine.LOAD)

    @property
    def stored_bytes(self) -> int:
        """Bytes that the STOREs bring to DDR."""
        return sum(c.ddr_bytes for c in self.commands if c.engine is Engine.STORE)
