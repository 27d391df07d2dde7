"""Figures of similarity against their formulas, written out in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hbc.debug import METRICS, loss_of, similarity, worst_of
from hbc.diagnostics import OptionError

RNG = np.random.default_rng(0)
WANT = RNG.normal(size=(3, 4, 5))
GOT = WANT + RNG.normal(scale=0.1, size=WANT.shape)


def test_every_figure_is_its_formula() -> None:
    found = similarity(GOT, WANT, 0.25)
    a, b = GOT.ravel(), WANT.ravel()
    assert found.mse == pytest.approx(np.mean((a - b) ** 2), rel=1e-12)
    assert found.l1 == pytest.approx(np.mean(np.abs(a - b)), rel=1e-12)
    assert found.cosine == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)), rel=1e-12)
    assert found.sqnr == pytest.approx(10 * math.log10((b @ b) / ((a - b) @ (a - b))), rel=1e-12)
    assert found.distance.max_quanta == pytest.approx(np.abs(a - b).max() / 0.25, rel=1e-12)


def test_divergence_is_that_of_smoothed_histograms() -> None:
    low, high = min(GOT.min(), WANT.min()), max(GOT.max(), WANT.max())
    p, q = (np.histogram(v.ravel(), bins=128, range=(low, high))[0] + 0.5 for v in (WANT, GOT))
    p, q = p / p.sum(), q / q.sum()
    assert similarity(GOT, WANT).kl == pytest.approx(np.sum(p * np.log(p / q)), rel=1e-12)
    assert similarity(GOT, WANT).kl > 0


def test_equal_arrays_lose_nothing() -> None:
    found = similarity(WANT, WANT.copy(), 0.1)
    assert [loss_of(found, m) for m in METRICS] == [0.0] * 5


def test_losses_grow_with_noise() -> None:
    near, far = (similarity(WANT + s * (GOT - WANT), WANT) for s in (1.0, 4.0))
    assert all(loss_of(near, m) < loss_of(far, m) for m in METRICS)
    assert loss_of(near, "sqnr") == pytest.approx(near.mse * WANT.size / np.square(WANT).sum(), rel=1e-9)


def test_worst_takes_the_worst_of_each() -> None:
    parts = [similarity(GOT[i], WANT[i]) for i in range(3)]
    found = worst_of(parts)
    assert found.mse == max(p.mse for p in parts)
    assert found.cosine == min(p.cosine for p in parts)
    assert found.kl == max(p.kl for p in parts)


def test_values_that_are_not_finite_have_no_divergence_and_no_sqnr() -> None:
    broken = WANT.copy()
    broken[0, 0, 0] = np.nan
    found = similarity(broken, WANT)
    assert found.sqnr == -math.inf
    assert loss_of(found, "sqnr") == math.inf
    assert math.isfinite(found.kl)


def test_an_unknown_metric_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="there is no metric 'cosin'") as caught:
        loss_of(similarity(GOT, WANT), "cosin")
    assert "cosine" in str(caught.value)
