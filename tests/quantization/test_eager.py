"""method="eager": modules are swapped, the user's forward keeps running, and the program is the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.diagnostics import QuantizationError  # noqa: E402
from hbc.ir.printer import print_module  # noqa: E402
from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    DeQuantStub,
    FloatFunctional,
    ModuleNameSetter,
    QuantStub,
    calibrate,
    check_model,
    compile_model,
    convert,
    debug,
    export,
    prepare,
    set_fake_quantize,
    set_forward,
    visualize_model,
)
from hbc.quantization.units import units_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()
        nn.init.uniform_(self.bn.weight, 0.5, 1.5)
        self.bn.running_mean.normal_()  # type: ignore[union-attr]
        self.add, self.out = FloatFunctional(), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.out(self.add.add(self.relu(self.bn(self.conv(x))), x))


class Net(nn.Module):
    """As many blocks as the caller says: a forward that a graph can't hold."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.stem, self.blocks = nn.Conv2d(3, 6, 3, padding=1), nn.ModuleList(Block() for _ in range(3))
        self.gate, self.scale, self.cat = nn.Sigmoid(), FloatFunctional(), FloatFunctional()
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(12, 4, 1)
        self.depth = 3

    def forward(self, image: Any) -> dict[str, Any]:
        x = self.stem(self.quant(image))
        for block in self.blocks[: self.depth]:
            x = block(x)
        y = self.scale.mul(x, self.gate(x))
        x = self.cat.cat([self.pool(x), self.pool(y)], dim=1)
        return {"hm": self.dequant(self.head(x)).clamp(-4, 4)}


def ready(model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(1)
    batches = [torch.randn(2, 3, 8, 12) for _ in range(3)]
    prepared = prepare((model or Net()).eval(), (batches[0],), method="eager", **options)
    calibrate(prepared, batches, progress=False)
    return prepared, batches


def check(model: nn.Module, x: Any) -> None:
    with torch.no_grad():
        ours = model.eval()(x)["hm"].numpy()
    assert np.unique(ours).size > 8
    for engine in ("jit", "reference"):
        assert np.array_equal(ours, convert(model, (x,), engine=engine)(x)["hm"].numpy())


def test_units_take_the_modules_places() -> None:
    model, _ = ready()
    assert type(model) is Net
    assert set(units_of(model)) == {
        "quant", "stem", "gate", "scale", "cat", "head",
        *(f"blocks.{i}.{name}" for i in range(3) for name in ("conv", "add")),
    }  # fmt: skip
    assert model.blocks[0].conv.activation == "relu"  # conv, bn and relu are one; so are the sum and its relu
    assert isinstance(model.blocks[0].bn, nn.Identity)
    assert isinstance(model.blocks[0].out, nn.Identity)
    assert model.head.activation_post_process is None  # a tail: its accumulator
    assert not model.hints


@pytest.mark.parametrize("bn_mode", ["fused", "with-bn"])
def test_exact_before_and_after_training(bn_mode: str) -> None:
    model, batches = ready(bn_mode=bn_mode)
    check(model, batches[1])
    set_fake_quantize(model, QAT)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in model.parameters()]
    for mode in ("plain", "exact"):
        set_forward(model, mode)  # type: ignore[arg-type]
        optimizer.zero_grad()
        model(batches[0])["hm"].square().mean().backward()
        optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    set_forward(model, "auto")
    set_fake_quantize(model, VALIDATION)
    check(model, batches[2])


def test_the_same_program_as_capture_makes() -> None:
    """The same scales and weights, as a relu is between convolution and sum and keeps capture from fusing these."""
    model, batches = ready()
    captured = prepare(Net().eval(), (batches[0],))
    calibrate(captured, batches, progress=False)
    for name, unit in units_of(captured).items():
        mine, theirs = units_of(model)[name].activation_post_process, unit.activation_post_process
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or torch.equal(mine.scale, theirs.scale)
    with torch.no_grad():
        assert np.array_equal(model(batches[0])["hm"].numpy(), captured.eval()(batches[0])["hm"].numpy())


def test_forward_takes_its_branches_anew() -> None:
    """Other depths are exact as well: a unit sees at each call whose integers come."""
    model, batches = ready()
    for depth in (1, 2, 0):
        model.depth = depth
        check(model, batches[0])


