"""PyTorch's operators that need ONNX Runtime or an arrangement of other ops: compiled, run, compared with PyTorch.

Traced and exported; where a case is scripted too, so is the rule that a script reaches by another overload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import hbc
from hbc.diagnostics import FrontendError
from hbc_runtime import Session
from tests.torch_scripts import QuantisedVolume, Scripted
from tests.torch_sketch import Net, export, leaves, script, torch, trace

pytestmark = [pytest.mark.torch, pytest.mark.ort]
nn, F = torch.nn, torch.nn.functional
X, VOLUME = (2, 4, 6, 8), (1, 2, 6, 8, 7)


@dataclass(frozen=True)
class Case:
    """A function of inputs, then of modules. A shape stands for normal reals, `Ints` for integers."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...] = (X,)
    modules: Callable[[], list[Any]] = list


@dataclass(frozen=True)
class Ints:
    shape: tuple[int, ...]
    high: int = 4


def put(x: Any, s: Any) -> Any:
    y = x.clone()
    y[:, torch.tensor([0, 2])] = s
    return y


def masked(x: Any) -> Any:
    y = x.clone()
    y[y < 0] = 0.5
    return y


def strided(x: Any) -> Any:
    y = x.clone()
    y[:, :, ::2] = 0.5
    y[..., 1::3] *= 2
    return y


def turned(x: Any) -> Any:
    y = x.clone().transpose_(2, 3).unsqueeze_(0)
    return y.squeeze_(0) + 1


