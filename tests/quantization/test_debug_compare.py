"""Similarity per layer: figures against NumPy on tensors caught by hooks, planted faults, exact forms of one model."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402

from hbc.diagnostics import HbcError  # noqa: E402
from hbc.quantization import (  # noqa: E402
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    calibrate,
    convert,
    debug,
    prepare,
    set_march,
)
from hbc.quantization.units import units_of  # noqa: E402
from tests.quantization.models import MODELS, built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def prepared_of(name: str) -> tuple[Any, Any, Any]:
    set_march("nash-e")
    model, batches = built(name)
    made = prepare(model, batches[0])
    calibrate(made, batches, progress=False)
    return model, made, batches


def caught(model: Any, batch: Any) -> dict[str, np.ndarray]:
    """Every unit's result, by hooks."""
    found: dict[str, np.ndarray] = {}
    handles = [
        u.register_forward_hook(lambda _m, _x, y, n=n: found.__setitem__(n, y.numpy()))  # type: ignore[misc]
        for n, u in units_of(model).items()
    ]
    with torch.no_grad():
        model(*batch)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_figures_are_those_of_the_tensors(name: str) -> None:
    model, made, batches = prepared_of(name)
    report = debug.compare(model, made, batches[3])
    want = caught(debug.running.as_prepared(model, batches[3]), batches[3])  # type: ignore[attr-defined]
    got = caught(made.eval(), batches[3])
    assert [r.name for r in report.rows] == list(units_of(made)) or {r.name for r in report.rows} == set(got)
    for row in report.rows:
        a, b = (v[row.name].astype(np.float64).ravel() for v in (want, got))
        assert row.mse == pytest.approx(np.mean((a - b) ** 2), rel=1e-9)
        assert row.l1 == pytest.approx(np.mean(np.abs(a - b)), rel=1e-9)
        assert row.cosine == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)), rel=1e-9)
        assert row.sqnr == pytest.approx(10 * math.log10((a @ a) / ((a - b) @ (a - b))), rel=1e-9)
        if row.scale is not None:
            assert row.quanta == pytest.approx(np.abs(a - b).max() / row.scale, rel=1e-9)
        assert (row.low, row.high) == (a.min(), a.max())


def test_float_units_are_the_float_model() -> None:
    """Against the user's own modules: within float32's rounding of folded batch norms."""
    model, made, batches = prepared_of("residual")
    found: dict[str, np.ndarray] = {}
    model.stem[2].register_forward_hook(lambda _m, _x, y: found.__setitem__("stem.0", y.numpy()))
    model.head.register_forward_hook(lambda _m, _x, y: found.__setitem__("head", y.numpy()))
    with torch.no_grad():
        model(*batches[1])
    report = debug.compare(model, made, batches[1], judged_mode="float")
    assert all(r.sqnr > 110 for r in report.rows)
    for name, value in found.items():
        row = report.row(name)
        assert row.high == pytest.approx(value.max(), rel=1e-5)


def test_a_planted_fault_is_first_by_op_error() -> None:
    _, made, batches = prepared_of("residual")
    broken = copy.deepcopy(made)
    with torch.no_grad():
        units_of(broken)["a"].weight[2] *= 1.5  # type: ignore[index]
    report = debug.compare(made, broken, batches[0], reference_mode="exact")
    first, second = debug.ranked(report.rows)[:2]
    assert first.name == "a"
    assert first.op_quanta > 1
    assert second.op_quanta == 0  # what follows only inherits
    assert report.row("b").quanta > 0
    assert report.row("stem.0").quanta == 0
    assert "a (Conv2d+add+relu)" in report.notes[0]


@pytest.mark.parametrize("name", MODELS)
def test_exact_forward_and_program_are_equal_at_every_unit(name: str) -> None:
    _, made, batches = prepared_of(name)
    report = debug.compare(made, convert(made), batches[3], reference_mode="exact")
    assert len(report.rows) > 3
    assert all(r.total.distance.equal == 1.0 and r.op.distance.equal == 1.0 for r in report.rows if r.op)
    assert all(r.kl == 0 for r in report.rows)


@pytest.mark.parametrize("name", ["residual", "deconv", "shared", "pools"])
def test_every_operation_is_within_one_quantum_of_fake_quantisation(name: str) -> None:
    """Docs/numerics.md promises it of one op; 0.01 for float32's rounding of two dequantised values."""
    _, made, batches = prepared_of(name)
    for judged in (made, convert(made)):
        report = debug.compare(made, judged, batches[2], reference_mode="fake")
        assert max(r.op_quanta or 0.0 for r in report.rows) <= 1.01


