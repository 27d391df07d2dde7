"""Batch norms of a prepared model keep their statistics where they are meant to, and the modes that a user set."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from hbc.quantization import QAT, calibrate, convert, prepare, set_fake_quantize, set_forward  # noqa: E402
from tests.quantization.models import built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def prepared() -> tuple[torch.nn.Module, list[tuple[torch.Tensor, ...]]]:
    """A model whose batch norm stands behind a concat, and can't be folded."""
    model, batches = built("concat-norm")
    made = prepare(model, batches[0])
    calibrate(made, batches, progress=False)
    return made, batches


def statistics(model: torch.nn.Module) -> list[torch.Tensor]:
    found = [b.clone() for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))]
    assert found
    return found


def test_exact_training_keeps_statistics() -> None:
    model, batches = prepared()
    set_fake_quantize(model, QAT)
    set_forward(model, "exact")
    model.train()
    before = statistics(model)
    for batch in batches:
        model(*batch).square().mean().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))


def test_converting_in_training_mode_keeps_statistics_and_frozen_norms() -> None:
    model, batches = prepared()
    model.train()
    (norm,) = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    norm.eval()
    before = statistics(model)
    convert(model, batches[0])
    assert model.training
    assert not norm.training
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))
