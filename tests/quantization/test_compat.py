"""The names that users of the vendor's plugin know, and what they return."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import Tensor, nn  # noqa: E402

import hbc  # noqa: E402
from hbc.diagnostics import HbcError, OptionError, QuantizationError, codes  # noqa: E402
from hbc.ir.parser import parse_module  # noqa: E402
from hbc.ir.printer import print_module  # noqa: E402
from hbc.quantization import (  # noqa: E402
    FakeQuantSpec,
    ModuleNameSetter,
    QConfig,
    calibrate,
    check_model,
    compile_model,
    convert,
    convert_fx,
    export,
    export_to_onnx,
    fuse_fx,
    get_default_qat_qconfig,
    observers,
    perf_model,
    prepare,
    prepare_calibration_fx,
    prepare_qat_fx,
    set_fake_quantize,
    set_march,
    visualize_model,
)
from tests.quantization.models import MODELS, built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def ready(name: str = "residual", setter: Any = None) -> tuple[Any, list[Any]]:
    model, batches = built(name)
    prepared = prepare(model, batches[0], setter)
    calibrate(prepared, batches, progress=False)
    return prepared, batches


# ---- prepare and convert


def test_the_familiar_way() -> None:
    """fuse_fx → prepare_calibration_fx → its scales into prepare_qat_fx → convert_fx: the same as prepare's."""
    model, batches = built("residual")
    calibrated = prepare_calibration_fx(fuse_fx(model).eval(), {"": get_default_qat_qconfig()}, batches[0])
    for batch in batches:
        calibrated(*batch)
    qat = prepare_qat_fx(fuse_fx(model), {"": get_default_qat_qconfig()}, batches[0])
    qat.load_state_dict(calibrated.state_dict())
    set_fake_quantize(qat, "validation")
    fixed = convert_fx(qat.eval(), engine="reference")
    ours, _ = ready()
    assert torch.equal(fixed(*batches[1]), convert(ours, engine="reference")(*batches[1]))


def test_calibration_has_a_histogram_by_default() -> None:
    model, batches = built("residual")
    calibrated = prepare_calibration_fx(model, None, batches[0])
    fq = calibrated.a.activation_post_process
    assert fq.spec.observer == "mix"
    assert (fq.observing, fq.quantizing) == (True, False)


def test_qconfigs_and_hybrids_by_name() -> None:
    model, batches = built("residual")
    wide = QConfig(FakeQuantSpec("int16"))
    kept = {"module_type": [nn.ReLU], "module_name": ["bn"]}
    qat = prepare_qat_fx(model, {"module_name": [("b", wide)]}, batches[0], hybrid_dict=kept)
    calibrate(qat, batches, progress=False)
    rows = {line.split()[0]: line for line in visualize_model(qat, None).splitlines()}
    assert "real" in rows["stem.2"]
    assert "real" in rows["bn"]
    assert "int16" in rows["b"]
    assert isinstance(qat.bn, nn.BatchNorm2d)
    fixed = convert(qat, engine="reference")
    assert {s.device for s in fixed.compiled.report.segments} == {"bpu", "cpu"}
    with torch.no_grad():
        assert torch.equal(qat.eval()(*batches[1]), fixed(*batches[1]))
    places = {r.module: r for r in check_model(qat, batches[0]).rows}
    assert {n: places[n].device for n in ("stem.0", "stem.2", "bn", "b")} == {
        "stem.0": "bpu",
        "stem.2": "cpu",
        "bn": "cpu",
        "b": "bpu",
    }
    assert "kept on the CPU" in places["bn"].reason


def test_a_result_is_read_on_both_devices() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.head, self.tail = nn.Conv2d(3, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 1), nn.ReLU()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.relu(self.conv(x))
            return self.head(y), self.tail(self.act(y))

    torch.manual_seed(0)
    model, x = Both().eval(), torch.randn(2, 3, 6, 6)
    prepared = prepare(model, (x,), cpu=["act", nn.ReLU])
    calibrate(prepared, [(x,)], progress=False)
    fixed = convert(prepared, engine="reference")
    with torch.no_grad():
        ours, theirs = prepared.eval()(x), fixed(x)
    assert torch.equal(ours[0], theirs[0])
    # Tanh in float32 by two libraries: at most 2 units of the last of 24 bits.
    assert float((ours[1] - theirs[1]).abs().max()) <= 2**-22
    assert {r.module for r in check_model(prepared, (x,)).on_cpu} == {"act", "tail"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x: prepare_qat_fx(m), "example_inputs are missing"),
        (lambda m, x: prepare_qat_fx(m, {"module_nmae": []}, x), "'module_name'"),
        (lambda m, x: prepare_qat_fx(m, None, x, hybrid_dict={"names": []}), "hybrid_dict 'names'"),
        (lambda m, x: prepare_calibration_fx(m, {"module_name": [("aa", QConfig())]}, x), "no module 'aa'"),
    ],
)
def test_mistakes(call: Any, words: str) -> None:
    model, batches = built("residual")
    with pytest.raises(OptionError, match=words):
        call(model, batches[0])


