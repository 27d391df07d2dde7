"""The forward of a prepared model in eval computes the integers of the program that it becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    ModuleNameSetter,
    calibrate,
    convert,
    prepare,
    set_fake_quantize,
    set_forward,
    set_march,
)
from hbc.quantization.pytree import walk  # noqa: E402
from tests.quantization.models import MODELS, built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def leaves(result: Any) -> list[np.ndarray]:
    return [leaf.detach().numpy() for _, leaf in walk(result)]


def check(model: Any, batch: Any) -> None:
    """Every head of the exact forward is that of the JIT and of the reference, bit for bit."""
    model.eval()
    with torch.no_grad():
        heads = leaves(model(*batch))
    assert any(np.unique(h).size > 1 for h in heads)
    for engine in ("jit", "reference"):
        fixed = leaves(convert(model, batch, engine=engine)(*batch))
        assert len(fixed) == len(heads)
        for ours, theirs in zip(heads, fixed, strict=True):
            assert np.array_equal(ours, theirs), engine


def train(model: Any, batches: Any, steps: int = 3) -> None:
    """A few steps of QAT on the sum of squares of the heads."""
    set_fake_quantize(model, QAT)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in range(steps):
        loss = sum(leaf.square().mean() for _, leaf in walk(model(*batches[i % len(batches)])))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    set_fake_quantize(model, VALIDATION)


@pytest.mark.parametrize("name", MODELS)
def test_exact_before_and_after_training(name: str) -> None:
    set_march("nash-e")
    model, batches = built(name)
    prepared = prepare(model, batches[0])
    calibrate(prepared, batches, progress=False)
    check(prepared, batches[3])
    before = [p.detach().clone() for p in prepared.parameters()]
    train(prepared, batches)
    assert any(not torch.equal(a, b) for a, b in zip(before, prepared.parameters(), strict=True))
    check(prepared, batches[2])


@pytest.mark.parametrize("march", ["bayes", "bernoulli2"])
@pytest.mark.parametrize("name", ["residual", "deconv"])
def test_exact_on_other_marches(name: str, march: str) -> None:
    set_march(march)
    try:
        model, batches = built(name)
        prepared = prepare(model, batches[0])
    finally:
        set_march("nash-e")
    calibrate(prepared, batches, progress=False)
    check(prepared, batches[3])


@pytest.mark.parametrize("name", ["residual", "depthwise", "deconv", "pools"])
def test_exact_with_int16(name: str) -> None:
    model, batches = built(name)
    prepared = prepare(model, batches[0], ModuleNameSetter({"": "int16"}))
    calibrate(prepared, batches, progress=False)
    check(prepared, batches[3])


@pytest.mark.parametrize("name", ["residual", "concat-norm", "shared"])
def test_exact_training_has_the_gradients_of_plain_training(name: str) -> None:
    """Straight through: the directions agree closely, though not to the bit, as the values differ by quanta."""
    model, batches = built(name)
    prepared = prepare(model, batches[0])
    calibrate(prepared, batches, progress=False)
    found = []
    for mode in ("plain", "exact"):
        set_forward(prepared, mode)
        prepared.train()
        for norm in (m for m in prepared.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.eval()  # exact training keeps statistics
        prepared.zero_grad()
        sum(leaf.square().mean() for _, leaf in walk(prepared(*batches[0]))).backward()
        found.append(torch.cat([p.grad.flatten() for p in prepared.parameters() if p.grad is not None]))
    cosine = torch.nn.functional.cosine_similarity(found[0], found[1], dim=0)
    assert found[0].numel() == found[1].numel() > 0
    assert float(cosine) > 0.98


@pytest.mark.parametrize("name", ["residual", "attention", "pools"])
def test_exact_under_autocast(name: str) -> None:
    """bfloat16 can't hold the integers of an accumulator: exact forward computes without it."""
    model, batches = built(name)
    prepared = prepare(model, batches[0])
    calibrate(prepared, batches, progress=False)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        ours = leaves(prepared(*batches[1]))
    for mine, theirs in zip(ours, leaves(convert(prepared)(*batches[1])), strict=True):
        assert np.array_equal(mine, theirs)
    set_forward(prepared, "exact")
    prepared.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sum(leaf.square().mean() for _, leaf in walk(prepared(*batches[0]))).backward()
    assert any(p.grad is not None and p.grad.any() for p in prepared.parameters())
