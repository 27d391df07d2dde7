"""Tensors stored as q + 128: every instruction that may read or write them gives the same integers.

Each instruction stands between tables and convolutions: tables make its bytes, and convolutions that read them, and its
result, are what the JIT stores them so for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hbc_runtime import isa, reference
from hbc_runtime.isa import Comparison, Instruction, Lut, Rounding, Scheme
from hbc_runtime.jit.host import Dot, Host
from hbc_runtime.jit.offset import ALIKE, EITHER, is_offset, with_offsets
from hbc_runtime.program import ALIGN, BpuSegment, Constants, Model, Storage, Tensor
from hbc_runtime.types import DType
from tests.exact.harness import GUARD, MACHINES, Case, Job, among_others, layout, run_jit

Shape = tuple[int, ...]
ABLE = {name: m for name, m in MACHINES.items() if m.dot is Dot.U8S8}
SAME = np.arange(-128, 128, dtype=np.int8)
BYTES = {"clamp_min": -100, "clamp_max": 120}
FORM_B: dict[str, Any] = {"scheme": Scheme.FORM_B, **BYTES}
ONE: list[Any] = [np.array([21000], np.int16), np.array([0], np.int8), np.array([15], np.int8)]
ADD = {"lhs_multiplier": 9000, "rhs_multiplier": -7000, "shift": 14, "lhs_zero_point": 3, "rhs_zero_point": -90,
       "zero_point": 17}  # fmt: skip
X: Shape = (1, 5, 6, 70)


def image(seed: int, shape: Shape = X) -> np.ndarray:
    """Every byte there is, in any order."""
    return np.resize(np.random.default_rng(seed).permutation(SAME), shape)


def job(
    kind: type[Instruction], operands: list[Any], out: Shape, dtype: DType = DType.I8, dynamic: tuple[int, ...] = (0,),
    **more: Any,
) -> Job:  # fmt: skip
    return Job(kind(inputs=(), outputs=(), **more), operands, [(out, dtype)], frozenset(dynamic))


def two(kind: type[Instruction], *rest: Any, other: Shape = X, **more: Any) -> Job:
    return job(kind, [image(1), image(2, other), *rest], X, dynamic=(0, 1), **more)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-127, 128, shape).astype(np.int8)


CONV = [np.zeros(70, np.int32), *([np.full(70, p[0], p.dtype) for p in ONE]), None, None, None]
FORM_A: dict[str, Any] = {"scheme": Scheme.FORM_A, **BYTES}
SELECTED = [np.random.default_rng(4).random(X) < 0.5, image(1), image(2)]
JOBS = {
    "conv": job(isa.Conv2d, [image(1), weights(70, 1, 1, 70), *CONV], X, **FORM_A),
    "conv-transpose": job(isa.ConvTranspose2d, [image(1), weights(70, 1, 1, 70), *CONV[:4]], X, **FORM_A),
    "matmul": job(isa.Matmul, [image(1), image(2, (1, 5, 70, 70)), None, *ONE], X, dynamic=(0, 1), **FORM_B,
                  lhs_zero_point=3, rhs_zero_point=-9),
    "add": two(isa.Add, **FORM_B, **ADD),
    "add-row": two(isa.Add, other=(1, 1, 1, 70), **FORM_B, **ADD),
    "add-beyond-i32": two(isa.Add, **FORM_B, **{**ADD, "shift": 40}),
    "mul": two(isa.Mul, *ONE, **FORM_B, lhs_zero_point=5, rhs_zero_point=-128),
    "maximum": two(isa.Maximum),
    "minimum": two(isa.Minimum),
    "compare": two(isa.Compare, dtype=DType.BOOL, relation=Comparison.LESS),
    "select": job(isa.Select, SELECTED, X, dynamic=(0, 1, 2)),
    "average": job(
        isa.AvgPool, [image(1), np.array([20000], np.int16), *ONE[1:]], X, kernel=(3, 3), pads=(1, 1, 1, 1), **FORM_B
    ),
    "max-pool": job(isa.MaxPool, [image(1)], X, kernel=(3, 3), pads=(1, 1, 1, 1)),
    "max-pool-few-channels": job(isa.MaxPool, [image(1, (1, 5, 6, 3))], (1, 3, 3, 3), kernel=(2, 2), strides=(2, 2),
                                 pads=(0, 0, 1, 0)),
    "quantize": job(
        isa.Quantize, [image(1).astype(np.float32), np.array([1.5], np.float32), np.array([4], np.int32)], X,
        rounding=Rounding.HALF_EVEN_F32, **BYTES,
    ),
    "requantize": job(isa.Requantize, [image(1), *ONE], X, **FORM_B, x_zero_point=-20),
    "lut": job(Lut, [image(1), np.roll(SAME, 77)], X),
    "concat": job(isa.Concat, [image(1), image(2, (1, 5, 6, 9))], (1, 5, 6, 79), dynamic=(0, 1), axis=3),
    "slice": job(isa.Slice, [image(1)], (1, 5, 3, 70), starts=(0, 0, 1, 0), steps=(1, 1, 2, 1)),
    "transpose": job(isa.Transpose, [image(1)], (1, 6, 5, 70), perm=(0, 2, 1, 3)),
    "reshape": job(isa.Reshape, [image(1)], (1, 6, 5, 70)),
    "gather": job(isa.Gather, [image(1), np.array([4, 0, 2], np.int32)], (1, 3, 6, 70), axis=1),
    "expand": job(isa.Expand, [image(1, (1, 5, 1, 70))], X),
    "resize": job(
        isa.ResizeNearest, [image(1), np.array([0, 2, 4], np.int32), np.array([1, 1, 5, 0], np.int32)], (1, 3, 4, 70)
    ),
}  # fmt: skip


def among_convolutions(one: Job) -> tuple[Case, set[int], dict[int, np.ndarray]]:
    """The model, the tensors that are to be stored as q + 128, and the instruction's result by its tensor."""
    plain = layout([one])
    case = among_others(plain)
    assert case is not None
    arena, blob = case.model.arena_size, bytearray(case.model.constants.data)
    tensors, steps = list(case.model.tensors), list(case.ops)
    raised = {i for i, t in enumerate(tensors) if t.name.startswith("inner")}
    for i in sorted(raised):  # a reader that gains by it
        n, h, w, c = tensors[i].shape
        weight, sums = len(tensors), len(tensors) + 1
        tensors.append(Tensor(f"w{i}", (1, 1, 1, c), DType.I8, Storage.CONSTANT, len(blob)))
        blob.extend(bytes(weights(c)) + bytes(-c % ALIGN))
        tensors.append(Tensor(f"sums{i}", (n, h, w, 1), DType.I32, Storage.ARENA, arena))
        arena = -(-(arena + tensors[sums].nbytes + GUARD) // ALIGN) * ALIGN
        limits = {"clamp_min": -(1 << 31), "clamp_max": (1 << 31) - 1}
        steps.append(isa.Conv2d(inputs=(i, weight, *[-1] * 7), outputs=(sums,), scheme=Scheme.NONE, **limits))
    model = replace(
        case.model, tensors=tuple(tensors), segments=(BpuSegment("s", tuple(steps)),), arena_size=arena,
        constants=Constants(memoryview(bytes(blob))),
    )  # fmt: skip
    (op,) = plain.ops
    (want,) = reference.execute(op, one.operands, [tensors[op.outputs[0]]])
    return Case(tuple(steps), model, case.values), raised, {op.outputs[0]: want}


def stored_so(model: Model) -> set[int]:
    return {i for i, t in enumerate(with_offsets(model).tensors) if is_offset(t)}


@pytest.mark.skipif(not ABLE, reason="no instruction set of this machine wants bytes as q + 128")
@pytest.mark.parametrize("machine", ABLE.values(), ids=ABLE)
@pytest.mark.parametrize("name", JOBS)
def test_same_integers(machine: Host, name: str) -> None:
    one = JOBS[name]
    case, raised, wanted = among_convolutions(one)
    assert stored_so(case.model) == raised
    for threads in (1, 2):
        results = run_jit(case, threads, 0xA5, machine)
        for i, want in wanted.items():
            np.testing.assert_array_equal(results[i], want)
        for op in case.ops:  # what convolutions make of the bytes beside it
            if isinstance(op, isa.Conv2d) and op.scheme is Scheme.NONE:
                plain = results[op.inputs[0]] ^ np.int8(-128)
                operands = [plain, case.model.constant(op.inputs[1]), *[None] * 7]
                (sums,) = reference.execute(op, operands, [case.model.tensors[op.outputs[0]]])
                np.testing.assert_array_equal(results[op.outputs[0]], sums)


def test_every_such_instruction_is_here() -> None:
    assert {type(one.op) for one in JOBS.values()} == {*ALIKE, *EITHER}
