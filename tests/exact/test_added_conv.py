"""A convolution of bytes and the addition behind it in one pass: the same integers as one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hbc_runtime import reference
from hbc_runtime.isa import Add, Conv2d, Instruction, Lut, Scheme
from hbc_runtime.jit import assembly
from hbc_runtime.jit.fused import AddedConv2d
from hbc_runtime.jit.fusion import fused
from hbc_runtime.jit.host import Host
from hbc_runtime.program import BpuSegment
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, Case, Job, layout, run_jit
from tests.exact.test_bytes import CLAMPS, form_a

FEW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
NATIVE = next(iter(MACHINES.values()))
SAME = np.arange(-128, 128, dtype=np.int8)
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
needs_fast_finish = pytest.mark.skipif(
    NATIVE.lanes < 8 or NATIVE.dot == 0, reason="additions are fused where bytes are packed by x86's dot products"
)


def conv_job(rng: np.random.Generator, x: np.ndarray, kernel: int, clamp: tuple[int, int], dead: float) -> Job:
    """A convolution of `x` that keeps its shape."""
    channels, zero_point = x.shape[3], int(rng.integers(-20, 20))
    weight = rng.integers(-127, 128, (channels, kernel, kernel, channels)).astype(np.int8)
    parameters, rounding = form_a(rng, channels, zero_point, dead)
    bias = (rng.integers(-20000, 20000, channels) + rounding).astype(np.int32)
    op = Conv2d(
        inputs=(), outputs=(), scheme=Scheme.FORM_A, zero_point=zero_point, clamp_min=clamp[0], clamp_max=clamp[1],
        pads=(kernel // 2,) * 4, pad_value=int(rng.integers(-128, 128)),
    )  # fmt: skip
    return Job(op, [x, weight, bias, *parameters, None, None, None], [(x.shape, DType.I8)])


def add_job(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, clamp: tuple[int, int], shift: int) -> Job:
    """A sum of two tensors with multipliers of either sign."""
    zero_points = [int(v) for v in rng.integers(-128, 128, 3)]
    multipliers = [int(v) for v in rng.integers(-(1 << 15) + 1, 1 << 15, 2)]
    op = Add(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, lhs_multiplier=multipliers[0], rhs_multiplier=multipliers[1],
        shift=shift, lhs_zero_point=zero_points[0], rhs_zero_point=zero_points[1], zero_point=zero_points[2],
        clamp_min=clamp[0], clamp_max=clamp[1],
    )  # fmt: skip
    return Job(op, [a, b], [(a.shape, DType.I8)], frozenset({0, 1}))


def two_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], kernel: int, clamps: list[tuple[int, int]], shift: int,
    *, left: bool, dead: float,
) -> tuple[Case, dict[int, np.ndarray]]:  # fmt: skip
    """s = x's convolution + b, y = s's convolution + s, z = the same as y. And what z must hold.

    s is read by a convolution, so that it may be stored as q + 128; b and y are not.
    """
    x, b = (rng.integers(-128, 128, shape).astype(np.int8) for _ in range(2))
    jobs = [
        conv_job(rng, x, kernel, clamps[0], dead), add_job(rng, b, b, clamps[1], shift),
        conv_job(rng, b, kernel, clamps[1], dead), add_job(rng, b, b, clamps[0], shift),
        Job(Lut(inputs=(), outputs=()), [x, SAME], [(shape, DType.I8)]),
    ]  # fmt: skip
    plain = layout(jobs)
    u, s, v, y, z = (op.outputs[0] for op in plain.ops)
    first, one, second, two, last = plain.ops
    beside = one.inputs[1]
    steps: tuple[Instruction, ...] = (
        first,
        replace(one, inputs=(u, beside) if left else (beside, u)),
        replace(second, inputs=(s, *second.inputs[1:])),
        replace(two, inputs=(s, v) if left else (v, s)),
        replace(last, inputs=(y, last.inputs[1])),
    )
    model = replace(plain.model, segments=(BpuSegment("s", steps),))
    values = {i: a for i, a in plain.values.items() if i in {first.inputs[0], beside}}
    held = dict(values)
    for op in steps:
        operands = [
            None if i < 0 else held[i] if i in held else model.constant(i) for i in op.inputs
        ]  # fmt: skip
        outs = [model.tensors[i] for i in op.outputs]
        held |= dict(zip(op.outputs, reference.execute(op, operands, outs), strict=True))
    return Case(steps, model, values), {z: held[z]}


@machines
@given(
    channels=st.sampled_from([32, 33, 48, 64, 72, 100, 128]),
    size=st.tuples(st.integers(1, 2), st.sampled_from([1, 3, 7]), st.sampled_from([1, 2, 7, 8, 15, 29])),
    kernel=st.sampled_from([1, 3]),
    clamps=st.tuples(CLAMPS, CLAMPS),
    shift=st.sampled_from([0, 1, 13, 15, 16, 22, 31, 40]),
    left=st.booleans(),
    dead=st.sampled_from([0.0, 0.2]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**31),
)
@example(
    channels=64, size=(1, 3, 15), kernel=3, clamps=((-128, 127), (0, 127)), shift=15, left=True, dead=0.0, threads=1,
    seed=0,
)  # fmt: skip
@example(
    channels=100, size=(1, 1, 29), kernel=1, clamps=((0, 127), (-128, 127)), shift=16, left=False, dead=0.0, threads=1,
    seed=1,
)  # fmt: skip
@FEW
def test_same_integers(
    machine: Host, channels: int, size: tuple[int, int, int], kernel: int, clamps: Any, shift: int, left: bool,
    dead: float, threads: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    case, expected = two_blocks(rng, (*size, channels), kernel, list(clamps), shift, left=left, dead=dead)
    results = run_jit(case, threads, 0xA5, machine)
    for i, want in expected.items():
        np.testing.assert_array_equal(results[i], want)


def two_sums(rng: np.random.Generator) -> tuple[Case, dict[int, np.ndarray]]:
    """Two convolutions and sums that differ in nothing but their numbers, and what the sums must hold."""
    x, b = (rng.integers(-128, 128, (1, 3, 5, 64)).astype(np.int8) for _ in range(2))
    jobs = [job for _ in range(2) for job in (conv_job(rng, x, 1, (-128, 127), 0.0), add_job(rng, b, b, (0, 127), 15))]
    plain = layout(jobs)
    steps: list[Instruction] = []
    held = dict(plain.values)
    for conv, add in zip(plain.ops[::2], plain.ops[1::2], strict=True):
        assert isinstance(conv, Conv2d)
        assert isinstance(add, Add)
        steps += replace(conv, zero_point=3, pad_value=0), replace(add, inputs=(conv.outputs[0], add.inputs[1]))
    for op in steps:
        operands = [None if i < 0 else held[i] if i in held else plain.model.constant(i) for i in op.inputs]
        outs = [plain.model.tensors[i] for i in op.outputs]
        held |= dict(zip(op.outputs, reference.execute(op, operands, outs), strict=True))
    model = replace(plain.model, segments=(BpuSegment("s", tuple(steps)),))
    sums = [op.outputs[0] for op in steps[1::2]]
    return Case(tuple(steps), model, plain.values), {i: held[i] for i in sums}


@machines
def test_sums_of_other_numbers_share_a_kernel(machine: Host) -> None:
    case, expected = two_sums(np.random.default_rng(5))
    results = run_jit(case, 1, 0xA5, machine)
    for i, want in expected.items():
        np.testing.assert_array_equal(results[i], want)


@needs_fast_finish
def test_that_kernel_is_one() -> None:
    case, _ = two_sums(np.random.default_rng(5))
    made = assembly._Assembly(case.model, NATIVE)
    ops = fused(made.model, made.can_add)[0]
    assert [type(op) for op in ops] == [AddedConv2d, AddedConv2d]
    assert made.prepare(ops[0])[0] is made.prepare(ops[1])[0]


def fused_ops(case: Case) -> list[type[Instruction]]:
    made = assembly._Assembly(case.model, NATIVE)
    return [type(op) for op in fused(made.model, made.can_add)[0]]


@needs_fast_finish
def test_what_is_fused() -> None:
    clamps = [(-128, 127), (0, 127)]
    case, _ = two_blocks(np.random.default_rng(0), (1, 4, 4, 64), 3, clamps, 15, left=True, dead=0.0)
    assert fused_ops(case) == [AddedConv2d, AddedConv2d, Lut]


@needs_fast_finish
def test_a_sum_beyond_32_bits_is_not_fused() -> None:
    clamps = [(-128, 127), (0, 127)]
    case, _ = two_blocks(np.random.default_rng(0), (1, 4, 4, 64), 3, clamps, 40, left=True, dead=0.0)
    assert fused_ops(case) == [Conv2d, Add, Conv2d, Add, Lut]


@needs_fast_finish
def test_a_sum_on_the_image_is_not_fused() -> None:
    clamps = [(-128, 127), (0, 127)]
    case, _ = two_blocks(np.random.default_rng(0), (1, 4, 4, 64), 3, clamps, 15, left=True, dead=0.0)
    image, total = case.ops[0].inputs[0], case.ops[1].outputs[0]
    tensors = list(case.model.tensors)
    tensors[total] = replace(tensors[total], offset=tensors[image].offset)
    assert fused_ops(replace(case, model=replace(case.model, tensors=tuple(tensors))))[:2] == [Conv2d, Add]
