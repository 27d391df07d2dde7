"""The two ways to run a model: NumPy, value by value, and machine code over one arena. The same integers either way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .cpu import CpuRunner
from .errors import OutOfMemory
from .isa import Instruction
from .outline import Outline
from .program import ALIGN, BpuSegment, Constants, Model, Storage, Tensor
from .types import DYNAMIC

if TYPE_CHECKING:  # llvmlite loads with it: reading and the reference engine do without
    from .jit import JitModel

Array = npt.NDArray[Any]
Runners = Mapping[int, CpuRunner]  # by segment number


class Engine(Protocol):
    """Runs a model on arrays that fit it; thread-safe."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The model's outputs, new arrays, in its order."""

    def close(self) -> None:
        """Give back what the engine holds. Nothing runs any more."""


class ReferenceEngine:
    """The reference: values in a dict, no arena."""

    def __init__(self, model: Model, runners: Runners) -> None:
        self.model = model
        self.runners = runners
        self.last_use = _last_uses(model)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        values = self._compute(inputs, keep=False)
        return [np.array(values[o.tensor]) for o in self.model.outputs]  # a reshape may be a view of the caller's input

    def values(self, inputs: Sequence[Array]) -> dict[int, Array]:
        """Every tensor of a run but the constants, by index: new arrays."""
        return {i: np.array(y) for i, y in self._compute(inputs, keep=True).items()}

    def close(self) -> None:
        return

    def _compute(self, inputs: Sequence[Array], *, keep: bool) -> dict[int, Array]:
        values = {info.tensor: x for info, x in zip(self.model.inputs, inputs, strict=True)}
        for step, (number, op, reads, writes) in enumerate(_steps(self.model)):
            if op is None:
                outs = self.runners[number].run([self._value(values, i) for i in reads])
            else:
                outs = self._execute(op, [None if i < 0 else self._value(values, i) for i in reads], writes)
            values.update(zip(writes, outs, strict=True))
            for i in () if keep else reads:
                if self.last_use.get(i) == step:
                    values.pop(i, None)
        return values

    def _value(self, values: Mapping[int, Array], tensor: int) -> Array:
        if self.model.tensors[tensor].storage is Storage.CONSTANT:
            return self.model.constant(tensor)
        return values[tensor]

    def _execute(self, op: Instruction, ins: list[Array | None], writes: tuple[int, ...]) -> list[Array]:
        from .reference import execute

        try:
            return execute(op, ins, [self.model.tensors[i] for i in writes])
        except MemoryError as err:
            where = f"{op.opcode.name} of {', '.join(map(repr, op.loc)) or 'no node'}"
            msg = f"the reference of {where} needs more memory than this machine has ({err}); try engine='jit'"
            raise OutOfMemory(msg) from err


def _steps(model: Model) -> Iterator[tuple[int, Instruction | None, tuple[int, ...], tuple[int, ...]]]:
    """Every step in order: segment number, instruction (None: a whole CPU segment), what it reads and writes."""
    for number, segment in enumerate(model.segments):
        if isinstance(segment, BpuSegment):
            for op in segment.instructions:
                yield number, op, op.inputs, op.outputs
        else:
            yield number, None, segment.inputs, segment.outputs


def _last_uses(model: Model) -> dict[int, int]:
    """Tensor → the step that reads it last. Outputs are left out: they are read after the end."""
    last = {i: step for step, (_, _, reads, _) in enumerate(_steps(model)) for i in reads}
    for info in model.outputs:
        last.pop(info.tensor, None)
    return last


class JitEngine:
    """Machine code over one arena per run; a run's arena is kept for the next one."""

    def __init__(self, outline: Outline, runners: Runners, jit: JitModel) -> None:
        self.outline = outline
        self.runners = runners
        self.jit = jit
        self.constants = _constants(outline.constants)
        self.arenas: list[Array] = []  # append and pop are atomic

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        outputs = [np.empty(_room(o.shape), o.dtype.numpy) for o in self.outline.outputs]
        arena = self._borrow_arena()
        ins, outs = [_address(x) for x in inputs], [_address(y) for y in outputs]
        for number, step in enumerate(self.outline.steps):
            if step is None:
                self.jit.run_segment(number, _address(arena), _address(self.constants), ins, outs)
                continue
            views = [self._view(t, arena, inputs, outputs) for t in step.inputs]
            for t, y in zip(step.outputs, self.runners[number].run(views), strict=True):
                self._store(t, y, arena, inputs, outputs)
        self.arenas.append(arena)  # after an error it is dropped instead
        return outputs

    def close(self) -> None:
        self.jit.close()
        self.arenas.clear()

    def _borrow_arena(self) -> Array:
        try:
            return self.arenas.pop()
        except IndexError:
            return aligned(self.outline.arena_size)

    def _store(self, t: Tensor, y: Array, arena: Array, inputs: Sequence[Array], outputs: list[Array]) -> None:
        if t.is_dynamic:  # an output that nothing else touches: the array itself
            outputs[t.index] = y
        else:
            self._view(t, arena, inputs, outputs)[...] = y

    def _view(self, t: Tensor, arena: Array, inputs: Sequence[Array], outputs: Sequence[Array]) -> Array:
        if t.storage in {Storage.INPUT, Storage.OUTPUT}:
            return (inputs if t.storage is Storage.INPUT else outputs)[t.index].reshape(t.shape)
        base = arena if t.storage is Storage.ARENA else self.constants
        return base[t.offset : t.offset + t.nbytes].view(t.dtype.numpy).reshape(t.shape)


def _room(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape to make room for: none where a size is dynamic, as the run will bring an array of its own."""
    return (0,) if DYNAMIC in shape else shape


def _constants(constants: Constants) -> Array:
    """The constants at an aligned address: as they lie in a mapped file, copied where a buffer is not aligned."""
    blob = np.frombuffer(constants.data, np.uint8)
    if blob.size and _address(blob) % ALIGN == 0:
        return blob
    copy = aligned(blob.size)
    copy[:] = blob
    return copy


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes at a 64-byte aligned address. Raises OutOfMemory where there is none."""
    try:
        room = np.empty(size + ALIGN, np.uint8)
    except MemoryError as err:
        msg = f"a run of this model needs an arena of {size} bytes, which this machine does not have"
        raise OutOfMemory(msg) from err
    start = -_address(room) % ALIGN
    return room[start : start + size]


def _address(array: Array) -> int:
    return int(array.ctypes.data)
