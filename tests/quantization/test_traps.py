"""The traps of a quantisation project: each mistake meets an error that names the thing, says why and what to try."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402

import hbc  # noqa: E402
from hbc.diagnostics import HbcError, OptionError, QuantizationError  # noqa: E402
from hbc.quantization import (  # noqa: E402
    CALIBRATION,
    QAT,
    FakeQuantize,
    FakeQuantSpec,
    FloatFunctional,
    March,
    ModuleNameSetter,
    SensitiveOpSetter,
    calibrate,
    check_optimizer,
    compile_model,
    convert,
    export,
    export_to_onnx,
    fuse_fx,
    get_march,
    prepare,
    prepare_qat_fx,
    set_fake_quantize,
    set_forward,
    set_march,
)
from tests.quantization.models import IMAGE, built  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def march() -> Iterator[None]:
    set_march("nash-e")
    yield
    set_march("nash-e")


def fails(kind: type[HbcError], call: Callable[[], Any], code: str, *words: str) -> None:
    """`call` raises an error of this code, and its text holds every word."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert caught.value.diagnostic.code == code, text
    for word in words:
        assert word in text, text
    assert "try:" in text, "no hint what to do"


def prepared(*, calibrated: bool = True, **options: Any) -> tuple[Any, list[Any]]:
    model, batches = built("residual")
    twin = prepare(model, batches[0], **options)
    if calibrated:
        calibrate(twin, batches, progress=False)
    return twin, batches


class Reuser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.add = FloatFunctional()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Any) -> Any:
        return self.block.add.add(self.block.add.add(self.conv(x), x), x)


def test_a_functional_that_is_called_twice() -> None:
    words = ("'block.add' is called 2 times", "one scale", "one FloatFunctional per call")
    fails(QuantizationError, lambda: prepare(Reuser(), torch.zeros(IMAGE)), "E0905", *words)


@pytest.mark.parametrize("again", [fuse_fx, lambda m: prepare(m, torch.zeros(IMAGE))])
def test_preparing_and_fusing_twice(again: Callable[[Any], Any]) -> None:
    model, _ = prepared(calibrated=False)
    fails(QuantizationError, lambda: again(model), "E0904", "prepared already", "'stem.0'", "prepare fuses by itself")


