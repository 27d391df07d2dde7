"""Writes in place in a user's forward: every tensor that shares the memory has the new values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from hbc.diagnostics import QuantizationError  # noqa: E402
from hbc.quantization import VALIDATION, prepare, set_fake_quantize  # noqa: E402
from tests.quantization.test_exact import leaves, train  # noqa: E402
from tests.quantization.test_lowering import IMAGE, Net, conv, made, require_exact  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.ort, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def into_a_slice(m: Any, x: Any) -> Any:
    y = m.c(x)
    y[:, :4].mul_(0.5)
    return m.h(y)


def into_a_view(m: Any, x: Any) -> Any:
    y = m.c(x)
    F.relu(y.view(x.shape[0], 2, 4, 8, 8).transpose(1, 2), inplace=True)
    return m.h(y)


def items(m: Any, x: Any) -> Any:
    y = m.c(x).clone()
    y[:, 0] = 0
    y[:, 1:3, ::2] = m.d(x)[:, 3:5, ::2]
    y[:, 4:][:, :2] = 1.0
    y[y < -0.5] = -0.5
    return m.h(y)


def of_parts(m: Any, x: Any) -> Any:
    y = m.c(x).clone()
    first, second = y.chunk(2, 1)
    first.mul_(2)
    second.copy_(first)
    y.narrow(1, 6, 2).fill_(0.25)
    return m.h(y)


def modules(m: Any, x: Any) -> Any:
    y = m.c(x)
    kept = y + 1
    return m.h(m.r(y) + y + kept)


def layers() -> dict[str, Any]:
    return conv(d=nn.Conv2d(3, 8, 1), r=nn.ReLU(inplace=True))


@pytest.mark.parametrize("function", [into_a_slice, into_a_view, items, of_parts, modules], ids=lambda f: f.__name__)
def test_the_graph_holds_what_memory_holds(function: Callable[..., Any]) -> None:
    model, prepared, batches = made((function, layers, IMAGE))
    set_fake_quantize(prepared.eval(), "float")
    with torch.no_grad():
        for ours, theirs in zip(leaves(prepared(*batches[0])), leaves(model(batches[0][0].clone())), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    set_fake_quantize(prepared, VALIDATION)
    require_exact(prepared, batches[1])
    train(prepared, batches)
    require_exact(prepared, batches[2])


def test_a_write_that_is_not_followed_is_an_error() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = m.c(x)
        y.diagonal(dim1=2, dim2=3).zero_()
        return m.h(y)

    with pytest.raises(QuantizationError, match="writes in place into the result of 'diagonal'") as raised:
        prepare(Net(forward, layers()).eval(), (torch.rand(IMAGE),))
    assert "y = y.clone()" in str(raised.value)
