"""Dividing points by curvature: how far a table is from its function, and that the instruction says the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir.ops import PLAIN_UNARY
from hbc.ir.types import DType, TensorType
from hbc.passes.segments import ENTRIES, FIRST, INPUTS, LAST, SEGMENTS, Division, divide
from hbc_runtime import isa, numerics, reference

Function = Callable[[np.ndarray], np.ndarray]
# Function, the reals that the i16 operand covers, and (where f has no value below) the first of them.
USUAL: dict[str, tuple[Function | str, float, float]] = {
    "sigmoid": ("sigmoid", 8, -8), "tanh": ("tanh", 8, -8), "exp": ("exp", 16, -16),
    "gelu": (lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), 8, -8),
    "silu": ("silu", 8, -8), "mish": ("mish", 8, -8), "erf": ("erf", 4, -4),
    "softplus": (lambda x: np.logaddexp(0, x), 8, -8),
    "hard_swish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 8, -8),
    "relu6": (lambda x: np.clip(x, 0, 6), 8, -8),
    "sqrt": ("sqrt", 16, 0), "rsqrt": (lambda x: 1 / np.sqrt(x), 16, 0.01), "log": ("log", 16, 0.01),
    "reciprocal": ("reciprocal", 8, 0.01),
}  # fmt: skip


def integers_of(f: Function | str, largest: float, first: float) -> tuple[np.ndarray, tuple[int, int]]:
    """(the function's integers at INPUTS, the inputs for which it is asked), both scales as wide as they need be."""
    function = PLAIN_UNARY[f].function if isinstance(f, str) else f
    scale = largest / 32768
    reals = INPUTS * scale
    with np.errstate(all="ignore"):
        values = function(None, reals) if isinstance(f, str) else function(reals)  # type: ignore[call-arg, arg-type]
    top = np.abs(values[(reals >= first) & np.isfinite(values)]).max()
    ints = numerics.lut_table(lambda _: values, reals, float(top) / 32767, 0, FIRST, LAST)
    return ints, (max(FIRST, math.ceil(first / scale)), LAST)


@pytest.mark.parametrize("name", USUAL)
def test_usual_functions_are_one_quantum_off_at_most(name: str) -> None:
    """The integers of the entries and of the interpolation are both rounded: less than one quantum isn't to be had."""
    ints, reach = integers_of(*USUAL[name])
    division = divide(ints, reach)
    off = np.abs(division.result - ints[:-1])[reach[0] - FIRST : reach[1] - FIRST + 1]
    assert division.worst == off.max() <= 1


def test_a_kink_gets_segments_of_single_inputs() -> None:
    ints = np.abs(INPUTS + 12345).clip(0, LAST)
    division = divide(ints)
    assert np.array_equal(division.result, ints[:-1])
    segment = division.segments[np.searchsorted(division.segments[:, 0], -12345, side="right") - 1]
    assert segment[1] == 0  # every cell is one input


def test_a_step_is_exact_and_many_steps_are_not() -> None:
    assert divide(np.where(INPUTS < 777, -20000, 30000)).worst == 0
    assert divide(INPUTS // 4096 * 4096).worst > 256


def test_a_pole_is_exact_where_it_saturates() -> None:
    with np.errstate(divide="ignore"):
        ints = numerics.lut_table(lambda x: 1 / x, INPUTS * 1e-3, 1e-3, 0, FIRST, LAST)
    assert divide(ints).worst <= 1


def test_what_lies_outside_the_reach_does_not_count() -> None:
    ints = np.where(INPUTS < 0, np.random.default_rng(0).integers(FIRST, LAST, len(INPUTS)), INPUTS // 3)
    division = divide(ints, (0, LAST))
    assert division.worst <= 1
    assert np.abs(division.result - ints[:-1])[-FIRST:].max() == division.worst


@st.composite
def polygons(draw: st.DrawFn) -> np.ndarray:
    """Straight pieces between random corners."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    corners = np.sort(rng.choice(INPUTS[1:-1], draw(st.integers(0, 8)), replace=False))
    xs = np.concatenate([[FIRST], corners, [LAST + 1]])
    return np.rint(np.interp(INPUTS, xs, rng.integers(FIRST, LAST + 1, len(xs)))).astype(np.int64)


@settings(max_examples=25, deadline=None)
@given(polygons())
def test_a_division_is_what_the_instruction_takes(ints: np.ndarray) -> None:
    division = divide(ints)
    first, shift, row = division.segments.T
    ends = np.append(first[1:], LAST + 1)
    assert first[0] == FIRST
    assert np.all(ends - first == ENTRIES << shift)
    assert len(first) <= SEGMENTS
    assert row.tolist() == list(range(len(first)))
    assert division.worst == np.abs(division.result - ints[:-1]).max()
    assert np.array_equal(executed(division), division.result)
    assert division.worst <= np.abs(even(ints) - ints[:-1]).max() + 1  # never worse than segments of one width


def executed(division: Division) -> np.ndarray:
    """The reference's results for every i16."""
    op = isa.SegmentLut(inputs=(), outputs=(), clamp_min=FIRST, clamp_max=LAST)
    x = np.arange(FIRST, LAST + 1).astype(np.int16)
    out = TensorType(x.shape, DType.I16)
    return np.asarray(reference.execute(op, [x, division.segments, division.table], [out])[0])


def even(ints: np.ndarray) -> np.ndarray:
    """64 segments of 64 cells of 16 inputs."""
    entries = ints[::16]
    steps = numerics.round_shift_half_up(np.diff(entries)[:, None] * np.arange(16), 4)
    return np.asarray((entries[:-1, None] + steps).reshape(-1))
