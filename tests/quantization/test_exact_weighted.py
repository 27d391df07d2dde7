"""Weighted units that exact forward computes in torch have the integers of their compiled program, edges included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    FakeQuantSpec,
    ModuleNameSetter,
    QConfig,
    calibrate,
    prepare,
    set_fake_quantize,
    set_forward,
    set_march,
)
from hbc.quantization.exact import Program  # noqa: E402
from hbc.quantization.units import QuantizedWeighted, units_of  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
]

IMAGE = (2, 6, 7, 9)
VOLUME = (2, 6, 3, 5, 4)


class Layer(nn.Module):
    """One layer, then what is fused into it, then something that reads integers."""

    def __init__(self, layer: nn.Module, tail: Callable[..., Any], *, adds: bool = False) -> None:
        super().__init__()
        self.layer, self.tail, self.adds = layer, tail, adds

    def forward(self, x: Any, y: Any = None) -> Any:
        z = self.layer(x)
        return torch.sigmoid(self.tail(z + y if self.adds else z))


def same(x: Any) -> Any:
    return x


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "conv": (lambda: nn.Conv2d(6, 6, 3, padding=1), IMAGE, True),
    "conv-string-padding": (lambda: nn.Conv2d(6, 6, (2, 3), padding="same"), IMAGE, True),
    "depthwise": (lambda: nn.Conv2d(6, 12, 3, stride=2, groups=6, bias=False), IMAGE, False),
    "conv1d": (lambda: nn.Conv1d(6, 5, 3, padding=2, dilation=2), (2, 6, 11), False),
    "deconv": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), IMAGE, False),
    "deconv-groups": (lambda: nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2), IMAGE, False),
    "conv3d": (lambda: nn.Conv3d(6, 6, (2, 3, 3), stride=(1, 2, 1), padding=(0, 1, 1), groups=3), VOLUME, False),
    "deconv3d": (lambda: nn.ConvTranspose3d(6, 4, 3, stride=2, padding=1, output_padding=1), VOLUME, False),
    "linear": (lambda: nn.Linear(9, 9), IMAGE, True),
    "linear-rows": (lambda: nn.Linear(9, 4), (5, 9), False),
}
# of x, the addend and the result: as calibrated; one that saturates; one of few integers; an addend that shifts left;
# a rounding term that float32 can't add to the accumulator
SCALES = ((0.03, 0.04, 0.05), (0.25, 0.5, 0.01), (0.01, 0.02, 1.5), (0.0001, 0.9, 0.8), (3e-5, 1e-4, 20.0))


def prepared(model: nn.Module, args: Any, march: str, dtype: str) -> Any:
    set_march(march)
    try:
        model = prepare(model.eval(), args, ModuleNameSetter({"": dtype}))
    finally:
        set_march("nash-e")
    set_fake_quantize(model, VALIDATION)
    return model.eval()


def operands(unit: QuantizedWeighted, shapes: Any, scales: Any) -> list[Any]:
    """Random integers, the ends among them, as reals."""
    found = []
    generator = torch.Generator().manual_seed(5)
    for source, shape, scale in zip(unit.sources, shapes, scales, strict=False):
        assert source is not None
        source.set_scale(scale)
        q = torch.randint(source.spec.qmin, source.spec.qmax + 1, shape, generator=generator)
        q.view(-1)[:4] = torch.tensor([source.spec.qmin, source.spec.qmax, 0, -1])
        found.append(q.float() * source.scale)
    return found


@pytest.mark.parametrize(("march", "dtype"), [("nash-e", "int8"), ("nash-e", "int16"), ("bernoulli2", "int8")])
@pytest.mark.parametrize("name", LAYERS)
def test_unit_is_its_compiled_program(name: str, march: str, dtype: str) -> None:
    make, shape, adds = LAYERS[name]
    torch.manual_seed(1)
    layer = make()
    tail = functional.relu6 if adds else functional.relu if "rows" in name else same
    args = (torch.zeros(shape), torch.zeros(shape)) if adds else (torch.zeros(shape),)
    model = prepared(Layer(layer, tail, adds=adds), args, march, dtype)
    unit = next(u for u in units_of(model).values() if isinstance(u, QuantizedWeighted))
    assert unit.has_addend == adds
    for scales in SCALES if (march, dtype) == ("nash-e", "int8") else SCALES[:2]:
        xs = operands(unit, (shape, shape), scales)
        assert unit.activation_post_process is not None
        unit.activation_post_process.set_scale(scales[2])
        with torch.no_grad():
            ours, theirs = unit(*xs), Program().run(unit, xs)
        assert np.array_equal(ours.numpy(), theirs.numpy()), scales
    assert not unit.exact.by_program


@pytest.mark.parametrize("name", ["conv", "depthwise", "deconv", "linear"])
def test_narrow_ranges_are_computed_in_torch(name: str) -> None:
    """Without the least integer, of results, operands and weights."""
    make, shape, adds = LAYERS[name]
    torch.manual_seed(1)
    narrow = QConfig(FakeQuantSpec(narrow=True), FakeQuantSpec("int8", "min-max", narrow=True))
    args = (torch.zeros(shape), torch.zeros(shape)) if adds else (torch.zeros(shape),)
    model = prepare(Layer(make(), same, adds=adds).eval(), args, ModuleNameSetter({"": narrow}))
    set_fake_quantize(model, VALIDATION)
    unit = next(u for u in units_of(model.eval()).values() if isinstance(u, QuantizedWeighted))
    for scales in SCALES[:2]:
        xs = operands(unit, (shape, shape), scales)
        assert unit.activation_post_process is not None
        unit.activation_post_process.set_scale(scales[2])
        with torch.no_grad():
            ours, theirs = unit(*xs), Program().run(unit, xs)
        assert np.array_equal(ours.numpy(), theirs.numpy()), scales
    assert float((ours / unit.activation_post_process.scale).min()) == -127
    assert not unit.exact.by_program


def gradients(model: Any, args: Any, mode: str) -> dict[str, Any]:
    set_forward(model, mode)  # type: ignore[arg-type]
    model.zero_grad()
    model(*args).square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["plain", "lsq", "pact"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_point_where_those_of_plain_training_do(name: str, kind: str) -> None:
    make, shape, adds = LAYERS[name]
    torch.manual_seed(2)
    args = tuple(torch.randn(shape) for _ in range(1 + adds))
    spec = FakeQuantSpec("int8", kind=kind)
    setter = ModuleNameSetter({"": QConfig(spec, FakeQuantSpec("int8", "min-max", kind))})
    model = prepare(Layer(make(), functional.relu, adds=adds), args, setter)
    calibrate(model, [args], progress=False)
    plain, exact = (gradients(model, args, mode) for mode in ("plain", "exact"))
    assert plain.keys() == exact.keys()
    assert any("scale" in key for key in exact) == (kind != "plain")
    for key in (k for k in plain if "scale" not in k):
        assert float(functional.cosine_similarity(plain[key].flatten(), exact[key].flatten(), dim=0)) > 0.97, key
    for key in (k for k in exact if "scale" in k):
        assert torch.isfinite(exact[key]).all()
        assert exact[key].any() or not plain[key].any(), key


def test_exact_training_moves_the_scales_as_plain_training_does() -> None:
    """Every observer that looks in plain training looks in exact training, before the scale is used."""
    torch.manual_seed(0)
    args = (torch.randn(IMAGE), torch.randn(IMAGE))
    scales = []
    for mode in ("plain", "exact"):
        torch.manual_seed(0)
        model = prepare(Layer(nn.Conv2d(6, 6, 3, padding=1), functional.relu, adds=True), args)
        calibrate(model, [args], progress=False)
        set_fake_quantize(model, QAT)
        set_forward(model, mode)  # type: ignore[arg-type]
        model.train()
        larger = tuple(4 * x for x in args)
        for _ in range(3):
            model(*larger)
        scales.append({n: b.clone() for n, b in model.named_buffers() if n.endswith("scale")})
    start = scales[0]["layer.activation_post_process.scale"]
    assert scales[0].keys() == scales[1].keys()
    for key, scale in scales[0].items():
        assert torch.allclose(scale, scales[1][key], rtol=0.02), key  # reals and integers differ by half a quantum
    assert float(start) > 0


def test_learned_scales_are_trained_in_exact_forward() -> None:
    torch.manual_seed(0)
    args = (torch.randn(IMAGE),)
    setter = ModuleNameSetter({"": QConfig(FakeQuantSpec("int8", kind="lsq"))})
    model = prepare(Layer(nn.Conv2d(6, 6, 3), functional.relu), args, setter)
    calibrate(model, [args], progress=False)
    set_fake_quantize(model, QAT)
    set_forward(model, "exact")
    model.train()
    scale = dict(model.named_parameters())["layer.activation_post_process.scale"]
    before = scale.detach().clone()
    model(*args).square().sum().backward()
    torch.optim.SGD([scale], lr=1e-3).step()
    assert not torch.equal(before, scale.detach())