def test_fusing_twice_changes_nothing() -> None:
    model, (batch, *_) = built("residual")
    once = fuse_fx(model)
    assert torch.equal(fuse_fx(once)(*batch), once(*batch))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"qconfig_setter": ModuleNameSetter({"haed": "int16"})}, ("no module 'haed'", "did you mean 'head'")),
        ({"qconfig_setter": ModuleNameSetter({"3": "int16"})}, ("no module '3'", "there are")),
        ({"qconfig_setter": SensitiveOpSetter({"steem.0": 1.0}, topk=1)}, ("'steem.0'", "'stem.0'")),
        ({"cpu": ["stem.9"]}, ("no module 'stem.9'", "'stem.0'")),
        ({"cpu": [nn.Linear]}, ("no type of module 'Linear'", "Conv2d")),
        ({"method": "jit-strip"}, ("no method 'jit-strip'",)),
        ({"bn_mode": "fuse"}, ("no bn_mode 'fuse'", "'fused'")),
    ],
)
def test_names_that_nothing_has(options: dict[str, Any], words: tuple[str, ...]) -> None:
    model, (batch, *_) = built("residual")
    with pytest.raises(OptionError) as caught:
        prepare(model, batch, **options)
    for word in (*words, "try:"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FakeQuantSpec("int61"), ("dtype 'int61'", "'int16'")),
        (lambda: FakeQuantSpec(observer="mes"), ("observer 'mes'", "'mse'")),
        (lambda: FakeQuantSpec(kind="lsqq"), ("'lsqq'", "'lsq'")),
        (lambda: FakeQuantSpec(observer="fixed"), ("'fixed' has no scale", "scale=")),
        (lambda: ModuleNameSetter({"a": 16}), ("qconfig of 'a' is 16", "FakeQuantSpec")),  # type: ignore[dict-item]
        (lambda: ModuleNameSetter({"a": "int61"}), ("dtype 'int61'", "'int16'")),
        (lambda: prepare(nn.DataParallel(nn.ReLU()), torch.zeros(1)), ("DataParallel", "model.module")),
        (lambda: prepare_qat_fx(nn.ReLU(), {"": "int8"}, torch.zeros(1)), ("is 'int8'", "QConfig(")),
        (lambda: FakeQuantize.with_args(obsrver="mse"), ("'obsrver'", "'observer'")),
        (lambda: set_march("nahs"), ("march 'nahs'", "'nash'")),
        (lambda: prepare(nn.ReLU(), torch.zeros(1), "int16"), ("setter is 'int16'", "ModuleNameSetter")),
        (lambda: prepare(torch.relu, torch.zeros(1)), ("torch.nn.Module", "float model")),
        (lambda: SensitiveOpSetter({"a": 1.0}), ("topk or ratio",)),
        (lambda: SensitiveOpSetter({"a": 1.0}, ratio=3.0), ("ratio", "0 to 1")),
        (lambda: FakeQuantSpec(scale=-1.0), ("-1.0", "positive")),
        (lambda: set_fake_quantize(prepared(calibrated=False)[0], "qta"), ("state 'qta'", "'qat'")),
        (lambda: set_forward(prepared(calibrated=False)[0], "exat"), ("'exat'", "'exact'")),  # type: ignore[arg-type]
        (lambda: calibrate(prepared(calibrated=False)[0], []), ("no batch", "isn't empty")),
    ],
)
def test_options_that_mean_nothing(call: Callable[[], Any], words: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("export", export),
        ("export_to_onnx", export_to_onnx),
        ("compile_model", compile_model),
        ("convert", convert),
        ("calibrate", lambda model, batch: calibrate(model, [batch])),
        ("set_fake_quantize", lambda model, _: set_fake_quantize(model, QAT)),
    ],
)
def test_a_float_model_where_a_prepared_one_is_needed(verb: str, call: Callable[..., Any]) -> None:
    model, (batch, *_) = built("residual")
    words = (f"{verb} takes a prepared model", "Residual is a float model", "prepare(model, example_inputs)")
    fails(QuantizationError, lambda: call(model, batch), "E0903", *words)


def test_a_float_state_dict_in_a_prepared_model() -> None:
    model, _ = built("residual")
    twin, (batch, *_) = prepared()
    words = ("state_dict is a float model's", "before prepare")
    for target in (twin, copy.deepcopy(twin)):
        fails(QuantizationError, lambda m=target: m.load_state_dict(model.state_dict()), "E0903", *words)
    fresh, _ = prepared(calibrated=False)
    fresh.load_state_dict(twin.state_dict())
    set_fake_quantize(fresh, "validation")
    assert torch.equal(fresh.eval()(*batch), twin.eval()(*batch))


def test_training_goes_on_from_a_loaded_range() -> None:
    twin, batches = prepared()
    fresh, _ = prepared(calibrated=False)
    fresh.load_state_dict(twin.state_dict())
    for model in (twin, fresh):
        set_fake_quantize(model, QAT)
        model.train()(*batches[1])
    scales = [[m.scale for m in model.modules() if isinstance(m, FakeQuantize)] for model in (twin, fresh)]
    assert all(torch.equal(a, b) for a, b in zip(*scales, strict=True))


def test_no_calibration() -> None:
    model, (batch, *_) = prepared(calibrated=False)
    hint = "calibrate(model, loader)"
    fails(QuantizationError, lambda: convert(model), "E0910", "operations have no scale yet", "'x_quant'", hint)
    fails(QuantizationError, lambda: export_to_onnx(model, batch), "E0910", "'stem.0'", hint)
    fails(QuantizationError, lambda: model.eval()(*batch), "E0910", "'x_quant' has no scale yet", hint)


