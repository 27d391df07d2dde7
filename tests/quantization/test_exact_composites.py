"""Softmax and norms in exact forward: the compiled program's integers, whatever scales and weights move to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402

from hbc.ir.core import Graph  # noqa: E402
from hbc.ir.location import NodeLoc  # noqa: E402
from hbc.passes.composites.parts import Parts, i16  # noqa: E402
from hbc.passes.segments import FIRST, LAST  # noqa: E402
from hbc.quantization import (  # noqa: E402
    QAT,
    ModuleNameSetter,
    calibrate,
    exact_composites,
    exact_parts,
    prepare,
    set_fake_quantize,
    set_forward,
)
from hbc.quantization import exact as exact_module  # noqa: E402
from hbc.quantization.exact import Program  # noqa: E402
from hbc.quantization.exact_composites import Composite  # noqa: E402
from hbc.quantization.lean_parts import LeanParts  # noqa: E402
from hbc.quantization.units import QuantizedUnit, units_of  # noqa: E402
from tests.quantization.test_exact_operations import unit_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

Shape = tuple[int, ...]
# The model, its operand, and a scale of an i8 result that suits it.
CASES: dict[str, tuple[Any, Shape, float]] = {
    "softmax": (nn.Softmax(-1), (2, 3, 8, 16), 1 / 200),
    "softmax-channels": (nn.Softmax(1), (2, 70, 4), 1 / 200),
    "softmax-long": (nn.Softmax(-1), (2, 700), 1 / 200),
    "log-softmax": (nn.LogSoftmax(1), (4, 32), 0.1),
    "layer-norm": (nn.LayerNorm(48), (2, 9, 48), 0.04),
    "layer-norm-plain": (nn.Sequential(nn.LayerNorm((6, 8), elementwise_affine=False)), (3, 6, 8), 0.04),
    "group-norm": (nn.Sequential(nn.GroupNorm(2, 8)), (2, 8, 4, 5), 0.04),
    "instance-norm": (nn.Sequential(nn.InstanceNorm2d(4)), (2, 4, 6, 5), 0.04),
    "instance-norm-affine": (nn.Sequential(nn.InstanceNorm2d(4, affine=True)), (2, 4, 6, 5), 0.04),
    "rms-norm": (nn.Sequential(nn.RMSNorm(24)), (2, 5, 24), 0.04),
    "rms-norm-plain": (nn.Sequential(nn.RMSNorm((4, 6), 1e-3, elementwise_affine=False)), (2, 4, 6), 0.04),
}
FEWER = 150.0  # by which scales of int16 are smaller


def trained(unit: QuantizedUnit) -> list[Any]:
    return [p for p in unit.parameters() if p is not getattr(unit.activation_post_process, "scale", None)]


def operand(unit: QuantizedUnit, shape: Shape, rng: np.random.Generator) -> Any:
    """Integers of a spread of its own, both ends of the type and a row of one value among them."""
    source = unit.sources[0]
    assert source is not None
    q = np.rint(rng.uniform(source.spec.qmin, source.spec.qmax, shape) * rng.uniform(0.01, 1))
    q.reshape(-1)[:2] = source.spec.qmin, source.spec.qmax
    q[-1, ..., -1] = q[-1, ..., 0]
    return torch.from_numpy(q.astype(np.float32)) * source.scale


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", CASES)
def test_moving_scales_and_weights_have_the_integers_of_a_fresh_program(name: str, dtype: str) -> None:
    """Over three and a half orders of magnitude of the operand's scale, and forms of every cost."""
    model, shape, usual = CASES[name]
    unit, rng = unit_of(model, [shape], "nash-e", dtype), np.random.default_rng(len(name))
    fewer = 1.0 if dtype == "int8" else FEWER
    source, fq = unit.sources[0], unit.activation_post_process
    assert source is not None
    assert fq is not None
    decomposed = 0
    for _ in range(4):
        source.set_scale(10 ** rng.uniform(-3, 0.5) / fewer)
        fq.set_scale(usual * 10 ** rng.uniform(-0.7, 1) / fewer)
        for p in trained(unit):
            p.data.mul_(rng.uniform(0.5, 1.5)).add_(torch.from_numpy(rng.normal(0, 0.2, p.shape).astype(np.float32)))
        x = operand(unit, shape, rng)
        with torch.no_grad():
            ours, theirs = unit(x), Program().run(unit, [x])
        assert np.array_equal(ours.numpy(), theirs.numpy()), (source.scale, fq.scale)
        assert isinstance(unit.exact, Composite)
        decomposed += unit.exact.plan is not None
        if dtype == "int8":  # at most 2 quanta from the reals (decompose's limit), which are rounded here as well
            with torch.no_grad():
                assert ((ours - unit.plain(x)) / fq.scale).abs().max() < 2.6
    assert decomposed >= 3
    assert list(unit.exact.tables.values()) == [[]]  # the parts serve, not the program


