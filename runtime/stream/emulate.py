"""Runs a command stream as an emulator would: on-chip memory and DDR as bytes, command after command.

Slow: each tile is computed by the NumPy reference. It shows that the stream, with its addresses, loads and stores,
computes the integers that the instructions do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..binding import bind
from ..commands import IN_DDR, Command, CommandStream, Engine, Tile
from ..cpu import CpuRunner
from ..march import border_rounding
from ..program import BpuSegment, CpuSegment, Model, Program, Storage, Tensor
from ..reference import execute
from .needs import Spans, full, needs
from .parts import compute, positions_under
from .views import Roots

Array = npt.NDArray[Any]
GARBAGE = 0xA5  # what memory holds that nobody wrote


class TileEngine:
    """Runs a model whose BPU segments have command streams. ValueError where one has none."""

    def __init__(self, model: Model, runners: Mapping[int, CpuRunner] | None = None) -> None:
        self.model = model
        self.runners = runners or {
            i: CpuRunner(model, s, 1) for i, s in enumerate(model.segments) if isinstance(s, CpuSegment)
        }
        bare = [s.name for s in model.segments if isinstance(s, BpuSegment) and s.commands is None]
        if bare:
            msg = f"segment {bare[0]!r} has no command stream; make one with hbc.backend.bpu.tiling.tile_program"
            raise ValueError(msg)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The model's outputs, new arrays, for inputs that fit it."""
        ddr = Ddr(self.model, inputs)
        for number, segment in enumerate(self.model.segments):
            if isinstance(segment, CpuSegment):
                outs = self.runners[number].run([ddr.array(self.model.tensors[i]) for i in segment.inputs])
                for i, y in zip(segment.outputs, outs, strict=True):
                    ddr.keep(self.model.tensors[i], y)
                continue
            assert segment.commands is not None
            _Machine(self.model, segment, segment.commands, ddr).run()
        return [ddr.output(i) for i in range(len(self.model.outputs))]


class Ddr:
    """The buffers of a run: arena, constants, inputs, outputs."""

    def __init__(self, model: Model, inputs: Sequence[Array]) -> None:
        self.model = model
        self.arena = np.full(model.arena_size, GARBAGE, np.uint8)
        self.constants = np.frombuffer(model.constants.data, np.uint8)
        self.inputs = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in inputs]
        tensors = [model.tensors[o.tensor] for o in model.outputs]
        self.outputs = [np.full(0 if t.is_dynamic else t.nbytes, GARBAGE, np.uint8) for t in tensors]
        self.dynamic: dict[int, Array] = {}

    def bytes_of(self, t: Tensor) -> Array:
        """The bytes of a tensor: a view."""
        buffers = {Storage.ARENA: [self.arena], Storage.CONSTANT: [self.constants]}
        buffers |= {Storage.INPUT: self.inputs, Storage.OUTPUT: self.outputs}
        return buffers[t.storage][t.index][t.offset : t.offset + t.nbytes]

    def array(self, t: Tensor) -> Array:
        """The same as an array: a view."""
        return self.bytes_of(t).view(t.dtype.numpy).reshape(t.shape)

    def keep(self, t: Tensor, y: Array) -> None:
        """What a CPU segment made."""
        if t.is_dynamic:
            self.dynamic[t.index] = y
        else:
            self.array(t)[...] = y

    def output(self, index: int) -> Array:
        """An output of the model."""
        return self.dynamic[index] if index in self.dynamic else self.array(self._output(index)).copy()

    def _output(self, index: int) -> Tensor:
        return self.model.tensors[self.model.outputs[index].tensor]