# ---- fuse_fx


@pytest.mark.parametrize("name", ["residual", "depthwise", "deconv", "concat-norm"])
@pytest.mark.parametrize("by_example", [False, True])
def test_fusing_folds_batch_norms(name: str, *, by_example: bool) -> None:
    model, batches = built(name)
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    fused = fuse_fx(model, batches[0] if by_example else None)
    left = [n for n, m in fused.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert left == (norms if name == "concat-norm" else [])  # behind a concat there is nothing to fold into
    assert dict(fused.named_modules()).keys() == dict(model.named_modules()).keys()
    wanted, found = model(*batches[0]), fused(*batches[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)  # float32, in another order
    assert norms == [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]  # the model itself stays
    again = fuse_fx(fused)
    assert torch.equal(again(*batches[0]), found)


def test_a_shared_layer_is_not_folded() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.a, self.b = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.conv(x)) + self.b(self.conv(x))

    fused = fuse_fx(Twice().eval())
    assert isinstance(fused.a, nn.BatchNorm2d)
    assert isinstance(fused.b, nn.BatchNorm2d)


def test_what_cannot_be_traced_needs_an_example() -> None:
    class Branch(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if float(x.sum()) > 0 else -x)

    model, x = Branch(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)).eval(), torch.ones(1, 3, 2, 2)
    with pytest.raises(OptionError, match=r"needs example_inputs(.|\n)*fuse_fx\(model, \(x,\)\)"):
        fuse_fx(model)
    fused = fuse_fx(model, (x,))
    assert isinstance(fused[1], nn.Identity)
    torch.testing.assert_close(fused(-x), model(-x))


# ---- check, perf, visualize


def test_check_says_where_each_operation_runs_and_why() -> None:
    prepared, batches = ready()
    check = check_model(prepared, batches[0])
    assert check.is_whole
    assert {(r.module, r.device) for r in check.rows} >= {("stem.0", "bpu"), ("a", "bpu"), ("head", "bpu")}
    mixed, batches = ready("mixed")
    check = check_model(mixed, batches[0])
    (clamp, *_) = check.on_cpu
    assert not check.is_whole
    assert clamp.module == "clamp"
    assert clamp.reason
    lines = str(check).splitlines()
    assert any("Clip" in line and "cpu" in line and clamp.reason in line for line in lines)


def test_check_lists_hints_and_failures() -> None:
    model, batches = built("heads")
    prepared = prepare(model, batches[0])
    check = check_model(prepared, batches[0])  # not calibrated
    assert "no scale yet" in check.failure
    assert str(check) == check.failure
    calibrate(prepared, batches, progress=False)
    assert any("vaf" in h and "relu" in h for h in check_model(prepared, batches[0]).hints)


def test_weights_of_int16_beside_int16_are_explained() -> None:
    setter = ModuleNameSetter({"": QConfig(FakeQuantSpec("int16"), FakeQuantSpec("int16", "min-max"))})
    prepared, batches = ready(setter=setter)
    places = check_model(prepared, batches[0]).on_cpu
    assert any(p.module == "a" and "never i16 beside i16" in p.reason for p in places)


def test_perf_is_the_estimate(tmp_path: Any) -> None:
    prepared, batches = ready()
    found = perf_model(prepared, batches[0], out_dir=tmp_path / "perf")
    assert found["summary"]["FPS"] > 0
    assert found["summary"]["latency (ms)"] > 0
    assert found["summary"]["BPU march"] == "nash-e"
    (written,) = (tmp_path / "perf").glob("*.json")
    assert json.loads(written.read_text()) == json.loads(json.dumps(found))
    (shown,) = (tmp_path / "perf").glob("*.html")
    assert "stem.0" in shown.read_text()
    with pytest.raises(OptionError, match=r"no board 's1000'(.|\n)*s100"):
        perf_model(prepared, batches[0], board="s1000")


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_as_text(name: str) -> None:
    """One line per operation; every quantised one with its integers."""
    prepared, _ = ready(name)
    lines = visualize_model(prepared, None).splitlines()
    named = [line.split()[0] for line in lines]
    calls = [n for n in named if n != "dequant"]  # a stub may be called again
    assert len(set(calls)) == len(calls)
    units = [n for n, m in prepared.named_modules() if getattr(m, "is_unit", False) and n in named]
    assert len(units) >= 4
    assert all("int" in line for line in lines if line.split()[0] in units)


