"""Each operation that exact forward computes in torch has the integers of its compiled program, edges included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.quantization import (  # noqa: E402
    VALIDATION,
    FakeQuantSpec,
    ModuleNameSetter,
    QConfig,
    prepare,
    set_fake_quantize,
    set_march,
)
from hbc.quantization.exact import Program, strategy  # noqa: E402
from hbc.quantization.exact_operations import Operation  # noqa: E402
from hbc.quantization.units import QuantizedOperation, QuantizedUnit, units_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

Shape = tuple[int, ...]
Scales = tuple[float, ...]
X: Shape = (2, 6, 8, 12)
PAIR = (X, X)
FUNCTIONS: dict[str, tuple[Callable[..., Any], Sequence[Shape]]] = {
    "add": (lambda a, b: a + b, PAIR),
    "add-relu": (lambda a, b: functional.relu(a + b), PAIR),
    "add-broadcast": (lambda a, b: a + b, (X, (2, 6, 1, 1))),
    "sub": (lambda a, b: a - b, PAIR),
    "sub-relu6": (lambda a, b: functional.relu6(a - b), PAIR),
    "mul": (lambda a, b: a * b, PAIR),
    "mul-broadcast": (lambda a, b: functional.relu(a * b), (X, (2, 6, 1, 1))),
    "cat": (lambda a, b: torch.cat([a, b], 1), (X, (2, 3, 8, 12))),
    "stack": (lambda a, b: torch.stack([a, b], 1), PAIR),
    "maximum": (torch.maximum, PAIR),
    "minimum": (torch.minimum, PAIR),
    "matmul": (lambda a, b: a @ b, ((2, 5, 8), (2, 8, 7))),
    "avg-pool": (lambda a: functional.avg_pool2d(a, 2), (X,)),
    "avg-pool-padded": (lambda a: functional.avg_pool2d(a, 3, stride=2, padding=1), (X,)),
    "avg-pool-uneven": (lambda a: functional.avg_pool2d(a, 3, 2, 1, count_include_pad=False), (X,)),
    "adaptive": (lambda a: functional.adaptive_avg_pool2d(a, (2, 3)), (X,)),
    "global": (lambda a: functional.adaptive_avg_pool2d(a, 1), (X,)),
    "mean": (lambda a: a.mean((2, 3)), (X,)),
    "mean-channels": (lambda a: a.mean(1, keepdim=True), (X,)),
    "sum": (lambda a: a.sum(-1), (X,)),
    "resize": (lambda a: functional.interpolate(a, scale_factor=2, mode="bilinear", align_corners=False), (X,)),
    "resize-corners": (lambda a: functional.interpolate(a, size=(5, 9), mode="bilinear", align_corners=True), (X,)),
}
NOT_ON_BPU = {("matmul", "int16"), ("resize", "int16"), ("resize-corners", "int16")}  # the CPU computes these in reals
# of the operands, then the result: as many would be calibrated, equal ones, a result that saturates, one of few
# integers, powers of two (whose rounding ties)
SCALES: tuple[tuple[float, float, float], ...] = (
    (0.031, 0.027, 0.044), (0.05, 0.05, 0.05), (0.5, 0.004, 0.0007), (0.002, 0.003, 0.9), (0.25, 0.125, 0.5),
)  # fmt: skip


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: Any) -> Any:
        return self.function(*xs)


def unit_of(model: nn.Module, shapes: Sequence[Shape], march: str, dtype: Any) -> QuantizedUnit:
    """The unit of a model that is one operation, in a type or by a QConfig."""
    set_march(march)
    try:
        prepared = prepare(model.eval(), tuple(torch.zeros(s) for s in shapes), ModuleNameSetter({"": dtype}))
    finally:
        set_march("nash-e")
    set_fake_quantize(prepared, VALIDATION)
    prepared.eval()
    return next(u for u in units_of(prepared).values() if isinstance(u, QuantizedOperation))


def check(unit: QuantizedUnit, shapes: Sequence[Shape], scales: Sequence[float], seed: int = 0) -> None:
    """Random integers with both ends among them: our forward against the compiled program's."""
    generator = torch.Generator().manual_seed(seed)
    xs = []
    for source, shape, scale in zip(unit.sources, shapes, scales, strict=False):
        assert source is not None
        source.set_scale(scale)
        q = torch.randint(source.spec.qmin, source.spec.qmax + 1, shape, generator=generator)
        q.view(-1)[:4] = torch.tensor([source.spec.qmin, source.spec.qmax, 0, -1])
        xs.append(q.float() * source.scale)
    assert unit.activation_post_process is not None
    unit.activation_post_process.set_scale(scales[-1])
    with torch.no_grad():
        ours, theirs = unit(*xs), Program().run(unit, xs)
    assert np.array_equal(ours.numpy(), theirs.numpy()), (unit, scales)


