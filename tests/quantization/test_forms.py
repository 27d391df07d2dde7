"""Forms of models: batch-norm modes, volumes, narrow ranges, batch norms behind a concat, structured ins and outs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402

from hbc.quantization import (  # noqa: E402
    QAT,
    VALIDATION,
    DefaultSetter,
    FakeQuantSpec,
    QConfig,
    calibrate,
    convert,
    prepare,
    set_fake_quantize,
    set_forward,
    units,
)
from hbc.quantization.pytree import walk  # noqa: E402
from hbc_runtime import Session  # noqa: E402
from tests.quantization.models import IMAGE, Detections, Pair, built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def agrees(model: Any, batch: Any) -> Any:
    """The exact forward is the compiled program, to the bit; the fixed-point model."""
    fixed = convert(model.eval(), engine="reference")
    with torch.no_grad():
        ours = [leaf for _, leaf in walk(model(*batch))]
    theirs = [leaf for _, leaf in walk(fixed(*batch))]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(torch.unique(leaf).numel() > 1 for leaf in ours)
    return fixed


def placed(fixed: Any) -> set[str]:
    return {segment.device for segment in fixed.compiled.report.segments}


# ---- batch norms


def test_batch_norms_that_train() -> None:
    """`with-bn`: statistics and gains go on in training; in eval the fold is that of mode `fused`."""
    model, batches = built("residual")
    fused, trained = (prepare(model, batches[0], bn_mode=mode) for mode in ("fused", "with-bn"))
    assert fused.a.bn is None
    assert isinstance(trained.a.bn, nn.BatchNorm2d)
    for m in (fused, trained):
        calibrate(m, batches, progress=False)
    assert torch.equal(fused.eval()(*batches[1]), trained.eval()(*batches[1]))
    before = {k: v.clone() for k, v in trained.state_dict().items()}
    set_fake_quantize(trained, QAT)
    trained.train()(*batches[0]).square().mean().backward()
    assert trained.a.bn.weight.grad is not None
    assert float(trained.a.bn.weight.grad.abs().sum()) > 0
    torch.optim.SGD(trained.parameters(), lr=0.01).step()
    after = trained.state_dict()
    for name in ("a.bn.running_mean", "a.bn.running_var", "a.bn.weight", "stem.0.bn.bias", "a.weight"):
        assert not torch.equal(before[name], after[name]), name
    set_fake_quantize(trained, VALIDATION)
    agrees(trained, batches[2])


def test_batch_statistics_are_those_of_the_plain_convolution() -> None:
    model, batches = built("residual")
    prepared = prepare(model, batches[0], bn_mode="with-bn")
    calibrate(prepared, batches, progress=False)
    prepared.train()
    unit = prepared.a
    x = torch.round(torch.randn(2, 8, 5, 6) * 20) / 16
    gain, _ = unit.factor()
    weight = unit.weight_fake_quant(unit.scaled(gain)) / gain.view(-1, 1, 1, 1)
    y = nn.functional.conv2d(x, weight, unit.bias, padding=1)
    mean, momentum, old = y.mean((0, 2, 3)), unit.bn.momentum, unit.bn.running_mean.clone()
    unit.compute(x, torch.zeros_like(y))
    wanted = (1 - momentum) * old + momentum * mean
    torch.testing.assert_close(unit.bn.running_mean, wanted, rtol=1e-4, atol=1e-5)  # float32 sums of 60 products


def test_a_batch_norm_behind_a_concat_is_a_depthwise_affine() -> None:
    model, batches = built("concat-norm")
    prepared = prepare(model, batches[0])
    unit = prepared.bn
    assert isinstance(unit, units.QuantizedOperation)
    assert unit.operation == "batch_norm"
    calibrate(prepared, batches, progress=False)
    fixed = agrees(prepared, batches[1])
    assert placed(fixed) == {"bpu"}
    (program,) = fixed.compiled.program.models
    instructions = [i for s in program.segments for i in s.instructions]
    assert [i.group for i in instructions if type(i).__name__ == "Conv2d"] == [1, 8, 1]


# ---- volumes, narrow ranges


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv3d(2, 4, 3, padding=1, bias=False), nn.BatchNorm3d(4)
        self.up, self.head = nn.Conv3d(4, 3, (1, 3, 3), padding=(0, 1, 1)), nn.Conv3d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        return self.head(nn.functional.relu6(self.up(x)))


def test_volumes() -> None:
    torch.manual_seed(0)
    model = Volume()
    model.train()(torch.randn(2, 2, 4, 6, 6))
    batches = [(torch.randn(1, 2, 4, 6, 6),) for _ in range(3)]
    prepared = prepare(model.eval(), batches[0])
    assert prepared.meta["fused"] == ["conv + bn + relu", "up + relu6"]
    calibrate(prepared, batches, progress=False)
    assert placed(agrees(prepared, batches[1])) == {"bpu"}
    set_fake_quantize(prepared, QAT)
    prepared.train()(*batches[0]).square().mean().backward()
    assert float(prepared.conv.weight.grad.abs().sum()) > 0


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_narrow_ranges(dtype: Any) -> None:
    """Results without the least integer, weights of −127 … 127; the least is reached, as the input is large."""
    least = {"int8": -127, "int16": -32767}[dtype]
    config = QConfig(FakeQuantSpec(dtype, "min-max", narrow=True), FakeQuantSpec("int8", "min-max", narrow=True))
    model, batches = built("residual")
    prepared = prepare(model, batches[0], DefaultSetter(config))
    calibrate(prepared, batches, progress=False)
    large = (batches[0][0] * 20,)
    fixed = agrees(prepared, large)
    weights = prepared.a.weight_fake_quant.integers(prepared.a.folded()[0])
    assert float(weights.detach().min()) == -127
    results = {n: v for n, v in fixed.integers(*large).items() if not n.endswith("/quantize")}  # a clip is behind it
    found = {n: int(v.min()) for n, v in results.items() if str(v.dtype) == f"torch.{dtype}"}
    assert len(found) >= 3
    assert min(found.values()) == least


# ---- structures


class Boxes(NamedTuple):
    small: Tensor
    large: Tensor


@dataclass
class Frame:
    left: Tensor
    right: Tensor


OUTPUTS: dict[str, tuple[Any, list[str]]] = {
    "tensor": (lambda a, b: a, ["output"]),
    "tuple": (lambda a, b: (a, b), ["output.0", "output.1"]),
    "list": (lambda a, b: [b, a], ["output.0", "output.1"]),
    "dict": (lambda a, b: {"hm": a, "vaf": b}, ["hm", "vaf"]),
    "ordered": (lambda a, b: OrderedDict([("vaf", b), ("hm", a)]), ["vaf", "hm"]),
    "list of a dict": (lambda a, b: [{"hm": a, "vaf": b}], ["hm", "vaf"]),
    "list of dicts": (lambda a, b: [{"hm": a}, {"hm": b}], ["output.0.hm", "output.1.hm"]),
    "dict of lists": (lambda a, b: {"hm": [a, b]}, ["hm.0", "hm.1"]),
    "NamedTuple": (Boxes, ["small", "large"]),
    "dataclass": (lambda a, b: Detections(Pair(a, b), a + b), ["pair.boxes", "pair.scores", "extra"]),
    "with a number": (lambda a, b: {"hm": a, "stride": 4, "names": "lane", "none": None}, ["hm"]),
}


class Structured(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.a, self.b, self.make = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 3, padding=1), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.a(x), self.b(x))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_keep_structure_and_names(kind: str, tmp_path: Any) -> None:
    make, names = OUTPUTS[kind]
    torch.manual_seed(0)
    model, x = Structured(make).eval(), torch.randn(1, 3, 6, 6)
    prepared = prepare(model, (x,))
    calibrate(prepared, [(x,)], progress=False)
    fixed = agrees_on_tensors(prepared, (x,))
    for result in (prepared(x), fixed(x)):
        assert type(result) is type(model(x))
        assert [path for path, _ in walk(result)] == [path for path, _ in walk(model(x))]
    if kind == "with a number":
        assert {k: v for k, v in fixed(x).items() if k != "hm"} == {"stride": 4, "names": "lane", "none": None}
    fixed.save(tmp_path / "model.hbm")
    session = Session(str(tmp_path / "model.hbm"), engine="reference")
    assert [info.name for info in session.outputs] == names
    found = session.run({"x": x.numpy()})
    tensors = [leaf for _, leaf in walk(fixed(x)) if isinstance(leaf, Tensor)]
    assert all(np.array_equal(found[n], t.numpy()) for n, t in zip(names, tensors, strict=True))


def agrees_on_tensors(model: Any, batch: Any) -> Any:
    fixed = convert(model.eval(), engine="reference")
    with torch.no_grad():
        pairs = zip(walk(model(*batch)), walk(fixed(*batch)), strict=True)
        assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for (_, a), (_, b) in pairs)
    return fixed


class Taker(nn.Module):
    def __init__(self, take: Any) -> None:
        super().__init__()
        self.a, self.b, self.take = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1), take

    def forward(self, data: Any, *more: Any) -> Tensor:
        left, right = self.take(data, *more)
        return torch.relu(self.a(left)) * torch.sigmoid(self.b(right))


INPUTS: dict[str, tuple[Any, Any, list[str]]] = {
    "two": (lambda a, b: (a, b), lambda a, b: (a, b), ["data", "input_1"]),
    "dict": (lambda a, b: ({"left": a, "right": b},), lambda d: (d["left"], d["right"]), ["data.left", "data.right"]),
    "list": (lambda a, b: ([a, b],), tuple, ["data.0", "data.1"]),
    "NamedTuple": (lambda a, b: (Boxes(a, b),), tuple, ["data.small", "data.large"]),
    "dataclass": (lambda a, b: (Frame(a, b),), lambda d: (d.left, d.right), ["data.left", "data.right"]),
    "nested": (
        lambda a, b: ({"views": [{"image": a}, {"image": b}], "id": 7},),
        lambda d: (d["views"][0]["image"], d["views"][1]["image"]),
        ["data.views.0.image", "data.views.1.image"],
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_keep_their_names(kind: str) -> None:
    pack, take, names = INPUTS[kind]
    torch.manual_seed(0)
    model, images = Taker(take).eval(), [torch.randn(IMAGE) for _ in range(2)]
    args = pack(*images)
    prepared = prepare(model, args)
    calibrate(prepared, [args], progress=False)
    fixed = agrees(prepared, args)
    assert [info.name for info in fixed.session.inputs] == names


def test_output_names_can_be_given() -> None:
    make, _ = OUTPUTS["tuple"]
    model, x = Structured(make).eval(), torch.randn(1, 3, 6, 6)
    prepared = prepare(model, (x,))
    calibrate(prepared, [(x,)], progress=False)
    fixed = convert(prepared, engine="reference", output_names=["hm", "vaf"])
    assert [info.name for info in fixed.session.outputs] == ["hm", "vaf"]


def test_plain_training_of_every_form_has_gradients() -> None:
    model, x = Structured(OUTPUTS["dataclass"][0]), torch.randn(1, 3, 6, 6)
    prepared = prepare(model, (x,))
    set_forward(prepared, "plain")
    sum(leaf.square().mean() for _, leaf in walk(prepared.train()(x))).backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in prepared.parameters() if p.requires_grad)
