"""Instructions through the NumPy reference and through the JIT, on the same operands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from hbc_runtime import reference
from hbc_runtime.isa import Instruction
from hbc_runtime.jit import engine
from hbc_runtime.jit.host import Host, host
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
    for number, count in enumerate(threads):
        results = run_jit(case, count, (0xA5, 0x5A)[number % 2], machine)
        for op, want in zip(case.ops, expected, strict=True):
            for i, values in zip(op.outputs, want, strict=True):
                np.testing.assert_array_equal(results[i], values, err_msg=f"{op} with {count} threads")
    return expected


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


def machines() -> list[Host]:
    """This CPU, and lesser ones whose code it runs: shorter vectors, fewer registers, no x86 instructions by name."""
    native = host()
    lesser = [replace(native, lanes=4, registers=32, x86=False)]
    if native.x86:
        lesser.append(replace(native, cpu="x86-64", features="", lanes=4, registers=16))
    if native.x86 and native.lanes > 8:
        lesser.append(replace(native, cpu="haswell", features="", lanes=8, registers=16))
    return [native, *lesser]


MACHINES = {f"{m.cpu}-{m.lanes}{'' if m.x86 else '-generic'}": m for m in machines()}


def run_jit(case: Case, threads: int, fill: int = 0, machine: Host | None = None) -> dict[int, Array]:
    """The JIT's results by tensor; asserts that every byte outside them is as it was. Unused bytes start as `fill`."""
    arena = np.full(case.model.arena_size, fill, np.uint8)
    for i, x in case.values.items():
        start = case.model.tensors[i].offset
        arena[start : start + x.nbytes] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    before = arena.copy()
    blob = np.frombuffer(bytes(case.model.constants.data) + b"\0", np.uint8)
    with mock.patch.object(engine, "host", return_value=machine or host()):
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
