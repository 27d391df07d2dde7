"""Sampling at a grid in exact forward: the compiled program's integers, for moving scales, beyond the edge too."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch.nn import functional  # noqa: E402

from hbc.quantization.exact import Program  # noqa: E402
from tests.quantization.test_exact_operations import Of, is_rule, unit_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SHAPES = ((2, 3, 12, 17), (2, 5, 8, 2))
LARGE = ((1, 2, 3, 300), (1, 2, 40, 2))  # positions with fewer than 8 bits behind the point


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize(("mode", "kind"), [("bilinear", "int8"), ("nearest", "int8"), ("nearest", "int16")])
def test_moving_scales_have_the_integers_of_a_fresh_program(mode: str, kind: str, padding: str, align: bool) -> None:
    rng = np.random.default_rng(len(mode + padding))

    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)

    for shapes in (SHAPES, LARGE):
        unit = unit_of(Of(sample), shapes, "nash-e", kind)
        owners = [*unit.sources, unit.activation_post_process]
        for turn in range(3):
            for fq in owners:
                assert fq is not None
                fq.set_scale(10 ** rng.uniform(-2.5, -0.5) / (1 if fq.spec.dtype == "int8" else 256))
            if turn == 2:  # a result of the operand's scale has no requantize
                owners[2].set_scale(owners[0].scale.item())
            xs = [
                torch.randint(f.spec.qmin, f.spec.qmax + 1, s).float() * f.scale
                for f, s in zip(unit.sources, shapes, strict=True)
            ]
            with torch.no_grad():
                ours, theirs = unit(*xs), Program().run(unit, xs)
            assert np.array_equal(ours.numpy(), theirs.numpy())
        assert is_rule(unit, shapes)


def test_an_int16_grid_of_an_int8_image() -> None:
    """The default template's types."""
    from hbc.quantization import QAT, calibrate, prepare, set_fake_quantize, set_forward
    from hbc.quantization.units import units_of

    class Warp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.move, self.image = torch.nn.Conv2d(3, 2, 3, padding=1), torch.nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.grid_sample(self.image(x), self.move(x).permute(0, 2, 3, 1), align_corners=False)

    torch.manual_seed(0)
    x = torch.randn(1, 3, 9, 11)
    model = prepare(Warp(), (x,))
    calibrate(model, [x], progress=False)
    set_fake_quantize(model, QAT)
    set_forward(model.train(), "exact")
    unit = next(u for u in units_of(model).values() if getattr(u, "operation", "") == "grid_sample")
    assert [s.spec.dtype for s in unit.sources if s is not None] == ["int8", "int16"]
    seen = []
    unit.register_forward_hook(lambda _unit, xs, y: seen.append((xs, y)))
    for step in range(3):
        model(x * (1 + step)).square().mean().backward()
        with torch.no_grad():
            xs, y = seen[-1]
            assert np.array_equal(y.numpy(), Program().run(unit, xs).numpy())
    assert len({y.abs().max().item() for _, y in seen}) == 3
    assert is_rule(unit, [tuple(x.shape) for x in seen[0][0]])
