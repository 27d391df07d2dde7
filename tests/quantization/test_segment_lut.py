"""SegmentLUT: one table when compiled, its integers in the exact forward, the function itself otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402

from hbc.diagnostics import OptionError, QuantizationError  # noqa: E402
from hbc.quantization import DefaultSetter, FakeQuantSpec, QConfig, SegmentLUT, calibrate, convert, prepare  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def bump(x: Tensor) -> Tensor:
    return torch.exp(-x * x) + 0.25 * torch.tanh(3 * x)


FUNCTIONS: dict[str, SegmentLUT] = {
    "torch's": SegmentLUT(torch.sigmoid),
    "the user's": SegmentLUT(bump),
    "clipped": SegmentLUT(torch.exp, input_range=(-2.0, 1.0)),
    "lambda": SegmentLUT(lambda x: x * torch.sigmoid(1.7 * x), is_centrosymmetric=False),
}


class Net(nn.Module):
    def __init__(self, table: SegmentLUT) -> None:
        super().__init__()
        self.conv, self.lut, self.head = nn.Conv2d(3, 4, 1), table, nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lut(self.conv(x)))


def ready(table: SegmentLUT, dtype: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model, x = Net(table).eval(), torch.randn(2, 3, 16, 16) * 3
    assert torch.equal(model.lut(x), table(x))
    prepared = prepare(model, (x,), DefaultSetter(QConfig(FakeQuantSpec(dtype, "min-max"))))
    calibrate(prepared, [(x,)], progress=False)
    return prepared.eval(), x


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_one_table(kind: str, dtype: Any) -> None:
    """By D7 an int8 table is exactly rounded; an int16 one of these functions is at most 1 quantum off (NUMERICS 7)."""
    prepared, x = ready(FUNCTIONS[kind], dtype)
    fixed = convert(prepared, engine="reference")
    with torch.no_grad():
        assert torch.equal(prepared(x), fixed(x))
    (model,) = fixed.compiled.program.models
    names = [type(i).__name__ for s in model.segments for i in s.instructions]
    assert names.count("Lut" if dtype == "int8" else "SegmentLut") == 1
    assert [s.device for s in fixed.compiled.report.segments] == ["bpu"]
    s_in, s_out = (float(u.activation_post_process.scale) for u in (prepared.conv, prepared.lut))
    limit = 1 << (7 if dtype == "int8" else 15)
    q = np.arange(-limit, limit)
    with torch.no_grad():
        looked_up = prepared.lut(torch.from_numpy(q * s_in).float().reshape(1, 4, -1, 8)).numpy().ravel()
    reals = FUNCTIONS[kind](torch.from_numpy(q * s_in)).numpy()
    wanted = np.clip(np.floor(reals / s_out + 0.5), -limit, limit - 1)
    assert np.abs(np.rint(looked_up / s_out) - wanted).max() <= (0 if dtype == "int8" else 1)


def test_gradients_are_the_function_s() -> None:
    prepared, x = ready(FUNCTIONS["the user's"], "int8")
    x = x[:, :1].repeat(1, 4, 1, 1).clamp(-0.9, 0.9).requires_grad_()  # inside of the range
    result = prepared.lut(x)
    result.sum().backward()
    inside = result < 127 * prepared.lut.activation_post_process.scale
    y = x.detach().clone().requires_grad_()
    bump(y).sum().backward()
    assert bool(inside.any())
    assert torch.equal(x.grad[inside], y.grad[inside])


def hosted(x: Tensor) -> Tensor:
    return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dividing_points": [0.0, 1.0]}, "dividing points"),
        ({"auto_divide_strategy": "evenly"}, "'evenly'"),
        ({"num_entries_per_table": 32}, "64 entries, not 32"),
        ({"input_range": (1.0, -1.0)}, "is empty"),
    ],
)
def test_what_it_does_not_take(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SegmentLUT(torch.exp, **options)


def test_a_function_without_an_onnx_form() -> None:
    torch.manual_seed(0)
    model, x = Net(SegmentLUT(hosted)).eval(), torch.randn(1, 3, 4, 4)
    prepared = prepare(model, (x,))
    calibrate(prepared, [(x,)], progress=False)
    with pytest.raises(QuantizationError, match=r"bessel_j0.* can't be exported"):
        convert(prepared)
