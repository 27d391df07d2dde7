"""Operations that the program leaves to the CPU: wherever scales move, a fresh program's integers, compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")
pytest.importorskip("onnxruntime", reason="parts on the CPU need ONNX Runtime")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.quantization import exact as exact_module  # noqa: E402
from hbc.quantization.exact import Program  # noqa: E402
from tests.quantization.test_exact_operations import unit_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Product(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return torch.relu(a @ b)


class Larger(nn.Module):
    def forward(self, a: Any) -> Any:
        return functional.interpolate(a, scale_factor=2, mode="bilinear", align_corners=False)


CASES = {"matmul": (Product(), [(2, 4, 8), (2, 8, 5)]), "interpolate": (Larger(), [(1, 4, 6, 8)])}


@pytest.mark.parametrize("name", CASES)
def test_moving_scales_have_the_integers_of_a_fresh_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = CASES[name]
    unit, rng = unit_of(model, shapes, "nash-e", "int16"), np.random.default_rng(1)
    compiled: list[str] = []
    original = exact_module.unit_model

    def spy(unit: Any, shapes: Any) -> Any:
        compiled.append(unit.unit_name)
        return original(unit, shapes)

    for trial in range(5):
        xs = []
        for source, shape in zip(unit.sources, shapes, strict=True):
            assert source is not None
            source.set_scale(10 ** rng.uniform(-4, -2))
            xs.append(torch.from_numpy(rng.integers(-32768, 32768, shape).astype(np.float32)) * source.scale)
        largest = float(unit.compute(*xs).abs().max())
        unit.activation_post_process.set_scale(largest / 32768 * 10 ** rng.uniform(-0.3, 1))  # some results saturate
        with torch.no_grad():
            theirs = Program().run(unit, xs)
            with monkeypatch.context() as patch:
                patch.setattr(exact_module, "unit_model", spy)
                ours = unit(*xs)
        assert np.array_equal(ours.numpy(), theirs.numpy()), trial
        assert np.unique(ours.numpy()).size > 10
    assert len(compiled) == 1


def test_two_operands_of_one_scale_are_compiled() -> None:
    """Nothing tells which of them a result that is quantised by that scale goes by."""
    unit = unit_of(Larger(), [(1, 4, 6, 8)], "nash-e", "int16")
    for fq in (unit.sources[0], unit.activation_post_process):
        assert fq is not None
        fq.set_scale(1e-3)
    x = torch.arange(-96, 96).float().view(1, 4, 6, 8) * 1e-3
    with torch.no_grad():
        ours = unit(x)
    assert np.array_equal(ours.numpy(), Program().run(unit, [x]).numpy())
    assert unit.exact.program.host is None
