"""Writes in place through views: PyTorch's memory decides who sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch makes and runs these models")

from hbc.diagnostics import FrontendError  # noqa: E402
from tests.torch_sketch import Net, export, imported, run, trace  # noqa: E402

pytestmark = pytest.mark.torch
X = torch.arange(2 * 4 * 6 * 6, dtype=torch.float32).reshape(2, 4, 6, 6).sin()


def turned(x: Any) -> Any:
    y = x.clone()
    y.movedim(1, -1).mul_(2)
    y.swapaxes(1, 2)[:, 0].add_(1)
    y.mT[..., 0] = 0
    return y


def reshape_that_copies(x: Any) -> Any:
    y = x.clone()
    z = y.transpose(1, 2).reshape(2, -1)
    return z.relu_(), y


def reshape_that_views(x: Any) -> Any:
    y = x.clone()
    z = y.reshape(2, -1)
    return z.relu_(), y


def flatten_behind_permute(x: Any) -> Any:
    y = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    z = y.permute(0, 3, 1, 2).flatten(1)
    return torch.nn.functional.relu(z, inplace=True), y + 1


def diagonal(x: Any) -> Any:
    y = x.clone()
    y.diagonal(dim1=2, dim2=3).fill_(5.0)
    y.narrow(1, 1, 2).neg_()
    return y


def windows(x: Any) -> Any:
    y = x.clone()
    y.unfold(2, 2, 2).mul_(2)
    return y


def strided(x: Any) -> Any:
    y = x.clone()
    z = y.as_strided((2, 6, 4), (144, 6, 36))
    z.add_(1)
    return z, y, x.contiguous().as_strided((3, 4), (2, 1), 5)


def raised(x: Any) -> Any:
    y = x.clone()
    return y.pow_(2).add_(1).sqrt_()


CASES = [
    turned, reshape_that_copies, reshape_that_views, flatten_behind_permute, diagonal, windows, strided, raised,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("how", [trace, export])
def test_who_shares_memory_sees_the_write(function: Callable[..., Any], how: Callable[..., Any]) -> None:
    wanted = function(X.clone())
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = run(imported(how(Net(function), X), X), [X]).values()
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-6)


def test_strides_beyond_the_tensor_are_an_error() -> None:
    """The rest of its memory belongs to the larger tensor that it is a part of."""
    model = trace(Net(lambda x: x[:, :2].as_strided((3, 3), (1, 72))), X)
    with pytest.raises(FrontendError, match="as_strided reads beyond the tensor"):
        imported(model, X)


@pytest.mark.parametrize("word", ["exponential_", "cauchy_", "log_normal_", "geometric_"])
def test_every_kind_of_random_numbers_is_refused(word: str) -> None:
    args = (0.5,) if word == "geometric_" else ()
    model = trace(Net(lambda x: x + getattr(torch.empty(4, 1, 1), word)(*args)), X)
    with pytest.raises(FrontendError, match="draws random numbers"):
        imported(model, X)
