"""Every ONNX operator that hbc promises, alone between Q and DQ, beside ONNX Runtime with its optimiser off.

Three kinds of activations (`Kind`), both arithmetics; shapes, attributes, scales and zero points by hypothesis. How far
an op may be off, why, and where it must run stands in `op_cases/table.py`. Files by family ask more of single ops.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

import hbc
from hbc_runtime import Session
from tests.differential.op_cases.draw import Draw, Kind, OpCase
from tests.differential.op_cases.table import BUILD, CPU, EITHER, LIMITS, NO_WIDE
from tests.differential.quantised import ARITHS, cpu_reasons, distance
from tests.onnx_node.cases import PROMISED
from tests.ort_age import needs_young_onnxruntime
from tests.unit.frontend.net import onnxruntime_outputs

SOME = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
YOUNG = {"RMSNormalization": "has no opset 23"}
each = pytest.mark.parametrize("op", sorted(BUILD))
both = pytest.mark.parametrize("arith", ARITHS)


def test_every_promised_operator_has_an_entry() -> None:
    assert set(BUILD) == PROMISED
    assert set(CPU) | {op for op, _, _ in EITHER} | NO_WIDE <= PROMISED
    assert all(limit.why for limit in LIMITS.values())


@each
@both
@SOME
@given(st.data())
def test_symmetric(arith: str, op: str, data: st.DataObject) -> None:
    check(op, Kind.SYMMETRIC, arith, data)


@each
@both
@SOME
@given(st.data())
def test_with_zero_points(arith: str, op: str, data: st.DataObject) -> None:
    check(op, Kind.AFFINE, arith, data)


@each
@both
@SOME
@given(st.data())
def test_of_16_bits_or_plain(arith: str, op: str, data: st.DataObject) -> None:
    check(op, Kind.PLAIN if op in NO_WIDE else Kind.WIDE, arith, data)


def check(op: str, kind: Kind, arith: str, data: st.DataObject) -> None:
    """One drawn case: it runs where the table says, and its outputs are as near as the table asks.

    The NumPy engine runs it; `tests/exact` hold the JIT to the same bits, and now and then so does this.
    """
    if op in YOUNG:
        needs_young_onnxruntime(YOUNG[op])
    case: OpCase = BUILD[op](Draw(data.draw, kind))
    model = case.model()
    program = hbc.compile(model, arith=arith).program
    reasons = cpu_reasons(program)
    if case.on_cpu is not None or (op, kind, arith) not in EITHER:
        expected = (kind, arith) in CPU.get(op, ()) if case.on_cpu is None else case.on_cpu
        assert bool(reasons) == expected, reasons or "nothing of this runs on the CPU"
    engine = data.draw(st.sampled_from(["reference"] * 9 + ["jit"]))
    ours = Session(program, engine=engine).run(case.feeds)
    limit = 0 if case.exact else LIMITS[op].of(kind, arith)
    assert distance(ours, onnxruntime_outputs(model, case.feeds)) <= limit
