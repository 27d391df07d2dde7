"""Kernels of exact forward: shared among threads they give what one thread gives, and what torch gives elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.native import build  # noqa: E402
from hbc.quantization import exact_composites, exact_matmul, exact_weighted  # noqa: E402
from hbc.quantization.exact import Program  # noqa: E402
from hbc.quantization.units import QuantizedUnit, QuantizedWeighted, units_of  # noqa: E402
from tests.quantization.test_exact_composites import CASES, operand  # noqa: E402
from tests.quantization.test_exact_operations import unit_of  # noqa: E402
from tests.quantization.test_exact_weighted import IMAGE, LAYERS, Layer, operands, prepared  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
]
LARGE = 1 << 17


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work is shared however small it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(build, "SHARE", 1)
    yield
    torch.set_num_threads(before)


def layer(name: str, dtype: str) -> tuple[QuantizedUnit, list[Any]]:
    make, shape, adds = LAYERS[name]
    torch.manual_seed(1)
    args = (torch.zeros(shape), torch.zeros(shape)) if adds else (torch.zeros(shape),)
    model = prepared(Layer(make(), functional.relu, adds=adds), args, "nash-e", dtype)
    unit = next(u for u in units_of(model).values() if isinstance(u, QuantizedWeighted))
    assert unit.activation_post_process is not None
    unit.activation_post_process.set_scale(0.05)
    return unit, operands(unit, (shape, shape), (0.03, 0.04))


def composite(name: str, dtype: str) -> tuple[QuantizedUnit, list[Any]]:
    model, shape, usual = CASES[name]
    unit = unit_of(model, [shape], "nash-e", dtype)
    for fq, scale in zip((unit.sources[0], unit.activation_post_process), (0.03, usual), strict=True):
        assert fq is not None
        fq.set_scale(scale if dtype == "int8" else scale / 150)
    return unit, [operand(unit, shape, np.random.default_rng(0))]


UNITS: dict[str, Callable[[str], tuple[QuantizedUnit, list[Any]]]] = {
    **{name: lambda dtype, n=name: layer(n, dtype) for name in ("conv", "linear", "linear-rows", "deconv")},  # type: ignore[misc]
    **{name: lambda dtype, n=name: composite(n, dtype) for name in ("softmax", "layer-norm", "instance-norm-affine")},  # type: ignore[misc]
}


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.usefixtures("three_threads")
def test_threads_share_the_work(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unit, xs = UNITS[name](dtype)
    with torch.no_grad():
        ours = unit(*xs)
        assert np.array_equal(ours.numpy(), Program().run(unit, xs).numpy())
        monkeypatch.setattr(build, "SHARE", LARGE)
        assert torch.equal(ours, unit(*xs))
    assert np.unique(ours.numpy()).size > 3


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", [*UNITS, "depthwise", "conv1d"])
def test_devices_without_kernels_have_the_same_integers(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (exact_weighted, exact_composites, exact_matmul):
        monkeypatch.setattr(module, "serves", lambda *_: False)
    unit, xs = UNITS[name](dtype) if name in UNITS else layer(name, dtype)
    with torch.no_grad():
        assert np.array_equal(unit(*xs).numpy(), Program().run(unit, xs).numpy())


def _spy(look: Callable[[Any], None], seen: list[Any]) -> Callable[[Any], None]:
    def both(x: Any) -> None:
        seen.append(x)
        look(x)

    return both


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_ranges_that_observers_see_are_those_of_the_reals(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every layout: planes, last axis, one channel; batches of odd sizes among them."""
    for make, shape in (
        (lambda: nn.Conv2d(6, 5, 3), IMAGE),
        (lambda: nn.Linear(9, 35), (3, 9)),
        (lambda: nn.Conv2d(6, 1, 1), (3, 6, 5, 7)),
    ):
        torch.manual_seed(0)
        model = prepared(Layer(make(), functional.relu), (torch.zeros(shape),), "nash-e", dtype)
        unit = next(u for u in units_of(model).values() if isinstance(u, QuantizedWeighted))
        (x,) = operands(unit, (shape,), (0.001,))
        fq = unit.activation_post_process
        assert fq is not None
        assert fq.observer is not None
        fq.observing = True
        seen: list[Any] = []
        monkeypatch.setattr(fq.observer, "add", _spy(fq.observer.add, seen))
        unit.mode = "exact"
        unit.train()
        with torch.no_grad():
            unit(x)
            weight, bias = unit.folded()
            reals = functional.relu(unit.product(x, unit.weight_fake_quant.quantized(weight), bias))
        got, wanted = (torch.stack(torch.aminmax(y)) for y in (seen[-1], reals))
        step = unit.weight_fake_quant.scale.max() * 0.001  # a bias is rounded to a step of the accumulator
        assert torch.allclose(got, wanted, rtol=1e-5, atol=float(step))
