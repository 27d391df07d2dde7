"""Models written as users write them: what `prepare` makes of them is what the program computes, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from hbc.backend.cpu.sessions import open_session  # noqa: E402
from hbc.quantization import (  # noqa: E402
    VALIDATION,
    calibrate,
    check_model,
    convert,
    export_to_onnx,
    prepare,
    set_fake_quantize,
)
from hbc.quantization.units import QuantizedWeighted, units_of  # noqa: E402
from tests.quantization.test_exact import leaves, train  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
IMAGE, TOKENS = (2, 3, 8, 8), (2, 5, 16)
Made = tuple[Callable[..., Any], dict[str, Any]]


class Net(nn.Module):
    """`function(self, x)` of layers by name."""

    def __init__(self, function: Callable[..., Any], layers: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *x: Any) -> Any:
        return self.function(self, *x)


def conv(**more: Any) -> dict[str, Any]:
    return {"c": nn.Conv2d(3, 8, 1), "h": nn.Conv2d(8, 2, 1), **more}


def gated(m: Any, x: Any) -> Any:
    return m.h(F.glu(m.c(x), 1))


def equal_calls(m: Any, x: Any) -> Any:
    """Of two equal convolutions one takes a sum."""
    return m.h(F.relu6(m.d(m.c(x))) + m.c(x))


def attended(m: Any, x: Any) -> Any:
    q, k, v = (f(x).view(2, 5, 4, 4).transpose(1, 2) for f in (m.q, m.k, m.v))
    return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def linears() -> dict[str, Any]:
    return {name: nn.Linear(16, 16) for name in "qkvo"}


WHOLE: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]], tuple[int, ...]]] = {
    "reflected and circular pads": (
        lambda m, x: m.h(m.d(m.c(x))),
        lambda: conv(c=nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
                     d=nn.Conv2d(8, 8, 3, padding=(1, 0), padding_mode="circular")), IMAGE),
    "equal calls": (equal_calls, lambda: conv(d=nn.Conv2d(8, 8, 3, padding=1, groups=8)), IMAGE),
    "group_norm": (lambda m, x: m.h(F.group_norm(m.c(x), 2, m.n.weight, m.n.bias, 1e-3)),
                   lambda: conv(n=nn.GroupNorm(2, 8)), IMAGE),
    "glu": (gated, lambda: conv(h=nn.Conv2d(4, 2, 1)), IMAGE),
    "celu": (lambda m, x: m.h(F.celu(m.c(x), 0.5)), conv, IMAGE),
    "powers": (lambda m, x: m.h(m.c(x) ** 3), conv, IMAGE),
    "channel_shuffle": (lambda m, x: m.h(F.channel_shuffle(m.c(x), 2).roll(1, 3)), conv, IMAGE),
    "attention": (attended, linears, TOKENS),
    "MultiheadAttention": (lambda m, x: m.o(m.a(x, x, x)[0]),
                           lambda: {"a": nn.MultiheadAttention(16, 4, batch_first=True), "o": nn.Linear(16, 4)},
                           TOKENS),
    "TransformerEncoderLayer": (
        lambda m, x: m.o(m.a(x)),
        lambda: {"a": nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), "o": nn.Linear(16, 4)}, TOKENS),
}  # fmt: skip
PARTLY: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]], tuple[int, ...]]] = {
    "where": (lambda m, x: m.h(torch.where(m.c(x) > 0, m.c(x), m.d(x))), lambda: conv(d=nn.Conv2d(3, 8, 1)), IMAGE),
    "masks": (lambda m, x: m.h(m.c(x) * (m.d(x) > 0) + m.c(x).masked_fill(m.d(x) < 0, 0.5)),
              lambda: conv(d=nn.Conv2d(3, 8, 1)), IMAGE),
    "cumsum": (lambda m, x: m.h(m.c(x).cumsum(1)), conv, IMAGE),
    "bicubic": (lambda m, x: m.h(F.interpolate(m.c(x), scale_factor=2, mode="bicubic")), conv, IMAGE),
    "uneven pool": (lambda m, x: m.h(F.adaptive_avg_pool2d(m.c(x), (3, 5))), conv, IMAGE),
    "largest of channels": (lambda m, x: (m.c(x).max(1)[0], m.h(m.c(x))), conv, IMAGE),
    "variance": (lambda m, x: m.h(m.c(x) / m.c(x).std(1, keepdim=True)), conv, IMAGE),
    "recurrent": (lambda m, x: m.o(m.g(x)[0]), lambda: {"g": nn.GRU(16, 8, batch_first=True), "o": nn.Linear(8, 4)},
                  TOKENS),
    "masked attention": (
        lambda m, x: m.o(m.a(x, x, x, attn_mask=torch.ones(5, 5).triu(1).bool(), need_weights=False)[0]),
        lambda: {"a": nn.MultiheadAttention(16, 4, batch_first=True), "o": nn.Linear(16, 4)}, TOKENS),
}  # fmt: skip


def made(case: tuple[Callable[..., Any], Callable[[], dict[str, Any]], tuple[int, ...]]) -> tuple[Any, Any, Any]:
    """The float model, the calibrated one and its batches."""
    function, layers, shape = case
    torch.manual_seed(0)
    model = Net(function, layers()).eval()
    batches = [(torch.randn(shape),) for _ in range(3)]
    prepared = prepare(model, batches[0])
    calibrate(prepared, batches, progress=False)
    return model, prepared, batches


def require_exact(prepared: Any, batch: Any) -> None:
    with torch.no_grad():
        wanted = leaves(prepared.eval()(*batch))
    for engine in ("jit", "reference"):
        for ours, theirs in zip(wanted, leaves(convert(prepared, batch, engine=engine)(*batch)), strict=True):
            assert np.array_equal(ours, theirs), engine


@pytest.mark.parametrize("name", WHOLE)
def test_on_the_bpu_and_exact(name: str) -> None:
    """In reals it is the float model; in integers the program, before and after training."""
    model, prepared, batches = made(WHOLE[name])
    set_fake_quantize(prepared.eval(), "float")
    with torch.no_grad():
        for ours, theirs in zip(leaves(prepared(*batches[0])), leaves(model(*batches[0])), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    set_fake_quantize(prepared, VALIDATION)
    assert check_model(prepared, batches[0]).on_cpu == ()
    require_exact(prepared, batches[1])
    train(prepared, batches)
    require_exact(prepared, batches[2])


@pytest.mark.ort
@pytest.mark.parametrize("name", PARTLY)
def test_what_has_no_integers_runs_on_the_cpu(name: str) -> None:
    """By hbc's front end for PyTorch, in the program as in the exported file."""
    ort = pytest.importorskip("onnxruntime", reason="it runs what is on the CPU")
    _, prepared, batches = made(PARTLY[name])
    require_exact(prepared, batches[1])
    train(prepared, batches)
    require_exact(prepared, batches[2])
    proto = export_to_onnx(prepared, batches[0])
    session = open_session(ort, proto.SerializeToString(), optimised=True)
    found = session.run(None, {session.get_inputs()[0].name: batches[1][0].numpy()})
    with torch.no_grad():
        wanted = leaves(prepared.eval()(*batches[1]))
    for ours, theirs in zip(found, wanted, strict=True):
        if theirs.dtype.kind == "f":  # a quantum here and there, and what a chain of ops makes of it
            assert np.abs(ours - theirs).max() <= 0.05 * np.abs(theirs).max()


def test_attention_is_trained_by_layers_of_its_own() -> None:
    _, prepared, _ = made(WHOLE["MultiheadAttention"])
    names = {n for n, u in units_of(prepared).items() if isinstance(u, QuantizedWeighted)}
    assert names == {"a.q_proj", "a.k_proj", "a.v_proj", "a.out_proj", "o"}


def test_equal_calls_are_one() -> None:
    _, prepared, _ = made(WHOLE["equal calls"])
    assert "c_2" not in units_of(prepared)
