"""Colour conversion: the matrix, and integers of the compiled program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402

from hbc.diagnostics import OptionError  # noqa: E402
from hbc.quantization import (  # noqa: E402
    QAT,
    CenteredYuv444,
    DeQuantStub,
    QuantStub,
    bgr2centered_yuv,
    calibrate,
    convert,
    prepare,
    rgb2centered_yuv,
    set_fake_quantize,
    set_march,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

COLOURS = {"black": (0, 0, 0), "white": (255, 255, 255), "red": (255, 0, 0), "blue": (0, 0, 255), "grey": (128,) * 3}
# BT.601 in 8 bits: Y, Cb, Cr of the colour bars as they stand in every table of it, minus 128
STUDIO = {"black": (16, 128, 128), "white": (235, 128, 128), "red": (81, 90, 240), "blue": (41, 240, 110)}
FULL = {"black": (0, 128, 128), "white": (255, 128, 128), "red": (76, 85, 256), "blue": (29, 256, 107)}


def image(colour: tuple[int, int, int]) -> Tensor:
    return torch.tensor(colour, dtype=torch.float32).view(1, 3, 1, 1)


@pytest.mark.parametrize(("swing", "table"), [("studio", STUDIO), ("full", FULL)])
@pytest.mark.parametrize("colour", list(STUDIO))
def test_colour_bars(swing: Any, table: dict[str, tuple[int, ...]], colour: str) -> None:
    wanted = np.array(table[colour]) - 128
    rgb = image(COLOURS[colour])
    for found in (rgb2centered_yuv(rgb, swing), bgr2centered_yuv(rgb.flip(1), swing)):
        assert np.array_equal(np.floor(found.view(-1).double().numpy() + 0.5 + 1e-4), wanted)


@pytest.mark.parametrize("swing", ["studio", "full"])
@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize("march", ["nash-e", "bernoulli2"])
def test_integers_of_the_program(order: Any, swing: Any, march: str) -> None:
    """Every 5th colour of the cube: the exact forward is the program; both within 1 of the rounded reals.

    Weights of int8 are off by at most Σ|w − q·s| · 128, under half a step, and the result is rounded once.
    """
    steps = torch.arange(0, 256, 5, dtype=torch.float32)
    cube = torch.cartesian_prod(steps, steps, steps).T.reshape(1, 3, 52, 52 * 52)
    module = CenteredYuv444(order, swing)
    set_march(march)
    try:
        prepared = prepare(nn.Sequential(module).eval(), (cube,))
    finally:
        set_march("nash-e")
    calibrate(prepared, [cube / 7], progress=False)  # scales are fixed
    fixed = convert(prepared, engine="reference")
    with torch.no_grad():
        ours, theirs, reals = prepared(cube), fixed(cube), module(cube)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, torch.round(ours))
    wanted = torch.floor(reals + 0.5).clamp(-128, 127)
    assert float((ours - wanted).abs().max()) <= 1
    weights = prepared.get_submodule("0").weight_fake_quant
    exact = module.weight.view(3, 3, 1, 1)
    assert float((weights(exact) - exact).abs().sum((1, 2, 3)).max()) * 128 < 0.5


class Net(nn.Module):
    def __init__(self, *, stubs: bool, centered: bool) -> None:
        super().__init__()
        self.colour, self.conv = CenteredYuv444(centered_input=centered), nn.Conv2d(3, 4, 3)
        self.quant = QuantStub() if stubs else nn.Identity()
        self.dequant = DeQuantStub() if stubs else nn.Identity()

    def forward(self, frame: Tensor) -> Tensor:
        return self.dequant(self.conv(self.quant(self.colour(frame))))


@pytest.mark.parametrize("stubs", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_in_front_of_a_net(*, stubs: bool, centered: bool) -> None:
    torch.manual_seed(0)
    frame = torch.randint(0, 256, (2, 3, 8, 8)).float()
    frame = frame - 128 if centered else frame
    prepared = prepare(Net(stubs=stubs, centered=centered), (frame,))
    calibrate(prepared, [(frame,)], progress=False)
    assert float(prepared.conv.sources[0].scale) == 1.0
    set_fake_quantize(prepared, QAT)
    prepared.train()(frame).square().mean().backward()
    assert prepared.colour.weight.grad is None
    assert float(prepared.conv.weight.grad.abs().sum()) > 0
    before = prepared.colour.weight_fake_quant.scale.clone()
    set_fake_quantize(prepared, "validation")
    assert torch.equal(prepared.colour.weight_fake_quant.scale, before)
    fixed = convert(prepared.eval(), engine="reference")
    with torch.no_grad():
        assert torch.equal(prepared(frame), fixed(frame))
    assert [i.name for i in fixed.session.inputs] == ["frame"]


@pytest.mark.parametrize(("options", "words"), [({"order": "rbg"}, "'rgb'"), ({"swing": "ful"}, "'full'")])
def test_mistakes(options: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        CenteredYuv444(**options)