class _Machine:
    """One stream over its on-chip memory."""

    def __init__(self, model: Model, segment: BpuSegment, stream: CommandStream, ddr: Ddr) -> None:
        self.model, self.segment, self.stream, self.ddr = model, segment, stream, ddr
        self.chip = np.full(stream.on_chip_bytes, GARBAGE, np.uint8)
        self.scratch = np.full(stream.scratch_bytes, GARBAGE, np.uint8)
        self.places = {p.tensor: p.offset for p in stream.places}
        self.roots = Roots(model, stream)

    def run(self) -> None:
        """All commands, in the order of the stream, which every order that `waits` allow is equal to."""
        for command in self.stream.commands:
            self._run(command)

    def _run(self, c: Command) -> None:
        if c.engine is Engine.LOAD:
            for tile in c.outputs:
                self._tile(tile)[...] = self._in_ddr(tile.tensor)[_index(_spans(tile))]
        elif c.engine is Engine.STORE:
            for tile in c.inputs:
                self._in_ddr(tile.tensor)[_index(_spans(tile))] = self._tile(tile)
        elif c.engine is Engine.HOST:
            self._host(c)
        else:
            self._compute(c)

    def _host(self, c: Command) -> None:
        op = self.segment.instructions[c.instruction]
        ins = [None if i < 0 else np.ascontiguousarray(self._in_ddr(i)) for i in op.inputs]
        outs = [self.model.tensors[i] for i in op.outputs]
        for i, y in zip(op.outputs, execute(op, ins, outs), strict=True):
            self._in_ddr(i)[...] = y

    def _compute(self, c: Command) -> None:
        op = self.segment.instructions[c.instruction]
        (out,) = c.outputs
        box = _spans(out)
        read = needs(self.model, op, box)
        ins = [None if s is None else self._operand(c, i, s) for i, s in zip(op.inputs, read, strict=True)]
        y = compute(self.model, op, box, read, ins)
        self._tile(out)[...] = y

    # ---- memory

    def _tile(self, tile: Tile) -> Array:
        assert tile.address != IN_DDR
        data = self.chip[tile.address : tile.address + tile.nbytes]
        return data.view(self.model.tensors[tile.tensor].dtype.numpy).reshape(tile.size)

    def _in_ddr(self, tensor: int) -> Array:
        """A tensor where it lies in DDR: a view."""
        view = self.roots.views.get(tensor)
        t = self.model.tensors[tensor]
        if view is not None:
            outer = self._in_ddr(view.of)
            if view.start is None:
                return outer.reshape(t.shape)
            return outer[_index(tuple((s, s + d) for s, d in zip(view.start, t.shape, strict=True)))]
        if tensor in self.places:
            data = self.scratch[self.places[tensor] : self.places[tensor] + t.nbytes]
            return data.view(t.dtype.numpy).reshape(t.shape)
        return self.ddr.array(t)

    def _operand(self, c: Command, tensor: int, spans: Spans) -> Array:
        """`spans` of an operand, put together from the command's pieces. ValueError where a byte is missing."""
        values, there = self._assemble(c, tensor, spans)
        if not there.all():
            msg = f"a command of {self.segment.instructions[c.instruction].opcode.name} lacks a part of tensor {tensor}"
            raise ValueError(msg)
        return values

    def _assemble(self, c: Command, tensor: int, spans: Spans) -> tuple[Array, Array]:
        """Values of `spans`, and which of them are there."""
        view = self.roots.views.get(tensor)
        if view is None:
            return self._from_tiles(c, tensor, spans)
        shape, other = self.model.tensors[tensor].shape, self.model.tensors[view.of].shape
        if view.start is not None:
            return self._assemble(
                c, view.of, tuple((lo + d, hi + d) for (lo, hi), d in zip(spans, view.start, strict=True))
            )
        outer, there = self._assemble(c, view.of, full(other))
        at = positions_under(spans, shape, other, full(other))
        size = tuple(hi - lo for lo, hi in spans)
        return outer[at].reshape(size), there[at].reshape(size)

    def _from_tiles(self, c: Command, root: int, spans: Spans) -> tuple[Array, Array]:
        size = tuple(max(0, hi - lo) for lo, hi in spans)
        values = np.zeros(size, self.model.tensors[root].dtype.numpy)
        there = np.zeros(size, bool)
        for tile in c.inputs:
            offset = self.roots.offset(tile.tensor)
            if self.roots.root(tile.tensor) != root or offset is None:
                continue
            at = [s + d for s, d in zip(tile.start, offset, strict=True)]
            shared = [
                (max(lo, a), min(hi, a + n)) for (lo, hi), a, n in zip(spans, at, tile.size, strict=True)
            ]  # fmt: skip
            if any(hi <= lo for lo, hi in shared):
                continue
            here = _index(tuple((lo - s[0], hi - s[0]) for (lo, hi), s in zip(shared, spans, strict=True)))
            values[here] = self._tile(tile)[
                _index(tuple((lo - a, hi - a) for (lo, hi), a in zip(shared, at, strict=True)))
            ]
            there[here] = True
        return values, there


def _spans(tile: Tile) -> Spans:
    return tuple((s, s + d) for s, d in zip(tile.start, tile.size, strict=True))


def _index(spans: Spans) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in spans)


def run_commands(program: Program, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """The outputs of the (only) model of `program` by name, computed by its command streams; slow.

    Raises ValueError where a BPU segment has none, InputMismatch where inputs do not fit.
    """
    (model,) = program.models
    bound = bind(model.inputs, inputs, border_rounding(program.march, program.arith))
    return {o.name: y for o, y in zip(model.outputs, TileEngine(model).run(bound), strict=True)}
