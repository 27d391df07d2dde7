"""Division, squares, bounds that are computed, and reductions of every kind between QDQ nodes, beside ONNX Runtime.

Divisions by constants and by tensors that are never 0 (`--arith bpu`): `lower-to-mul` takes them where its worst case
is 2 quanta of an i8 result (256 of an i16 one); random ones stay at 1, and at 4 of i16. Squares: 1 quantum, one
rounding. Under `--arith onnx` every quotient that is no table runs on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import hbc
from tests.differential.quantised import ARITHS, Case, Scaled, cpu_reasons, quanta, scaled

MODEST = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NARROW = st.sampled_from([np.int8, np.uint8, np.int16])
SEEDS = st.integers(0, 1 << 31)
both = pytest.mark.parametrize("arith", ARITHS)
WITHIN: dict[Any, int] = {np.int8: 1, np.uint8: 1, np.int16: 4}


@MODEST
@given(SEEDS, NARROW, st.sampled_from([(), (4, 1), (1, 4, 1), (2, 4, 5)]))
def test_division_by_constants(seed: int, dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    by, out = scaled(rng, dtype), scaled(rng, dtype, 0.02, 0.2)
    divisor = (rng.uniform(0.3, 3, shape) * rng.choice([-1, 1], shape)).astype(np.float32)
    case = Case()
    case.result(case.op("Div", case.activation(by.ints(rng, 2, 4, 5), by), case.const(divisor)), out)
    assert quanta(case, "bpu") <= WITHIN[dtype]


@both
@MODEST
@given(SEEDS, st.sampled_from([np.int8, np.uint8]))
def test_division_by_one_constant_is_a_table(arith: str, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    by, out = scaled(rng, dtype), scaled(rng, dtype)
    case = Case()
    x = case.activation(np.arange(256).astype(dtype), by)
    case.result(case.op("Div", x, case.const(np.float32(rng.uniform(-3, 3)))), out)
    assert quanta(case, arith) <= (arith == "bpu")


@MODEST
@given(SEEDS, NARROW)
def test_division_by_a_tensor_that_is_never_zero(seed: int, dtype: Any) -> None:
    """A clip away from 0 stands before the divisor's quantize."""
    rng = np.random.default_rng(seed)
    by, divisor_by = scaled(rng, dtype), scaled(rng, dtype)
    top = (np.iinfo(dtype).max - int(divisor_by.zero)) * divisor_by.scale
    assume(top > 40 * divisor_by.scale)
    case = Case()
    a = case.activation(by.ints(rng, 2, 4, 5), by)
    b = case.activation(divisor_by.ints(rng, 4, 1), divisor_by)
    b = case.op("Clip", b, case.const(np.float32(top * 0.2)), case.const(np.float32(top)))
    b = case.dq(case.q(b, divisor_by.scale, divisor_by.zero), divisor_by.scale, divisor_by.zero)
    reach = 100 * by.scale / (0.5 * top) * (1 if np.dtype(dtype).itemsize == 1 else 256)
    out = Scaled(float(np.float32(reach / (100 if np.dtype(dtype).itemsize == 1 else 25000))), by.zero)
    assert quanta(case.result(case.op("Div", a, b), out), "bpu") <= WITHIN[dtype]


@both
def test_division_by_what_may_be_zero_says_so(arith: str) -> None:
    rng = np.random.default_rng(0)
    by = Scaled(0.1, np.int8(0))
    case = Case()
    y = case.op("Div", case.activation(by.ints(rng, 3, 4), by), case.activation(by.ints(rng, 3, 4), by))
    case.result(y, by)
    found = " ".join(cpu_reasons(hbc.compile(case.model(), arith=arith).program))
    assert ("its divisor may be 0" if arith == "bpu" else "computed in floats under --arith onnx") in found


def test_a_reciprocal_that_i16_is_too_coarse_for_stays_in_reals() -> None:
    """Reciprocals from 1/1000 to 1000: in steps of the largest, the smallest is half a step."""
    rng = np.random.default_rng(0)
    by = Scaled(0.1, np.int8(0))
    case = Case()
    divisors = np.array([0.001, 1000.0], np.float32)
    case.result(case.op("Div", case.activation(by.ints(rng, 3, 2), by), case.const(divisors)), Scaled(1e-4, np.int8(0)))
    (reason,) = cpu_reasons(hbc.compile(case.model()).program)
    assert "an i16 reciprocal of its divisor would move its result by up to" in reason
    assert quanta(case, "bpu", cpu=True) == 0


