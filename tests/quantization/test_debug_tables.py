"""The other reports of the kit, each number against one that is computed here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hbc.quantization import (  # noqa: E402
    FloatFunctional,
    ModuleNameSetter,
    QConfig,
    calibrate,
    convert,
    debug,
    prepare,
    set_march,
)
from hbc.quantization.fake_quantize import FakeQuantSpec  # noqa: E402
from hbc.quantization.units import units_of  # noqa: E402
from tests.quantization.hostile import hostile  # noqa: E402
from tests.quantization.models import built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def prepared_of(name: str, *setters: Any) -> tuple[Any, Any, Any]:
    set_march("nash-e")
    model, batches = built(name)
    made = prepare(model, batches[0], setters or None)
    calibrate(made, batches, progress=False)
    return model, made, batches


def db(want: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10(np.square(want).sum() / np.square(want - got).sum()))


def plain(model: Any, batch: Any) -> np.ndarray:
    """The only output, fake quantised."""
    for unit in units_of(model).values():
        unit.mode = "plain"
    with torch.no_grad():
        return np.asarray(model(*batch).numpy(), np.float64)


# ---- feature maps and weights


def test_statistics_are_those_of_what_is_rounded() -> None:
    _, made, batches = prepared_of("residual")
    report = debug.statistics(made, batches[:2])
    values = []
    with torch.no_grad():
        for (x,) in batches[:2]:
            scale = units_of(made)["x_quant"].activation_post_process.scale
            rounded = (x / scale + 0.5).floor().clamp(-128, 127) * scale
            unit = units_of(made)["stem.0"]
            values.append(unit.compute(rounded).numpy())
    whole, row = np.concatenate(values).astype(np.float64), report.row("stem.0")
    q = np.floor(whole / row.scale + 0.5)
    assert (row.low, row.high) == (whole.min(), whole.max())
    assert row.mean == pytest.approx(whole.mean())
    assert row.std == pytest.approx(whole.std())
    assert row.saturated == pytest.approx(np.mean((q < -128) | (q > 127)))
    assert row.used == min(np.abs(q).max(), 127) / 128
    channels = np.abs(whole).max(axis=(0, 2, 3))
    assert row.spread == pytest.approx(channels.max() / np.median(channels[channels > 0]))
    spreads = whole.std(axis=(0, 2, 3))
    bits = np.log2(spreads[spreads > 0] * math.sqrt(12) / row.scale)  # a channel is dead
    assert row.bits == pytest.approx(np.sort(bits)[math.ceil(len(bits) / 2) - 1])
    assert sum(row.histogram) == whole.size
    assert (row.dtype, report.row("head").dtype, report.row("head").scale) == ("int8", "int32", None)


def test_statistics_of_a_float_model_have_the_units_of_the_prepared_one() -> None:
    model, made, batches = prepared_of("attention")
    floats, ints = debug.statistics(model, batches[0]), debug.statistics(made, batches[0])
    assert [r.name for r in floats.rows] == [r.name for r in ints.rows]
    assert {r.dtype for r in floats.rows} == {"float32"}
    x = batches[0][0].numpy()
    assert floats.row("x_quant").high == x.max()
    assert len(floats.row("qkv").statistics.low) == 48  # channels of a linear layer are last


def test_weights_are_compared_channel_by_channel() -> None:
    model, made, _ = prepared_of("residual")
    row = debug.compare_weights(made).row("stem.0")
    bn = model.stem[1]
    gain = (bn.weight / torch.sqrt(bn.running_var + bn.eps)).detach()
    folded = (model.stem[0].weight * gain.view(-1, 1, 1, 1)).detach().numpy().astype(np.float64)
    scale = np.abs(folded).max(axis=(1, 2, 3)) / 128
    rounded = np.floor(folded / scale.reshape(-1, 1, 1, 1) + 0.5).clip(-128, 127) * scale.reshape(-1, 1, 1, 1)
    assert row.sqnr == pytest.approx(db(folded, rounded), abs=0.01)
    per_channel = [db(folded[c], rounded[c]) for c in range(len(folded))]
    assert row.worst_sqnr == pytest.approx(min(per_channel), abs=0.01)
    assert row.worst == int(np.argmin(per_channel))
    assert row.scale == pytest.approx(scale.max(), rel=1e-5)
    assert row.spread == pytest.approx(
        np.abs(folded).max(axis=(1, 2, 3)).max() / np.abs(folded).max(axis=(1, 2, 3)).min(), rel=1e-5
    )


def test_weights_against_another_float_model() -> None:
    model, made, _ = prepared_of("residual")
    with torch.no_grad():
        units_of(made)["head"].weight.mul_(2.0)
    units_of(made)["head"].weight_fake_quant.set_scale(units_of(made)["head"].weight_fake_quant.scale * 2)
    assert debug.compare_weights(made).row("head").sqnr > 40
    assert debug.compare_weights(made, model).row("head").sqnr == pytest.approx(0.0, abs=0.1)


def test_shared_weights_have_one_row() -> None:
    _, made, _ = prepared_of("shared")
    assert [r.name for r in debug.compare_weights(made).rows] == ["stem", "shared", "head"]


class Two(nn.Module):
    """Two inputs, and one that has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return self.b(torch.relu(self.a(x) + y)) * scale


