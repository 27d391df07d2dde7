"""ReduceSum, ReduceMax, ReduceMin: the JIT gives the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import ReduceMax, ReduceMin, ReduceSum, Scheme
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.heavy import ACTIVATIONS, EXACT, SCHEMES, outputs, parameters, ranges, tensors
from tests.exact.light import shapes


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(shape, axes in any order, result's shape)."""
    shape = draw(shapes(max_rank=5, max_side=6))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    return shape, tuple(axes), tuple(1 if i in axes else d for i, d in enumerate(shape))


def extreme(data: st.DataObject, **run: Any) -> None:
    shape, axes, result = data.draw(reductions())
    x = data.draw(tensors(shape, data.draw(ACTIVATIONS)))
    cls = data.draw(st.sampled_from([ReduceMax, ReduceMin]))
    run_both(cls(inputs=(), outputs=(), axes=axes), [x], [(result, DType.of(x.dtype))], **run)


def total(data: st.DataObject, **run: Any) -> None:
    shape, axes, result = data.draw(reductions())
    x, scheme = data.draw(tensors(shape, data.draw(ACTIVATIONS))), data.draw(SCHEMES)
    out, info = data.draw(outputs(scheme)), np.iinfo(x.dtype)
    zero_point = data.draw(st.one_of(st.just(0), st.integers(info.min, info.max)))
    more, params = data.draw(ranges(scheme, out)), data.draw(parameters(scheme, 1))
    op = ReduceSum(inputs=(), outputs=(), axes=axes, scheme=scheme, x_zero_point=zero_point, **more)
    run_both(op, [x, *params], [(result, out)], **run)


@given(st.data())
@EXACT
def test_largest_and_smallest(data: st.DataObject) -> None:
    extreme(data, threads=(1, 2))


@given(st.data())
@EXACT
def test_sum(data: st.DataObject) -> None:
    total(data, threads=(1, 2))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(st.data())
@EXACT
def test_other_vector_lengths(machine: Host, data: st.DataObject) -> None:
    (extreme if data.draw(st.booleans()) else total)(data, machine=machine)


@pytest.mark.parametrize(("shape", "axes"), [((40000, 1), (0,)), ((1, 40000), (1,)), ((300, 300), (0, 1))])
def test_sums_that_leave_i32_saturate(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.full(shape, 32767, np.int16)
    limits = {"clamp_min": -(2**31), "clamp_max": 2**31 - 1, "x_zero_point": -32768}
    op = ReduceSum(inputs=(), outputs=(), axes=axes, scheme=Scheme.NONE, **limits)
    y = run_both(op, [x, None, None, None], [((1, 1), DType.I32)])[0]
    assert y.tolist() == [[2**31 - 1]]
