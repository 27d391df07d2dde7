"""A division by a computed tensor is the same alone and in the model: the kit says what the divisor can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.quantization import (  # noqa: E402
    VALIDATION,
    ModuleNameSetter,
    calibrate,
    convert,
    prepare,
    set_fake_quantize,
)
from hbc.quantization.units import QuantizedOperation, units_of  # noqa: E402
from tests.quantization.test_exact_operations import Of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

Function = Callable[..., Any]
DIVISORS: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "abs-and-one": lambda b: b.abs() + 1,
    "clamp": lambda b: b.clamp(0.1, 2),
    "softplus": functional.softplus,
    "relu-and-constant": lambda b: functional.relu(b) + 0.5,
    "sum-of-exponentials": lambda b: b.exp().sum(1, keepdim=True),
    "shaped-sigmoid": lambda b: b.sigmoid().transpose(2, 3).contiguous().transpose(2, 3),
    "zero-among-them": lambda b: b,
}
ON_THE_CPU = {"zero-among-them", "sum-of-exponentials"}  # small exponentials are 0 in integers, and so may their sum be


def divided(function: Function, dtype: str) -> tuple[nn.Module, tuple[Any, Any]]:
    """(a / function(b), prepared and calibrated; a batch that it wasn't calibrated on)"""
    torch.manual_seed(0)
    batches = [(torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5)) for _ in range(2)]
    model = prepare(Of(lambda a, b: a / function(b)).eval(), batches[0], ModuleNameSetter({"": dtype}))
    calibrate(model, batches[:1], progress=False)
    set_fake_quantize(model, VALIDATION)
    return model.eval(), batches[1]


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", DIVISORS)
def test_a_division_has_the_integers_of_its_program(name: str, dtype: str) -> None:
    model, batch = divided(DIVISORS[name], dtype)
    with torch.no_grad():
        ours = model(*batch).numpy()
    assert np.unique(ours).size > 16
    for engine in ("jit", "reference"):
        assert np.array_equal(ours, convert(model, batch, engine=engine)(*batch).numpy()), engine


@pytest.mark.parametrize("name", DIVISORS)
def test_a_division_by_what_is_never_zero_runs_on_the_bpu(name: str) -> None:
    model, batch = divided(DIVISORS[name], "int8")
    devices = {segment.device for segment in convert(model, batch).compiled.report.segments}
    assert ("cpu" in devices) == (name in ON_THE_CPU)


def test_the_limits_are_those_of_the_unit_that_makes_the_divisor() -> None:
    model, _ = divided(lambda b: b.clamp(0.1, 2), "int8")
    (unit,) = [u for u in units_of(model).values() if isinstance(u, QuantizedOperation) and u.operation == "div"]
    least, most = unit.divisor()
    scale = float(unit.sources[1].scale)
    assert least == int(np.floor(0.1 / scale + 0.5))
    assert most == min(127, int(np.floor(2 / scale + 0.5)))


def test_a_division_by_a_number_says_nothing() -> None:
    model, _ = divided(lambda _b: 3.0, "int8")
    assert [u.divisor() for u in units_of(model).values() if getattr(u, "operation", "") == "div"] in ([], [()])
