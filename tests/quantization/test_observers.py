"""Observers against computations of their own on the plain data, and merged statistics against those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from hbc.quantization import (  # noqa: E402
    CALIBRATION,
    FakeQuantize,
    FakeQuantSpec,
    calibrate,
    calibration_setter,
    merge_statistics,
    prepare,
    set_fake_quantize,
)
from tests.quantization.models import built  # noqa: E402

pytestmark = pytest.mark.torch

BIN = 1 / 1024  # two bins of the kit's histogram, relative to the largest magnitude


def batches(kind: str, count: int = 4) -> list[Any]:
    """Tensors with a long tail, with one outlier, or behind a relu."""
    g = torch.Generator().manual_seed(3)
    found = [torch.randn(4, 3, 16, 16, generator=g) for _ in range(count)]
    if kind == "tail":
        return [x * x.abs() for x in found]
    if kind == "outlier":
        found[1][0, 0, 0, 0] = 40.0
        return found
    return [x.clamp_min(0) for x in found]


def observed(spec: FakeQuantSpec, data: list[Any]) -> FakeQuantize:
    fq = FakeQuantize(spec)
    fq.quantizing = False
    for x in data:
        fq(x)
    fq.compute_scale()
    fq.quantizing = True
    return fq.eval()


def of(spec: FakeQuantSpec, data: list[Any]) -> float:
    return float(observed(spec, data).scale)


def magnitudes(data: list[Any]) -> np.ndarray:
    return np.abs(np.concatenate([x.numpy().ravel() for x in data]).astype(np.float64))


def rounded(x: np.ndarray, scale: float, qmin: int = -128, qmax: int = 127) -> np.ndarray:
    return np.clip(np.floor(x / scale + 0.5), qmin, qmax) * scale


KINDS = ("tail", "outlier", "relu")


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("narrow", [False, True])
def test_min_max(dtype: Any, *, narrow: bool) -> None:
    data = batches("tail")
    divisor = {"int8": 128, "int16": 32768}[dtype] - narrow
    found = of(FakeQuantSpec(dtype, "min-max", narrow=narrow), data)
    assert np.float32(found) == np.float32(magnitudes(data).max()) / np.float32(divisor)


def test_moving_average() -> None:
    data = batches("tail")
    low, high = float(data[0].min()), float(data[0].max())
    for x in data[1:]:
        low, high = low + 0.3 * (float(x.min()) - low), high + 0.3 * (float(x.max()) - high)
    found = of(FakeQuantSpec(averaging=0.3), data)
    assert found == pytest.approx(max(-low, high) / 128, rel=1e-6)  # float32


@pytest.mark.parametrize("share", [0.9, 0.99, 0.9999])
@pytest.mark.parametrize("kind", KINDS)
def test_percentile(kind: str, share: float) -> None:
    data = batches(kind)
    m = magnitudes(data)
    found = of(FakeQuantSpec(observer="percentile", percentile=share), data)
    # NumPy goes linearly from one element to the next; the histogram knows elements by their bins.
    lower, higher = (np.quantile(m, share, method=way) for way in ("lower", "higher"))
    assert lower - BIN * m.max() <= found * 128 <= higher + BIN * m.max()


@pytest.mark.parametrize("kind", KINDS)
def test_mse(kind: str) -> None:
    """Of 4000 scales none has 2 % less error on the data: the kit's comes from a histogram and a ladder of scales."""
    data = batches(kind)
    m = magnitudes(data)
    scales = np.linspace(m.max() / 128 / 4000, m.max() / 128, 4000)
    best = min(float(np.mean((m - np.minimum(np.rint(m / s), 127) * s) ** 2)) for s in scales[100:])
    ours = of(FakeQuantSpec(observer="mse"), data)
    assert float(np.mean((m - np.minimum(np.rint(m / ours), 127) * ours) ** 2)) <= 1.02 * best


