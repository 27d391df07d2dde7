"""ResizeNearest and ResizeBilinear: the JIT gives the reference's integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import ResizeBilinear, ResizeNearest
from hbc_runtime.types import DType
from tests.exact.harness import run_both
from tests.exact.light import EXACT, INTEGERS, Array, arrays

SIDES = st.integers(1, 7)
CHANNELS = st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 64, 130]))
SHAPES = st.tuples(st.integers(1, 3), SIDES, SIDES, CHANNELS)
ACTIVATIONS = st.sampled_from([np.int8, np.int16])


@given(st.data(), SHAPES, st.sampled_from(INTEGERS), SIDES, SIDES)
@EXACT
def test_nearest(data: st.DataObject, shape: tuple[int, ...], dtype: type[np.generic], oh: int, ow: int) -> None:
    rows, columns = (
        np.array([data.draw(st.integers(0, side - 1)) for _ in range(count)], np.int32)
        for side, count in ((shape[1], oh), (shape[2], ow))
    )
    x = data.draw(arrays(shape, dtype))
    op = ResizeNearest(inputs=(), outputs=())
    (y,) = run_both(op, [x, rows, columns], [((shape[0], oh, ow, shape[3]), DType.of(dtype))], threads=(1, 2))
    assert np.array_equal(y, x[:, rows][:, :, columns])


@st.composite
def tables(draw: st.DrawFn, side: int, count: int) -> Array:
    """i32[count, 3]: low and high index inside `side`, weight of the high one in 0..256."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    weights = np.where(rng.random(count) < 0.3, rng.choice([0, 128, 256], count), rng.integers(0, 257, count))
    return np.stack([rng.integers(0, side, count), rng.integers(0, side, count), weights], 1).astype(np.int32)


@given(st.data(), SHAPES, ACTIVATIONS, SIDES, SIDES)
@EXACT
def test_bilinear(data: st.DataObject, shape: tuple[int, ...], dtype: type[np.generic], oh: int, ow: int) -> None:
    operands = [data.draw(arrays(shape, dtype)), data.draw(tables(shape[1], oh)), data.draw(tables(shape[2], ow))]
    op = ResizeBilinear(inputs=(), outputs=())
    run_both(op, operands, [((shape[0], oh, ow, shape[3]), DType.of(dtype))], threads=(1, 2))


def test_bilinear_of_the_extremes_stays_exact() -> None:
    """Where a sum in i32 would overflow first: every neighbour at an end of i16, every split of the weights."""
    x = np.array([-32768, 32767, -32768, 32767], np.int16).reshape(1, 2, 2, 1).repeat(20, axis=3)
    table = np.array([[a, b, w] for a in (0, 1) for b in (0, 1) for w in (0, 1, 127, 128, 255, 256)], np.int32)
    op = ResizeBilinear(inputs=(), outputs=())
    (y,) = run_both(op, [x, table, table], [((1, 24, 24, 20), DType.I16)], threads=(1, 2))
    assert y.min() == -32768
    assert y.max() == 32767


def test_half_way_between_two_pixels_rounds_up() -> None:
    x = np.array([1, 2, -1, -2], np.int8).reshape(1, 1, 4, 1)
    rows, columns = np.array([[0, 0, 0]], np.int32), np.array([[0, 1, 128], [2, 3, 128], [1, 1, 128]], np.int32)
    (y,) = run_both(ResizeBilinear(inputs=(), outputs=()), [x, rows, columns], [((1, 1, 3, 1), DType.I8)])
    assert y.ravel().tolist() == [2, -1, 2]