REACHES = ((FIRST, LAST), (-255, 0), (0, 255), (0, 256), (300, LAST), (-20000, -100), (37, 5000), (LAST - 700, LAST))


@pytest.mark.parametrize("reach", REACHES)
def test_lean_tables_are_those_of_the_compiler(reach: tuple[int, int]) -> None:
    """Results and error, of smooth functions and of some that no division holds."""
    noise = np.random.default_rng(0).uniform(-1, 1, LAST - FIRST + 2)
    step = 1e-3
    functions = {
        "exp": (np.exp, 3e-5), "root": (lambda v: 1 / np.sqrt(np.maximum(v, 0.02)), 3e-4),
        "reciprocal": (lambda v: 1 / v, 0.1), "kink": (lambda v: np.abs(v - 3.3), 1e-3),
        "noise": (lambda v: noise[np.rint(v / step).astype(np.int64) - FIRST], 3e-5),
    }  # fmt: skip
    q = np.arange(reach[0], reach[1] + 1)
    q = q[q != 0]  # of 1/x
    for f, scale in functions.values():
        lean, parts = LeanParts(NodeLoc("n")), Parts(NodeLoc("n"))
        x = Graph().add_arg("x", i16((4,), step))
        with np.errstate(all="ignore"):
            ours, theirs = (p.table(x, f, scale, reach) for p in (lean, parts))
        assert np.array_equal(ours.division.at(q), theirs.division.at(q))
        assert ours.error == theirs.error or np.isnan([ours.error, theirs.error]).all()


@pytest.mark.parametrize("name", ["softmax", "softmax-channels", "layer-norm", "layer-norm-plain", "group-norm"])
def test_a_large_tensor_goes_piece_by_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_composites, "serves", lambda *_: False)  # as on devices without kernels
    monkeypatch.setattr(exact_parts, "_PIECE", 40)  # a row or two at a time
    model, shape, usual = CASES[name]
    unit, rng = unit_of(model, [shape], "nash-e", "int8"), np.random.default_rng(0)
    source, fq = unit.sources[0], unit.activation_post_process
    assert source is not None
    assert fq is not None
    source.set_scale(0.04)
    fq.set_scale(usual)
    x = operand(unit, (5, *shape[1:]), rng)
    with torch.no_grad():
        ours, theirs = unit(x), Program().run(unit, [x])
    assert np.array_equal(ours.numpy(), theirs.numpy())
    assert isinstance(unit.exact.plan, exact_parts.Plan)
    assert unit.exact.plan.splits == (name != "group-norm")


def test_a_march_that_leaves_softmax_to_the_cpu_runs_its_program() -> None:
    unit = unit_of(nn.Softmax(-1), [(2, 8)], "bayes-e", "int8")
    for scale in (0.1, 0.2):
        for fq in (unit.sources[0], unit.activation_post_process):
            assert fq is not None
            fq.set_scale(scale)
        x = torch.randint(-128, 128, (2, 8)).float() * scale
        assert np.array_equal(unit(x).detach().numpy(), Program().run(unit, [x]).numpy())
    assert isinstance(unit.exact, Composite)
    assert unit.exact.plan is None


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.softmax, self.out = (
            nn.LayerNorm(16),
            nn.Linear(16, 48),
            nn.Softmax(-1),
            nn.Linear(16, 4),
        )

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out(self.softmax(q @ k.transpose(-2, -1)) @ v)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_training_steps_compile_no_composite_again(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales and weights move at each step; the gradients are those of the reals, and reach the norm's weight."""
    torch.manual_seed(0)
    x = torch.randn(2, 12, 16)
    model = prepare(Attention(), (x,), ModuleNameSetter({"": "int8", "softmax": dtype, "norm": dtype}))
    calibrate(model, [x], progress=False)
    set_fake_quantize(model, QAT)
    set_forward(model.train(), "exact")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    composites = {n: u for n, u in units_of(model).items() if u.unit_name in {"softmax", "norm"}}
    assert len(composites) == 2
    compiled: list[str] = []
    original = exact_module.unit_model

    def spy(unit: QuantizedUnit, shapes: Any) -> Any:
        compiled.append(unit.unit_name)
        return original(unit, shapes)

    monkeypatch.setattr(exact_module, "unit_model", spy)
    seen = set()
    for step in range(4):
        optimizer.zero_grad()
        model(x * (1 + step)).square().mean().backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in trained(composites["norm"]))
        optimizer.step()
        fq = composites["norm"].activation_post_process
        assert fq is not None
        seen.add(fq.scale.item())
    assert len(seen) == 4
    assert compiled.count("softmax") == compiled.count("norm") == 1
