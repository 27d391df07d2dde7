"""Instructions through the NumPy reference and through the JIT, on the same operands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from hbc_runtime import reference
from hbc_runtime.isa import Instruction, Lut
from hbc_runtime.jit import engine
from hbc_runtime.jit.host import Dot, Host, for_isa, host, runnable
from hbc_runtime.program import ALIGN, BpuSegment, Constants, Model, Storage, Tensor
from hbc_runtime.types import DType

Array = npt.NDArray[Any]
Out = tuple[tuple[int, ...], DType]
GUARD = 256  # bytes between the tensors of the arena, which nothing may write


def run_both(
    op: Instruction,
    operands: Sequence[Array | None],
    outs: Sequence[Out],
    *,
    dynamic: Collection[int] | None = None,
    threads: Sequence[int] = (1,),
    machine: Host | None = None,
) -> list[Array]:
    """Run `op` on `operands` (None: absent) in the reference and, once per entry of `threads`, in the JIT.

    `op` is built with `inputs=(), outputs=()`: they are filled in here. Operands in `dynamic` lie in the arena, the
    others are constants; by default operand 0 is dynamic. `outs` are the results' shapes and dtypes. Asserts that
    `op.check` passes, that both give equal integers, and that the JIT wrote its results and nothing else. `machine`
    makes the JIT write code for a lesser CPU than this one. Returns the reference's results.
    """
    job = Job(op, operands, outs, frozenset({0} if dynamic is None else dynamic))
    return run_together([job], threads=threads, machine=machine)[0]


@dataclass(frozen=True)
class Job:
    """An instruction with its operands, the shapes and dtypes of its results, and which operands are no constants."""

    op: Instruction
    operands: Sequence[Array | None]
    outs: Sequence[Out]
    dynamic: frozenset[int] = frozenset({0})


def run_together(
    jobs: Sequence[Job], *, threads: Sequence[int] = (1,), machine: Host | None = None
) -> list[list[Array]]:
    """As `run_both`, for several instructions in one model: code that two kernels share must suit both."""
    case = layout(jobs)
    expected = []
    for job, op in zip(jobs, case.ops, strict=True):
        ins, outs = case.tensors(op.inputs), [case.model.tensors[i] for i in op.outputs]
        op.check(ins, outs)
        expected.append(reference.execute(op, job.operands, outs))
    runs = [(case, count) for count in threads]
    inner = among_others(case)
    if inner is not None:
        runs.append((inner, threads[-1]))
    for number, (one, count) in enumerate(runs):
        results = run_jit(one, count, (0xA5, 0x5A)[number % 2], machine)
        for op, want in zip(case.ops, expected, strict=True):
            for i, values in zip(op.outputs, want, strict=True):
                np.testing.assert_array_equal(results[i], values, err_msg=f"{op} with {count} threads")
    return expected


def among_others(case: Case) -> Case | None:
    """The case as in the middle of a network; None where that makes no difference.

    Every i8 tensor of the arena that an instruction reads is made by another one, and every i8 result is read by one
    (tables that change nothing), so that the JIT may store them in a form of its own. An operand without negative
    values comes from a table without negative entries, so that the JIT may know. The results' indices stay.
    """
    tensors, arena = list(case.model.tensors), case.model.arena_size
    blob = bytearray(case.model.constants.data)
    same, positive = len(tensors), len(tensors) + 1
    for name, low in (("same", -128), ("positive", 0)):
        tensors.append(Tensor(name, (256,), DType.I8, Storage.CONSTANT, len(blob)))
        blob.extend(np.arange(-128, 128, dtype=np.int8).clip(low).tobytes())
    before, middle, after = [], [], []
    inner: dict[int, int] = {}

    def within(i: int) -> int:
        nonlocal arena
        if i < 0 or tensors[i].dtype is not DType.I8 or tensors[i].storage is not Storage.ARENA:
            return i
        if i not in inner:
            inner[i] = len(tensors)
            tensors.append(replace(tensors[i], name=f"inner{i}", offset=arena))
            arena = -(-(arena + tensors[i].nbytes + GUARD) // ALIGN) * ALIGN
        return inner[i]

    def table(i: int) -> int:
        return positive if case.values[i].size > 0 and int(case.values[i].min()) >= 0 else same

    for op in case.ops:
        inputs, outputs = tuple(map(within, op.inputs)), tuple(map(within, op.outputs))
        before += [Lut(inputs=(i, table(i)), outputs=(j,)) for i, j in zip(op.inputs, inputs, strict=True) if i != j]
        middle.append(replace(op, inputs=inputs, outputs=outputs))
        after += [Lut(inputs=(j, same), outputs=(i,)) for i, j in zip(op.outputs, outputs, strict=True) if i != j]
    if not inner:
        return None
    steps = (*dict.fromkeys(before), *middle, *after)
    constants = Constants(memoryview(bytes(blob)))
    model = replace(
        case.model, tensors=tuple(tensors), segments=(BpuSegment("s", steps),), arena_size=arena, constants=constants
    )
    return Case(steps, model, case.values)


@dataclass(frozen=True)
class Case:
    """A model of independent instructions, and what its dynamic operands hold."""

    ops: tuple[Instruction, ...]
    model: Model
    values: dict[int, Array]  # by tensor index

    def tensors(self, indices: Sequence[int]) -> list[Tensor | None]:
        """The model's tensors at operand indices."""
        return [None if i < 0 else self.model.tensors[i] for i in indices]


