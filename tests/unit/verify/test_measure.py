"""Figures, verdicts and tolerances."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc.verify.measure import CLOSE_COSINE, CLOSE_SQNR, Distance, Verdict, finite, measure, worst
from hbc.verify.result import Tolerance
from hbc.verify.text import decibel, quanta_text, scale_text

SIGNAL = np.float64([100, -50, 25, 10])


def test_equal_arrays_are_equal_whatever_they_hold() -> None:
    a = np.float32([1, np.nan, np.inf, -0.0])
    d = measure(a, a.copy(), quantum=0.5)
    assert d == Distance(1.0, 0.0, 0.0, 1.0, math.inf)
    assert d.verdict is Verdict.EQUAL
    assert measure(np.zeros(0), np.zeros(0)).verdict is Verdict.EQUAL


@pytest.mark.parametrize(
    ("noise", "quantum", "want"),
    [
        (0.0, 1.0, Verdict.EQUAL),
        (1.0, 1.0, Verdict.ONE_QUANTUM),
        (1.009, 1.0, Verdict.ONE_QUANTUM),
        (1.02, 1.0, Verdict.CLOSE),
        (1.0, None, Verdict.CLOSE),
        (20.0, 1.0, Verdict.DIFFERENT),
        (20.0, 20.0, Verdict.ONE_QUANTUM),
    ],
)
def test_verdicts(noise: float, quantum: float | None, want: Verdict) -> None:
    got = SIGNAL + np.float64([noise, 0, 0, 0])
    assert measure(got, SIGNAL, quantum=quantum).verdict is want


def test_a_wrong_scale_is_different_though_its_cosine_is_1() -> None:
    d = measure(SIGNAL * 1.1, SIGNAL, quantum=0.1)
    assert d.cosine == pytest.approx(1.0)
    assert d.sqnr == pytest.approx(20.0)
    assert d.verdict is Verdict.DIFFERENT


def test_sqnr_is_signal_over_noise_in_decibels() -> None:
    d = measure(np.float64([3, 4.5]), np.float64([3, 4]))
    assert d.sqnr == pytest.approx(10 * math.log10(25 / 0.25))
    assert measure(np.float64([1.0]), np.float64([0.0])).sqnr == -math.inf
    assert measure(np.float64([np.nan]), np.float64([1.0])).sqnr == -math.inf
    masked = measure(np.float64([-np.inf, 3, 4.5]), np.float64([-np.inf, 3, 4]))
    assert masked.sqnr == pytest.approx(20.0)
    assert measure(np.float64([1e300]), np.float64([2e300])).sqnr == pytest.approx(10 * math.log10(4))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8), st.lists(st.floats(-30, 30), min_size=8, max_size=8))
def test_close_implies_its_cosine(signal: list[float], noise: list[float]) -> None:
    """The bound that the definition of CLOSE states: 27 dB of SQNR leave a cosine of at least 0.999."""
    want = np.float64(signal)
    d = measure(want + noise[: len(signal)], want)
    if d.sqnr >= CLOSE_SQNR:
        assert d.cosine >= CLOSE_COSINE


def test_units_are_taken_apart_from_quanta() -> None:
    d = measure(np.float64([3, 5]), np.float64([3, 3]), unit=0.25, quantum=0.25)
    assert (d.max_abs, d.max_quanta) == (0.5, 2.0)


def test_samples_come_together_as_the_worst_of_each_figure() -> None:
    a = Distance(1.0, 0.0, 0.0, 1.0, math.inf)
    b = Distance(0.5, 3.0, 6.0, 0.9, 12.0)
    assert worst([a, b]) == Distance(0.75, 3.0, 6.0, 0.9, 12.0)
    assert worst([a, Distance(1.0, 0.0, None, 1.0, math.inf)]).max_quanta == 0.0


QUANTISED = Distance(0.9, 1.5, 3.0, 0.9995, 40.0)
PLAIN = Distance(0.9, 1.5, None, 0.9985, 40.0)
EQUAL = Distance(1.0, 0.0, None, 1.0, math.inf)


@pytest.mark.parametrize(
    ("tolerance", "distance", "passes"),
    [
        (Tolerance(quanta=3), QUANTISED, True),
        (Tolerance(quanta=2), QUANTISED, False),
        (Tolerance(quanta=3, cosine=0.9999), QUANTISED, False),
        (Tolerance(cosine=0.999), QUANTISED, True),
        (Tolerance(quanta=1), PLAIN, False),
        (Tolerance(quanta=1, cosine=0.99), PLAIN, True),
        (Tolerance(quanta=0, cosine=1), EQUAL, True),
        (Tolerance(), PLAIN, True),
        (Tolerance(), Distance(0.9, 1.5, 3.0, 0.99, 17.0), False),
        (Tolerance(), Distance(0.1, 1.0, 1.0, 0.2, 1.0), True),
    ],
)
def test_tolerances(tolerance: Tolerance, distance: Distance, passes: bool) -> None:
    assert tolerance.passes(distance) is passes


def test_json_has_words_for_what_is_no_number() -> None:
    assert json.dumps(finite({"a": [math.inf, -math.inf, 1.5]}), allow_nan=False) == '{"a": ["inf", "-inf", 1.5]}'


@pytest.mark.parametrize(
    ("max_abs", "max_quanta", "text"),
    [
        (0.5, 2.0, "2"),
        (0.5, 3.931, "3.93"),
        (0.36, None, "±0.36"),
        (0.0, None, "0"),
        (math.inf, math.inf, "∞"),
        (math.inf, None, "±inf"),
    ],
)
def test_any_difference_has_a_text(max_abs: float, max_quanta: float | None, text: str) -> None:
    """Infinity too: where one side is NaN or infinite, the difference is."""
    assert quanta_text(Distance(0.5, max_abs, max_quanta, 0.0, -math.inf)) == text


def test_figures_are_short() -> None:
    assert [decibel(v) for v in (53.44, math.inf, -math.inf)] == ["53.4", "∞", "−∞"]
    assert [scale_text(None, 0), scale_text(0.0165219, 1), scale_text(0.5, 64)] == ["", "0.01652", "0.5 ×64"]
