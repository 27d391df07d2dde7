"""Matmul: the JIT gives the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import Matmul, Scheme
from hbc_runtime.jit.host import Host
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


def test_an_empty_result_runs() -> None:
    empty = np.zeros((0, 4), np.int8)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    assert matmul(empty, np.ones((4, 3), np.int8), DType.I32, [], scheme=Scheme.NONE, **limits).shape == (0, 3)


def test_i16_sums_beyond_i32_saturate() -> None:
    lhs, rhs = np.full((3, 64), -32768, np.int16), np.full((64, 5), 32767, np.int16)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1}
    assert (matmul(lhs, rhs, DType.I32, [], scheme=Scheme.NONE, **limits) == -(2**31)).all()
