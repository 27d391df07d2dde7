"""MatMul, Gemm and convolutions at their corners, against ONNX Runtime: within a quantum (test_spatial.py says why)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

from tests.differential.quantised import ARITHS, Case, one_op, quanta, scaled
from tests.differential.test_spatial import result_scale, weight

MODEST = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**31)
ARITH = st.sampled_from(ARITHS)
SHAPES = [
    ((5,), (5,)), ((5,), (5, 4)), ((3, 5), (5,)), ((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)),
    ((1, 3, 5), (2, 5, 4)), ((2, 1, 3, 5), (7, 5, 4)), ((5,), (2, 5, 4)), ((2, 3, 5), (5,)), ((3, 70), (70, 33)),
]  # fmt: skip


@MODEST
@given(
    SEEDS,
    st.sampled_from(SHAPES),
    st.sampled_from(["computed", "right", "columns", "left", "rows"]),
    ARITH,
)
def test_matmul(seed: int, shapes: tuple[tuple[int, ...], ...], kind: str, arith: str) -> None:
    """Vectors, batches, broadcasting; weights on either side, with one scale or one per column (left: per row)."""
    rng = np.random.default_rng(seed)
    a, b = shapes
    by, other = scaled(rng, rng.choice([np.int8, np.uint8])), scaled(rng, np.int8)
    case = Case()

    def constant(shape: tuple[int, ...], axis: int | None) -> str:
        w = rng.integers(-127, 128, shape).astype(np.int8)
        if axis is None or len(shape) == 1:
            return case.weight(w, np.float32(0.004))
        return case.weight(w, rng.uniform(0.001, 0.01, shape[axis]).astype(np.float32), axis)

    if kind == "computed":
        operands = [case.activation(by.ints(rng, *a), by), case.activation(other.ints(rng, *b), other)]
    elif kind in {"right", "columns"}:
        operands = [case.activation(by.ints(rng, *a), by), constant(b, len(b) - 1 if kind == "columns" else None)]
    else:
        rows = 0 if kind == "rows" and len(a) == 2 else None
        operands = [constant(a, rows), case.activation(by.ints(rng, *b), by)]
    case.result(case.op("MatMul", *operands), result_scale(rng, np.int8, by, a[-1] * (1 if kind != "computed" else 12)))
    assert quanta(case, arith) <= 1


@MODEST
@given(SEEDS, st.booleans(), st.booleans(), st.sampled_from([None, (), (1,), (4,), (1, 4), (3, 1), (3, 4)]), ARITH)
def test_gemm(seed: int, left: bool, right: bool, c_shape: tuple[int, ...] | None, arith: str) -> None:
    """transA, transB, alpha, beta; C of every shape that broadcasts."""
    rng = np.random.default_rng(seed)
    by = scaled(rng, np.int8)

    def build(c: Case, d: str) -> str:
        w = weight(c, rng, (4, 6) if right else (6, 4), 0 if right else 1)
        more = [] if c_shape is None else [c.const(np.asarray(rng.normal(0, 1, c_shape), np.float32))]
        alpha, beta = float(np.float32(rng.uniform(0.3, 2))), float(np.float32(rng.uniform(0, 2)))
        return c.op("Gemm", d, w, *more, transA=int(left), transB=int(right), alpha=alpha, beta=beta)

    case = one_op(build, by.ints(rng, *((6, 3) if left else (3, 6))), by, result_scale(rng, np.int8, by, 6))
    assert quanta(case, arith) <= 1


def test_a_constant_beyond_any_sum_is_not_fused() -> None:
    """A mask of −1e30 that differs by row has no place in an accumulator: it is added on the CPU."""
    rng = np.random.default_rng(3)
    by = scaled(rng, np.int8)
    mask = np.where(rng.random((3, 4)) < 0.5, np.float32(-1e30), np.float32(0))

    def build(c: Case, d: str) -> str:
        return c.op("Add", c.op("MatMul", d, weight(c, rng, (6, 4), 1)), c.const(mask))

    case = one_op(build, by.ints(rng, 3, 6), by, result_scale(rng, np.int8, by, 6))
    assert quanta(case, "bpu", cpu=True) <= 1


CORNERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {  # input, weight, attributes
    "kernel beyond the input": ((1, 4, 3, 3), (6, 4, 5, 5), {"pads": [2, 2, 2, 2]}),
    "pads beyond the kernel": ((1, 4, 3, 3), (6, 4, 2, 2), {"pads": [5, 4, 3, 6]}),
    "stride beyond the kernel": ((1, 4, 11, 13), (6, 4, 2, 2), {"strides": [5, 4]}),
    "N by 1": ((2, 4, 11, 13), (6, 4, 7, 1), {"pads": [3, 0, 3, 0]}),
    "1 by N": ((2, 4, 11, 13), (6, 4, 1, 7), {"pads": [0, 3, 0, 3]}),
    "depthwise, three each": ((3, 4, 8, 9), (12, 1, 3, 3), {"group": 4}),
    "three thousand channels": ((1, 3000, 2, 2), (8, 3000, 1, 1), {}),
    "one channel, one pixel": ((5, 1, 1, 1), (1, 1, 1, 1), {}),
    "dilated 1-D": ((2, 4, 17), (6, 4, 3), {"dilations": [4], "pads": [4, 4]}),
    "dilated 3-D": ((1, 2, 7, 6, 8), (4, 2, 2, 2, 3), {"dilations": [3, 2, 1], "pads": [3, 0, 1, 0, 2, 1]}),
}


@pytest.mark.parametrize("arith", ARITHS)
@pytest.mark.parametrize("corner", CORNERS)
def test_convolutions_at_their_corners(corner: str, arith: str) -> None:
    x, w, attrs = CORNERS[corner]
    rng = np.random.default_rng(len(corner))
    by = scaled(rng, np.uint8)
    case = one_op(
        lambda c, d: c.op("Conv", d, weight(c, rng, w, 0), **attrs), by.ints(rng, *x), by,
        result_scale(rng, np.int8, by, math.prod(w[1:])),
    )  # fmt: skip
    assert quanta(case, arith) <= 1