@both
@MODEST
@given(SEEDS, NARROW)
def test_squares(arith: str, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, dtype)
    wide = np.dtype(dtype).itemsize == 2
    by = Scaled(by.scale, np.int16(0)) if wide else by  # a product of two i16 with zero points leaves 32 bits
    out = Scaled(float(np.float32(by.scale**2 * (20000 if wide else 100))), scaled(rng, dtype).zero)
    case = Case()
    x = case.activation(by.ints(rng, 2, 60), by)
    case.result(case.op("Pow", x, case.const(np.float32(2))), out)
    assert quanta(case, arith) <= (arith == "bpu")


@both
@MODEST
@given(SEEDS, st.booleans(), st.booleans())
def test_clip_between_computed_bounds(arith: str, seed: int, low: bool, high: bool) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, np.int8)
    case = Case()
    x = case.activation(by.ints(rng, 3, 7), by)
    bounds = [case.activation(by.ints(rng), by) if given_ else "" for given_ in (low, high)]
    case.result(case.op("Clip", x, *bounds), by)
    assert quanta(case, arith) == 0


@both
@MODEST
@given(
    SEEDS,
    st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"]),
    NARROW,
    st.sampled_from([None, (), (0,), (-1,), (1, 2), (-1, -2), (0, 1, 2, 3), (3, 1)]),
    st.booleans(),
)
def test_reductions(arith: str, seed: int, op: str, dtype: Any, axes: Any, keep: bool) -> None:
    """Any axes, given as an operand; none, or an empty list, is all of them."""
    rng = np.random.default_rng(seed)
    by, shape = scaled(rng, dtype), (2, 3, 4, 5)
    picks = op in {"ReduceMax", "ReduceMin"}
    grow = 6 if op == "ReduceSum" else 1
    out = by if picks else Scaled(float(np.float32(by.scale * grow)), by.zero)
    case = Case()
    operands = [case.activation(by.ints(rng, *shape), by)]
    operands += [] if axes is None else [case.const(np.array(axes, np.int64))]
    case.result(case.op(op, *operands, keepdims=int(keep)), out)
    assert quanta(case, arith) <= (0 if picks else 1)


@both
def test_a_reduction_over_no_axes_does_nothing_where_the_node_says_so(arith: str) -> None:
    rng = np.random.default_rng(0)
    by = Scaled(0.1, np.int8(3))
    case = Case()
    x = case.activation(by.ints(rng, 3, 4), by)
    empty = case.const(np.array([], np.int64))
    case.result(case.op("ReduceSum", x, empty, noop_with_empty_axes=1), by)
    assert quanta(case, arith) == 0


@MODEST
@given(SEEDS, NARROW, st.sampled_from(["Sum", "Mean", "chain"]), st.integers(3, 5))
def test_sums_of_many(seed: int, dtype: Any, kind: str, count: int) -> None:
    """In i16 between the additions (`--arith bpu`): 1 quantum of i8, a few of i16 (D6's multipliers have 15 bits)."""
    rng = np.random.default_rng(seed)
    case = Case()
    terms = []
    for i in range(count):
        by = scaled(rng, dtype)
        terms.append(case.activation(by.ints(rng, 2, 1 if i == 1 else 3, 4), by))
    terms.append(case.const(rng.uniform(-1, 1, (3, 1)).astype(np.float32)))
    if kind == "chain":
        total = case.op(
            "Sub", case.op("Add", terms[0], terms[1]), case.op("Add", case.op("Sub", *terms[2:4]), terms[-1])
        )
    else:
        total = case.op(kind, *terms)
    out = scaled(rng, dtype, 0.05, 0.2)
    assert quanta(case.result(total, out), "bpu") <= (1 if np.dtype(dtype).itemsize == 1 else 8)


def test_sums_of_many_in_onnx_arithmetic_run_on_the_cpu() -> None:
    rng = np.random.default_rng(0)
    by = Scaled(0.1, np.int8(3))
    case = Case()
    terms = [case.activation(by.ints(rng, 3, 4), by) for _ in range(3)]
    assert quanta(case.result(case.op("Sum", *terms), by), "onnx", cpu=True) == 0
