"""Statistics of tensors and weights against NumPy's own, and flags on tensors that are made for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hbc.debug import TensorStatistics
from hbc.debug.hostile import activation_advice, activation_reasons, low_bits, weight_reasons
from hbc.debug.weight_statistics import weight_statistics


def filled(parts: list[np.ndarray], **fields: object) -> TensorStatistics:
    made = TensorStatistics(**fields)  # type: ignore[arg-type]
    for part in parts:
        made.add(part)
    return made


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1000))
@example(3, 4, 7)
def test_batches_come_to_the_figures_of_the_whole(batches: int, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal(), 2, (2, channels, 3, 3)) for _ in range(batches)]
    whole = np.concatenate(parts)
    s = filled(parts, axis=1, scale=0.05, qmin=-128, qmax=127)
    assert (s.minimum, s.maximum) == (whole.min(), whole.max())
    assert s.mean == pytest.approx(whole.mean(), abs=1e-9)
    assert s.std == pytest.approx(whole.std(), rel=1e-9)
    assert s.channel_std == pytest.approx(whole.std(axis=(0, 2, 3)), rel=1e-9)
    assert np.array_equal(s.absmax, np.abs(whole).max(axis=(0, 2, 3)))
    assert s.counts.sum() == whole.size
    q = np.floor(whole / 0.05 + 0.5)
    assert s.saturation == pytest.approx(np.mean((q < -128) | (q > 127)))
    assert s.used == np.abs(q.clip(-128, 127)).max() / 128


def test_bits_are_half_the_logarithm_of_variance_over_noise() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 3, 16, 16)) * np.array([1.0, 0.1, 0.01]).reshape(1, 3, 1, 1)
    scale = float(np.abs(x).max() / 127)
    bits = filled([x], axis=1, scale=scale).channel_bits()
    assert bits == pytest.approx(0.5 * np.log2(x.var(axis=(0, 2, 3)) / (scale**2 / 12)), rel=1e-9)
    noise = np.square(x - np.floor(x / scale + 0.5) * scale).mean(axis=(0, 2, 3))
    assert bits[:2] == pytest.approx(0.5 * np.log2(x.var(axis=(0, 2, 3)) / noise)[:2], abs=0.1)  # as it is measured
    assert bits[0] > 6
    assert bits[2] < 1


def test_a_uniform_spread_over_64_steps_has_6_bits() -> None:
    x = np.random.default_rng(2).uniform(-32, 32, (1, 1, 256, 256))
    assert filled([x], axis=1, scale=1.0).channel_bits()[0] == pytest.approx(6.0, abs=0.05)


def test_saturation_is_told_from_rounding() -> None:
    x = np.random.default_rng(3).normal(size=(1, 2, 64, 64))
    x[0, 0, 0, 0] = 200.0
    s = filled([x], axis=1, scale=0.05)
    assert s.saturated == 1
    assert s.clipping == pytest.approx((200.0 - 127 * 0.05) ** 2)
    assert s.clipping_sqnr == pytest.approx(10 * math.log10(x.var() * x.size / s.clipping), rel=1e-9)
    assert s.channel_bits()[1] == pytest.approx(math.log2(math.sqrt(12) / 0.05), abs=0.05)
    reasons = activation_reasons(s)
    assert len(reasons) == 1
    assert "saturate" in reasons[0]
    assert "calibrate" in activation_advice(s, "int8", reasons)


def test_without_a_scale_int8_is_estimated() -> None:
    x = np.random.default_rng(4).normal(size=(1, 4, 32, 32))
    s = filled([x], axis=1)
    assert s.used is None
    assert s.channel_bits() == pytest.approx(0.5 * np.log2(x.var(axis=(0, 2, 3)) * 12 / (np.abs(x).max() / 128) ** 2))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda x: x * np.logspace(0, -3, 8).reshape(1, 8, 1, 1), "wide"),
        (lambda x: 100 + 0.3 * x, "asymmetric"),
        (
            lambda x: np.where(np.arange(256).reshape(16, 16) == np.arange(8).reshape(8, 1, 1, 1) * 300, 1000.0, x),
            "outliers",
        ),
    ],
)
def test_a_hostile_tensor_is_flagged_for_its_reason(make: object, word: str) -> None:
    x = make(np.random.default_rng(5).normal(size=(8, 8, 16, 16)))  # type: ignore[operator]
    s = filled([x], axis=1, scale=float(np.abs(x).max() / 128))
    reasons = activation_reasons(s)
    assert any(word in r for r in reasons), reasons
    assert activation_advice(s, "int8", reasons) == "int16"
    assert "int16 already" in activation_advice(s, "int16", reasons)


def test_a_scale_that_is_too_large_is_told_from_a_hostile_tensor() -> None:
    s = filled([np.random.default_rng(6).normal(size=(4, 4, 8, 8))], axis=1, scale=1.0)
    assert any("scale is too large" in r for r in activation_reasons(s))
    assert activation_advice(s, "int8", activation_reasons(s)) == "calibrate again"


def test_half_of_the_channels_decides() -> None:
    bits = np.array([7.0, 1.0, 6.0, 5.0, 3.0, 8.0, 7.5, 7.25])
    assert low_bits(bits) == 6.0
    assert low_bits(bits, 0.25) == 3.0
    assert low_bits(bits[:1]) == 7.0
    assert low_bits(np.zeros(0)) is None


def test_nan_is_named() -> None:
    x = np.ones((1, 2, 2, 2))
    x[0, 0, 0, 0] = np.nan
    s = filled([x], axis=1, scale=0.1)
    assert activation_reasons(s) == ("1 element NaN or infinite",)
    assert "division by zero" in activation_advice(s, "int8", activation_reasons(s))


def test_an_ordinary_tensor_is_not_flagged() -> None:
    x = np.random.default_rng(7).normal(size=(4, 8, 16, 16))
    for y in (x, np.maximum(x, 0), x * np.linspace(0.5, 1, 8).reshape(1, 8, 1, 1)):
        assert activation_reasons(filled([y], axis=1, scale=float(np.abs(y).max() / 128))) == ()


def test_weights_channel_by_channel() -> None:
    rng = np.random.default_rng(8)
    w = rng.normal(size=(5, 16, 3, 3)) * np.logspace(0, -2, 5).reshape(5, 1, 1, 1)
    scale = np.abs(w).max(axis=(1, 2, 3)) / 128
    rounded = np.floor(w / scale.reshape(5, 1, 1, 1) + 0.5).clip(-128, 127) * scale.reshape(5, 1, 1, 1)
    s = weight_statistics(w, rounded, scale, 0)
    noise = np.square(w - rounded).sum(axis=(1, 2, 3))
    assert s.sqnr == pytest.approx(10 * np.log10(np.square(w).sum(axis=(1, 2, 3)) / noise), rel=1e-9)
    assert s.spread == pytest.approx(np.abs(w[0]).max() / np.abs(w[4]).max(), rel=0.5)
    usual = np.median(np.abs(w).reshape(5, -1), axis=1)
    assert s.peak == pytest.approx(np.abs(w).max(axis=(1, 2, 3)) / usual)
    assert s.bits == pytest.approx(np.log2(usual / 0.6745 * math.sqrt(12) / scale))
    assert weight_reasons(s) == ()  # a scale per channel: their spread costs nothing


def test_a_weight_with_an_outlier_is_flagged() -> None:
    w = np.random.default_rng(9).normal(size=(4, 64)) * 0.02
    w[2, 0] = 5.0
    scale = np.abs(w).max(axis=1) / 128
    rounded = np.floor(w / scale[:, None] + 0.5).clip(-128, 127) * scale[:, None]
    s = weight_statistics(w, rounded, scale, 0)
    assert s.worst in range(4)
    assert weight_reasons(s)[0] == "1 of 4 channels have under 4 bits left"
    assert "in channel 2" in weight_reasons(s)[1]


def test_zeros_have_all_bits() -> None:
    s = weight_statistics(np.zeros((2, 3)), np.zeros((2, 3)), np.ones(2), 0)
    assert (s.spread, list(s.bits)) == (1.0, [32.0, 32.0])
    assert weight_reasons(s) == ()
