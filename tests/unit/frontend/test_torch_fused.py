"""torch.nn's transformer layers, traced in eval mode: one fused operator each, without anything switched off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch makes and runs these models")

import hbc  # noqa: E402
from hbc_runtime import Session  # noqa: E402
from tests.torch_sketch import Net, leaves, trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.ort]
nn = torch.nn
X = torch.linspace(-1, 1, 2 * 5 * 16).reshape(2, 5, 16).sin() * 2
HIDDEN = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


def layer(**options: Any) -> Any:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "attention": (lambda x, m: m(x, x, x), lambda: nn.MultiheadAttention(16, 4, batch_first=True)),
    "of each head": (lambda x, m: m(x, x, x, average_attn_weights=False),
                     lambda: nn.MultiheadAttention(16, 2, batch_first=True)),
    "without weights": (lambda x, m: m(x, x, x, need_weights=False)[0],
                        lambda: nn.MultiheadAttention(16, 4, batch_first=True)),
    "layer": (lambda x, m: m(x), layer),
    "layer, norms first": (lambda x, m: m(x), lambda: layer(norm_first=True, activation="gelu")),
    "masked": (lambda x, m: m(x, src_mask=HIDDEN), layer),
    "padded": (lambda x, m: m(x, src_key_padding_mask=PADDED), layer),
    "masked and padded": (lambda x, m: m(x, HIDDEN, PADDED), layer),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_fast_path_is_taken(name: str) -> None:
    function, made = CASES[name]
    torch.manual_seed(0)
    model = Net(function, made()).eval()
    traced = trace(model, X)
    assert "_fwd" in str(traced.inlined_graph) or "_native_multi_head" in str(traced.inlined_graph)
    with torch.no_grad():
        wanted = leaves(model(X))
    with Session(hbc.compile(traced, arith="onnx", example=X).program) as session:
        found = list(session.run({session.model.inputs[0].name: X.numpy()}).values())
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
