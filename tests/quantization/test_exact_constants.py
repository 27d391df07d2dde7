"""The constants that training derives for many channels at once are the compiler's, one by one."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="hbc.quantization is PyTorch's")

from hypothesis import example, given
from hypothesis import strategies as st

from hbc.ir.fixed_point.params import multipliers
from hbc.quantization import exact_constants as constants
from hbc_runtime import numerics
from hbc_runtime.isa import Scheme
from hbc_runtime.numerics import ScaleRangeError

RATIOS = st.lists(st.floats(1e-9, 1e4), min_size=1, max_size=8)
EDGES = [2.0**-33, 2.0**-32, 127 / 32768, 127 / 32767.5, 1.0, 0.5, np.nextafter(0.5, 0), 0.0, 1.5, 1 - 2.0**-16]


@example(EDGES)
@given(RATIOS)
def test_requantization_is_the_scalar_one(ratios: list[float]) -> None:
    m = np.array(ratios)
    for scheme in (Scheme.FORM_A, Scheme.FORM_B, Scheme.WIDE):
        try:
            (mult, pre, post), rounding = multipliers(m, scheme, 0)
        except ScaleRangeError:
            with pytest.raises(ScaleRangeError, match="scale ratio"):
                constants.requantization(m, wide=scheme is Scheme.WIDE, bias=scheme is Scheme.FORM_A)
            continue
        r = constants.requantization(m, wide=scheme is Scheme.WIDE, bias=scheme is Scheme.FORM_A)
        assert r.scheme is scheme
        assert np.array_equal(r.multiplier, mult)
        assert np.array_equal(r.pre_shift, pre)
        assert np.array_equal(r.post_shift, post)
        assert np.array_equal(r.rounding, rounding)


@pytest.mark.parametrize("ratio", [2e9, np.nan, np.inf, -1.0])
def test_ratios_out_of_range_are_refused(ratio: float) -> None:
    with pytest.raises(ScaleRangeError, match="scale ratio"):
        constants.requantization([1.0, ratio], wide=False, bias=True)
    assert constants.requantization([1.0], wide=False, bias=True).multiplier[0] == 1 << 14


@example(EDGES[3:7])
@given(RATIOS)
def test_addend_is_the_scalar_one(ratios: list[float]) -> None:
    mult, shift = constants.addend(np.array(ratios))
    assert list(zip(mult, shift, strict=True)) == [numerics.addend_params(m) for m in ratios]


@example([0.5, -0.5, 1.5, -1.5, 2.4999999, 3e9, -3e9, 0.0], 1.0)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.floats(1e-7, 10.0))
def test_bias_is_the_scalar_one(bias: list[float], scale: float) -> None:
    scales = np.full(len(bias), scale)
    assert np.array_equal(constants.bias_steps(bias, scales), numerics.bias_to_accumulator(bias, scales))
