"""A program as a stage: by the reference engine, or by machine code one instruction at a time.

`jit` compiles the program with every instruction in a segment of its own and runs these in order over the program's own
arena. Kernels, operands, places in memory and the order are those of `Session.run`; what is left out is the loop that
calls them, so the tensors are those of a run, byte for byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hbc_runtime import reference
from hbc_runtime.binding import bind
from hbc_runtime.cpu import CpuRunner
from hbc_runtime.engines import aligned
from hbc_runtime.march import border_rounding
from hbc_runtime.program import BpuSegment, Model, Program, Segment, Storage, Tensor
from hbc_runtime.types import DYNAMIC

from .order import channels_last
from .stage import Array, Given, Place, Sample, Step
from .stepped import Key, Stepped, Unit


def reference_stage(program: Program, about: str) -> Stepped:
    """The program by the NumPy engine."""
    model = _single(program.models[0])
    units = tuple(_unit(model, s) for s in model.segments)
    rounding = border_rounding(program.march, program.arith)

    def start(sample: Sample) -> dict[Key, Array]:
        return dict(zip((i.tensor for i in model.inputs), bind(model.inputs, sample, rounding), strict=True))

    return Stepped("reference", about, units, places(model), model.constant, start)  # type: ignore[arg-type]


def _unit(model: Model, segment: Segment) -> Unit:
    if isinstance(segment, BpuSegment):
        (op,) = segment.instructions
        outs = [model.tensors[i] for i in op.outputs]
        reads = tuple(None if i < 0 else i for i in op.inputs)
        return Unit(reads, op.outputs, lambda arrays: reference.execute(op, arrays, outs))
    runner = CpuRunner(model, segment, 1)
    return Unit(segment.inputs, segment.outputs, lambda arrays: runner.run([a for a in arrays if a is not None]))


def _single(model: Model) -> Model:
    """The same model with one instruction per BPU segment."""
    segments: list[Segment] = []
    for s in model.segments:
        parts = [BpuSegment(s.name, (op,)) for op in s.instructions] if isinstance(s, BpuSegment) else [s]
        segments.extend(parts)
    return dataclasses.replace(model, segments=tuple(segments))


def _writes(segment: Segment) -> tuple[int, ...]:
    return segment.instructions[0].outputs if isinstance(segment, BpuSegment) else segment.outputs


def places(model: Model) -> dict[Key, Place]:
    """The named tensors that segments write. A name that two carry is the first one's; outputs have their own names."""
    rows = [
        (type(op), getattr(op, "perm", None), op.inputs, op.outputs)
        for s in model.segments
        if isinstance(s, BpuSegment)
        for op in s.instructions
    ]
    last = channels_last(rows)
    outputs = {o.tensor: o.name for o in model.outputs}
    taken, found = set(outputs.values()), {}
    for index, nodes, op in makers(model):
        t = model.tensors[index]
        name = outputs.get(index) or (t.name if t.name not in taken else "")
        if name:
            taken.add(name)
            found[index] = Place(name, op, nodes, t.dtype.text, t.quant, index in last)
    return found  # type: ignore[return-value] # indices are keys


def makers(model: Model) -> Iterator[tuple[int, tuple[str, ...], str]]:
    """Each tensor that is computed, in running order, with its source nodes and instruction (`cpu`: a CPU segment)."""
    for segment in model.segments:
        if isinstance(segment, BpuSegment):
            for op in segment.instructions:
                for i in op.outputs:
                    yield i, op.loc, op.opcode.name.lower()
        else:
            for i in segment.outputs:
                yield i, segment.loc, "cpu"


