"""FakeQuantize: values and gradients against their formulas, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from hbc.diagnostics import OptionError  # noqa: E402
from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    DefaultSetter,
    FakeQuantize,
    FakeQuantSpec,
    calibrate,
    get_default_qat_qconfig,
    prepare,
    set_fake_quantize,
)
from tests.quantization.models import built  # noqa: E402

pytestmark = pytest.mark.torch

SCALES = {None: [0.25], 0: [0.125, 0.25, 0.5]}  # powers of two: x / s and q · s are exact


def run(kind: Any, axis: int | None, *, narrow: bool = False) -> tuple[FakeQuantize, Any, Any, Any, Any]:
    """A FakeQuantize of fixed scales, its input, its result, and the gradient that came from above."""
    torch.manual_seed(0)
    spec = FakeQuantSpec(kind=kind, narrow=narrow)
    fq = FakeQuantize(spec, axis=axis, channels=len(SCALES[axis]))
    fq.set_scale(torch.tensor(SCALES[axis]))
    x = (torch.randn(3, 200) * 20).requires_grad_()
    y = fq(x)
    above = torch.randn(3, 200)
    y.backward(above)
    return fq, x, y, above, x.grad


def formula(x: Any, axis: int | None, low: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x / s, the integers before and after the clamp, and s, as float64."""
    s = np.array(SCALES[axis]).reshape(-1, 1)
    t = x.detach().numpy().astype(np.float64) / s
    wide = np.floor(t + 0.5)
    return t, wide, np.clip(wide, low, 127), s


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("kind", ["plain", "lsq", "pact"])
def test_values_and_straight_through_gradients(kind: str, axis: int | None, *, narrow: bool) -> None:
    _, x, y, above, grad = run(kind, axis, narrow=narrow)
    low = -127 if narrow else -128
    _, wide, q, s = formula(x, axis, low)
    inside = (wide >= low) & (wide <= 127)
    assert 0 < inside.mean() < 1
    assert np.array_equal(y.detach().numpy(), q * s)
    assert np.array_equal(grad.numpy(), above.numpy() * inside)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("kind", ["lsq", "pact"])
def test_gradients_of_a_learned_scale(kind: str, axis: int | None) -> None:
    """LSQ (Esser et al. 2020, eq. 3 and section 2.2); PACT (Choi et al. 2018, eq. 3): only what is clipped counts."""
    fq, x, _, above, _ = run(kind, axis)
    t, wide, q, _ = formula(x, axis, -128)
    clipped = wide != q
    slope = np.where(clipped, q, q - t if kind == "lsq" else 0.0) * above.numpy().astype(np.float64)
    wanted = slope.sum(keepdims=True) if axis is None else slope.sum(1)
    if kind == "lsq":
        wanted = wanted / np.sqrt(x.numel() / fq.scale.numel() * 127)
    assert fq.scale.grad is not None
    # float32 sums of 600 products of up to 128 · 4
    np.testing.assert_allclose(fq.scale.grad.numpy(), wanted.ravel(), rtol=1e-5, atol=1e-2)


def test_ties_round_up() -> None:
    fq = FakeQuantize()
    fq.set_scale(1.0)
    x = torch.tensor([0.5, -0.5, 1.5, -1.5, 127.4, 500.0, -500.0])
    assert fq(x).tolist() == [1.0, 0.0, 2.0, -1.0, 127.0, 127.0, -128.0]


def test_switches() -> None:
    fq = FakeQuantize()
    x = torch.linspace(-1, 1, 9)
    fq.quantizing = False
    assert torch.equal(fq(x), x)
    assert float(fq.scale) == 1 / 128
    fq.observing, fq.quantizing = False, True
    assert float(fq(x * 4).max()) == 127 / 128
    fq.observing = True
    fq(x * 4)
    assert 1 / 128 < float(fq.scale) < 4 / 128  # a moving average
    fq.eval()
    before = float(fq.scale)
    fq(x * 9)
    assert float(fq.scale) == before


def test_a_kept_scale_does_not_move_in_training() -> None:
    fq = FakeQuantize(FakeQuantSpec(averaging=0.0))
    fq(torch.ones(3))
    fq(torch.ones(3) * 5)
    assert float(fq.scale) == 1 / 128


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_none(scale: float) -> None:
    with pytest.raises(OptionError, match="positive"):
        FakeQuantize().set_scale(scale)


@pytest.mark.parametrize("kind", ["lsq", "pact"])
def test_learned_scales_learn(kind: str) -> None:
    """A scale that is far too small grows, as clipping costs."""
    model, batches = built("residual")
    prepared = prepare(model, batches[0], DefaultSetter(get_default_qat_qconfig(kind=kind)))
    calibrate(prepared, batches, progress=False)
    fq = prepared.a.activation_post_process
    fq.set_scale(float(fq.scale.detach()) / 8)
    wanted = model(*batches[0]).detach()
    set_fake_quantize(prepared, QAT)
    prepared.train()
    start = float(fq.scale.detach())
    optimizer = torch.optim.SGD([fq.scale], lr=1e-6 if kind == "pact" else 1e-3)
    losses = []
    for _ in range(6):
        loss = (prepared(*batches[0]) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert float(fq.scale.detach()) > start
    set_fake_quantize(prepared, VALIDATION)
    assert torch.isfinite(prepared.eval()(*batches[0])).all()


def test_a_learned_scale_never_passes_zero() -> None:
    fq = FakeQuantize(FakeQuantSpec(kind="lsq"))
    fq.set_scale(0.1)
    with torch.no_grad():
        fq.scale.sub_(1.0)
    assert torch.isfinite(fq(torch.ones(3))).all()
    assert float(fq.scale.detach()) > 0
