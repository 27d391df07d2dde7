"""Real networks op by op, on real activations: every op fed ONNX Runtime's own integers."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.options import CompileOptions
from hbc.opwise import check_ops
from tests.differential.test_models import MODELS, VARIANTS
from tests.shared_data import shared

pytest.importorskip("onnxruntime", reason="the other side of the comparison")


@pytest.mark.slow
@pytest.mark.parametrize("arith", ["bpu", "onnx"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_every_op_is_within_one_quantum(name: str, variant: str, arith: str) -> None:
    path = shared("models", name, f"{variant}.onnx")
    data = np.load(shared("models", name, f"{variant}_io.npz"))
    inputs = {k.split("__", 1)[1]: data[k] for k in data.files if k.startswith("in0__")}
    results = check_ops(path, CompileOptions(arith=arith), inputs)
    assert len(results) >= 8
    worst = max(results, key=lambda r: r.quanta)
    assert worst.quanta <= 1, worst
