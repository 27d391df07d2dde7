"""Constants of unlike magnitudes beside quantised tensors: hbc against ONNX Runtime, its optimiser off.

i16 has steps of one size. What a constant may be beyond the numbers that make a difference is cut off before (masks of
-1e9, -inf), so its small numbers keep their steps; what is too coarse all the same is computed in reals, and says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

import hbc
from tests.differential.quantised import ARITHS, Case, Scaled, cpu_reasons, quanta, scaled

both = pytest.mark.parametrize("arith", ARITHS)
FAR = {
    "Add": [0.3, -1e9, 0.5, -np.inf, 0.01, 100], "Sub": [0.3, -1e9, 0.5, np.inf, 0.01, 100],
    "Max": [0.3, -1e9, 0.5, -np.inf, 0.01, 100], "Min": [0.3, 1e9, 0.5, np.inf, -1, 0],
    "Mul": [0.3, -1e9, 0.5, 1e20, 0, -2],
}  # fmt: skip


def beside(op: str, constant: Any, x_by: Scaled, y_by: Scaled, *, swap: bool = False) -> Case:
    case = Case()
    x = case.activation(x_by.ints(np.random.default_rng(0), 9, len(constant)), x_by)
    c = case.const(np.float32(constant))
    return case.result(case.op(op, *((c, x) if swap else (x, c))), y_by)


@both
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("op", FAR)
def test_far_numbers_leave_near_ones_their_steps(op: str, swap: bool, arith: str) -> None:
    for seed in range(5):
        by = scaled(np.random.default_rng(seed), [np.int8, np.uint8][seed % 2])
        case = beside(op, FAR[op], by, Scaled(by.scale * 1.3, by.zero), swap=swap)
        assert quanta(case, arith) <= (0 if op in {"Max", "Min"} else 1)


@both
@pytest.mark.parametrize("op", ["Add", "Sub", "Max", "Min"])
def test_far_numbers_beside_16_bits(op: str, arith: str) -> None:
    by = Scaled(2e-4, np.int16(0))
    assert quanta(beside(op, FAR[op], by, Scaled(2.6e-4, np.int16(0))), arith) <= (0 if op in {"Max", "Min"} else 1)


@both
def test_factors_that_16_bits_do_not_hold_are_multiplied_in_reals(arith: str) -> None:
    case = beside("Mul", FAR["Mul"], Scaled(2e-4, np.int16(0)), Scaled(2.6e-4, np.int16(0)))
    (reason,) = cpu_reasons(hbc.compile(case.model(), arith=arith).program)
    assert "its constant would move its result by up to 12603.1 quanta as i16" in reason
    assert quanta(case, arith, cpu=True) == 0


def batch_norm(scale: Any, bias: Any, x_by: Scaled, y_by: Scaled) -> Case:
    case = Case()
    n = len(scale)
    x = case.activation(x_by.ints(np.random.default_rng(0), 2, n, 5, 4), x_by)
    parameters = [np.float32(v) for v in (scale, bias, np.zeros(n), np.ones(n))]
    return case.result(case.op("BatchNormalization", x, *map(case.const, parameters)), y_by)


@both
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_channels_of_a_batch_norm_whose_scale_is_next_to_nothing_keep_their_bias(dtype: Any, arith: str) -> None:
    """Their offset in steps of scale · s_x / 127 would leave 32 bits."""
    fine = 1 if dtype is not np.int16 else 256
    x_by, y_by = (Scaled(s / fine, dtype(0 if dtype is np.int16 else 9)) for s in (0.02, 0.03))
    case = batch_norm([1, 1e-4, -1e-7, 1e-12, 1e-30, 0, -0.5], [0.5, 1, -1.5, 0.7, 2, 0.25, 1e6], x_by, y_by)
    assert quanta(case, arith) <= 1