CASES = [
    # the largest, the smallest, sorted
    Case("embedding_bag", lambda i, m: m(i), (Ints((2, 3), 9),), lambda: [nn.EmbeddingBag(10, 6, mode="mean")]),
    Case("embedding_bag, uneven", lambda i, m: m(i, torch.tensor([0, 0, 2])), (Ints((5,), 9),),
         lambda: [nn.EmbeddingBag(10, 6, mode="max")]),
    Case("determinants", lambda x: (torch.det(x), *torch.linalg.slogdet(x)), ((2, 3, 4, 4),)),
    Case("inverse", lambda x: (torch.inverse(x + 4 * torch.eye(3)), torch.linalg.inv(x[:, :1, :1])), ((2, 3, 3),)),
    Case("solve", lambda x: (torch.linalg.solve(x + 5 * torch.eye(4), x), torch.linalg.solve(x[0] + 5 * torch.eye(4),
         x[0, 0])), ((2, 4, 4),)),
    Case("diagonal_scatter", lambda x: torch.diagonal_scatter(x, x[..., 0] * 2, 0, 2, 3)),
    Case("bits", lambda i: (i & 3, i | 4, i ^ 1, ~i, torch.logical_not(i.float() - 1)), (Ints((2, 3), 9),)),
    Case("adaptive pools that enlarge", lambda x: (F.adaptive_avg_pool2d(x, (12, 7)), F.adaptive_max_pool2d(x, 16))),
    Case("topk", lambda x: tuple(torch.topk(x, 2, dim=1))),
    Case("topk, smallest", lambda x: torch.topk(x, 2, largest=False)[0]),
    Case("gather at topk", lambda x: x.gather(-1, torch.topk(x, 2, dim=-1)[1])),
    Case("sort", lambda x: tuple(torch.sort(x, dim=1, descending=True))),
    Case("argsort", lambda x: torch.argsort(x, dim=-1) + torch.msort(x).long() * 0),
    Case("kthvalue, median", lambda x: torch.kthvalue(x, 2, dim=-1)[0] + torch.median(x, dim=-1)[0] + x.median()),
    Case("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), right=True)
         + torch.searchsorted(torch.tensor([-1.0, 0.5]), x)),
    # indices
    Case("index, computed", lambda x, i: x[:, i[0]], (X, Ints((1, 3)))),
    Case("index, two known", lambda x: x[:, torch.tensor([0, 1, 2]), torch.tensor([3, -1, 0])]),
    Case("index, known and parted", lambda x: x[torch.tensor([0, 1]), :, torch.tensor([3, 1])]),
    Case("index, known and computed", lambda x, i: x[torch.arange(2)[:, None], i - 4], (X, Ints((2, 3)))),
    Case("index, computed and parted", lambda x, i, j: x[i, :, j], (X, Ints((3,), 2), Ints((3,)))),
    Case("index at argmax", lambda x: x[torch.arange(2), x.mean((2, 3)).argmax(1)]),
    Case("index by a known mask", lambda x: x[:, :, torch.ones(6, 8).triu().bool()]),
    Case("index_select, computed", lambda x, i: x.index_select(1, i), (X, Ints((3,)))),
    Case("gather, known", lambda x: x.gather(1, torch.zeros(2, 2, 6, 8, dtype=torch.long))
         + x.gather(1, torch.arange(192).reshape(2, 2, 6, 8) % 4)),
    Case("gather, computed", lambda x, i: x.gather(2, i) + torch.take_along_dim(x, i, 2), (X, Ints((2, 4, 3, 8)))),
    Case("take", torch.take, (X, Ints((5,)))),
    Case("embedding", lambda i, m: m(i), (Ints((2, 3), 9),), lambda: [nn.Embedding(10, 6)]),
    Case("one_hot", lambda i: F.one_hot(i, 6).float(), (Ints((2, 3)),)),
    Case("scatter", lambda x, i, s: x.scatter(2, i, s), (X, Ints((2, 4, 1, 8)), (2, 4, 3, 8))),
    Case("scatter, known", lambda x, s: x.scatter(1, torch.zeros(2, 1, 6, 8, dtype=torch.long), s), (X, (2, 1, 6, 8))),
    Case("scatter a number", lambda x, i: torch.zeros_like(x).scatter(1, i, 1.0), (X, Ints((2, 1, 6, 8)))),
    Case("scatter_add", lambda x, i, s: x.scatter_add(2, i, s), (X, Ints((2, 4, 3, 8)), (2, 4, 3, 8))),
    Case("scatter_reduce", lambda x, i, s: x.scatter_reduce(2, i, s, "amax"), (X, Ints((2, 4, 3, 8)), (2, 4, 3, 8))),
    Case("index_add", lambda x, s: x.index_add(1, torch.tensor([0, 2]), s), (X, (2, 2, 6, 8))),
    Case("index_copy, index_fill", lambda x, s: x.index_copy(1, torch.tensor([0, 2]), s)
         + x.index_fill(1, torch.tensor([1]), 3.0), (X, (2, 2, 6, 8))),
    Case("written at indices", put, (X, (2, 2, 6, 8))),
    Case("added at computed indices", lambda x, i, s: x.index_put((i,), s, accumulate=True),
         ((4, 5), Ints((3,)), (5,))),
    Case("written where a mask holds", masked),
    Case("written at every second", strided),
    Case("diagonals", lambda x: x.diagonal(1, 2, 3).sum() + torch.einsum("bcii->bci", x[..., :6]).sum()),
    Case("diag_embed, trace", lambda x: torch.diag_embed(x) + torch.trace(x), ((4, 4),)),
    Case("windows of a tensor", lambda x: x.unfold(2, 3, 2)),
    Case("cross", lambda x, y: torch.linalg.cross(x, y, dim=1), ((2, 3, 4), (2, 3, 4))),
    # three spatial axes
    Case("conv3d", lambda x, m, k: m(x).sum() + k(x), (VOLUME,), lambda: [
        nn.Conv3d(2, 4, 3, padding=1, stride=(1, 2, 1)), nn.Conv3d(2, 4, (2, 3, 3), dilation=(2, 1, 1), groups=2)]),
    Case("conv3d, same, without a batch", lambda x, m: m(x), (VOLUME[1:],), lambda: [
        nn.Conv3d(2, 4, (2, 3, 3), padding="same")]),
    Case("conv_transpose3d", lambda x, m: m(x), (VOLUME,), lambda: [nn.ConvTranspose3d(2, 4, 3, 2, 1, 1)]),
    Case("max_pool3d", lambda x: F.max_pool3d(x, 3, 2, 1, ceil_mode=True), (VOLUME,)),
    Case("avg_pool3d", lambda x: F.avg_pool3d(x, 3, 2, 1) + F.avg_pool3d(x, 3, 2, 1, count_include_pad=False),
         (VOLUME,)),
    Case("adaptive pools of volumes", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 3)).sum()
         + F.adaptive_max_pool3d(x, (2, 2, 1)) + F.adaptive_avg_pool3d(x, 1), (VOLUME,)),
    Case("norms of volumes", lambda x, m, k: m(x) + k(x), (VOLUME,), lambda: [
        nn.BatchNorm3d(2), nn.InstanceNorm3d(2, affine=True)]),
    Case("trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (VOLUME,)),
    # resizing and sampling
    Case("bicubic", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    Case("bicubic by 1.7", lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic")),
    Case("bicubic, corners", lambda x: F.interpolate(x, size=(9, 11), mode="bicubic", align_corners=True)),
    Case("antialiased", lambda x: F.interpolate(x, size=(3, 5), mode="bicubic", antialias=True)
         + F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True)),
    Case("grid_sample, reflected", lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
         (X, (2, 5, 5, 2))),
    Case("grid_sample, bicubic", lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=True),
         (X, (2, 5, 5, 2))),
    Case("grid_sample of a volume", lambda x, g: F.grid_sample(x, g, align_corners=False), (VOLUME, (1, 3, 4, 5, 3))),
    # pools
    Case("max_pool with places", lambda x: tuple(F.max_pool2d(x, 2, return_indices=True))),
    Case("adaptive_max_pool, uneven", lambda x: F.adaptive_max_pool2d(x, (4, 5))),
    Case("avg_pool, its own divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3)),
    Case("local_response_norm", lambda x: F.local_response_norm(x, 3)),
    # attention and recurrences
    Case("attention, grouped", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
         ((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4))),
    Case("attention, broadcast", F.scaled_dot_product_attention, ((2, 4, 5, 4), (1, 1, 5, 4), (1, 1, 5, 4))),
    Case("gru", lambda x, m: m(x), ((2, 5, 8),), lambda: [nn.GRU(8, 4, batch_first=True)]),
    Case("cells", lambda x, h, c, m, k: (*m(x, (h, c)), k(x, h)), ((2, 8), (2, 4), (2, 4)), lambda: [
        nn.LSTMCell(8, 4), nn.GRUCell(8, 4)]),
    Case("decoder", lambda x, y, m: m(x, y), ((2, 5, 8), (2, 5, 8)), lambda: [
        nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)]),
    # arithmetic
    *(Case(f, lambda x, f=f: getattr(torch, f)(x.sigmoid() * 0.9)) for f in ("exp2", "log2", "log10", "erfc", "logit")),
    *(Case(f, lambda x, f=f: getattr(torch, f)(x * 3)) for f in ("trunc", "frac", "isnan", "isinf")),
    *(Case(f, lambda x, y, f=f: getattr(torch, f)(x * 3, y), (X, X)) for f in ("atan2", "fmod", "remainder", "hypot")),
    Case("remainder of integers", lambda i: (i - 4) % 3 + torch.div(i, 2, rounding_mode="trunc"), (Ints((3, 4), 9),)),
    Case("xlogy, heaviside", lambda x, y: torch.xlogy(x, y.abs()) + torch.heaviside(x, torch.tensor(0.5)), (X, X)),
    Case("nan_to_num", lambda x: torch.nan_to_num(x / (x > 0), posinf=3.0)),
    Case("norms of other orders", lambda x: x.norm(3, dim=1) + x.norm(float("inf"), dim=1)
         + torch.linalg.vector_norm(x, 0, dim=1)),
    Case("var_mean, std_mean", lambda x: (*torch.var_mean(x, (2, 3)), *torch.std_mean(x, 1))),
    Case("prod", lambda x: x.prod(1).sum() + x.prod()),
    Case("cdist, dist", lambda x, y: torch.cdist(x, y) + torch.dist(x[:, :1], y[:, :1]), ((2, 5, 4), (2, 6, 4))),
    Case("cumulative", lambda x: x.cumprod(1) + x.cummax(1)[0] + (x > 0).cumsum(1)),
    Case("addbmm", torch.addbmm, ((4, 6), (3, 4, 5), (3, 5, 6))),
    Case("bilinear", lambda x, y, m: m(x, y), ((2, 4), (2, 5)), lambda: [nn.Bilinear(4, 5, 3)]),
    Case("threshold to a value", lambda x: F.threshold(x, 0.1, 20.0)),
    Case("losses", lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y), (X, X)),
    Case("rolled flat, repeated", lambda x: x.roll(3).sum() + x.repeat_interleave(2).sum()
         + x.repeat_interleave(torch.tensor([1, 2, 0, 1]), dim=1)),
    Case("turned in place", turned),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_fast_path() -> Iterator[None]:
    """As docs/torchscript.md tells users of transformer layers."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def tensors(case: Case) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(0, i.high, i.shape, generator=generator) if isinstance(i, Ints)
        else torch.randn(i, generator=generator)
        for i in case.inputs
    ]  # fmt: skip


def built(case: Case) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    return Net(case.function, *case.modules()).eval(), tensors(case)


def require_same(model: Any, original: Any, inputs: Sequence[Any]) -> None:
    """Compiled and run, it gives what PyTorch gives; reals within float32's sums in another order."""
    with torch.no_grad():
        want = list(leaves(original(*(x.clone() for x in inputs))))
    program = hbc.compile(model, arith="onnx", example=list(inputs)).program
    with Session(program, engine="reference") as session:
        feeds = {i.name: x.numpy() for i, x in zip(session.inputs, inputs, strict=True)}
        got = list(session.run(feeds).values())
    assert [(y.shape, y.dtype) for y in got] == [(y.shape, y.dtype) for y in want]
    for y, expected in zip(got, want, strict=True):
        if expected.dtype.kind != "f":
            assert np.array_equal(y, expected)
            continue
        assert float(np.abs(y - expected).max(initial=0)) <= 2e-5 * max(1.0, float(np.abs(expected).max(initial=0)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_traced_operator_is_pytorchs(case: Case) -> None:
    model, inputs = built(case)
    require_same(trace(model, *inputs), model, inputs)


@pytest.mark.parametrize("case", CASES[::4], ids=lambda c: c.name)  # exporting is slow, and the rules are the same
def test_an_exported_operator_is_pytorchs(case: Case) -> None:
    model, inputs = built(case)
    require_same(export(model, *inputs), model, inputs)


def test_a_scripted_model_reaches_the_same_rules() -> None:
    x = torch.randn(X, generator=torch.Generator().manual_seed(0))
    require_same(script(Scripted()), Scripted(), [x])


def test_a_quantised_3d_convolution_is_integers_throughout() -> None:
    """Its planes become channels of a 2-D one: as many products as the convolution of reals, one rounding."""
    x = torch.randn(1, 2, 4, 6, 5, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = QuantisedVolume().eval()
    compiled = hbc.compile(trace(model, x), march="nash", example=x)
    assert [n for n in compiled.report.nodes if n.device == "cpu"] == []
    with torch.no_grad():
        want = model(x).numpy()
    with Session(compiled.program) as session:
        (got,) = session.run({session.inputs[0].name: x.numpy()}).values()
    assert float(np.abs(got - want).max()) <= 0.05 * 1.001  # a quantum: torch rounds by a float multiplier


@pytest.mark.parametrize("function", [
    torch.nonzero, lambda x: x.masked_select(x > 0), torch.unique, lambda x: x[x > 0],
    lambda x: torch.where(x > 0)[0],
])  # fmt: skip
def test_what_has_no_fixed_size_says_so(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(FrontendError, match=r"depends on the data[\s\S]*torch.where"):
        hbc.compile(trace(Net(lambda x: function(x).float()), x), example=x)