def test_an_optimizer_of_the_float_model() -> None:
    model, batches = built("residual")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    twin = prepare(model, batches[0])
    count = len(list(model.parameters()))
    words = (f"{count} of the optimizer's {count} parameters", "optimizer after prepare")
    fails(QuantizationError, lambda: check_optimizer(optimizer, twin), "E0909", *words)
    check_optimizer(torch.optim.SGD(twin.parameters(), lr=0.1), twin)


def test_devices() -> None:
    """The device `meta` stands for a GPU: it is everywhere."""
    model, (batch, *_) = built("residual")
    elsewhere = (batch[0].to("meta"),)
    words = ("different devices", "parameters are on cpu", "input 0 is on meta", "x.to('cpu')")
    fails(QuantizationError, lambda: prepare(model, elsewhere), "E0906", *words)
    twin, _ = prepared()
    fails(QuantizationError, lambda: calibrate(twin, [elsewhere], progress=False), "E0906", *words)
    fails(QuantizationError, lambda: convert(twin, elsewhere), "E0906", *words)
    words = ("'x_quant'", "its scale is on cpu, the input is on meta")
    fails(QuantizationError, lambda: twin(*elsewhere), "E0906", *words)
    model.head.to("meta")
    words = ("parts are on different devices", "'head.bias' is on meta", "model.to(device)")
    fails(QuantizationError, lambda: prepare(model, batch), "E0906", *words)


def test_a_batch_norm_in_training_mode_while_calibrating() -> None:
    twin, (batch, *_) = prepared(calibrated=False, bn_mode="with-bn")
    set_fake_quantize(twin, CALIBRATION)
    words = ("batch norm of 'stem.0'", "calibration data", "model.eval()")
    fails(QuantizationError, lambda: twin.train()(*batch), "E0921", *words)
    twin.eval()(*batch)
    set_fake_quantize(twin, QAT)
    twin.train()(*batch)


def test_preparing_leaves_statistics_and_mode_alone() -> None:
    model, (batch, *_) = built("residual")
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    twin = prepare(model, batch)
    assert model.training
    assert twin.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_batch_norms_that_saw_nothing_are_pointed_out() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    assert [h for h in prepare(model, torch.zeros(IMAGE)).hints if h.startswith("1: its statistics")]
    model.train()(torch.randn(IMAGE))
    assert not [h for h in prepare(model, torch.zeros(IMAGE)).hints if "statistics" in h]


def test_the_wrong_march() -> None:
    twin, (batch, *_) = prepared()
    words = ("prepared for nash-e", "bayes computes other integers", "set_march('bayes') before prepare")
    fails(QuantizationError, lambda: compile_model(twin, batch, march="bayes"), "E0920", *words)
    assert compile_model(twin, batch, march="nash-m").module.march == "nash-m"  # the same integers
    set_march(March.BAYES)
    assert get_march() is March.BAYES
    assert convert(twin).compiled.module.march == "nash-e"  # the one that it was prepared for


def test_int16_where_there_is_none() -> None:
    set_march("bernoulli2")
    setter = ModuleNameSetter({"a": "int16"})
    fails(QuantizationError, lambda: prepared(qconfig_setter=setter), "E0908", "bernoulli2", "'a'", "use int8")


def test_inputs_that_the_model_does_not_take() -> None:
    model, _ = built("residual")
    words = ("fails on its example inputs", "module 'stem.0'", "RuntimeError", "channels")
    fails(QuantizationError, lambda: prepare(model, torch.zeros(1, 5, 8, 8)), "E0902", *words)


@pytest.mark.parametrize(
    "given", [({"image": torch.zeros(1, 3, 8, 8)},), (), ("image",), ([torch.zeros(1, 3, 8, 8)],), (None,)]
)
def test_batches_that_the_model_does_not_take(given: Any) -> None:
    twin, _ = prepared()
    fixed = convert(twin, engine="reference")
    calls = [lambda: fixed(*given), lambda: convert(twin, given)]
    if given:
        calls.append(lambda: calibrate(twin, [given], progress=False))
    for call in calls:
        with pytest.raises(OptionError, match=r"no tensor for the input 'x'(.|\n)*give what the model takes"):
            call()