def divergence(histogram: list[float], upto: int, levels: int) -> float:
    """Σ P log(P / Q), element by element."""
    p = list(histogram[:upto])
    p[-1] += sum(histogram[upto:])
    groups: dict[int, list[int]] = {}
    for i in range(upto):
        groups.setdefault(i * levels // upto, []).append(i)
    q = [0.0] * upto
    for members in groups.values():
        held = [i for i in members if histogram[i] > 0]
        for i in held:
            q[i] = sum(histogram[j] for j in members) / len(held)
    sum_p, sum_q = sum(p), sum(q)
    return sum(a / sum_p * np.log(a / sum_p / max(b / sum_q, 1e-12)) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_kl(kind: str) -> None:
    """No coarser threshold of a plain computation has less divergence than the observer's."""
    data = batches(kind)
    m = magnitudes(data)
    top = 2.0 ** np.ceil(np.log2(m.max()))
    counts, edges = np.histogram(m, bins=2048, range=(0, top))
    used = int(np.flatnonzero(counts)[-1]) + 1
    histogram = [float(c) for c in counts[:used]]
    histogram[0] = min(histogram[0], histogram[1])
    at = of(FakeQuantSpec(observer="kl"), data) * 128
    ours = divergence(histogram, min(round(at / edges[1]), used), 127)
    others = [divergence(histogram, upto, 127) for upto in range(used, 127, -max(1, used // 24))]
    assert at <= m.max() * (1 + 1e-6)
    assert ours <= min(others) + 1e-9


def test_kl_clips_an_outlier() -> None:
    data = batches("outlier")
    assert of(FakeQuantSpec(observer="kl"), data) < of(FakeQuantSpec(observer="min-max"), data) / 3


@pytest.mark.parametrize("kind", KINDS)
def test_mix_is_as_good_as_the_best(kind: str) -> None:
    data = batches(kind)
    x = np.concatenate([b.numpy().ravel() for b in data]).astype(np.float64)

    def cosine(scale: float) -> float:
        y = rounded(x, scale)
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    others = [of(FakeQuantSpec(observer=o), data) for o in ("min-max", "kl", "mse")]
    others += [of(FakeQuantSpec(observer="percentile", percentile=p), data) for p in (0.9999, 0.99999)]
    assert 1 - cosine(of(FakeQuantSpec(observer="mix"), data)) <= 1.02 * (1 - max(map(cosine, others)))


def test_a_fixed_scale_stays() -> None:
    fq = observed(FakeQuantSpec(scale=0.25), batches("tail"))
    assert float(fq.scale) == 0.25
    assert fq.observer is None


@pytest.mark.parametrize("observer", ["min-max", "moving-average"])
def test_weights_have_the_range_of_their_last_look(observer: str) -> None:
    fq = FakeQuantize(FakeQuantSpec(observer=observer), axis=1, channels=3)
    for scale in (4.0, 1.0):
        x = batches("tail")[0] * scale
        fq(x)
    assert np.array_equal(fq.scale.numpy(), np.abs(x.numpy()).max((0, 2, 3)) / np.float32(128))


@pytest.mark.parametrize("observer", ["min-max", "percentile", "mse", "kl", "mix"])
def test_devices_merge_to_what_one_would_have_seen(observer: str) -> None:
    """Two replicas with half of the data each."""
    model, data = built("residual")
    whole, *parts = (prepare(model, data[0], calibration_setter(observer)) for _ in range(3))
    calibrate(whole, data, progress=False)
    for part, own in zip(parts, (data[:1], data[1:]), strict=True):
        part.eval()
        set_fake_quantize(part, CALIBRATION)
        for batch in own:
            part(*batch)
    merge_statistics(parts)
    wanted = {n: m.scale for n, m in whole.named_modules() if isinstance(m, FakeQuantize)}
    for part in parts:
        found = {n: m.scale for n, m in part.named_modules() if isinstance(m, FakeQuantize)}
        assert wanted.keys() == found.keys()
        assert all(torch.equal(found[n], wanted[n]) for n in wanted)


def test_moving_averages_merge_by_batches() -> None:
    data = batches("tail")
    spec = FakeQuantSpec(averaging=0.5)
    a, b = (observed(spec, part) for part in (data[:1], data[1:]))
    pair = [torch.nn.Sequential(fq) for fq in (a, b)]
    low, high = (0.25 * getattr(a.observer, n) + 0.75 * getattr(b.observer, n) for n in ("low", "high"))
    merge_statistics(pair)
    assert float(a.scale) == float(b.scale) == pytest.approx(float(torch.maximum(-low, high)) / 128, rel=1e-6)


def test_nothing_but_zeros_has_a_scale() -> None:
    for observer in ("min-max", "percentile", "mse", "kl", "mix"):
        assert of(FakeQuantSpec(observer=observer), [torch.zeros(2, 3)]) == pytest.approx(1 / 128)
