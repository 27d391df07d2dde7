"""Every family of PyTorch's operators against PyTorch itself: traced, exported, and said by core operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hbc.frontend.torch_ops import RULES
from tests.torch_sketch import Net, export, imported, require_same, torch, trace

pytestmark = pytest.mark.torch
nn, F = torch.nn, torch.nn.functional
X = (2, 4, 6, 8)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A function of inputs of `shapes`, then of `modules`; `exported`: also checked through torch.export."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[Shape, ...] = (X,)
    modules: Callable[[], list[Any]] = list
    exported: bool = False


def written(x: Any) -> Any:
    y = x.clone()
    y[:, 0] = 1.0
    y[:, 1:2] *= 2
    y += 1
    y.view(2, -1).relu_()
    return y


def written_to_a_constant(x: Any) -> Any:
    y = torch.zeros(2, 6, 6, 8)
    y[:, 1:5] = x
    y[:, 0] = x[:, 1]
    y.select(2, 0).copy_(y[:, :, 1])
    return y


def parts_taken_before_a_write(x: Any) -> Any:
    a, b = x.chunk(2, 1)
    a = a.clone()
    part, turned = a[:, :1], a.transpose(2, 3)
    a.mul_(3)
    return part + b.relu_()[:, :1] + x[:, 2:3] + turned.transpose(2, 3)[:, 1:]


def of_parts(x: Any) -> Any:
    first, second = x.unbind(1)[:2]
    first += second
    return x


def dictionary(x: Any) -> Any:
    return {"a": x + 1, "b": [x * 2, x * 3]}


CASES = [
    *(Case(f, lambda x, f=f: getattr(F, f)(x)) for f in (
        "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
        "hardtanh", "softplus", "logsigmoid", "sigmoid", "tanh", "softsign", "tanhshrink")),
    *(Case(f, lambda x, f=f: getattr(torch, f)(x)) for f in (
        "exp", "abs", "neg", "floor", "ceil", "round", "sign", "sin", "cos", "erf", "square", "expm1")),
    *(Case(f, lambda x, f=f: getattr(torch, f)(x.abs() + 0.5)) for f in (
        "sqrt", "rsqrt", "log", "log1p", "reciprocal")),
    Case("gelu by tanh", lambda x: F.gelu(x, approximate="tanh")),
    Case("prelu", lambda x, m: m(x), modules=lambda: [nn.PReLU(4)]),
    Case("prelu, slopes differ", lambda x, s: F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4])) + s, (X, X)),
    Case("glu", lambda x: F.glu(x, 1)),
    Case("threshold", lambda x: F.threshold(x, 0.3, 0.0)),
    Case("clamp", lambda x: x.clamp(-0.5, 0.7) + x.clamp(min=0.1) + x.clamp(max=0.2)),
    Case("clamp by a tensor", lambda x, y: torch.clamp(x, min=y), (X, X)),
    Case("arithmetic", lambda x, y: (x + y) * 2 - y / 3 + (1 - x) - torch.add(x, y, alpha=0.5)
         + torch.sub(x, y, alpha=2), (X, (1, 4, 1, 1)), exported=True),
    Case("maximum", lambda x, y: torch.maximum(x, y) + torch.minimum(x, y) + torch.max(x, y), (X, X)),
    Case("pow", lambda x: x**2 + x**3 + x.abs() ** 0.5 + x**1),
    Case("comparisons", lambda x, y: torch.where(x > y, x, y * 2) + (x != y).float() + (x <= 0.3).float()
         + ((x > 0) & (y < 0)).float() + (~(x >= 0)).float() + (x == y).float(), (X, X), exported=True),
    Case("masked_fill", lambda x: x.masked_fill(x < 0, -3.0)),
    Case("floor division", lambda x: torch.div(x, 0.3, rounding_mode="floor")),
    Case("addcmul, lerp", lambda x, y, z: torch.addcmul(x, y, z, value=0.5) + torch.lerp(x, y, 0.3), (X, X, X)),
    Case("any, all", lambda x: ((x > 1).any(1) | (x > -1).all(dim=1))),
    Case("conv2d", lambda x, m: m(x), modules=lambda: [nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2)],
         exported=True),
    Case("conv2d, groups", lambda x, m: m(x), modules=lambda: [nn.Conv2d(4, 8, (3, 1), padding=(1, 0), groups=4,
                                                                      bias=False)]),
    Case("conv2d, same", lambda x, m: m(x), modules=lambda: [nn.Conv2d(4, 6, (2, 3), padding="same")]),
    Case("conv2d, reflected", lambda x, m: m(x), modules=lambda: [nn.Conv2d(4, 6, 3, padding=1,
                                                                            padding_mode="reflect")]),
    Case("conv2d without a batch", lambda x, m: m(x), ((4, 6, 8),), lambda: [nn.Conv2d(4, 6, 3)]),
    Case("conv1d", lambda x, m: m(x), ((2, 4, 9),), lambda: [nn.Conv1d(4, 6, 3, padding=1, stride=2)], exported=True),
    Case("conv_transpose2d", lambda x, m: m(x), modules=lambda: [nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)],
         exported=True),
    Case("conv_transpose1d", lambda x, m: m(x), ((2, 4, 9),), lambda: [nn.ConvTranspose1d(4, 6, 3, 2, 1, 1)]),
    Case("linear", lambda x, m: m(x), modules=lambda: [nn.Linear(8, 5)], exported=True),
    Case("matmul", torch.matmul, (X, (8, 3))),
    Case("bmm", torch.bmm, ((3, 4, 5), (3, 5, 6))),
    Case("addmm", lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), ((6,), (4, 5), (5, 6))),
    Case("baddbmm", torch.baddbmm, ((3, 4, 6), (3, 4, 5), (3, 5, 6))),
    Case("einsum", lambda x, y: torch.einsum("bchw,kc->bkhw", x, y), (X, (5, 4)), exported=True),
    Case("attention", F.scaled_dot_product_attention, ((2, 3, 5, 4),) * 3, exported=True),
    Case("attention, causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
         ((2, 3, 5, 4),) * 3),
    Case("attention, masked", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
         (*((2, 3, 5, 4),) * 3, (5, 5))),
    Case("lstm", lambda x, m: m(x)[0], ((2, 5, 8),), lambda: [nn.LSTM(8, 4, batch_first=True)]),
    Case("batch_norm", lambda x, m: m(x), modules=lambda: [trained(nn.BatchNorm2d(4))], exported=True),
    Case("batch_norm, 1-D", lambda x, m: m(x), ((3, 4),), lambda: [trained(nn.BatchNorm1d(4))]),
    Case("layer_norm", lambda x, m: m(x), modules=lambda: [nn.LayerNorm((6, 8))], exported=True),
    Case("group_norm", lambda x, m: m(x), modules=lambda: [nn.GroupNorm(2, 4)], exported=True),
    Case("instance_norm", lambda x, a, b: a(x) + b(x),
         modules=lambda: [nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4)], exported=True),
    Case("rms_norm", lambda x, m: m(x), modules=lambda: [nn.RMSNorm(8)]),
    Case("normalize", lambda x: F.normalize(x, dim=1) + x.norm(dim=1, keepdim=True)
         + torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)),
    Case("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), (X, X), exported=True),
    Case("softmax", lambda x: F.softmax(x, 1) + F.log_softmax(x, -1), exported=True),
    Case("logsumexp", lambda x: x.logsumexp(1)),
    Case("cat, stack", lambda x, y: torch.stack([torch.cat([x, y, x], 1), torch.cat([y, x, x], 1)], 2), (X, X)),
    Case("split", lambda x: sum(torch.split(x, 2, 1)) + x.chunk(2, 1)[1] + x.split([2, 1, 1], 1)[0], exported=True),
    Case("unbind, select", lambda x: x.unbind(1)[2] + x[:, 0] + x[:, -1]),
    Case("slices", lambda x: x[:, 1:3, ::2, -3:], exported=True),
    Case("narrow", lambda x: x.narrow(1, 1, 2)),
    Case("index", lambda x: x[:, [2, 0, 1]] + x.index_select(1, torch.tensor([3, 1, 0]))),
    Case("index by a grid", lambda x: x[:, :, torch.tensor([[0], [5]]), torch.tensor([7, 1, 0])]),
    Case("flip, roll", lambda x: x.flip(2) + x.roll(3, 3) + torch.roll(x, (1, 2), (2, 3))),
    Case("view, flatten", lambda x: x.view(2, -1).reshape(2, 4, 48).flatten(1).unflatten(1, (4, 48)), exported=True),
    Case("permute", lambda x: x.permute(0, 2, 3, 1).transpose(1, 2) + x.movedim(1, -1).swapaxes(1, 2)),
    Case("transpose of a matrix", lambda x: x.t() + 0, ((3, 4),)),
    Case("squeeze", lambda x: x[:, :1].squeeze(1).unsqueeze(-1)),
    Case("expand", lambda x, y: y.expand(-1, 4, 6, 8) + y.expand_as(x), (X, (2, 1, 1, 1))),
    Case("repeat", lambda x: x.repeat(1, 2, 1, 3)),
    Case("repeat_interleave", lambda x: x.repeat_interleave(2, dim=1)),
    Case("pixel_shuffle", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2) + F.channel_shuffle(x, 2),
         exported=True),
    Case("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=0.5)),
    Case("pad, negative", lambda x: F.pad(x, (-1, 2, 0, -1))),
    *(Case(f"pad, {mode}", lambda x, mode=mode: F.pad(x, (1, 2, 2, 1), mode=mode)) for mode in (
        "reflect", "replicate", "circular")),
    Case("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), exported=True),
    Case("max_pool, ceil", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)),
    Case("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), ((2, 4, 9),)),
    Case("avg_pool", lambda x: F.avg_pool2d(x, 3, 2, 1), exported=True),
    Case("avg_pool, ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    Case("avg_pool, pads don't count", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    Case("adaptive_avg_pool", lambda x: F.adaptive_avg_pool2d(x, (2, 4)) + F.adaptive_avg_pool2d(x, 1), exported=True),
    Case("adaptive_avg_pool, uneven", lambda x: F.adaptive_avg_pool2d(x, (4, 3))),
    Case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), ((2, 4, 9),)),
    Case("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, (3, 4))),
    Case("mean, sum", lambda x: x.mean((2, 3)) + x.sum((2, 3)) + x.mean(-1, keepdim=True)[..., 0, 0] + x.mean()),
    Case("amax, amin", lambda x: x.amax((2, 3)) + x.amin(-1).amax(-1)),
    Case("max with places", lambda x: tuple(x.max(1))),
    Case("argmax", lambda x: (x.argmax(1), x.argmin(2, keepdim=True))),
    Case("var, std", lambda x: x.var((2, 3)) + x.std((2, 3), unbiased=False) + x.var(1).mean((1, 2))[:, None]),
    Case("cumsum", lambda x: x.cumsum(1) + x.cumsum(-1)),
    Case("tril, triu", lambda x: torch.tril(x) + torch.triu(x, 1)),
    Case("upsample nearest", lambda x: F.interpolate(x, scale_factor=2), exported=True),
    Case("upsample nearest to a size", lambda x: F.interpolate(x, size=(9, 13))),
    Case("upsample nearest, exact", lambda x: F.interpolate(x, size=(9, 13), mode="nearest-exact")),
    Case("upsample bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), exported=True),
    Case("upsample bilinear by 1.7", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
    Case("upsample bilinear, corners", lambda x: F.interpolate(x, size=(11, 9), mode="bilinear", align_corners=True)),
    Case("upsample linear", lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"), ((2, 4, 9),)),
    Case("grid_sample", lambda x, g: F.grid_sample(x, g.clamp(-1.2, 1.2), align_corners=False), (X, (2, 3, 5, 2))),
    Case("grid_sample, nearest", lambda x, g: F.grid_sample(x, g, mode="nearest", padding_mode="border",
                                                           align_corners=True), (X, (2, 3, 5, 2))),
    Case("written in place", written, exported=True),
    Case("written to a constant", written_to_a_constant, exported=True),
    Case("parts taken before a write", parts_taken_before_a_write),
    Case("written to one of several parts", of_parts),
    Case("dropout", lambda x, m: m(x) + 0, modules=lambda: [nn.Dropout(0.5)]),
    Case("half precision and back", lambda x: x.half().float() + 1),
    Case("integers", lambda x: (x * 3).to(torch.int32) + 1),
    Case("meshgrid of constants", lambda x: x + torch.stack(torch.meshgrid(torch.arange(6.0), torch.arange(8.0),
                                                                           indexing="ij")).sum(0)),
]  # fmt: skip


def trained(module: Any) -> Any:
    """Statistics and parameters as training leaves them."""
    with torch.no_grad():
        for tensor in (module.running_mean, module.bias):
            tensor.normal_()
        for tensor in (module.running_var, module.weight):
            tensor.uniform_(0.5, 2)
    return module


def built(case: Case) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    return Net(case.function, *case.modules()).eval(), [torch.randn(s) for s in case.shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_traced_operator_is_pytorchs(case: Case) -> None:
    model, inputs = built(case)
    require_same(trace(model, *inputs), model, *inputs)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("case", [c for c in CASES if c.exported], ids=lambda c: c.name)
def test_an_exported_operator_is_pytorchs(case: Case, decomposed: bool) -> None:
    model, inputs = built(case)
    require_same(export(model, *inputs, decomposed=decomposed), model, *inputs)


def test_outputs_of_an_export_keep_their_names() -> None:
    x = torch.randn(X)
    module = require_same(export(Net(dictionary), x), Net(dictionary), x)
    assert [o.name for o in module.graph.outputs] == ["a", "b.0", "b.1"]


def test_half_precision_is_kept_at_the_border() -> None:
    model = Net(lambda x, m: m(x), nn.Conv2d(4, 2, 1)).half()
    x = torch.randn(X).half()
    module = imported(trace(model, x), x)
    assert [a.type.dtype.text for a in module.graph.args] == ["f16"]
    assert [o.value.type.dtype.text for o in module.graph.outputs] == ["f16"]


def test_rules_go_by_names_that_pytorch_has() -> None:
    def exists(name: str) -> bool:
        namespace, _, word = name.partition("::")
        try:
            getattr(getattr(torch.ops, namespace), word)
        except AttributeError:
            return namespace in {"hbc", "quantized_decomposed"}  # registered where they are used
        return True

    assert [name for name in RULES if not exists(name)] == []
    assert len(RULES) > 250


def test_a_weight_is_one_constant_however_often_it_is_used() -> None:
    weight = nn.Parameter(torch.randn(4, 4, 1, 1))
    model = Net(lambda x, m: F.conv2d(F.conv2d(x, m[0].w), m[0].w), nn.ModuleList([Holder(weight)]))
    x = torch.randn(X)
    module = require_same(trace(model, x), model, x)
    consts = [op.out.name for op in module.graph.ops if op.NAME == "const"]
    assert consts == ["m.0.0.w"]


class Holder(nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.w = weight


def test_bfloat16_weights_are_read() -> None:
    model = Net(lambda x, m: m.w.float() * x, Holder(nn.Parameter(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))))
    x = torch.ones(1, 2)
    module = imported(trace(model, x), x)
    (const,) = [op.value for op in module.graph.ops if op.NAME == "const"]
    assert np.array_equal(const, np.array([1.5, -2.0], np.float32))
