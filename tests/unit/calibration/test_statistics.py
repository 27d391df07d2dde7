"""Statistics of streams: merging is exact, whatever the parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hbc.calibration import Statistics
from hbc.calibration.statistics import NOTHING, grown, magnitudes

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
ARRAYS = hnp.arrays(np.float32, st.integers(0, 40), elements=FLOATS)


def seen(*batches: np.ndarray, axis: int | None = None, bins: int = 64) -> Statistics:
    statistics = Statistics(axis=axis, bins=bins)
    for batch in batches:
        statistics.add(batch)
    return statistics


def assert_same(a: Statistics, b: Statistics) -> None:
    for name in ("low", "high", "exponents", "counts"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.nonfinite == b.nonfinite


@given(ARRAYS, ARRAYS, ARRAYS)
@example(np.float32([1e-30]), np.float32([1.0]), np.float32([3e38]))
@example(np.float32([]), np.float32([-2.0]), np.float32([0.0]))
@example(np.float32([np.nan]), np.float32([np.inf]), np.float32([-np.inf, 5]))
@example(np.float32([1e-45]), np.float32([1.0, 2.0]), np.float32([0.5]))
def test_parts_merge_into_the_whole(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    whole = seen(np.concatenate([a, b, c]))
    assert_same(seen(a, b, c), whole)
    assert_same(seen(c, a, b), whole)
    left, right = seen(a, b), seen(c)
    left.merge(right)
    assert_same(left, whole)
    other = seen(c)
    other.merge(seen(a, b))
    assert_same(other, whole)
    assert left.batches == 3


@given(hnp.arrays(np.float32, (3, 2, 5), elements=st.floats(-1e6, 1e6, width=32)))
@example(np.zeros((3, 2, 5), np.float32))
def test_channels_are_tensors_of_their_own(x: np.ndarray) -> None:
    by_channel = seen(x, axis=1)
    for c in range(2):
        alone = seen(x[:, c])
        assert by_channel.counts[c].tolist() == alone.counts[0].tolist()
        assert (by_channel.low[c], by_channel.high[c]) == (alone.low[0], alone.high[0])
        assert by_channel.exponents[c] == alone.exponents[0]


@given(ARRAYS)
@example(np.float32([1.0, 2.0, 4.0]))
@example(np.float32([-0.0, 0.0]))
def test_range_and_count_are_those_of_the_finite_elements(x: np.ndarray) -> None:
    fine = x[np.isfinite(x)].astype(np.float64)
    statistics = seen(x)
    assert statistics.elements.tolist() == [fine.size]
    assert statistics.nonfinite == x.size - fine.size
    assert statistics.low[0] == (fine.min() if fine.size else 0)
    assert statistics.high[0] == (fine.max() if fine.size else 0)
    limit = np.ldexp(1.0, int(statistics.exponents[0]))
    assert limit > statistics.absmax[0] or statistics.exponents[0] == NOTHING
    assert statistics.absmax[0] == 0 or limit <= 2 * statistics.absmax[0]  # so at least half of the bins are in use


def test_counts_of_known_values() -> None:
    counts, exponent = magnitudes(np.array([0.0, -0.5, 1.0, 1.99, 3.0]), 3.0, 8)
    assert exponent == 2  # bins of 0.5
    assert counts.tolist() == [1, 1, 1, 1, 0, 0, 1, 0]
    assert grown(counts, 1).tolist() == [2, 2, 0, 1, 0, 0, 0, 0]
    assert grown(counts, 3).tolist() == [5, 0, 0, 0, 0, 0, 0, 0]
    assert grown(counts, 99).tolist() == [5, 0, 0, 0, 0, 0, 0, 0]


def test_zeros_wait_for_a_range() -> None:
    statistics = seen(np.zeros(3), np.array([1.0]), bins=8)
    assert statistics.counts.tolist() == [[3, 0, 0, 0, 1, 0, 0, 0]]
    assert statistics.exponents.tolist() == [1]


def test_moving_average_starts_at_the_first_batch() -> None:
    statistics = Statistics(averaging=0.5)
    for high in (4.0, 8.0, 2.0):
        statistics.add(np.array([-1.0, high]))
    assert statistics.average_high.tolist() == [4.0]  # 4, 6, 4
    assert statistics.average_low.tolist() == [-1.0]


def test_merged_averages_are_weighted_by_batches() -> None:
    one, three = Statistics(averaging=0.5), Statistics(averaging=0.5)
    one.add(np.array([4.0]))
    for _ in range(3):
        three.add(np.array([8.0]))
    one.merge(three)
    assert one.average_high.tolist() == [7.0]
    one.merge(Statistics())
    assert one.average_high.tolist() == [7.0]


def test_large_tensors_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    whole = seen(x)
    monkeypatch.setattr("hbc.calibration.statistics.CHUNK", 7)
    assert_same(seen(x), whole)


def test_other_channels_are_refused() -> None:
    statistics = seen(np.zeros((2, 3)), axis=1)
    with pytest.raises(ValueError, match="4 channels after batches of 3"):
        statistics.add(np.zeros((2, 4)))


def test_state_comes_back() -> None:
    statistics = seen(np.random.default_rng(1).standard_normal((4, 3)), axis=1)
    again = Statistics.of_state(statistics.state(), axis=1)
    assert_same(again, statistics)
    assert np.array_equal(again.average_high, statistics.average_high)
    statistics.add(np.full((4, 3), 9.0))
    again.add(np.full((4, 3), 9.0))
    assert_same(again, statistics)
    assert again.state()["low"] is not again.low
