"""Templates and setters: which operation gets which integers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from torch import nn  # noqa: E402

from hbc.quantization import (  # noqa: E402
    DefaultSetter,
    DeQuantStub,
    FakeQuantize,
    FakeQuantSpec,
    ModuleNameSetter,
    QConfig,
    QuantStub,
    SensitiveOpSetter,
    UnitInfo,
    calibration_setter,
    default_qat_fixed_act_qconfig_setter,
    prepare,
)
from hbc.quantization.units import units_of  # noqa: E402
from tests.quantization.models import IMAGE, built  # noqa: E402

pytestmark = pytest.mark.torch


def dtypes(name: str, setter: Any = None) -> dict[str, str]:
    """Each operation's type of integers."""
    model, batches = built(name)
    found = units_of(prepare(model, batches[0], setter))
    fqs = {n: u.activation_post_process for n, u in found.items()}
    return {n: "int32" if fq is None else fq.spec.dtype for n, fq in fqs.items()}


def of(table: dict[str, str], dtype: str) -> set[str]:
    return {n for n, d in table.items() if d == dtype}


def test_the_default_is_int8_with_accumulators_at_the_ends() -> None:
    found = dtypes("residual")
    assert of(found, "int32") == {"head"}
    assert of(found, "int16") == set()
    assert len(of(found, "int8")) == 4


def test_an_end_that_cannot_be_wide_says_why() -> None:
    model, batches = built("heads")
    prepared = prepare(model, batches[0])
    assert prepared.hints == ["vaf: the result is int8, not int32, as a relu is fused into it"]
    assert dtypes("heads")["hm"] == "int32"
    assert dtypes("heads")["vaf"] == "int8"


def test_wide_ends_can_be_left() -> None:
    assert of(dtypes("residual", DefaultSetter(wide_tails=False)), "int32") == set()


def test_the_way_to_a_grid_is_int16_back_to_the_product() -> None:
    found = dtypes("grid-sample")
    assert of(found, "int16") == {"offset", "tanh"}
    assert found["features"] == "int8"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"topk": 1}, {"b"}),
        ({"topk": 2}, {"a", "b"}),
        ({"ratio": 0.5}, {"a", "b"}),
        ({"ratio": 1.0}, {"a", "b", "stem.0"}),  # the head keeps its accumulator
        ({"topk": 0}, set()),
    ],
)
@pytest.mark.parametrize("as_rows", [False, True])
def test_the_most_sensitive_operations(options: dict[str, Any], wanted: set[str], *, as_rows: bool) -> None:
    table = {"stem.0": 0.1, "b": 0.9, "a": 0.5, "head": 0.05}
    setter = SensitiveOpSetter(list(table.items()) if as_rows else table, **options)
    assert of(dtypes("residual", setter), "int16") == wanted


def test_the_longest_name_wins_and_the_first_setter() -> None:
    names = ModuleNameSetter({"": "int16", "stem": "int8", "a": QConfig(FakeQuantSpec("int8", "kl"))})
    assert of(dtypes("residual", names), "int8") == {"stem.0", "a"}
    first = ModuleNameSetter({"b": "int8"})
    assert of(dtypes("residual", (first, names)), "int8") == {"stem.0", "a", "b"}


def test_a_setter_is_any_function_of_what_it_is_told() -> None:
    told: dict[str, UnitInfo] = {}

    def setter(unit: UnitInfo) -> QConfig | None:
        told[unit.name] = unit
        return QConfig(FakeQuantSpec("int16")) if unit.kind == "sigmoid" else None

    assert of(dtypes("shared", setter), "int16") == {"sigmoid"}
    assert told["head"].is_tail
    assert told["head"].can_be_wide
    assert not told["sigmoid"].is_weighted
    assert set(told) == set(dtypes("shared"))


def test_observers_and_averaging_of_the_templates() -> None:
    model, batches = built("residual")
    for setter, spec in (
        (calibration_setter("percentile", percentile=0.99), FakeQuantSpec("int8", "percentile", percentile=0.99)),
        (default_qat_fixed_act_qconfig_setter, FakeQuantSpec(averaging=0.0)),
    ):
        prepared = prepare(model, batches[0], setter)
        assert prepared.a.activation_post_process.spec == spec
        assert prepared.a.weight_fake_quant.spec == FakeQuantSpec("int8", "min-max")


def test_a_fixed_scale_of_a_stub() -> None:
    model = nn.Sequential(QuantStub(scale=1 / 64), nn.Conv2d(3, 2, 1), DeQuantStub())
    prepared = prepare(model, torch.zeros(IMAGE))
    fq = prepared.get_submodule("0").activation_post_process
    assert isinstance(fq, FakeQuantize)
    assert float(fq.scale) == 1 / 64
    prepared.train()(torch.randn(IMAGE) * 100)
    assert float(fq.scale) == 1 / 64


def test_calls_of_a_shared_layer_share_its_weight_s_scale() -> None:
    model, batches = built("shared")
    units = units_of(prepare(model, batches[0]))
    assert units["shared"].weight_fake_quant is units["shared_2"].weight_fake_quant
    assert units["shared"].weight is units["shared_2"].weight
    assert units["shared"].activation_post_process is not units["shared_2"].activation_post_process
