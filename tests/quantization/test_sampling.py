"""GridSample by positions in pixels: the chip's int16 grid, exact in forward and program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402

from hbc.backend.cpu.sessions import open_session  # noqa: E402
from hbc.diagnostics import OptionError  # noqa: E402
from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    GridSample,
    ModuleNameSetter,
    calibrate,
    convert,
    export_to_onnx,
    prepare,
    set_fake_quantize,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Warp(nn.Module):
    """Positions are the second input, or are predicted as offsets."""

    def __init__(self, *, offsets: bool, mode: Any = "bilinear", padding: Any = "zeros") -> None:
        super().__init__()
        self.features, self.flow = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 3, padding=1)
        self.warp, self.head = GridSample(mode, padding, offsets=offsets), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        if self.warp.offsets:
            grid = self.flow(x).permute(0, 2, 3, 1)
        return self.head(self.warp(self.features(x), grid))


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(2, 3, 12, 20)
    return x, torch.rand(2, 5, 7, 2) * torch.tensor([22.0, 14.0]) - 1.0


def test_positions_are_pixels() -> None:
    """A whole position is that pixel, a half one the mean of its neighbours, on both axes; an offset starts at home."""
    x = torch.arange(12.0).view(1, 1, 3, 4)
    at = torch.tensor([[0.0, 0.0], [3.0, 2.0], [1.0, 2.0], [0.5, 1.0], [2.0, 0.5]]).view(1, 1, 5, 2)
    wanted = torch.tensor([0.0, 11.0, 9.0, 4.5, 4.0])
    torch.testing.assert_close(GridSample()(x, at).view(-1), wanted, rtol=0, atol=1e-5)
    still = GridSample(offsets=True)(x, torch.zeros(1, 3, 4, 2))
    torch.testing.assert_close(still, x, rtol=0, atol=1e-5)
    right = GridSample(offsets=True, padding_mode="border")(x, torch.tensor([1.0, 0.0]).expand(1, 3, 4, 2))
    torch.testing.assert_close(right[..., :3], x[..., 1:], rtol=0, atol=1e-5)
    assert torch.equal(right[..., 3].round(), x[..., 3])


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "zeros"), ("bilinear", "border"), ("nearest", "zeros")])
def test_exact(mode: Any, padding: Any, *, offsets: bool) -> None:
    batch = data()
    model = Warp(offsets=offsets, mode=mode, padding=padding).eval()
    prepared = prepare(model, batch)
    calibrate(prepared, [batch], progress=False)
    sampler = prepared.warp.sample
    grid, features = (next(f for f in sampler.sources if f.spec.dtype == d) for d in ("int16", "int8"))
    assert float(grid.scale) == 2.0**-8
    for _ in range(2):
        fixed = convert(prepared.eval(), engine="reference")
        with torch.no_grad():
            assert torch.equal(prepared(*batch), fixed(*batch))
        assert all(not s.reasons for s in fixed.compiled.report.segments)
        set_fake_quantize(prepared, QAT)
        prepared.train()(*batch).square().mean().backward()
        assert float(prepared.features.weight.grad.abs().sum()) > 0
        if offsets and mode == "bilinear":
            assert float(prepared.flow.weight.grad.abs().sum()) > 0
        torch.optim.SGD(prepared.parameters(), lr=1e-3).step()
        set_fake_quantize(prepared, VALIDATION)
    assert float(grid.scale) == 2.0**-8
    assert features is not grid


def test_the_instruction_takes_positions_as_they_are() -> None:
    """Multiplier 1 and origin 0: decision 13."""
    batch = data()
    prepared = prepare(Warp(offsets=False).eval(), batch)
    calibrate(prepared, [batch], progress=False)
    (model,) = convert(prepared).compiled.program.models
    (sample,) = (i for s in model.segments for i in s.instructions if type(i).__name__ == "GridSample")
    assert sample.origin == (0, 0)
    assert all(m == 1 << s for m, s in zip(sample.multipliers, sample.shifts, strict=True))
    assert sample.fraction_bits == 8


def test_against_reals_and_onnx_runtime() -> None:
    """At most 1 quantum for the position's weights of 8 bits (docs/numerics.md), 1 for the result's rounding."""
    ort = pytest.importorskip("onnxruntime", reason="the exported file is run by ONNX Runtime")
    x, grid = data()
    grid = torch.round(grid * 256) / 256
    prepared = prepare(Warp(offsets=False).eval(), (x, grid))
    calibrate(prepared, [(x, grid)], progress=False)
    found: list[np.ndarray] = []
    prepared.warp.sample.register_forward_hook(lambda _m, _x, y: found.append(y.detach().numpy()))
    with torch.no_grad():
        prepared.eval()(x, grid)
        features = prepared.features(prepared.x_quant(x))
        reals = GridSample()(features, grid).numpy()
    step = float(prepared.warp.sample.activation_post_process.scale)
    assert np.abs(found[0] - reals).max() <= 1.5 * step + float(prepared.features.activation_post_process.scale)
    session = open_session(ort, export_to_onnx(prepared, (x, grid)).SerializeToString(), optimised=True)
    (theirs,) = session.run(None, {"x": x.numpy(), "grid": grid.numpy()})
    with torch.no_grad():
        ours = prepared(x, grid).numpy()
    head = prepared.head.weight.detach().abs().sum((1, 2, 3)).max()
    assert np.abs(ours - theirs).max() <= 3 * step * float(head)


def test_on_the_cpu() -> None:
    """No march blends int16: the operation runs in reals there, by the same positions."""
    x, grid = data()
    grid = torch.round(grid * 256) / 256
    prepared = prepare(Warp(offsets=False).eval(), (x, grid), ModuleNameSetter({"features": "int16"}))
    calibrate(prepared, [(x, grid)], progress=False)
    fixed = convert(prepared, engine="reference")
    assert "cpu" in {s.device for s in fixed.compiled.report.segments}
    found: list[Tensor] = []
    prepared.warp.sample.register_forward_hook(lambda _m, _x, y: found.append(y))
    with torch.no_grad():
        assert torch.equal(prepared.eval()(x, grid), fixed(x, grid))
        reals = GridSample()(prepared.features(prepared.x_quant(x)), grid)
    step = float(prepared.warp.sample.activation_post_process.scale)
    wanted = reals.clamp(-128 * step, 127 * step)
    assert float((found[0] - wanted).abs().max()) <= 0.51 * step  # one rounding, and float32


@pytest.mark.parametrize(("mode", "padding"), [("cubic", "zeros"), ("bilinear", "reflection")])
def test_modes_that_the_chip_lacks(mode: Any, padding: Any) -> None:
    with pytest.raises(OptionError, match="mode"):
        GridSample(mode, padding)