def test_pictures(tmp_path: Any) -> None:
    prepared, batches = ready()
    text = visualize_model(prepared, batches[0], tmp_path / "m.txt")
    assert (tmp_path / "m.txt").read_text() == text
    (line,) = (x for x in text.splitlines() if x.startswith("a "))
    assert "Conv2d + add + relu  int8 × " in line
    assert line.endswith("← stem.0, stem.0")
    visualize_model(prepared, batches[0], tmp_path / "m.html")
    assert (tmp_path / "m.html").read_text().startswith("<!DOCTYPE html>")
    visualize_model(prepared, batches[0], tmp_path / "m.hbir")
    parse_module((tmp_path / "m.hbir").read_text())
    with pytest.raises(OptionError, match=r"no picture that hbc draws(.|\n)*\.html"):
        visualize_model(prepared, batches[0], tmp_path / "m.pdf")


def test_converted_models(tmp_path: Path) -> None:
    """Compiled, checked, estimated and shown as the prepared model was when it was converted."""
    prepared, batches = ready()
    fixed = convert(prepared, engine="reference", output_names=["y"])
    then = fixed.compiled.to_bytes()
    with torch.no_grad():
        prepared.get_parameter("head.weight").mul_(2)
    compiled = compile_model(fixed, batches[0], tmp_path / "m.hbm")
    assert compiled.to_bytes() == then == (tmp_path / "m.hbm").read_bytes()
    assert compile_model(prepared, batches[0]).to_bytes() != then
    levels = compile_model(fixed, batches[0], optimize_level="O0")
    assert [o.name for o in levels.program.models[0].outputs] == ["y"]
    assert check_model(fixed, batches[0]).is_whole
    assert perf_model(fixed, batches[0]) == perf_model(convert(prepared, engine="reference"), batches[0])
    text = visualize_model(fixed, batches[0], tmp_path / "m.html")
    parse_module(text)
    assert print_module(export(fixed, batches[0])) != text  # before the passes
    wanted = {
        lambda: compile_model(fixed, batches[0], march="bayes"): ("nash-e", "bayes computes other integers"),
        lambda: compile_model(fixed, (torch.zeros(3, 3, 8, 8),)): ("it takes 2×3×12×16", "has 3×3×8×8", "convert("),
        lambda: compile_model(fixed, batches[0], output_names=["z"]): ("give output_names to convert",),
        lambda: export_to_onnx(fixed, batches[0]): ("FixedPointModel is converted already", "that convert was given"),
        lambda: calibrate(fixed, batches): ("calibrate takes a prepared model", "converted already"),
    }
    for call, words in wanted.items():
        with pytest.raises(HbcError) as caught:
            call()
        assert all(w in str(caught.value) for w in words), str(caught.value)


@pytest.mark.parametrize("call", [check_model, perf_model, visualize_model])
def test_float_models(call: Any) -> None:
    set_march("nash-e")
    model, batches = built("residual")
    with pytest.raises(QuantizationError, match=f"{call.__name__} takes a prepared model"):
        call(model, batches[0])


def test_the_guide_names_what_there_is() -> None:
    """Every name of the kit is on docs/qat.md or is found from one that is; its codes and observers are right."""
    page = (Path(__file__).parents[2] / "docs" / "qat.md").read_text(encoding="utf-8")
    for name in observers.OBSERVERS:
        assert f"`{name}`" in page or name == "fixed"
    for name in FakeQuantSpec.__dataclass_fields__:
        assert f"| `{name}` |" in page
    known = {c.CODE for c in codes()}
    named = set(re.findall(r"E\d{4}", page))
    assert len(named) >= 9
    assert named <= known
    quoted = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)[`(]", page))
    kit = set(hbc.quantization.__all__)
    assert {n for n in quoted if n.startswith(("prepare", "set_", "convert", "export", "default_qat"))} - kit <= {
        "set_qat_mode"
    }
