"""Nets that int8 hardly holds are flagged, for the right reason, and int16 on what is flagged rescues them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the quantisation kit needs PyTorch")

from hbc.diagnostics import HbcError  # noqa: E402
from hbc.quantization import calibrate, convert, debug, get_default_qat_qconfig, prepare, set_march  # noqa: E402
from hbc.quantization.qconfig import DefaultSetter, FakeQuantSpec, QConfig, UnitInfo  # noqa: E402
from tests.quantization.hostile import CASES, hostile  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
RANGES = DefaultSetter(QConfig(FakeQuantSpec(observer="min-max")))
RUINED, RESCUED = 22.0, 30.0  # dB: below and above what counts as close (27)


def prepared_of(model: Any, data: Any, *setters: Any) -> Any:
    set_march("nash-e")
    made = prepare(model, (data[0],), (*setters, RANGES))
    calibrate(made, data, progress=False)
    return made


def sqnr(model: Any, prepared: Any, data: Any) -> float:
    """Of the compiled program's outputs against the float model's, in NumPy."""
    with torch.no_grad():
        want = np.stack([model(x).numpy() for x in data]).astype(np.float64)
        fixed = convert(prepared, engine="reference")
        got = np.stack([fixed(x).numpy() for x in data])
    return float(10 * np.log10((want**2).sum() / ((got - want) ** 2).sum()))


@pytest.mark.parametrize("name", CASES)
def test_flags_are_those_of_the_case(name: str) -> None:
    model, data = hostile(name)
    report = debug.advise(prepared_of(model, data), data)
    assert {(r.name, r.what) for r in report.rows} == {(unit, what) for unit, what, _ in CASES[name].flags}
    for unit, what, word in CASES[name].flags:
        row = next(r for r in report.rows if (r.name, r.what) == (unit, what))
        assert any(word in reason for reason in row.reasons), row.reasons
        assert row.bits is not None
        assert row.bits < 4


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.flags])
def test_int16_on_what_is_flagged_rescues(name: str) -> None:
    model, data = hostile(name)
    int8 = prepared_of(model, data)
    report = debug.advise(int8, data)
    before = sqnr(model, int8, data)
    again = prepared_of(model, data, report.setter)
    after = sqnr(model, again, data)
    assert before < RUINED
    assert after > RESCUED
    assert debug.advise(again, data).rows == ()


def test_a_friendly_net_needs_nothing() -> None:
    model, data = hostile("friendly")
    prepared = prepared_of(model, data)
    assert debug.advise(prepared, data).notes == ("nothing is flagged",)
    assert sqnr(model, prepared, data) > RESCUED


def test_sensitivity_puts_the_flagged_operation_first_and_its_table_rescues() -> None:
    from hbc.quantization import SensitiveOpSetter

    model, data = hostile("wide-channels")
    int8 = prepared_of(model, data)
    report = debug.sensitivity(int8, data, progress=False)
    assert (report.rows[0].name, report.rows[0].what) == ("spread", "result")
    again = prepared_of(model, data, SensitiveOpSetter(report.losses, topk=1))
    assert sqnr(model, again, data) > RESCUED


def test_a_march_without_int16_gets_other_advice() -> None:
    model, data = hostile("wide-channels")
    set_march("bernoulli2")
    try:
        made = prepare(model, (data[0],), RANGES)
    finally:
        set_march("nash-e")
    calibrate(made, data, progress=False)
    report = debug.advise(made, data)
    assert [r.name for r in report.rows] == ["spread"]
    assert "no int16" in report.rows[0].advice
    assert report.setter.names() == []


def test_a_march_without_int16_weights_gets_other_advice() -> None:
    model, data = hostile("wide-weights")
    set_march("bayes-e")
    try:
        made = prepare(model, (data[0],), RANGES)
    finally:
        set_march("nash-e")
    calibrate(made, data, progress=False)
    (row,) = debug.advise(made, data).rows
    assert (row.name, row.what) == ("mix", "weight")
    assert "no int16 weights" in row.advice


def test_an_int16_operand_leaves_the_weight_at_int8() -> None:
    from hbc.quantization import ModuleNameSetter

    model, data = hostile("wide-weights")
    (row,) = debug.advise(prepared_of(model, data, ModuleNameSetter({"x_quant": "int16"})), data).rows
    assert (row.name, row.what) == ("mix", "weight")
    assert "16 by 16" in row.advice


def test_advise_wants_a_prepared_model() -> None:
    model, _ = hostile("friendly")
    with pytest.raises(HbcError, match="advise takes a prepared model"):
        debug.advise(model)


def test_the_setter_keeps_accumulators_at_tails() -> None:
    setter = debug.Int16Setter(frozenset({"head"}), frozenset({"body"}), get_default_qat_qconfig())
    tail = setter(UnitInfo("head", "Conv2d", is_weighted=True, is_tail=True, can_be_wide=True))
    assert tail is not None
    assert tail.output is None
    body = setter(UnitInfo("body", "Conv2d", is_weighted=True))
    assert body is not None
    assert body.output is not None
    assert (body.output.dtype, body.weight.dtype) == ("int8", "int16")
    assert setter(UnitInfo("other", "Conv2d")) is None
