"""The two ways to run a model: NumPy, value by value, and machine code over one arena. The same integers either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .binding import batched
from .cpu import CpuRunner
from .direct import DirectRuns
from .errors import OutOfMemory
from .isa import Instruction
from .outline import Outline
from .program import ALIGN, BpuSegment, Constants, Model, Storage, Tensor
from .types import DYNAMIC

if TYPE_CHECKING:  # llvmlite loads with it: reading and the reference engine do without
    from .jit import JitModel

Array = npt.NDArray[Any]
Runners = Mapping[int, CpuRunner]  # by segment number
Direct = Callable[[Mapping[str, npt.ArrayLike]], "dict[str, Array] | None"]
AT_ONCE = 16  # batches per thread in one call of machine code, which Ctrl-C has to wait for


class Engine(Protocol):
    """Runs a model on arrays that fit it; thread-safe. `direct` is a short way to do so, where there is one."""

    @property
    def direct(self) -> Direct | None:
        """From what a user passes to the outputs by name; it returns None where the long way has to be taken."""

    def run(self, inputs: Sequence[Array], count: int = 1) -> list[Array]:
        """The model's outputs, new arrays, in its order. Both hold `count` batches, one behind the other."""

    def close(self) -> None:
        """Give back what the engine holds. Nothing runs any more."""


class ReferenceEngine:
    """The reference: values in a dict, no arena."""

    direct = None

    def __init__(self, model: Model, runners: Runners) -> None:
        self.model = model
        self.runners = runners
        self.last_use = _last_uses(model)

    def run(self, inputs: Sequence[Array], count: int = 1) -> list[Array]:
        runs = []
        for n in range(count):
            values = self._compute(_batch(inputs, n, count), keep=False)
            runs.append([values[o.tensor] for o in self.model.outputs])
        if count == 1:
            return [np.array(y) for y in runs[0]]  # a reshape may be a view of the caller's input
        return [np.concatenate(ys) for ys in zip(*runs, strict=True)]

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
        self.constants_at = _address(self.constants)
        self.arenas: list[tuple[int, Array]] = []  # with their addresses; append and pop are atomic
        self.teams: list[tuple[int, Array]] = []  # an arena per thread
        self.runs = DirectRuns(outline, jit, self.constants_at) if DirectRuns.serves(outline) else None
        self.direct: Direct | None = None if self.runs is None else self.runs.run

    def run(self, inputs: Sequence[Array], count: int = 1) -> list[Array]:
        outputs = [np.empty(_room(batched(o.shape, count)), o.dtype.numpy) for o in self.outline.outputs]
        if count == 1:
            self._run_one(inputs, outputs)
            return outputs
        done = self._run_together(inputs, outputs, count)
        for n in range(done, count):
            self._run_one(_batch(inputs, n, count), _batch(outputs, n, count))
        return outputs

    def _run_one(self, inputs: Sequence[Array], outputs: list[Array]) -> None:
        """One batch."""
        at, arena = _borrow(self.arenas, self.outline.arena_size)
        ins, outs = [_address(x) for x in inputs], [_address(y) for y in outputs]
        for number, step in enumerate(self.outline.steps):
            if step is None:
                self.jit.run_segment(number, at, self.constants_at, ins, outs)
                continue
            views = [self._view(t, arena, inputs, outputs) for t in step.inputs]
            for t, y in zip(step.outputs, self.runners[number].run(views), strict=True):
                self._store(t, y, arena, inputs, outputs)
        self.arenas.append((at, arena))  # after an error it is dropped instead

    def _run_together(self, inputs: Sequence[Array], outputs: Sequence[Array], count: int) -> int:
        """Batches in few calls of machine code, each by one thread; returns how many were run.

        The last ones are left where there are too few for every thread; all are where the model has several segments.
        """
        if self.outline.steps != (None,):
            return 0
        threads = self.jit.threads
        pitch = -(-self.outline.arena_size // ALIGN) * ALIGN
        at, arenas = _borrow(self.teams, threads * pitch)
        ins, outs = (_addresses(arrays, count) for arrays in (inputs, outputs))
        whole, step = count - count % threads, threads * AT_ONCE
        for start in range(0, whole, step):
            some = slice(start, min(whole, start + step))
            self.jit.run_samples(0, (at, pitch), self.constants_at, ins[some], outs[some])
        self.teams.append((at, arenas))
        return whole

    def close(self) -> None:
        self.jit.close()
        self.arenas.clear()
        self.teams.clear()
        if self.runs is not None:
            self.runs.frames.clear()

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


def _batch(arrays: Sequence[Array], n: int, count: int) -> list[Array]:
    """Batch `n` of arrays that hold `count` of them: views."""
    return [a[n * (len(a) // count) : (n + 1) * (len(a) // count)] for a in arrays] if count > 1 else list(arrays)


def _addresses(arrays: Sequence[Array], count: int) -> npt.NDArray[np.int64]:
    """[count, arrays] i64: where each batch of each array starts."""
    first = np.array([_address(a) for a in arrays], np.int64)
    return first + np.arange(count)[:, None] * np.array([a.nbytes // count for a in arrays], np.int64)


def _borrow(free: list[tuple[int, Array]], size: int) -> tuple[int, Array]:
    """Memory that is free, else new, behind its address."""
    try:
        return free.pop()
    except IndexError:
        memory = aligned(size)
        return _address(memory), memory


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
    return int(array.__array_interface__["data"][0])  # half the time of `array.ctypes.data`
