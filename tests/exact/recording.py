"""The instructions that this folder's tests run, gathered as one large model, for machines that are not this one."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from hbc_runtime import reference
from hbc_runtime.isa import Instruction
from hbc_runtime.jit.host import Host
from hbc_runtime.program import ALIGN, BpuSegment, Constants, Model, Storage, Tensor
from tests.exact import harness
from tests.exact.harness import GUARD, Array, Case

MOST_BYTES = 1 << 18  # of a recorded case's arena: emulated code is slow


class _EnoughError(unittest.SkipTest):
    """Ends a hypothesis test at once: a skip is neither shrunk nor repeated."""


@dataclass(frozen=True)
class Recorded:
    """A case, the results that the reference has for it, and the test that it is from.

    A result that other instructions of the case read is not among them: it may be none of the machine code's.
    """

    test: str
    case: Case
    results: dict[int, Array]


def record(module: ModuleType, examples: int) -> list[Recorded]:
    """The first `examples` cases of each test of a module, no larger than MOST_BYTES; the JIT does not run.

    Of a parametrised test's variants, the first and the last are taken. Tests marked otherwise are left out, and those
    of what is refused.
    """
    found: list[Recorded] = []
    for name, test in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(test) and not name.endswith("_refused"):
            for arguments in _variants(test):
                found += _cases_of(f"{module.__name__}.{name}", test, arguments, examples)
    return found


def _variants(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    marks = getattr(test, "pytestmark", [])
    if any(m.name != "parametrize" for m in marks):
        return
    differ = any(m.args[0] != "machine" for m in marks)  # the machine is another one anyway
    yield from (
        {k: v for m in marks for k, v in _values(m.args[0], list(m.args[1])[end]).items()}
        for end in ((0, -1) if differ else (0,))
    )


def _values(names: str | Sequence[str], value: Any) -> dict[str, Any]:
    several = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
    if hasattr(value, "marks"):  # pytest.param
        return dict(zip(several, value.values, strict=True))
    return dict(zip(several, value if len(several) > 1 else [value], strict=True))


def _cases_of(name: str, test: Callable[..., None], arguments: dict[str, Any], examples: int) -> list[Recorded]:
    found: list[Recorded] = []

    def run_jit(case: Case, threads: int, fill: int = 0, machine: Host | None = None) -> dict[int, Array]:
        values = _reference(case)
        if case.model.arena_size <= MOST_BYTES:
            found.append(Recorded(name, case, values))
        if len(found) >= examples:
            raise _EnoughError
        return values

    module = inspect.getmodule(test)
    try:
        with ExitStack() as patches:
            patches.enter_context(mock.patch.multiple(harness, run_jit=run_jit, among_others=lambda _: None))
            if hasattr(module, "run_jit"):
                patches.enter_context(mock.patch.object(module, "run_jit", run_jit))
            test(**arguments)
    except _EnoughError:
        pass
    return found


def _reference(case: Case) -> dict[int, Array]:
    values = dict(case.values)
    for op in case.ops:
        operands = [None if i < 0 else values[i] if i in values else case.model.constant(i) for i in op.inputs]
        outs = [case.model.tensors[i] for i in op.outputs]
        values.update(zip(op.outputs, reference.execute(op, operands, outs), strict=True))
    read = {i for op in case.ops for i in op.inputs}
    return {i: values[i] for op in case.ops for i in op.outputs if i not in read}


@dataclass(frozen=True)
class Merged:
    """Many cases as one model: what its arena holds before, and after."""

    model: Model
    before: Array
    after: Array
    between: list[Tensor]  # what instructions pass on to each other
    owners: list[tuple[Tensor, str, Instruction]]  # of each result: the test and the instruction

    def holds(self, tensor: Tensor, arena: Array) -> bool:
        """True where `arena` has the right bytes for a tensor."""
        return np.array_equal(arena[_spot(tensor)], self.after[_spot(tensor)])

    def known(self, arena: Array) -> Array:
        """`arena` with nothing in it but what is known: what lies between instructions is as before."""
        result = arena.copy()
        for tensor in self.between:
            result[_spot(tensor)] = self.before[_spot(tensor)]
        return result


def _spot(tensor: Tensor) -> slice:
    return slice(tensor.offset, tensor.offset + tensor.nbytes)


def merge(recorded: Sequence[Recorded], fill: int = 0xA5) -> Merged:
    """One model of all cases, which know nothing of each other. Unused bytes of the arena hold `fill`."""
    tensors: list[Tensor] = []
    steps: list[Instruction] = []
    owners: list[tuple[Tensor, str, Instruction]] = []
    between: list[Tensor] = []
    blob, arena = bytearray(), 0
    given: list[tuple[Tensor, Array]] = []
    made: list[tuple[Tensor, Array]] = []
    for one in recorded:
        model, first, base = one.case.model, len(tensors), len(blob)
        shift = {Storage.ARENA: arena, Storage.CONSTANT: base}
        tensors += [replace(t, offset=t.offset + shift[t.storage]) for t in model.tensors]
        blob += bytes(model.constants.data) + bytes(-len(model.constants) % ALIGN)
        arena += -(-(model.arena_size + GUARD) // ALIGN) * ALIGN
        for op in one.case.ops:
            inputs, outputs = (tuple(i if i < 0 else i + first for i in s) for s in (op.inputs, op.outputs))
            steps.append(replace(op, inputs=inputs, outputs=outputs))
            owners += [(tensors[i], one.test, op) for i in outputs if i - first in one.results]
            between += [tensors[i] for i in outputs if i - first not in one.results]
        given += [(tensors[i + first], x) for i, x in one.case.values.items()]
        made += [(tensors[i + first], x) for i, x in one.results.items()]
    before = _filled(np.full(arena, fill, np.uint8), given)
    after = _filled(before, made)
    constants = Constants(memoryview(bytes(blob)))
    merged = Model("merged", (), (), tuple(tensors), (BpuSegment("s", tuple(steps)),), arena, constants)
    return Merged(merged, before, after, between, owners)


def _filled(arena: Array, values: Sequence[tuple[Tensor, Array]]) -> Array:
    result = arena.copy()
    for tensor, x in values:
        result[_spot(tensor)] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return result
