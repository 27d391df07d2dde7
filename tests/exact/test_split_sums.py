"""Sums that may leave i32: the JIT takes them in parts, and gives the reference's bits on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hbc_runtime.isa import Scheme
from hbc_runtime.jit.convolve import Plan
from hbc_runtime.jit.kernels.conv import pack_conv
from hbc_runtime.jit.split_sum import Part, parts_of
from hbc_runtime.numerics import I32_MAX
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, Job, layout, run_together
from tests.exact.test_conv import job

Array = NDArray[Any]
FAR = 1 << 15  # of an i16
KINDS = {"bytes": np.int8, "words": np.int16}


def weights(kind: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Of one sign in most channels, with the dtype's ends among them: the largest sums."""
    rng, info = np.random.default_rng(seed), np.iinfo(KINDS[kind])
    values = rng.integers(info.min, info.max, shape, endpoint=True)
    values[::3] = np.abs(values[::3])
    values[1::5] = info.min
    return values.clip(info.min, info.max).astype(KINDS[kind])


def a_job(kind: str, x: Array, shape: tuple[int, ...], seed: int = 0, **attributes: Any) -> Job:
    """A convolution to i16, half of whose sums leave i32 where `x` holds the ends of its dtype."""
    rng, outputs = np.random.default_rng(seed), shape[0]
    bias = rng.integers(-(1 << 31), 1 << 31, outputs).astype(np.int32)
    bias[0] = I32_MAX
    mult = rng.integers(1 << 30, (1 << 31) - 1, outputs).astype(np.int32)
    params: list[Array | None] = [bias, mult, np.zeros(outputs, np.int8), np.full(outputs, 46, np.int8)]
    ends = {"clamp_min": -(1 << 15), "clamp_max": (1 << 15) - 1}
    return job(x, weights(kind, shape, seed), DType.I16, params, {0}, scheme=Scheme.WIDE, **ends, **attributes)


def image(shape: tuple[int, ...], fill: str) -> Array:
    if fill == "random":
        return np.random.default_rng(3).integers(-(1 << 15), 1 << 15, shape).astype(np.int16)
    return np.full(shape, {"least": -(1 << 15), "most": (1 << 15) - 1}[fill], np.int16)


def plan_of(made: Job, machine: str = "") -> Plan:
    case = layout([made])
    op = case.ops[0]
    ins, outs = case.tensors(op.inputs), [case.model.tensors[i] for i in op.outputs]
    constants = [None if i in made.dynamic else x for i, x in enumerate(made.operands)]
    host = MACHINES[machine] if machine else next(iter(MACHINES.values()))
    variant = pack_conv(op, ins, outs, constants, host).variant  # type: ignore[arg-type]
    assert isinstance(variant, Plan)
    return variant


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_machine_gives_the_references_integers(machine: Any, kind: str) -> None:
    """Windows with halos, odd row lengths, groups, dilation, lists of pixels; channels that fill no vector."""
    jobs = []
    for fill in ("random", "least", "most"):
        jobs += [
            a_job(kind, image((1, 5, 6, 57), fill), (19, 3, 3, 57), pads=(1, 1, 1, 1)),
            a_job(kind, image((2, 3, 4, 601), fill), (33, 1, 1, 601)),
            a_job(kind, image((1, 7, 6, 62), fill), (20, 3, 3, 31), group=2, dilations=(1, 2), strides=(2, 1)),
        ]
    threads = (1, 2) if machine is next(iter(MACHINES.values())) else (1,)
    run_together(jobs, threads=threads, machine=machine)


def test_sums_of_several_parts_are_cut_where_they_fit() -> None:
    for kind, least in (("bytes", 2), ("words", 4)):
        plan = plan_of(a_job(kind, image((2, 3, 4, 1201), "random"), (33, 1, 1, 1201)))
        assert len(plan.parts) >= least
        for shift in {p.shift for p in plan.parts}:
            own = [p for p in plan.parts if p.shift == shift]
            assert [p.first for p in own] == [0, *np.cumsum([p.steps for p in own])[:-1]]
            assert sum(p.steps for p in own) == 601
        assert {p.shift for p in plan.parts} == ({0} if kind == "bytes" else {0, 8})
        assert not plan.shape.wide
        assert plan.final.wide


def test_a_sum_that_fits_with_its_bias_only_in_i64_is_one_part() -> None:
    assert plan_of(a_job("bytes", image((1, 3, 3, 8), "least"), (16, 1, 1, 8))).parts == (Part(0, 4, 0),)


@pytest.mark.parametrize("w", [127, 50, 3])
def test_parts_are_as_few_as_the_largest_channel_allows(w: int) -> None:
    """Of |w| = w everywhere, n steps sum to at most 2 · n · w · far."""
    weight = np.full((4, 1, 1, 2 * 1600), 1, np.int8)
    weight[2] = -w
    parts = parts_of(weight, FAR, 1)
    longest = max(p.steps for p in parts)
    assert 2 * longest * w * FAR <= I32_MAX
    assert sum(p.steps for p in parts) == 1600
    if len(parts) > 1:
        assert 2 * -(-1600 // (len(parts) - 1)) * w * FAR > I32_MAX
    assert (len(parts) > 1) == (w > 20)


def test_the_edge_is_met_exactly() -> None:
    """A sum of at most 2^31 − 1 is one part; of 2^31, two."""
    assert len(parts_of(np.array([[[[1, 0, 0, 0]]]], np.int8), I32_MAX, 1)) == 1
    assert len(parts_of(np.array([[[[1, 0, 1, 0]]]], np.int8), 1 << 30, 1)) == 2


def test_one_step_too_large_has_no_parts() -> None:
    assert parts_of(np.full((1, 3, 3, 2), 127, np.int8), 1 << 24, 1) == ()
