"""Lut and SegmentLut: the JIT gives the reference's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime import numerics
from hbc_runtime.isa import Lut, SegmentLut
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.light import EXACT, Array, arrays, clamps, shapes

EVERY_I16 = np.arange(-32768, 32768).astype(np.int16)


@given(st.data(), shapes(), st.sampled_from([np.int8, np.int16]))
@EXACT
def test_lut(data: st.DataObject, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    x, table = data.draw(arrays(shape, np.int8)), data.draw(arrays((256,), dtype))
    (y,) = run_both(Lut(inputs=(), outputs=()), [x, table], [(shape, DType.of(dtype))], threads=(1, 2))
    assert np.array_equal(y, table[x.astype(int) + 128])


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("count", [1, 31, 33, 256, 4097])
def test_a_table_of_bytes_on_every_machine(machine: Host, count: int) -> None:
    rng = np.random.default_rng(count)
    x = np.resize(rng.permutation(np.arange(-128, 128)), count).astype(np.int8)
    table = rng.integers(-128, 128, 256).astype(np.int8)
    (y,) = run_both(
        Lut(inputs=(), outputs=()), [x, table], [(x.shape, DType.I8)], threads=(1, 2), machine=machine
    )  # fmt: skip
    assert np.array_equal(y, table[x.astype(int) + 128])


@st.composite
def segment_tables(draw: st.DrawFn) -> tuple[Array, Array]:
    """(segments, table) with 1 to 64 segments, any shift, rows in any order, entries over all of i16."""
    count = draw(st.integers(1, 64))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    starts = np.sort(rng.choice(np.arange(-32767, 32768), count - 1, replace=False))
    rows = draw(st.integers(1, count))
    segments = np.empty((count, 3), np.int32)
    segments[:, 0] = [-32768, *starts]
    segments[:, 1] = rng.integers(0, 17, count)
    segments[:, 2] = rng.integers(0, rows, count)
    return segments, draw(arrays((rows, 65), np.int16))


@given(st.data(), shapes(), segment_tables(), st.sampled_from([np.int8, np.int16]))
@EXACT
def test_segment_lut(
    data: st.DataObject, shape: tuple[int, ...], tables: tuple[Array, Array], dtype: type[np.generic]
) -> None:
    lo, hi = data.draw(clamps(dtype))
    op = SegmentLut(inputs=(), outputs=(), clamp_min=lo, clamp_max=hi)
    run_both(op, [data.draw(arrays(shape, np.int16)), *tables], [(shape, DType.of(dtype))], threads=(1, 2))


@given(segment_tables())
@EXACT
def test_segment_lut_over_every_i16(tables: tuple[Array, Array]) -> None:
    op = SegmentLut(inputs=(), outputs=(), clamp_min=-32768, clamp_max=32767)
    run_both(op, [EVERY_I16, *tables], [(EVERY_I16.shape, DType.I16)])


def evenly(f: np.ufunc, count: int, in_scale: float, out_scale: float) -> tuple[Array, Array]:
    """`f` in `count` (a power of two up to 64) segments of equal length, entries half up in float64."""
    shift = 16 - (count.bit_length() - 1) - 6
    starts = -32768 + np.arange(count) * (65536 // count)
    points = starts[:, None] + (np.arange(65) << shift)
    table = numerics.lut_table(f, points * in_scale, out_scale, 0, -32768, 32767)
    return np.stack([starts, np.full(count, shift), np.arange(count)], 1).astype(np.int32), table.astype(np.int16)


@pytest.mark.parametrize("count", [1, 4, 16, 64])
def test_segmented_tanh_is_close_to_tanh(count: int) -> None:
    segments, table = evenly(np.tanh, count, 4 / 32768, 1 / 32768)
    op = SegmentLut(inputs=(), outputs=(), clamp_min=-32768, clamp_max=32767)
    (y,) = run_both(op, [EVERY_I16, segments, table], [(EVERY_I16.shape, DType.I16)], threads=(1, 2))
    error = np.abs(y - np.clip(np.tanh(EVERY_I16 * (4 / 32768)) * 32768, -32768, 32767)).max()
    # rounding of entry and result, and the chord: h²/8 · max|tanh''| (0.77) of a cell h wide, in output quanta
    cell = 8 / (64 * count)
    assert error <= 1.01 + cell**2 / 8 * 0.77 * 32768
