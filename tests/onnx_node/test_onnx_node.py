"""ONNX's own node tests: what hbc takes comes out right; what of the promised operators it doesn't is named here.

`python -m tests.onnx_node` prints the counts; docs/onnx-node-tests.md holds them.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="CPU segments and the reference need ONNX Runtime")

from tests.ort_age import needs_young_onnxruntime

from .cases import node_cases
from .judge import FAILED, PASSED, REFUSED, judge
from .wrap import NOT_RUN, judge_wrapped, wrap

CHUNKS = 16

# Why a test of promised operators may be refused: what its model is about is not a promise.
TYPED = r"(\d+ inputs can't be taken in: input '…': |its result '…' has )?element type ({}),? (which )?isn't taken"
ALLOWED = {
    TYPED.format("STRING"): "the BPU and its tools know numbers alone",
    TYPED.format("BFLOAT16"): "a float of the training side",
    TYPED.format(r"FLOAT8\w+|FLOAT4\w+"): "floats of 8 and 4 bits are none of the BPU's types",
    TYPED.format("U?INT[24]"): "integers of 4 and 2 bits are for weights, which are constants",
    r"an input is no tensor": "sequences and optionals are no tensors",
    r"ONNX Runtime refuses node '…' \(TopK\)": "of u64, for which it has no kernel",
}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_models_come_out_right_or_are_refused_with_reason(chunk: int) -> None:
    cases = node_cases()[chunk::CHUNKS]
    assert cases
    verdicts = [(c, judge(c)) for c in cases]
    assert [v for _, v in verdicts if v.outcome == FAILED] == []
    refused = [v for c, v in verdicts if c.is_promised and v.outcome == REFUSED]
    assert [v for v in refused if not any(re.match(kind, v.why) for kind in ALLOWED)] == []


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_quantised_forms_agree_with_onnx_runtime(chunk: int, arith: str) -> None:
    verdicts = [judge_wrapped(c, arith) for c in node_cases()[chunk::CHUNKS]]
    judged = [v for v in verdicts if v is not None]
    assert len(judged) >= 10
    assert [v for v in judged if v.outcome != PASSED and not v.why.startswith(NOT_RUN)] == []


def test_onnx_runtime_runs_nearly_every_quantised_form() -> None:
    """Layout 1 of recurrent ops, exponents of u32 and u64, a mode of opset 28, and opset 9, which has no Q/DQ."""
    needs_young_onnxruntime("does not run some that later ones do")
    without = {"GRU": 1, "LSTM": 1, "Pow": 2, "SpaceToDepth": 4, "Upsample": 1}
    cases = [c for c in node_cases() if not isinstance(wrap(c), str)]
    verdicts = [(c, judge_wrapped(c, "bpu")) for c in cases if c.operators & {*without, "GridSample"}]
    missing = Counter(op for c, v in verdicts if v is not None and v.why.startswith(NOT_RUN) for op in c.operators)
    assert missing == without
