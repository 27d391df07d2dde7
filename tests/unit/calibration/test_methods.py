"""Scales by every method: formulas against brute force, and what must hold for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hbc.calibration import (
    METHODS,
    Convention,
    Fixed,
    Grid,
    Kl,
    Method,
    MinMax,
    Mix,
    MovingAverage,
    Mse,
    Percentile,
    Statistics,
    choose,
    parse_method,
    weight_scales,
)
from hbc.calibration.loss import Magnitudes, clipped, cosine, squared_error
from hbc.calibration.statistics import magnitudes
from hbc.diagnostics import OptionError

RNG = np.random.default_rng(7)
QAT = Convention.QAT
EVERY: tuple[Method, ...] = (MinMax(), MovingAverage(), Percentile(0.99), Mse(), Kl(), Mix(), Fixed(2.5))


def statistics_of(x: np.ndarray, axis: int | None = None) -> Statistics:
    made = Statistics(axis=axis)
    made.add(x)
    return made


def bins_of(x: np.ndarray, bins: int = 4096) -> Magnitudes:
    largest = float(np.abs(x).max(initial=0))
    return Magnitudes.of(*magnitudes(x.astype(np.float64), largest, bins), largest)


# ---- grids


def test_the_two_conventions() -> None:
    assert Grid().scale(127.0) == np.float32(1)
    assert Grid(convention=QAT).scale(128.0) == np.float32(1)
    assert Grid(narrow=True, convention=QAT).scale(127.0) == np.float32(1)
    assert Grid(16).scale(32767.0) == np.float32(1)
    assert Grid(16, convention=QAT).scale(1.0) == np.float32(1 / 32768)
    assert Grid(4).qmin == -8
    assert Grid(4, narrow=True).qmin == -7
    with pytest.raises(OptionError, match="a grid of 32 bits"):
        Grid(32)


def test_scales_are_positive_floats_whatever_the_threshold() -> None:
    scales = Grid().scale([0.0, 1e-45, 1e300])
    assert scales.dtype == np.float32
    assert scales.tolist() == [np.float32(1 / 127), np.finfo(np.float32).tiny, np.finfo(np.float32).max]


def test_roundings_and_saturation() -> None:
    x = np.float32([-9, -2.5, -1.5, -0.5, 0.49999997, 0.5, 1.5, 2.5, 200, np.nan, np.inf, -np.inf])
    grid = Grid(4)
    assert grid.quantize(x, 1.0).tolist() == [-8, -2, -2, 0, 0, 0, 2, 2, 7, 0, 7, -8]
    assert grid.quantize(x, 1.0, rounding="half_up").tolist() == [-8, -2, -1, 0, 0, 1, 2, 3, 7, 0, 7, -8]
    assert grid.quantize(x, 1.0, rounding="half_away").tolist() == [-8, -3, -2, -1, 0, 1, 2, 3, 7, 0, 7, -8]
    assert Grid(4, narrow=True).quantize(x, 1.0)[0] == -7


def test_scales_run_along_their_axis() -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    made = Grid().fake_quantize(x, [1, 2, 4], axis=1)
    assert made.tolist() == [[1, 2, 4], [4, 4, 8]]
    assert made.dtype == np.float32
    assert Grid().quantize(np.arange(3), 1.0).tolist() == [0, 1, 2]


@given(hnp.arrays(np.float32, 20, elements=st.floats(-1e4, 1e4, width=32)), st.sampled_from([4, 8, 16]))
@example(np.zeros(20, np.float32), 8)
def test_fake_quantising_again_changes_nothing(x: np.ndarray, bits: int) -> None:
    grid = Grid(bits)
    scale = grid.scale(np.abs(x).max())
    once = grid.fake_quantize(x, scale)
    assert np.array_equal(grid.fake_quantize(once, scale), once)
    bound = 0.5 + 3 * 2.0**-24 * grid.qmax  # in quanta: half a step; float32 quotient and product
    assert (np.abs(once.astype(np.float64) - x) <= bound * float(scale)).all()


# ---- losses


@given(
    hnp.arrays(np.float64, 6, elements=st.floats(0, 100)),
    st.floats(0.01, 3),
    st.sampled_from([1, 7, 127]),
)
@example(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 100.0]), 1.0, 127)
@example(np.array([0.1, 0.1, 0.1, 0.1, 0.1, 99.0]), 3.0, 1)
def test_losses_are_the_integrals_over_bins(x: np.ndarray, scale: float, qmax: int) -> None:
    m = bins_of(x, 16)
    if not m.absmax:
        assert squared_error(m, scale, qmax) >= 0
        return
    points = (np.arange(4000) + 0.5) / 4000
    spread = m.edges[:, None] + m.width * points  # each bin, evenly
    rounded = np.minimum(np.rint(spread / scale), qmax) * scale
    weights = m.counts[:, None] / (m.total * len(points))
    assert squared_error(m, scale, qmax) == pytest.approx(float((weights * (spread - rounded) ** 2).sum()), rel=2e-3)
    norm = float(np.sqrt((weights * spread**2).sum() * (weights * rounded**2).sum()))
    if norm > 1e-3:
        wanted = float((weights * spread * rounded).sum()) / norm
        assert cosine(m, scale, qmax) == pytest.approx(wanted, abs=2e-3)


def test_mse_of_a_histogram_is_that_of_the_data() -> None:
    x = RNG.standard_normal(100_000)
    for bits, threshold in ((8, 2.0), (8, 4.5), (4, 3.0), (16, 5.0)):  # 5: nothing is clipped
        grid = Grid(bits)
        scale = grid.scale(threshold)
        q = np.clip(np.rint(x / scale), -grid.qmax, grid.qmax)  # on magnitudes: the least integer isn't used
        wanted = float(((q * scale - x) ** 2).mean())
        assert squared_error(bins_of(x), float(scale), grid.qmax) == pytest.approx(wanted, rel=0.02)


def test_the_share_that_is_clipped() -> None:
    m = bins_of(np.arange(1, 1001) / 1000.0)
    assert clipped(m, 1.0) == 0
    assert clipped(m, 0.75) == pytest.approx(0.25, abs=2e-3)  # a bin is 1/2048
    assert clipped(bins_of(np.zeros(3)), 0.0) == 0


# ---- methods


@given(
    hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    st.sampled_from(EVERY),
    st.sampled_from([Grid(), Grid(16), Grid(4, narrow=True, convention=QAT)]),
)
@example(np.zeros(5, np.float32), Mix(), Grid())
@example(np.float32([1e-38]), Mse(), Grid())
@example(np.float32([0, 0, 5]), Kl(), Grid())
def test_every_method_gives_a_sound_scale(x: np.ndarray, method: Method, grid: Grid) -> None:
    choice = choose(statistics_of(x), grid, method)
    assert choice.scale.shape == choice.threshold.shape == choice.clipped.shape == choice.mse.shape == (1,)
    assert np.isfinite(choice.scale).all()
    assert (choice.scale > 0).all()
    assert 0 <= choice.clipped[0] <= 1
    assert np.isfinite(choice.mse).all()
    if not isinstance(method, Fixed):
        assert choice.threshold[0] <= float(np.abs(x.astype(np.float64)).max())


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.text)
def test_scales_follow_the_tensor(method: Method) -> None:
    """Twice the tensor, twice the threshold: the histogram's bins are powers of two."""
    x = RNG.standard_normal(5000) ** 3
    one, two = (choose(statistics_of(f * x), Grid(), method) for f in (1.0, 2.0))
    factor = 1.0 if isinstance(method, Fixed) else 2.0
    assert two.threshold[0] == pytest.approx(factor * one.threshold[0], rel=1e-12)
    assert two.method == one.method