def test_a_loader_s_labels_are_left_out() -> None:
    set_march("nash-e")
    torch.manual_seed(0)
    model = Two().eval()
    loader = [(torch.randn(3, 5), torch.randn(3, 7), torch.zeros(3)) for _ in range(2)]
    made = prepare(model, loader[0][:2])
    calibrate(made, loader, progress=False)
    assert [r.name for r in debug.statistics(model, loader).rows] == [
        r.name for r in debug.statistics(made, loader).rows
    ]
    assert debug.statistics(model, loader).row("x_quant").high == max(float(b[0].max()) for b in loader)
    assert len(debug.bad_cases(model, made, loader, progress=False).rows) == 6
    assert {r.name for r in debug.compare(model, made, loader).rows} == set(units_of(made))


def test_channels_of_flagged_feature_maps_are_pictured() -> None:
    set_march("nash-e")
    model, data = hostile("wide-channels")
    made = prepare(model, (data[0],))
    calibrate(made, data, progress=False)
    figures = debug.statistics(made, data).figures
    assert [f.title for f in figures] == ["Ranges in running order", "Channels of spread"]
    assert figures[1].svg.count('class="whisker"') == 8
    assert figures[1].svg.count('class="limit"') == 2


def test_nan_is_not_taken_for_rounding() -> None:
    model, made, batches = prepared_of("residual")
    bad = batches[0][0].clone()
    bad[0, 0, 0, 0] = float("nan")
    assert debug.compare(model, made, bad).row("x_quant").advice == "NaN or infinite values"
    row = debug.statistics(made, bad).row("x_quant")
    assert row.reasons == ("1 element NaN or infinite",)


# ---- sensitivity and steps


def test_sensitivity_is_one_switch_at_a_time() -> None:
    _, made, batches = prepared_of("residual")
    report = debug.sensitivity(made, batches[0], progress=False)
    units = units_of(made)
    fqs = {(n, "result"): u.activation_post_process for n, u in units.items() if u.activation_post_process}
    fqs |= {(n, "weight"): u.weight_fake_quant for n, u in units.items() if hasattr(u, "weight_fake_quant")}
    for fq in fqs.values():
        fq.quantizing = False
    want = plain(made, batches[0])
    assert {(r.name, r.what) for r in report.rows} == set(fqs)
    for row in report.rows:
        fqs[row.name, row.what].quantizing = True
        got = plain(made, batches[0])
        fqs[row.name, row.what].quantizing = False
        assert row.sqnr == pytest.approx(db(want, got), abs=1e-6)
        assert row.loss == pytest.approx(10 ** (-row.sqnr / 10))
    assert [r.loss for r in report.rows] == sorted((r.loss for r in report.rows), reverse=True)
    assert set(report.losses) == {n for n, what in fqs if what == "result"}


def test_left_real_alone_names_what_helps_most() -> None:
    _, made, batches = prepared_of("residual")
    units_of(made)["b"].activation_post_process.set_scale(0.3)  # the one bad scale
    report = debug.sensitivity(made, batches[0], alone="float", progress=False)
    first = report.rows[0]
    assert report.flagged == ()  # of everything but one, nothing is that one's fault
    assert [r.name for r in debug.sensitivity(made, batches[0], progress=False).flagged] == ["b"]
    assert (first.name, first.what) == ("b", "result")
    assert first.sqnr > debug.stepwise(made, batches[0]).row("a").sqnr