def layout(jobs: Sequence[Job]) -> Case:
    """Place operands and results in an arena (with guards between them) and a constant blob."""
    tensors: list[Tensor] = []
    ops: list[Instruction] = []
    values: dict[int, Array] = {}
    blob, arena = bytearray(), GUARD

    def in_arena(name: str, shape: tuple[int, ...], dtype: DType) -> int:
        nonlocal arena
        tensors.append(Tensor(name, shape, dtype, Storage.ARENA, arena))
        arena = -(-(arena + tensors[-1].nbytes + GUARD) // ALIGN) * ALIGN
        return len(tensors) - 1

    def in_blob(name: str, x: Array) -> int:
        tensors.append(Tensor(name, x.shape, DType.of(x.dtype), Storage.CONSTANT, len(blob)))
        blob.extend(x.tobytes() + bytes(-x.nbytes % ALIGN))
        return len(tensors) - 1

    for job in jobs:
        inputs = []
        for i, x in enumerate(job.operands):
            if x is None:
                inputs.append(-1)
            elif i in job.dynamic:
                inputs.append(in_arena(f"in{i}", x.shape, DType.of(x.dtype)))
                values[inputs[-1]] = x
            else:
                inputs.append(in_blob(f"in{i}", x))
        outputs = [in_arena(f"out{j}", shape, dtype) for j, (shape, dtype) in enumerate(job.outs)]
        ops.append(replace(job.op, inputs=tuple(inputs), outputs=tuple(outputs)))
    constants = Constants(memoryview(bytes(blob)))
    model = Model("case", (), (), tuple(tensors), (BpuSegment("s", tuple(ops)),), arena, constants)
    return Case(tuple(ops), model, values)


def machines() -> dict[str, Host]:
    """This CPU, every instruction set that it has besides its best, and plain vectors without instructions by name."""
    native = host()
    found = {native.cpu: native}
    found |= {isa.name: for_isa(isa, native.triple) for isa in runnable()[1:]}
    found["generic"] = replace(native, lanes=4, registers=32, x86=False, dot=Dot.NONE)
    return found


MACHINES = machines()


def run_jit(case: Case, threads: int, fill: int = 0, machine: Host | None = None) -> dict[int, Array]:
    """The JIT's results by tensor; asserts that every byte outside them is as it was. Unused bytes start as `fill`."""
    arena = np.full(case.model.arena_size, fill, np.uint8)
    for i, x in case.values.items():
        start = case.model.tensors[i].offset
        arena[start : start + x.nbytes] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    before = arena.copy()
    blob = np.frombuffer(bytes(case.model.constants.data) + b"\0", np.uint8)
    cpus = mock.patch.object(engine, "available_cpus", return_value=threads)  # also on a machine that has fewer
    with cpus, mock.patch.object(engine, "host", return_value=machine or host()):
        jit = engine.build(case.model, threads)
    try:
        jit.run_segment(0, arena.ctypes.data, blob.ctypes.data, (), ())
    finally:
        jit.close()
    results = {}
    for i in (i for op in case.ops for i in op.outputs):
        t = case.model.tensors[i]
        spot = slice(t.offset, t.offset + t.nbytes)
        results[i] = arena[spot].copy().view(t.dtype.numpy).reshape(t.shape)
        before[spot] = arena[spot]
    assert np.array_equal(arena, before), f"{case.ops} wrote outside their results"
    return results