def test_min_max_clips_nothing_and_fixed_is_fixed() -> None:
    seen = statistics_of(np.array([-3.0, 2.0]))
    assert choose(seen, Grid(), MinMax()).scale[0] == np.float32(3 / 127)
    assert choose(seen, Grid(convention=QAT), MinMax()).scale[0] == np.float32(3 / 128)
    assert choose(seen, Grid(), Fixed(1.5)).threshold.tolist() == [1.5]
    assert choose(seen, Grid(), Fixed(2.5)).clipped.tolist() == [0.5]


def test_moving_average_is_of_batches() -> None:
    seen = Statistics(averaging=0.5)
    seen.add(np.array([1.0, -2.0]))
    seen.add(np.array([1.0, -6.0]))
    assert choose(seen, Grid(), MovingAverage()).threshold.tolist() == [4.0]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999, 1.0])
def test_percentile_is_numpys_up_to_a_bin(share: float) -> None:
    x = RNG.standard_normal(20_001)
    chosen = choose(statistics_of(x), Grid(), Percentile(share)).threshold[0]
    width = 8 / 4096  # the largest is between 4 and 8
    assert abs(chosen - np.quantile(np.abs(x), share)) <= 2 * width


def test_mse_is_within_a_step_of_the_best_threshold() -> None:
    x = np.concatenate([RNG.laplace(size=20_000), [40.0]])
    m = bins_of(x)
    grid = Grid(4)
    chosen = choose(statistics_of(x), grid, Mse())
    best = min(squared_error(m, float(grid.scale(t)), grid.qmax) for t in np.linspace(0.5, 40, 2000))
    assert chosen.mse[0] <= best * 1.01  # neighbours on the ladder are 2 % apart
    assert chosen.threshold[0] < 10  # rounding all others by steps of 40/7 costs more than the one outlier
    assert chosen.mse[0] < choose(statistics_of(x), grid, MinMax()).mse[0] / 2


