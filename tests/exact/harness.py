"""One instruction through the NumPy reference and through the JIT, on the same operands."""

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
    case = layout(op, operands, outs, {0} if dynamic is None else set(dynamic))
    case.op.check(case.tensors(case.op.inputs), case.tensors(case.op.outputs))  # type: ignore[arg-type]
    expected = reference.execute(case.op, operands, case.tensors(case.op.outputs))  # type: ignore[arg-type]
    for number, count in enumerate(threads):
        for want, got in zip(expected, run_jit(case, count, (0xA5, 0x5A)[number % 2], machine), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{case.op} with {count} threads")
    return expected


@dataclass(frozen=True)
class Case:
    """A one-instruction model and what its dynamic operands hold."""

    op: Instruction
    model: Model
    values: dict[int, Array]  # by tensor index

    def tensors(self, indices: Sequence[int]) -> list[Tensor | None]:
        """The model's tensors at operand indices."""
        return [None if i < 0 else self.model.tensors[i] for i in indices]


def layout(op: Instruction, operands: Sequence[Array | None], outs: Sequence[Out], dynamic: Collection[int]) -> Case:
    """Place operands and results in an arena (with guards between them) and a constant blob."""
    tensors: list[Tensor] = []
    blob, values, inputs, arena = bytearray(), {}, [], GUARD
    for i, x in enumerate(operands):
        inputs.append(-1 if x is None else len(tensors))
        if x is None:
            continue
        storage, offset = (Storage.ARENA, arena) if i in dynamic else (Storage.CONSTANT, len(blob))
        tensors.append(Tensor(f"in{i}", x.shape, DType.of(x.dtype), storage, offset))
        if i in dynamic:
            values[inputs[-1]] = x
            arena = after(arena, x.nbytes)
        else:
            blob += x.tobytes() + bytes(-x.nbytes % ALIGN)
    outputs = []
    for j, (shape, dtype) in enumerate(outs):
        outputs.append(len(tensors))
        tensors.append(Tensor(f"out{j}", shape, dtype, Storage.ARENA, arena))
        arena = after(arena, tensors[-1].nbytes)
    op = replace(op, inputs=tuple(inputs), outputs=tuple(outputs))
    constants = Constants(memoryview(bytes(blob)))
    model = Model("case", (), (), tuple(tensors), (BpuSegment("s", (op,)),), arena, constants)
    return Case(op, model, values)


def after(offset: int, nbytes: int) -> int:
    """The next aligned offset with at least GUARD bytes in between."""
    return -(-(offset + nbytes + GUARD) // ALIGN) * ALIGN


def machines() -> list[Host]:
    """This CPU, and lesser ones whose code it can run: shorter vectors, fewer registers, no x86 instructions by name."""
    native = host()
    lesser = [replace(native, lanes=4, registers=32, x86=False)]
    if native.x86:
        lesser.append(replace(native, cpu="x86-64", features="", lanes=4, registers=16))
    if native.x86 and native.lanes > 8:
        lesser.append(replace(native, cpu="haswell", features="", lanes=8, registers=16))
    return [native, *lesser]


MACHINES = {f"{m.cpu}-{m.lanes}{'' if m.x86 else '-generic'}": m for m in machines()}


def run_jit(case: Case, threads: int, fill: int = 0, machine: Host | None = None) -> list[Array]:
    """The JIT's results; asserts that every byte outside them is as it was. Unused bytes start as `fill`."""
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
    results = []
    for i in case.op.outputs:
        t = case.model.tensors[i]
        spot = slice(t.offset, t.offset + t.nbytes)
        results.append(arena[spot].copy().view(t.dtype.numpy).reshape(t.shape))
        before[spot] = arena[spot]
    assert np.array_equal(arena, before), f"{case.op} wrote outside its results"
    return results
