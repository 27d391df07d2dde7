"""ONNX's own tests of operators whose result sizes depend on the data, with no size stated."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="such nodes run by ONNX Runtime (pip install hbc[cpu])")

import hbc
from hbc_runtime import Session

from .cases import NodeCase, is_plain, node_cases

OPERATORS = frozenset(("NonMaxSuppression", "NonZero", "Unique", "Compress"))


def cases() -> list[NodeCase]:
    """Their tests: the model is one node, and what it makes are numbers."""
    chosen = [c for c in node_cases() if len(c.model.graph.node) == 1 and c.operators <= OPERATORS]
    arrays = [[*c.data[0][0].values(), *c.data[0][1].values()] for c in chosen]
    return [c for c, values in zip(chosen, arrays, strict=True) if all(map(is_plain, values))]


def opened(case: NodeCase) -> onnx.ModelProto:
    """The model without the sizes of its outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for o in model.graph.output:
        o.type.tensor_type.ClearField("shape")
    return model


def test_every_operator_has_tests() -> None:
    assert {op for c in cases() for op in c.operators} == OPERATORS
    assert len(cases()) >= 20


@pytest.mark.parametrize("engine", ["reference", "jit"])
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in cases()])
def test_results_come_in_the_size_that_they_have(case: NodeCase, engine: str) -> None:
    program = hbc.compile(opened(case)).program
    assert any(t.is_dynamic for t in program.models[0].tensors)
    with Session(program, engine=engine) as session:
        for inputs, expected in case.data:
            got = session.run(inputs)
            for name, want in expected.items():
                assert got[name].dtype == want.dtype
                assert np.array_equal(got[name], want), name