def is_rule(unit: QuantizedUnit, shapes: Sequence[Shape]) -> bool:
    """True where torch computes, not the program."""
    chosen = unit.exact
    return isinstance(chosen, Operation) and chosen.tables.get(tuple(tuple(s) for s in shapes)) is not None


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rule_is_the_compiled_program(name: str, dtype: str) -> None:
    function, shapes = FUNCTIONS[name]
    unit = unit_of(Of(function), shapes, "nash-e", dtype)
    for scales in SCALES if dtype == "int8" else SCALES[:2]:
        check(unit, shapes, scales)
    assert is_rule(unit, shapes) == ((name, dtype) not in NOT_ON_BPU)


@pytest.mark.parametrize("name", ["add-relu", "sub", "cat", "avg-pool-padded", "mean", "resize"])
def test_rule_on_bernoulli2(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    unit = unit_of(Of(function), shapes, "bernoulli2", "int8")
    for scales in SCALES[:3]:
        check(unit, shapes, scales)
    assert is_rule(unit, shapes) == (name != "sub")  # bernoulli2 has no subtraction: the CPU computes it


@pytest.mark.parametrize("name", ["add-relu", "sub", "mul", "cat", "avg-pool-padded", "mean", "matmul"])
def test_rule_on_narrow_ranges(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    narrow = QConfig(FakeQuantSpec(narrow=True), FakeQuantSpec("int8", "min-max", narrow=True))
    unit = unit_of(Of(function), shapes, "nash-e", narrow)
    for scales in SCALES:
        check(unit, shapes, scales)
    assert is_rule(unit, shapes) == (name != "cat")  # there a clamp and a change of scale become one table


class Affine(nn.Module):
    def __init__(self, bias: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.bn = nn.BatchNorm2d(6)
        nn.init.uniform_(self.bn.weight, -1.5, 1.5)
        nn.init.normal_(self.bn.bias, std=bias)
        self.bn.running_mean.normal_()  # type: ignore[union-attr]
        self.bn.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]

    def forward(self, x: Any) -> Any:
        return functional.relu(self.bn(x))


@pytest.mark.parametrize("march", ["nash-e", "bernoulli2"])
@pytest.mark.parametrize("bias", [1.0, 0.0, 1e6])
def test_batch_norm_is_the_compiled_program(march: str, bias: float) -> None:
    unit = unit_of(Affine(bias), (X,), march, "int8")
    for scales in ((0.03, 0.04), (0.05, 0.001), (0.001, 0.5)):
        check(unit, (X,), scales)
    assert is_rule(unit, (X,))


def test_what_a_rule_does_not_take_runs_the_program() -> None:
    """A composite, a factor per channel, a pool that counts by its own rule: each is exact nevertheless."""
    cases: list[tuple[Callable[..., Any], Sequence[Shape]]] = [
        (lambda a: torch.softmax(a, 1), (X,)),
        (lambda a: functional.avg_pool2d(a, 3, 2, ceil_mode=True), (X,)),
        (lambda a: a * torch.tensor([0.5, -1, 2, 3, 4, 5]).view(6, 1, 1), (X,)),
    ]
    for function, shapes in cases:
        unit = unit_of(Of(function), shapes, "nash-e", "int8")
        for scales in SCALES[:2]:
            check(unit, shapes, scales)
    assert isinstance(strategy(unit), (Operation, Program))


def test_gradients_are_those_of_the_reals_where_nothing_saturates() -> None:
    unit = unit_of(Of(lambda a, b: a * b), PAIR, "nash-e", "int8")
    unit.mode = "exact"
    for fq, scale in zip([*unit.sources, unit.activation_post_process], (0.1, 0.1, 1.0), strict=True):
        assert fq is not None
        fq.set_scale(scale)
    a, b = (torch.randint(-128, 128, X).float().mul_(0.1).requires_grad_() for _ in range(2))
    y = unit(a, b)
    y.sum().backward()
    inside = (a * b).detach().abs() < 126
    outside = (a * b).detach().abs() > 130
    assert inside.any()
    assert outside.any()
    assert np.array_equal(a.grad[inside].numpy(), b.detach()[inside].numpy())
    assert not a.grad[outside].any()
