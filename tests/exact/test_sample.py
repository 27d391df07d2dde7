"""GridSample: the JIT gives the reference's integers, and both read where a plain loop over pixels reads."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import GridSample
from hbc_runtime.types import DType
from tests.exact.harness import run_both
from tests.exact.light import EXACT, Array, arrays

SIDES = st.integers(1, 7)
CHANNELS = st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 64]))
INTEGERS = st.sampled_from([np.int8, np.int16])


@st.composite
def ops(draw: st.DrawFn, x: type, grid: type) -> GridSample:
    """Any legal attributes; positions about the input more often than far from it."""
    bits = draw(st.integers(0, 8))
    shifts = draw(st.tuples(st.integers(0, 40), st.integers(0, 40)))
    spread = 3 + bits - (0 if grid is np.int8 else 8)  # the grid's range in bits, as a position's
    multipliers = tuple(min((1 << 31) - 1, draw(st.integers(0, 1 << max(0, s + spread - 7)))) for s in shifts)
    return GridSample(
        inputs=(),
        outputs=(),
        nearest=draw(st.booleans()),
        border=draw(st.booleans()),
        fraction_bits=bits,
        multipliers=multipliers,
        shifts=shifts,
        origin=draw(st.tuples(*[st.integers(-2 << bits, 8 << bits)] * 2)),
        grid_zero_point=draw(st.integers(np.iinfo(grid).min, np.iinfo(grid).max)),
        pad_value=draw(st.integers(np.iinfo(x).min, np.iinfo(x).max)),
    )


@given(st.data(), st.tuples(st.integers(1, 2), SIDES, SIDES, CHANNELS), INTEGERS, INTEGERS, SIDES, SIDES)
@EXACT
def test_any_attributes(
    data: st.DataObject, shape: tuple[int, ...], dtype: type, grid_dtype: type, oh: int, ow: int
) -> None:
    op = data.draw(ops(dtype, grid_dtype))
    operands = [data.draw(arrays(shape, dtype)), data.draw(arrays((shape[0], oh, ow, 2), grid_dtype))]
    out = (shape[0], oh, ow, shape[3])
    run_both(op, operands, [(out, DType.of(dtype))], dynamic={0, 1}, threads=(1, 2))


def sampled(x: Array, row: float, column: float, pad: int, *, border: bool) -> float:
    """One channel of one image at a real position, by the definition of bilinear interpolation."""
    h, w = x.shape
    if border:
        row, column = min(max(row, 0), h - 1), min(max(column, 0), w - 1)
    top, left = math.floor(row), math.floor(column)
    total = 0.0
    for i in (top, top + 1):
        for j in (left, left + 1):
            value = int(x[i, j]) if 0 <= i < h and 0 <= j < w else pad
            total += value * (1 - abs(row - i)) * (1 - abs(column - j))
    return total


@given(st.integers(0, 1 << 32), st.booleans(), st.integers(1, 8))
@EXACT
def test_absolute_positions_read_what_interpolation_defines(seed: int, border: bool, bits: int) -> None:
    """With a multiplier of 1 the grid holds the positions themselves; products of 8-bit weights are exact."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (1, 5, 6, 1)).astype(np.int8)
    grid = rng.integers(-3 << bits, 9 << bits, (1, 4, 7, 2)).astype(np.int16)
    op = GridSample(
        inputs=(), outputs=(), border=border, fraction_bits=bits, multipliers=(1, 1), shifts=(0, 0), origin=(0, 0),
        pad_value=-9,
    )  # fmt: skip
    (y,) = run_both(op, [x, grid], [((1, 4, 7, 1), DType.I8)], dynamic={0, 1})
    for i, j in np.ndindex(4, 7):
        column, row = grid[0, i, j] / (1 << bits)
        want = math.floor(sampled(x[0, :, :, 0], row, column, -9, border=border) + 0.5)
        assert y[0, i, j, 0] == want, (row, column)


def test_nearest_rounds_half_to_even_and_knows_the_edge() -> None:
    x = np.arange(1, 6, dtype=np.int16).reshape(1, 1, 5, 1)
    columns = np.array([-1.0, -0.75, -0.5, 0.5, 1.5, 1.75, 4.5, 4.75, 100], np.float64)
    grid = np.zeros((1, 1, len(columns), 2), np.int16)
    grid[..., 0] = columns * 4
    op = GridSample(
        inputs=(), outputs=(), nearest=True, fraction_bits=2, multipliers=(1, 1), shifts=(0, 0), origin=(0, 0),
        pad_value=77,
    )  # fmt: skip
    (y,) = run_both(op, [x, grid], [((1, 1, len(columns), 1), DType.I16)], dynamic={0, 1})
    assert y.ravel().tolist() == [77, 77, 1, 1, 3, 3, 5, 77, 77]


def test_sums_of_the_extremes_stay_exact() -> None:
    """Where a sum in i32 would overflow first: every pixel and the padding at one end of i16."""
    for value in (-32768, 32767):
        x = np.full((1, 2, 2, 20), value, np.int16)
        grid = np.random.default_rng(0).integers(-512, 1024, (1, 9, 9, 2)).astype(np.int16)
        op = GridSample(
            inputs=(), outputs=(), fraction_bits=8, multipliers=(1, 1), shifts=(0, 0), origin=(0, 0), pad_value=value
        )
        (y,) = run_both(op, [x, grid], [((1, 9, 9, 20), DType.I16)], dynamic={0, 1})
        assert (y == value).all()