def test_kl_cuts_outliers_and_leaves_uniform_tensors_alone() -> None:
    x = np.concatenate([RNG.standard_normal(50_000), [60.0, -55.0]])
    assert 3 < choose(statistics_of(x), Grid(), Kl()).threshold[0] < 12
    flat = RNG.uniform(-1, 1, 50_000)
    assert choose(statistics_of(flat), Grid(), Kl()).threshold[0] > 0.9
    assert choose(statistics_of(x), Grid(16), Kl()).threshold[0] == 60.0


def test_kl_is_not_drowned_by_zeros() -> None:
    x = np.concatenate([np.abs(RNG.standard_normal(5_000)), np.zeros(1_000_000)])
    assert choose(statistics_of(x), Grid(), Kl()).threshold[0] > 2


@pytest.mark.parametrize("loss", ["mse", "cosine"])
def test_mix_is_the_best_of_its_methods(loss: str) -> None:
    for x in (RNG.standard_normal(5000), RNG.standard_cauchy(5000), np.maximum(RNG.laplace(size=5000), 0)):
        seen = statistics_of(x)
        mix = Mix(loss="mse" if loss == "mse" else "cosine")
        singles = [choose(seen, Grid(), m) for m in mix.methods]
        m = bins_of(x)

        def cost(scale: float, m: Magnitudes = m) -> float:
            return squared_error(m, scale, 127) if loss == "mse" else -cosine(m, scale, 127)

        made = choose(seen, Grid(), mix)
        assert cost(float(made.scale[0])) == min(cost(float(s.scale[0])) for s in singles)
        assert made.method in {s.method for s in singles}


def test_channels_are_chosen_for_one_by_one() -> None:
    x = RNG.standard_normal((3, 1000)) * np.array([[1], [10], [0]])
    choice = choose(statistics_of(x, axis=0), Grid(), MinMax())
    assert choice.threshold.tolist() == np.abs(x).max(axis=1).tolist()
    assert choice.scale[2] == np.float32(1 / 127)


# ---- words


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.text)
def test_methods_are_written_as_they_are_read(method: Method) -> None:
    assert parse_method(method.text) == method
    assert method.text.partition("=")[0] in METHODS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("percentle", "did you mean 'percentile'"),
        ("fixed", "needs a number"),
        ("fixed=x", "'x' of method 'fixed=x' is no number"),
        ("fixed=-1", "fixed threshold of -1"),
        ("fixed=inf", "fixed threshold of inf"),
        ("percentile=2", "percentile of 2"),
        ("percentile=nan", "percentile of nan"),
        ("mse=3", "there is no calibration method 'mse=3'"),
        ("", "there is no calibration method ''"),
    ],
)
def test_other_words_are_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_method(text)
    assert said in str(caught.value)


# ---- weights


def test_weight_scales_are_per_channel() -> None:
    w = np.float32([[1, -2], [0, 0], [4, 3]])
    assert weight_scales(w, Grid(narrow=True), 0).tolist() == [np.float32(t / 127) for t in (2, 4, 4)]
    assert weight_scales(w, Grid(narrow=True), None).tolist() == [np.float32(4 / 127)]
    assert weight_scales(np.zeros((2, 2)), Grid(), 0).tolist() == [np.float32(1 / 127)] * 2


def test_weight_scales_by_mse_lose_less() -> None:
    w = RNG.laplace(size=(4, 200))
    grid = Grid(4, narrow=True)

    def loss(method: str) -> np.ndarray:
        return ((grid.fake_quantize(w, weight_scales(w, grid, 0, method), axis=0) - w) ** 2).sum(axis=1)

    assert (loss("mse") <= loss("min-max")).all()
    assert loss("mse").sum() < 0.8 * loss("min-max").sum()
