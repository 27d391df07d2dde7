"""Tables of functions of one tensor are the compiled program's, whichever way they are made, as scales move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch.nn import functional  # noqa: E402

from hbc.quantization import exact_table  # noqa: E402
from hbc.quantization.exact_table import Table  # noqa: E402
from tests.quantization.test_exact_operations import Of, check, unit_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SHAPE = (2, 3, 8, 12)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "clamp": lambda x: torch.clamp(x, -0.3, 0.85),
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "hardswish": functional.hardswish,
    "gelu": functional.gelu,
    "leaky": lambda x: functional.leaky_relu(x, 0.1),
    "floor": torch.floor,
    "reciprocal": torch.reciprocal,
    "times a number": lambda x: x * 0.35,
    "and itself": lambda x: x * x,
    "less a number": lambda x: 0.5 - x,
}


@pytest.mark.parametrize("march", ["nash-e", "bernoulli2"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_table_is_the_compiled_program_as_scales_move(name: str, march: str) -> None:
    unit = unit_of(Of(FUNCTIONS[name]), (SHAPE,), march, "int8")
    for scales in ((0.03, 0.02), (0.05, 0.05), (0.25, 0.125), (0.011, 0.0007)):
        check(unit, (SHAPE,), scales)
    assert isinstance(unit.exact, Table)
    assert unit.exact.expression is not None


def test_int16_asks_the_program_each_time() -> None:
    unit = unit_of(Of(torch.sigmoid), (SHAPE,), "nash-e", "int16")
    for scales in ((0.0003, 0.00003), (0.0001, 0.00002)):
        check(unit, (SHAPE,), scales)
    assert unit.exact.expression is None


def test_an_expression_whose_table_is_not_the_programs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = exact_table.table_values
    monkeypatch.setattr(exact_table, "table_values", lambda *args: np.minimum(wrong(*args) + 1, 127))
    unit = unit_of(Of(torch.sigmoid), (SHAPE,), "nash-e", "int8")
    check(unit, (SHAPE,), (0.03, 0.008))
    assert unit.exact.expression is None
    check(unit, (SHAPE,), (0.04, 0.008))


@pytest.mark.parametrize("kind", ["plain", "lsq"])
def test_gradient_is_the_functions(kind: str) -> None:
    unit = unit_of(Of(torch.sigmoid), (SHAPE,), "nash-e", "int8")
    if kind == "lsq":
        fq = unit.activation_post_process
        assert fq is not None
        fq.spec = fq.spec.changed(kind="lsq")
        scale = fq.scale
        del fq.scale
        fq.scale = torch.nn.Parameter(scale)
    check(unit, (SHAPE,), (0.03, 1 / 256))
    x = (torch.randint(-128, 128, SHAPE).float() * 0.03).requires_grad_()
    y = unit(x)
    y.sum().backward()
    real = torch.sigmoid(x.detach())
    inside = real * 256 < 126
    assert inside.any()
    assert (~inside).any()
    assert np.allclose(x.grad[inside].numpy(), (real * (1 - real))[inside].numpy(), rtol=1e-5, atol=0)
    assert not x.grad[real * 256 > 128].any()
    assert kind == "plain" or bool(unit.activation_post_process.scale.grad.any())