def test_a_scripted_model() -> None:
    model, (batch, *_) = built("residual")
    with pytest.raises(OptionError, match="not a TorchScript module"):
        prepare(torch.jit.trace(model, batch), batch)


def test_tracing() -> None:
    """A prepared model becomes TorchScript with torch's fake quantisation; a fixed-point one can't."""
    twin, (batch, *_) = prepared()
    traced = torch.jit.trace(twin.eval(), batch, check_trace=False)
    assert "fake_quantize_per_channel_affine" in str(traced.inlined_graph)
    set_forward(twin, "plain")
    with torch.no_grad():
        difference = (traced(*batch) - twin(*batch)).abs().max()
        step = twin.head.sources[0].scale * twin.head.weight.abs().sum((1, 2, 3)).max()
    assert difference <= step  # ties are rounded otherwise: a quantum of the head's input
    fixed = convert(twin)
    fails(QuantizationError, lambda: torch.jit.trace(fixed, batch), "E0922", "can't be traced", "model.hbm")


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_a_norm_that_computes_the_weight_by_a_hook(norm: str) -> None:
    """torch copies no such weight: said with the module's name; the parametrization of the same name is taken."""
    batch = torch.randn(IMAGE)

    def net(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own advice against weight_norm
            model = nn.Sequential(wrap(nn.Conv2d(3, 4, 1)), nn.ReLU(), nn.Conv2d(4, 4, 1))
        model(batch)  # in training, where the hook computes the weight
        return model

    old = net(getattr(nn.utils, norm))
    for call in (prepare, fuse_fx):
        words = ("'weight' of '0' (Conv2d)", f"parametrizations.{norm}", f"remove_{norm}")
        fails(OptionError, functools.partial(call, old, (batch,)), "E0003", *words)
    getattr(nn.utils, f"remove_{norm}")(old[0])
    assert prepare(old, batch)(batch).shape == old(batch).shape
    new = net(getattr(nn.utils.parametrizations, norm))
    twin = prepare(new, batch)
    set_fake_quantize(twin, CALIBRATION)
    twin(batch)
    compile_model(convert(twin), batch)


def test_a_module_that_keeps_a_result() -> None:
    """A feature kept with its gradients can't be copied, in an attribute or in a list of one."""

    class Keeps(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = [super().forward(x)]
            return self.kept[0]

    model = nn.Sequential(Keeps(3, 4, 1))
    batch = torch.randn(IMAGE)
    model(batch)
    fails(OptionError, lambda: prepare(model, batch), "E0003", "'kept' of '0' (Keeps)", "detach()")
    model[0].kept = None
    prepare(model.eval(), batch)


def test_a_name_that_the_package_lacks() -> None:
    with pytest.raises(AttributeError, match="prepare_qat"):
        hbc.quantization.prepare_qat_fxx  # noqa: B018


def test_a_name_that_is_fused_away_stands_for_what_it_is_fused_into() -> None:
    for name, unit in (("stem.1", "stem.0"), ("bn", "a"), ("stem", "stem.0")):
        twin, _ = prepared(calibrated=False, qconfig_setter=ModuleNameSetter({name: "int16"}))
        found = [n for n, m in twin.named_modules() if getattr(getattr(m, "spec", None), "dtype", "") == "int16"]
        assert found == [f"{unit}.activation_post_process"]
        assert not [h for h in twin.hints if "no effect" in h]


def test_a_name_without_effect_is_pointed_out() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5), nn.Conv2d(4, 4, 1))
    twin = prepare(model, torch.zeros(IMAGE), ModuleNameSetter({"1": "int16"}))
    assert [h for h in twin.hints if h.startswith("1: its qconfig has no effect")]


def test_a_wrapper_s_prefix() -> None:
    model, (batch, *_) = built("residual")
    with pytest.raises(OptionError, match=r"did you mean 'stem\.0'"):
        prepare(model, batch, ModuleNameSetter({"module.stem.0": "int16"}))
