"""Products of two computed matrices: the program's integers, and the gradients of the reals where nothing saturates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402

from hbc.diagnostics import HbcError  # noqa: E402
from hbc.quantization import exact_matmul  # noqa: E402
from hbc.quantization.exact import Program  # noqa: E402
from hbc.quantization.exact_matmul import Matmul  # noqa: E402
from tests.quantization.test_exact_operations import unit_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Product(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return torch.relu(a @ b)


def built(count: int, scale: float = 0.02) -> tuple[Any, list[Any]]:
    """A unit whose sums have `count` terms, and operands with the ends of int8 among them."""
    shapes = [(2, 3, 5, count), (2, 3, count, 7)]
    unit, rng = unit_of(Product(), shapes, "nash-e", "int8"), np.random.default_rng(count)
    xs = []
    for source, shape in zip(unit.sources, shapes, strict=True):
        source.set_scale(scale)
        q = rng.integers(-128, 128, shape)
        q[0, 0, 0], q[0, 0, :, 0] = 127, -128
        xs.append((torch.from_numpy(q.astype(np.float32)) * source.scale).requires_grad_())
    unit.activation_post_process.set_scale(scale * scale * 128 * count**0.5)
    return unit, xs


@pytest.mark.parametrize("count", [1, 9, 1500])  # 1500 terms leave float32
def test_integers_and_gradients(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unit, xs = built(count)
    assert isinstance(unit.exact or Matmul(unit, Program()), Matmul)
    ours = unit(*xs)
    assert np.array_equal(ours.detach().numpy(), Program().run(unit, xs).numpy())
    ours.square().sum().backward()
    found = [x.grad.clone() for x in xs]
    for x in xs:
        x.grad = None
    monkeypatch.setattr(exact_matmul, "serves", lambda *_: False)  # the way of the other operations
    theirs = unit(*xs)
    assert torch.equal(ours, theirs)
    theirs.square().sum().backward()
    assert any(bool(g.any()) for g in found)
    for x, g in zip(xs, found, strict=True):
        assert torch.allclose(x.grad, g, rtol=1e-5, atol=1e-5 * float(g.abs().max()))


def test_scales_without_a_multiplier_are_named() -> None:
    unit, xs = built(9)
    unit.activation_post_process.set_scale(1e-9)
    with pytest.raises(HbcError, match="cannot be requantised"):
        unit(*xs)
