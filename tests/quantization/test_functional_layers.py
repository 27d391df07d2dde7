"""Functional convolutions and linear layers of the model's own parameters are quantised as layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.quantization import calibrate, capture, convert, prepare  # noqa: E402
from hbc.quantization.functional_layers import as_layers  # noqa: E402
from hbc.quantization.units import QuantizedWeighted, units_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Inner(nn.Module):
    """A convolution of its own making, as libraries have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 2, 3, 3) / 3), nn.Parameter(torch.randn(6))

    def forward(self, x: Any) -> Any:
        return functional.conv2d(x, self.weight, self.bias, padding=1, groups=2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.bn = Inner(), nn.BatchNorm2d(6)
        self.bn.running_mean.normal_()  # type: ignore[union-attr]
        self.up = nn.Parameter(torch.randn(6, 4, 2, 2))
        self.matrix = nn.Parameter(torch.randn(5, 4))
        self.register_buffer("fixed", torch.randn(4, 4, 1, 1))

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.bn(self.inner(x)))
        x = functional.conv_transpose2d(x, self.up, None, 2)
        x = functional.conv2d(functional.conv2d(x, self.fixed), self.fixed)  # the same twice
        return functional.linear(x.mean((2, 3)), weight=self.matrix)


def test_calls_become_layers_that_compute_the_same() -> None:
    model, x = Net().eval(), torch.randn(2, 4, 6, 8)
    graph = capture(model, (x,))
    with torch.no_grad():
        wanted = model(x)
        as_layers(graph)
        assert np.array_equal(graph(x).numpy(), wanted.numpy())
    kinds = [type(m).__name__ for m in graph.modules()]
    assert kinds.count("Conv2d") == 2  # inner's, and the one that is called twice
    assert kinds.count("ConvTranspose2d") == kinds.count("Linear") == 1
    assert graph.inner.conv2d.weight is model.inner.weight
    assert len(list(graph.parameters())) == len(list(model.parameters())) + 1  # the fixed weight, which isn't trained
    assert "matrix" not in dict(graph.named_parameters())


def test_they_are_units_exact_and_trained() -> None:
    x = torch.randn(2, 4, 6, 8)
    model = prepare(Net().eval(), (x,))
    units = {n: u for n, u in units_of(model).items() if isinstance(u, QuantizedWeighted)}
    assert set(units) == {"inner.conv2d", "conv_transpose2d", "conv2d", "conv2d_2", "linear"}
    assert not model.hints
    assert units["inner.conv2d"].activation == "relu"
    assert units["conv2d"].weight_fake_quant is units["conv2d_2"].weight_fake_quant
    assert units["linear"].activation_post_process is None  # a tail: its accumulator
    calibrate(model, [(x,)], progress=False)
    with torch.no_grad():
        ours, theirs = model(x), convert(model)(x)
    assert np.unique(ours.numpy()).size > 1
    assert np.array_equal(ours.numpy(), theirs.numpy())
    model(x).sum().backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert {"inner.conv2d.weight", "conv_transpose2d.weight", "linear.weight"} <= trained
    assert "conv2d.weight" not in trained


def test_a_computed_weight_is_named_as_it_is_not_trained() -> None:
    class Standardised(Inner):
        def forward(self, x: Any) -> Any:
            return functional.conv2d(x, self.weight - self.weight.mean(), self.bias, groups=2)

    model = prepare(nn.Sequential(nn.Conv2d(3, 4, 1), Standardised()).eval(), (torch.randn(1, 3, 6, 8),))
    assert model.hints == ["1.conv2d: its weight is computed in forward; it stays as it is now, untrained"]