def test_step_quantisation_keeps_one_part_real() -> None:
    _, made, batches = prepared_of("residual")
    report = debug.stepwise(made, batches[0], ["stem", "a", "head"])
    units = units_of(made)
    rounding = [u.weight_fake_quant for u in units.values() if hasattr(u, "weight_fake_quant")]
    rounding += [u.activation_post_process for u in units.values() if u.activation_post_process]
    whole = plain(made, batches[0])
    stem = [units["stem.0"].weight_fake_quant, units["stem.0"].activation_post_process]
    for fq in stem:
        fq.quantizing = False
    kept = plain(made, batches[0])
    for fq in rounding:
        fq.quantizing = False
    want = plain(made, batches[0])
    for fq in stem:
        fq.quantizing = True
    only = plain(made, batches[0])
    row = report.row("stem")
    assert row.sqnr == pytest.approx(db(want, kept), abs=1e-6)
    assert row.gain == pytest.approx(db(want, kept) - db(want, whole), abs=1e-6)
    assert row.up_to == pytest.approx(db(want, only), abs=1e-6)


def test_parts_are_real_within_and_rounded_afterwards() -> None:
    model, made, batches = prepared_of("residual")
    made.eval()
    with torch.no_grad():
        before = made(*batches[0])
        with debug.kept_float(made, ["x_quant", "stem", "a", "b", "head"]):
            inside = made(*batches[0])
        want = model(*batches[0])
        assert torch.allclose(inside, want, atol=1e-5)
        assert not torch.allclose(before, want, atol=1e-3)
        assert torch.equal(made(*batches[0]), before)


def test_tables_alone_are_exact() -> None:
    _, made, batches = prepared_of("pools")
    assert debug.tables_of(made) == ("hardswish",)
    report = debug.compare(made, made, batches[0], reference_mode="fake", judged_mode="lut")
    assert {r.name for r in report.rows if r.op_quanta} <= {"hardswish"}
    with torch.no_grad(), debug.lut_only(made):
        inside = made(*batches[0])
        assert units_of(made)["hardswish"].is_exact()
        assert not units_of(made)["conv"].is_exact()
    assert inside.shape == made(*batches[0]).shape


# ---- cases, calls, fusion, qconfigs


def test_the_worst_sample_is_the_planted_one() -> None:
    model, made, batches = prepared_of("residual")
    data = [x.clone() for (x,) in batches]
    data[2][1] *= 40  # sample 5 saturates
    report = debug.bad_cases(model, made, data, progress=False)
    assert report.rows[0].index == 5
    assert (report.rows[0].batch, report.rows[0].position) == (2, 1)
    assert set(report.worst["output"].values()) <= set(range(8))
    assert report.worst["output"]["cosine"] == report.worst["output"]["mse"] == 5
    assert report.indices(3)[0] == 5
    assert len(report.rows) == 8
    with torch.no_grad():
        want, got = model(data[2])[1].numpy().astype(np.float64), made.eval()(data[2])[1].numpy()
    assert report.rows[0].mse == pytest.approx(np.mean((want - got) ** 2), rel=1e-9)


def test_cases_of_a_fixed_point_model_by_a_metric_of_ones_own() -> None:
    model, made, batches = prepared_of("heads")

    def largest(want: np.ndarray, got: np.ndarray) -> float:
        return float(np.abs(want - got).max())

    report = debug.bad_cases(model, convert(made), batches, metric=largest, progress=False)
    assert {r.output for r in report.rows} == {"hm", "vaf"}
    assert [r.loss for r in report.rows] == [r.atol for r in report.rows]
    assert "by largest" in report.about
    exact = debug.bad_cases(made, convert(made), batches, reference_mode="exact", progress=False)
    assert {r.mse for r in exact.rows} == {0.0}