def test_operations_read_what_the_reference_has() -> None:
    """By hand: the head of the judged model on the reference's features, rounded."""
    model, made, batches = prepared_of("residual")
    report = debug.compare(model, made, batches[0], judged_mode="fake")
    want = caught(debug.running.as_prepared(model, batches[0]), batches[0])  # type: ignore[attr-defined]
    units = units_of(made)
    x = torch.from_numpy(want["b"])
    with torch.no_grad():
        scale = units["b"].activation_post_process.scale
        rounded = (x / scale + 0.5).floor().clamp(-128, 127) * scale
        own = units["head"].plain(rounded).numpy().astype(np.float64)
    noise = np.square(own - want["head"]).sum()
    assert report.row("head").op_sqnr == pytest.approx(
        10 * math.log10(np.square(want["head"].astype(np.float64)).sum() / noise)
    )


def test_several_batches_give_the_worst() -> None:
    model, made, batches = prepared_of("residual")
    parts = [debug.compare(model, made, b) for b in batches[:2]]
    whole = debug.compare(model, made, batches[:2])
    for row in whole.rows:
        assert row.mse == max(p.row(row.name).mse for p in parts)
        assert row.sqnr == min(p.row(row.name).sqnr for p in parts)


def test_the_model_is_as_before() -> None:
    _, made, batches = prepared_of("residual")
    made.train()
    before = {
        n: (u.mode, u.training, u.activation_post_process and u.activation_post_process.quantizing)
        for n, u in units_of(made).items()
    }
    scales = {n: b.clone() for n, b in made.named_buffers()}
    debug.compare(made, None, batches[0])
    debug.sensitivity(made, batches[0], progress=False)
    debug.advise(made, batches[0])
    assert made.training
    assert before == {
        n: (u.mode, u.training, u.activation_post_process and u.activation_post_process.quantizing)
        for n, u in units_of(made).items()
    }
    assert all(torch.equal(b, scales[n]) for n, b in made.named_buffers())


def test_alone_a_model_is_compared_with_its_own_floats() -> None:
    _, made, _ = prepared_of("residual")
    by_itself, by_mode = (
        debug.compare(made),
        debug.compare(made, made, made.meta["example_inputs"], reference_mode="float"),
    )
    assert by_itself.rows == by_mode.rows
    assert "float" in by_itself.about


def test_saturation_is_told_from_rounding() -> None:
    model, made, batches = prepared_of("residual")
    units_of(made)["a"].activation_post_process.set_scale(1e-3)
    row = debug.compare(model, made, batches[0]).row("a")
    assert row.advice.startswith("saturates")
    units_of(made)["a"].activation_post_process.set_scale(1.0)
    assert "int16" in debug.compare(model, made, batches[0]).row("a").advice


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, b: debug.compare(m, None, b, judged_mode="exakt"), "there is no mode 'exakt'.*exact"),
        (lambda m, _: debug.compare(m, None, []), "there is no batch to look at"),
        (lambda m, b: debug.sensitivity(m, b, metric="snr"), "there is no metric 'snr'.*sqnr"),
        (lambda m, b: debug.stepwise(m, b, parts=["sten"]), "there is no part 'sten'.*stem"),
        (lambda m, b: debug.bad_cases(m, m, [b], metric="l3"), "there is no metric 'l3'"),
    ],
)
def test_unknown_words_are_errors_with_near_ones(call: Any, words: str) -> None:
    _, made, batches = prepared_of("residual")
    with pytest.raises(HbcError) as caught_error:
        call(made, batches[0])
    assert re.search(words, str(caught_error.value), re.DOTALL), str(caught_error.value)


def test_a_model_that_was_not_calibrated_says_so() -> None:
    set_march("nash-e")
    model, batches = built("residual")
    with pytest.raises(HbcError, match="has no scale yet"):
        debug.compare(model, prepare(model, batches[0]), batches[0])


class Stubs(nn.Module):
    """As `method="eager"` takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant, self.sum = QuantStub(), DeQuantStub(), FloatFunctional()
        self.a, self.relu, self.b, self.head = nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(self.quant(x)))
        return self.dequant(self.head(self.sum.add(self.b(x), x)))


def test_models_that_keep_their_own_forward() -> None:
    set_march("nash-e")
    torch.manual_seed(0)
    model, data = Stubs().eval(), [torch.randn(2, 3, 8, 8) for _ in range(3)]
    made = prepare(model, (data[0],), method="eager")
    calibrate(made, data, progress=False)
    report = debug.compare(model, made, data[0])
    assert {r.name for r in report.rows} == {"quant", "a", "b", "sum", "head"}
    assert all(r.sqnr > 27 for r in report.rows)
    exact = debug.compare(made, convert(made), data[0], reference_mode="exact")
    assert {r.mse for r in exact.rows} == {0.0}
    assert {r.name for r in debug.sensitivity(made, data[0], progress=False).rows} == {"quant", "a", "b", "sum", "head"}
    assert debug.stepwise(made, data[0]).row("a").units == 1
    with torch.no_grad(), debug.kept_float(made, ["quant", "a", "b", "sum", "head"]):
        assert torch.allclose(made.eval()(data[0]), model(data[0]), atol=1e-5)
    assert debug.check_qconfig(made).row("a").output == "int8"
    assert len(debug.bad_cases(model, made, data, progress=False).rows) == 6