class JitStage:
    """The program by machine code. Holds two arenas while it walks."""

    name = "jit"

    def __init__(self, program: Program, about: str, threads: int = 1) -> None:
        from hbc_runtime.jit import build

        self.about = about
        self.model = _single(program.models[0])
        self.at = places(self.model)
        self.places = tuple(self.at.values())
        self._rounding = border_rounding(program.march, program.arith)
        numbered = enumerate(self.model.segments)
        self._runners = {i: CpuRunner(self.model, s, threads) for i, s in numbered if not isinstance(s, BpuSegment)}
        self._jit = build(self.model, threads)
        blob = self.model.constants.data
        self._constants = aligned(len(self.model.constants))
        self._constants[:] = memoryview(blob).cast("B")

    def fetch(self, sample: Sample, names: Collection[str]) -> dict[str, Array]:
        """The values of these places, of one run that ends with the last of them."""
        left, found = set(names), {}
        memory = self._memory(sample)
        for number, segment in enumerate(self.model.segments):
            if not left:
                break
            self._run(number, segment, memory)
            for index in _writes(segment):
                place = self.at.get(index)
                if place is not None and place.name in left:
                    left.discard(place.name)
                    found[place.name] = memory.read(index)
        return found

    def walk(self, sample: Sample, given: Given) -> Iterator[Step]:
        """Two runs side by side in two arenas; what is given is written over what the second one computed."""
        plain, fed = self._memory(sample), self._memory(sample)
        for number, segment in enumerate(self.model.segments):
            self._run(number, segment, plain)
            self._run(number, segment, fed)
            for index in _writes(segment):
                place = self.at.get(index)
                if place is None:
                    continue
                total = plain.read(index)
                yield Step(place, total, fed.read(index))
                want = given(place, total)
                if want is not None:
                    fed.store(index, want)

    def close(self) -> None:
        """Give back the machine code's threads."""
        self._jit.close()

    def _memory(self, sample: Sample) -> _Memory:

        inputs = bind(self.model.inputs, sample, self._rounding)
        outputs = [np.zeros((0,) if DYNAMIC in o.shape else o.shape, o.dtype.numpy) for o in self.model.outputs]
        arena = aligned(self.model.arena_size)
        arena[:] = 0
        return _Memory(self.model, arena, self._constants, inputs, outputs, self._jit.flipped)

    def _run(self, number: int, segment: Segment, memory: _Memory) -> None:
        if isinstance(segment, BpuSegment):
            ins, outs = [_address(x) for x in memory.inputs], [_address(y) for y in memory.outputs]
            self._jit.run_segment(number, _address(memory.arena), _address(self._constants), ins, outs)
            return
        made = self._runners[number].run([memory.view(i) for i in segment.inputs])
        for i, y in zip(segment.outputs, made, strict=True):
            memory.store(i, y)


@dataclass(frozen=True)
class _Memory:
    """The buffers of one run."""

    model: Model
    arena: Array
    constants: Array
    inputs: Sequence[Array]
    outputs: list[Array]
    flipped: frozenset[int]  # tensors that lie in the arena as q + 128

    def read(self, index: int) -> Array:
        """A copy of a tensor's integers."""
        y = self.view(index)
        return y ^ np.int8(-128) if index in self.flipped else y.copy()

    def view(self, index: int) -> Array:
        """A tensor where it lies."""
        t: Tensor = self.model.tensors[index]
        if t.storage in {Storage.INPUT, Storage.OUTPUT}:
            array = (self.inputs if t.storage is Storage.INPUT else self.outputs)[t.index]
            return array if t.is_dynamic else array.reshape(t.shape)
        base = self.arena if t.storage is Storage.ARENA else self.constants
        return base[t.offset : t.offset + t.nbytes].view(t.dtype.numpy).reshape(t.shape)

    def store(self, index: int, y: Array) -> None:
        """Write a tensor; an output whose size depends on the data is the array itself, and nothing else reads it."""
        t = self.model.tensors[index]
        if t.is_dynamic:
            self.outputs[t.index] = y
        else:
            self.view(index)[...] = y ^ np.int8(-128) if index in self.flipped else y


def _address(array: Array) -> int:
    return int(array.ctypes.data)