def test_calls_are_counted() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.never, self.sum = nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1), FloatFunctional()

        def forward(self, x: Tensor) -> Tensor:
            x = self.sum.add(self.b(self.a(x)), self.b(self.a(x)))
            return self.sum.add(x, x)

    report = debug.called_counts(Odd(), torch.zeros(1, 3, 2, 2))
    assert {r.name: r.calls for r in report.rows} == {"a": 2, "b": 2, "never": 0, "sum": 2}
    assert "scale of its own" in report.row("a").remark
    assert "one FloatFunctional per call" in report.row("sum").remark
    assert report.row("never").flagged


class Unfused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.two, self.late = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.up, self.bn = (
            nn.ConvTranspose2d(4, 4, 1),
            nn.BatchNorm2d(4),
        )
        self.wide = nn.Conv2d(4, 1, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.two(x)
        b = functional.relu(a) + torch.sigmoid(a)  # a is read twice
        c = self.bn(functional.relu(self.late(b)))  # a relu stands before the norm
        d = self.up(c) + b  # an accumulator that takes no operand
        e = self.wide(d) + d  # shapes differ
        return self.head(e)


def test_what_is_not_fused_and_why() -> None:
    set_march("nash-e")
    model = Unfused().eval()
    report = debug.check_unfused(model, (torch.randn(1, 3, 4, 4),))
    found = {(r.kind, r.behind.split(" ")[0]): r.why for r in report.rows}
    assert found.keys() == {("relu", "two"), ("batch_norm", "late"), ("add", "up"), ("add", "wide")}
    assert "read by sigmoid, too" in found["relu", "two"]
    assert found["batch_norm", "late"] == "a relu is fused into late before it"
    assert "ConvTranspose2d takes no second operand" in found["add", "up"]
    assert "(1, 1, 4, 4) and (1, 4, 4, 4)" in found["add", "wide"]
    assert debug.check_unfused(prepare(model, (torch.randn(1, 3, 4, 4),))).rows == report.rows


def test_a_fused_net_has_nothing_to_say() -> None:
    model, _, batches = prepared_of("residual")
    assert debug.check_unfused(model, batches[0]).notes == ("nothing is left unfused",)


def test_qconfigs_as_they_are() -> None:
    odd = ModuleNameSetter(
        {"a": QConfig(FakeQuantSpec("int16", averaging=0.5)), "stem": QConfig(FakeQuantSpec(scale=0.25))}
    )
    set_march("nash-e")
    model, batches = built("residual")
    made = prepare(model, batches[0], odd)
    report = debug.check_qconfig(made)
    assert report.row("a").output == "int16"
    assert report.row("b").inputs == ("int16", "int16")
    assert report.row("head").output == "int32"
    assert any("averaging is 0.5" in u for u in report.row("a").unusual)
    assert any("fixed scale 0.25" in u for u in report.row("stem.0").unusual)
    assert any("up to 32" in u for u in report.row("stem.0").unusual)
    assert any("no scale yet" in u for u in report.row("b").unusual)
    calibrate(made, [(40 * b[0],) for b in batches], progress=False)
    report = debug.check_qconfig(made)
    row = report.row("x_quant")
    reach = float(units_of(made)["x_quant"].activation_post_process.scale) * 128
    assert row.scale == pytest.approx(reach / 128)
    assert any(f"up to {reach:.3g}" in u for u in row.unusual)
    assert report.row("head").unusual == ()


def test_hints_of_tails_stand_in_the_qconfigs() -> None:
    _, made, _ = prepared_of("heads")
    assert any("not int32, as a relu is fused" in u for u in debug.check_qconfig(made).row("vaf").unusual)


def test_shared_weights_are_told() -> None:
    _, made, _ = prepared_of("shared")
    assert any("shared by 2 calls" in u for u in debug.check_qconfig(made).row("shared").unusual)


def test_everything_on_one_page(tmp_path: Path) -> None:
    model, made, batches = prepared_of("residual")
    reports = debug.profile(model, made, batches, tmp_path / "page.html", steps=2, progress=False)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len({r.title for r in reports}) == len(reports) == 10
    assert all(f'<a href="#r{i}">{r.title}</a>' in text for i, r in enumerate(reports))
    assert "Residual on nash-e" in text
    cases = next(r for r in reports if r.title == "Bad cases")
    assert len(cases.rows) == 4  # two batches of two
