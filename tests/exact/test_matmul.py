"""Matmul: the JIT gives the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc_runtime import numerics
from hbc_runtime.isa import Matmul, Scheme
from hbc_runtime.jit.host import Dot, Host
from hbc_runtime.jit.quad_matmul import Product
from hbc_runtime.jit.quad_plan import make_quad_plan
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.heavy import (
    ACTIVATIONS,
    CHANNELS,
    EXACT,
    SCHEMES,
    Array,
    biases,
    outputs,
    parameters,
    ranges,
    tensors,
)


def matmul(
    lhs: Array, rhs: Array, out: DType, params: list[Array | None], threads: tuple[int, ...] = (1,), **attributes: Any
) -> Array:
    """Run a Matmul in reference and JIT. `params`: operands 2…5."""
    run = {name: attributes.pop(name) for name in ("dynamic", "machine") if name in attributes}
    op = Matmul(inputs=(), outputs=(), **attributes)
    shape = (*np.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2]), lhs.shape[-2], rhs.shape[-1])
    operands = [lhs, rhs, *params, *[None] * (4 - len(params))]
    return run_both(op, operands, [(shape, out)], threads=threads, **run)[0]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that `matmul` takes: batch axes that broadcast either way, any dtypes and zero points."""
    batch = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["both", "lhs", "rhs"])), max_size=3))
    lhs_batch, rhs_batch = ([1 if side == other else n for n, side in batch] for other in ("rhs", "lhs"))
    m, inner, n = draw(st.integers(1, 20)), draw(st.integers(1, 40)), draw(CHANNELS)
    scheme, lhs_type, rhs_type = draw(SCHEMES), draw(ACTIVATIONS), draw(ACTIVATIONS)
    out = draw(outputs(scheme))
    zero_points = [
        draw(st.one_of(st.just(0), st.integers(np.iinfo(t).min, np.iinfo(t).max))) for t in (lhs_type, rhs_type)
    ]
    return {
        "lhs": draw(tensors((*lhs_batch, m, inner), lhs_type)),
        "rhs": draw(tensors((*rhs_batch, inner, n), rhs_type)),
        "out": out,
        "params": [draw(biases(n)), *draw(parameters(scheme, n))],
        "scheme": scheme,
        "lhs_zero_point": zero_points[0],
        "rhs_zero_point": zero_points[1],
        **draw(ranges(scheme, out)),
    }


@given(cases(), st.sampled_from([{0}, {1}, {0, 1}]))
@EXACT
def test_any_shape(case: dict[str, Any], dynamic: set[int]) -> None:
    matmul(**case, dynamic=dynamic, threads=(1, 2))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(case=cases())
@EXACT
def test_other_vector_lengths(machine: Host, case: dict[str, Any]) -> None:
    matmul(**case, dynamic={0, 1}, machine=machine)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_many_rows_and_columns(dtype: type[np.generic]) -> None:
    """More rows than one work item and more columns than one chunk, odd everywhere."""
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype)
    lhs, rhs = (
        rng.integers(info.min, info.max, s, endpoint=True).astype(dtype) for s in ((2, 131, 301), (1, 301, 139))
    )
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    matmul(lhs, rhs, DType.I32, [], scheme=Scheme.NONE, dynamic={0, 1}, threads=(1, 2, 3), **limits)


# ---- bytes as networks have them: columns that fill vectors, results in bytes by the fast finish


def byte_case(
    seed: int, sizes: tuple[int, int, int], batch: tuple[tuple[int, ...], tuple[int, ...]], scheme: Scheme,
    zero_points: tuple[int, int, int],
) -> dict[str, Any]:  # fmt: skip
    """A product of random bytes, some at their ends, whose results fill their range; `sizes` are m, k, n."""
    rng = np.random.default_rng(seed)
    m, inner, n = sizes
    lhs, rhs = (
        np.where(rng.random(s) < 0.1, rng.choice([-128, 127], s), rng.integers(-128, 128, s)).astype(np.int8)
        for s in ((*batch[0], m, inner), (*batch[1], inner, n))
    )
    count = int(rng.choice([1, n]))
    rows = [
        numerics.requantize_params(r, zero_points[2], rounding_in_bias=scheme is Scheme.FORM_A)
        for r in np.exp(rng.uniform(-2, 0, count)) / (90 * np.sqrt(inner))
    ]
    fields = (("multiplier", np.int16), ("pre_shift", np.int8), ("post_shift", np.int8))
    params = [np.array([getattr(r, name) for r in rows], dtype) for name, dtype in fields]
    params[0][0] = 0 if seed % 5 == 0 else params[0][0]
    bias = None if seed % 3 == 0 else rng.integers(-20000, 20000, n).astype(np.int32)
    return {
        "lhs": lhs, "rhs": rhs, "out": DType.I8, "params": [bias, *params], "scheme": scheme,
        "lhs_zero_point": zero_points[0], "rhs_zero_point": zero_points[1], "zero_point": zero_points[2],
        "clamp_min": -128 if seed % 2 else 0, "clamp_max": 127 if seed % 4 else 99,
    }  # fmt: skip