def test_qconfigs_and_files(tmp_path: Any) -> None:
    model, batches = ready(qconfig_setter=ModuleNameSetter({"blocks.1.add": "int16"}))
    check(model, batches[0])
    assert "i16" in print_module(export(model, (batches[0],)))
    compile_model(model, (batches[0],), tmp_path / "eager.hbm")
    assert (tmp_path / "eager.hbm").stat().st_size > 0
    again, _ = ready(qconfig_setter=ModuleNameSetter({"blocks.1.add": "int16"}))
    again.load_state_dict(model.state_dict())
    check(again, batches[0])
    assert set(model.state_dict()) == set(again.state_dict())
    assert not hasattr(model, "_outputs")  # converting leaves the model as it was


def test_the_debug_kit_takes_it() -> None:
    """Its functions read a graph, which is captured for them; the model stays as it was."""
    model, batches = ready()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    names = set(units_of(model))
    assert {r.name for r in debug.check_qconfig(model).rows} == names
    assert {r.name for r in debug.sensitivity(model, [(batches[0],)], progress=False).rows} <= names | {
        f"{n}.weight" for n in names
    }
    fixed = convert(model)
    report = debug.compare(model, fixed, (batches[0],))
    assert report.rows
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    text = visualize_model(model, None)
    assert {line.split()[0] for line in text.splitlines()} >= names
    assert {r.module for r in check_model(model, (batches[0],)).on_cpu} == {"clamp"}  # of a real result
    check(model, batches[1])


def test_a_graph_is_captured_of_a_model_without_scales() -> None:
    model = prepare(Net().eval(), (torch.randn(2, 3, 8, 12),), method="eager")
    assert len(debug.check_qconfig(model).rows) == len(units_of(model))


class Bare(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.quant, self.conv, self.function = QuantStub(), nn.Conv2d(3, 3, 1), function
        self.sum, self.spare = FloatFunctional(), nn.Conv2d(3, 3, 1)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


MISTAKES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a sum": (
        lambda m, x: m.conv(m.quant(x)) + m.quant(x),
        ("E0923", "add is called on a quantised tensor", "the model's forward", "self.add.add"),
    ),
    "a function": (lambda m, x: functional.relu(m.conv(m.quant(x))), ("E0923", "relu", "torch.nn")),
    "no stub": (lambda m, x: m.conv(x), ("E0923", "QuantStub", "self.quant = QuantStub()")),
    "a real operand": (
        lambda m, x: m.sum.add(m.conv(m.quant(x)), x),
        ("E0923", "'sum' reads a real tensor", "QuantStub"),
    ),
    "a functional twice": (
        lambda m, x: m.sum.add(m.sum.add(m.quant(x), m.conv(m.quant(x))), m.quant(x)),
        ("E0905", "'sum' is called 2 times"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    function, words = MISTAKES[name]
    with pytest.raises(QuantizationError) as caught:
        prepare(Bare(function).eval(), (torch.randn(1, 3, 4, 4),), method="eager")
    text = f"{caught.value.diagnostic.code} {caught.value}"
    assert all(word in text for word in words), text
    assert "try:" in text


def test_hints_name_shared_and_unreached_modules() -> None:
    model = Bare(lambda m, x: m.conv(m.conv(m.quant(x)))).eval()
    hints = prepare(model, (torch.randn(1, 3, 4, 4),), method="eager").hints
    assert any(h.startswith("conv: it is called 2 times") for h in hints)
    assert any(h.startswith("spare: the example inputs don't reach it") for h in hints)


def test_another_call_of_a_functional_is_an_error() -> None:
    model = Bare(lambda m, x: m.sum.add(m.conv(m.quant(x)), m.conv(m.quant(x)))).eval()
    x = torch.randn(1, 3, 4, 4)
    prepared = prepare(model, (x,), method="eager")
    calibrate(prepared, [x], progress=False)
    prepared.function = lambda m, x: m.sum.mul(m.conv(m.quant(x)), m.quant(x))
    with pytest.raises(QuantizationError, match="called as mul of 2 tensors"):
        prepared(x)