BATCHES = st.sampled_from([((), ()), ((2,), (2,)), ((1, 3), (2, 1)), ((2, 2), (1, 2)), ((2,), (1,))])
SIZES = st.tuples(
    st.sampled_from([1, 2, 5, 7, 14, 29, 50]), st.sampled_from([1, 3, 4, 6, 16, 33, 64, 131]),
    st.sampled_from([3, 8, 16, 24, 32, 33, 48, 64, 72, 80, 130]),
)  # fmt: skip
BYTES = st.builds(
    byte_case, st.integers(0, 1 << 32), SIZES, BATCHES, st.sampled_from([Scheme.FORM_A, Scheme.FORM_B]),
    st.tuples(st.sampled_from([0, 0, -128, 7]), st.sampled_from([0, 0, 127, -128, 5]), st.sampled_from([0, 0, -128])),
)  # fmt: skip
RIGHT = ((2, 2), (2, 2))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(case=BYTES, dynamic=st.sampled_from([{0, 1}, {0, 1}, {0}, {1}]), threads=st.sampled_from([1, 2]))
@example(case=byte_case(1, (29, 64, 120), RIGHT, Scheme.FORM_B, (0, 0, 0)), dynamic={0, 1}, threads=2)
@example(case=byte_case(7, (31, 34, 112), RIGHT, Scheme.FORM_B, (3, -77, 9)), dynamic={0, 1}, threads=2)
@example(case=byte_case(11, (33, 68, 24), RIGHT, Scheme.FORM_B, (0, 9, 0)), dynamic={0, 1}, threads=1)
@example(case=byte_case(13, (40, 65, 96), ((), ()), Scheme.FORM_A, (-5, 8, 0)), dynamic={0}, threads=1)
@settings(EXACT, max_examples=12)
def test_bytes(machine: Host, case: dict[str, Any], dynamic: set[int], threads: int) -> None:
    matmul(**case, dynamic=dynamic, threads=(threads,), machine=machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("shift", [15, 16, 17, 18, 19, 31])
def test_ends_of_form_b(machine: Host, shift: int) -> None:
    """Words that saturate, products at ±2^30, and ties, at the smallest shifts that the fast finish takes."""
    values = np.array([-32768, -1, 1, 2, 16384, 32767], np.int16)
    lhs = np.array([[-128, 127, -1, 0], [127, 127, 127, 127], [1, 0, 0, 0], [-1, 0, 1, -128]], np.int8)
    rhs = np.random.default_rng(shift).integers(-128, 128, (4, 64)).astype(np.int8)
    for multiplier in (values[1:], values):
        bias = np.resize([-(2**31) + 70000, -32769, -32768, -1, 0, 1, 2, 32767, 32768, 2**31 - 70000, 1 << 14], 64)
        params = [bias.astype(np.int32), np.resize(multiplier, 64), np.zeros(64, np.int8), np.full(64, shift, np.int8)]
        limits = {"clamp_min": -128, "clamp_max": 127, "zero_point": 3}
        matmul(lhs, rhs, DType.I8, params, scheme=Scheme.FORM_B, dynamic={0, 1}, machine=machine, **limits)


@pytest.mark.parametrize("bits", [np.int8, np.int16])
def test_one_constant_matrix_less_its_zero_point_may_need_words(bits: type[np.generic]) -> None:
    """r − zr leaves i8, or i16, where the weights of a convolution lie."""
    rng, info = np.random.default_rng(5), np.iinfo(bits)
    lhs = rng.integers(info.min, info.max, (2, 3, 9, 20), endpoint=True).astype(bits)
    rhs = rng.integers(info.min, info.max, (1, 1, 20, 40), endpoint=True).astype(bits)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    for zero_point in (0, 3, int(info.min)):
        matmul(lhs, rhs, DType.I32, [], scheme=Scheme.NONE, rhs_zero_point=zero_point, **limits)


def test_the_cases_are_the_fast_ones() -> None:
    """What these tests are for: results leave by the fast finish, and left bytes are read where they lie."""
    able = [m for m in MACHINES.values() if m.dot is Dot.U8S8]
    if not able:
        pytest.skip("this machine has no byte dot products")
    window = Product(29, 64, 120, 4, 0, 0, flip=False).window
    plans = [make_quad_plan(window, m, 0, fast=True, offset=True) for m in able]
    assert all(p.packed and p.in_place for p in plans)


def test_an_empty_result_runs() -> None:
    empty = np.zeros((0, 4), np.int8)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    assert matmul(empty, np.ones((4, 3), np.int8), DType.I32, [], scheme=Scheme.NONE, **limits).shape == (0, 3)


def test_i16_sums_beyond_i32_saturate() -> None:
    lhs, rhs = np.full((3, 64), -32768, np.int16), np.full((64, 5), 32767, np.int16)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    assert (matmul(lhs, rhs, DType.I32, [], scheme=Scheme.NONE, **limits) == -(2**31)).all()
