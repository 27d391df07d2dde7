"""The arithmetic law: the vendor's own integers, the edges, and exact rational arithmetic beside every form.

Integers marked [vendor] were read off `shared/data/vendor/{x5,x3}/simple_net_*_{calibrated,quantized}_model.onnx`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbc_runtime import numerics
from hbc_runtime.isa import Rounding, Scheme
from hbc_runtime.types import DType

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
RATIOS = st.floats(2.0**-12, 1.5, allow_nan=False)
FORMS = settings(max_examples=200, deadline=None)

# scale of input, weight, output → right_shift, scale, out_shift and 0.5/m  [vendor]
VENDOR_CHANNELS = [
    pytest.param((0.037682920694351196, 0.0015090154483914375, 0.024364115670323372), (19578, 1, 22), id="x5-conv-0"),
    pytest.param((0.037682920694351196, 0.0015118559822440147, 0.024364115670323372), (19615, 1, 22), id="x5-conv-1"),
    pytest.param((0.002705657621845603, 0.00194484181702137, 0.0011868865694850683), (18595, 0, 22), id="x5-fc-0"),
    pytest.param((0.03972144424915314, 0.0015090154483914375, 0.026138752698898315), (19236, 1, 22), id="x3-conv-0"),
]
VENDOR_AVERAGES = [
    pytest.param((0.026138752698898315, 0.00016069419507402927, 0.00431023258715868), (32699, 2, 23, 513), id="7x7"),
    pytest.param((0.00431023258715868, 0.0004921259824186563, 0.0030359940137714148), (23444, 3, 22, 716), id="4x4"),
    pytest.param((0.0030359940137714148, 0.0004921259824186563, 0.0027641654014587402), (18137, 3, 22, 925), id="4x4b"),
    pytest.param((0.0027641654014587402, 0.0019685039296746254, 0.002717597410082817), (16796, 1, 22, 250), id="2x2"),
]


def ratio(scales: tuple[float, float, float]) -> float:
    s_in, s_w, s_out = scales
    return s_in * s_w / s_out


def apply(p: numerics.Multiplier, acc: int, scheme: Scheme, lo: int = -128, hi: int = 127, zero_point: int = 0) -> int:
    """One accumulator through `requantize`."""
    return int(
        numerics.requantize(
            np.array(acc, np.int64), scheme, p.multiplier, p.pre_shift, p.post_shift, zero_point, lo, hi
        )
    )


def off_by(y: int, exact: Fraction, lo: int, hi: int) -> Fraction:
    """How many quanta lie between an integer result and the real one, both in the output's range."""
    return abs(y - max(Fraction(lo), min(Fraction(hi), exact)))


# ---- facts


@pytest.mark.parametrize(("scales", "want"), VENDOR_CHANNELS)
def test_vendor_channels_have_their_multiplier_and_shifts(scales: tuple[float, ...], want: tuple[int, ...]) -> None:
    p = numerics.requantize_params(ratio(scales), rounding_in_bias=True)  # type: ignore[arg-type]
    assert (p.multiplier, p.pre_shift, p.post_shift) == want


@pytest.mark.parametrize(("scales", "want"), VENDOR_AVERAGES)
def test_vendor_average_cascade_has_its_rounding_bias(scales: tuple[float, ...], want: tuple[int, ...]) -> None:
    p = numerics.requantize_params(ratio(scales), rounding_in_bias=True)  # type: ignore[arg-type]
    assert (p.multiplier, p.pre_shift, p.post_shift, p.rounding) == want


def test_vendor_global_average_uses_the_same_normalisation() -> None:
    m = 0.024364115670323372 / (224 * 224 * 0.002705657621845603)  # [vendor] x5: 24087, 5, 22
    p = numerics.requantize_params(m, rounding_in_bias=False)
    assert (p.multiplier, p.pre_shift, p.post_shift, p.rounding) == (24087, 5, 22, 0)


@pytest.mark.parametrize(
    ("bias", "scales", "want"),
    [
        (-0.1372651755809784, (0.037682920694351196, 0.0015090154483914375, 0.024364115670323372), -2200),
        (0.17713333666324615, (0.037682920694351196, 0.0015118559822440147, 0.024364115670323372), 3323),
        (-0.1372651755809784, (0.03972144424915314, 0.0015090154483914375, 0.026138752698898315), -2072),
        (-0.1186777651309967, (0.002705657621845603, 0.00194484181702137, 0.0011868865694850683), -22440),
        (0.2158249318599701, (0.002705657621845603, 0.0019275747472420335, 0.0011868865694850683), 41497),
    ],
)
def test_vendor_bias_includes_half_an_output_step(bias: float, scales: tuple[float, float, float], want: int) -> None:
    rounding = numerics.requantize_params(ratio(scales), rounding_in_bias=True).rounding
    assert numerics.bias_to_accumulator(bias, scales[0] * scales[1]) + rounding == want


def test_bernoulli2_bias_loses_its_least_bits() -> None:
    value, shift = numerics.bias_b_scale(np.array([41201, -22454, 32767, 32768, -32768, -32769, -(1 << 31)]))
    assert value.tolist() == [20600, -22454, 32767, 16384, -32768, -16385, -32768]  # [vendor] the first two
    assert shift.tolist() == [1, 0, 0, 1, 0, 1, 16]


@given(st.lists(I32, min_size=1, max_size=4))
def test_bernoulli2_bias_keeps_as_many_bits_as_fit(bias: list[int]) -> None:
    value, shift = numerics.bias_b_scale(np.array(bias))
    for b, v, s in zip(bias, value.tolist(), shift.tolist(), strict=True):
        assert -32768 <= v <= 32767
        assert 0 <= b - (v << s) < 1 << s or s == 0
        assert s == 0 or not -32768 <= b >> (s - 1) <= 32767


# ---- derived constants


@given(st.floats(2.0**-40, 2.0**20), st.sampled_from([15, 31]))
@example(1.0, 15)
@example(math.nextafter(1.0, 0.0), 15)  # rounds up to 2^15, which lowers the shift by one
def test_normalised_multipliers_have_all_their_bits(m: float, bits: int) -> None:
    mult, total = numerics.normalize(m, bits)
    assert 1 << (bits - 1) <= mult < 1 << bits
    assert abs(Fraction(m) * Fraction(2) ** total - mult) <= Fraction(1, 2)


@given(st.floats(2.0**-16, 2.0**13), st.booleans())
def test_pre_shift_is_the_smallest_that_fits_the_useful_range(m: float, rounding: bool) -> None:
    p = numerics.requantize_params(m, rounding_in_bias=rounding)
    useful = math.floor(127 / m)
    assert useful >> p.pre_shift <= 32767
    assert p.pre_shift == 0 or useful >> (p.pre_shift - 1) > 32767


@pytest.mark.parametrize("m", [0.0, -1.0, math.inf, math.nan, 2.0**16, 2.0**-60])
def test_ratios_that_no_shift_expresses_are_refused(m: float) -> None:
    with pytest.raises(numerics.ScaleRangeError, match=r"scale ratio"):
        numerics.requantize_params(m, rounding_in_bias=True)


@pytest.mark.parametrize(("m", "fits"), [(2.0**14, True), (2.0**15, False), (2.0**-24, True), (2.0**-48, False)])
def test_post_shift_stays_in_0_to_31(m: float, fits: bool) -> None:
    if fits:
        p = numerics.requantize_params(m, rounding_in_bias=False)
        assert 0 <= p.post_shift <= 31
    else:
        with pytest.raises(numerics.ScaleRangeError, match="post_shift"):
            numerics.requantize_params(m, rounding_in_bias=False)


@pytest.mark.parametrize("m", [2.0**31, 2.0**-33, 0.0, math.nan])
def test_wide_ratios_out_of_range_are_refused(m: float) -> None:
    with pytest.raises(numerics.ScaleRangeError):
        numerics.wide_params(m)


def test_addend_ratios_above_2_pow_15_shift_left() -> None:
    assert numerics.addend_params(2.0**20) == (1 << 14, -6)
    assert numerics.addend_params(0.5) == (1 << 14, 15)
    assert int(numerics.addend_to_accumulator(np.array(3), 1, 1 << 14, -6)) == 2 << 20
    assert int(numerics.addend_to_accumulator(np.array(-3), 0, 1 << 14, 15)) == -2  # floor of −1.5
    with pytest.raises(numerics.ScaleRangeError):
        numerics.addend_params(2.0**47)


def test_add_params_share_a_shift_and_keep_signs() -> None:
    assert numerics.add_params(1.0, -0.5) == (16384, -8192, 14)
    assert numerics.add_params(0.001, 1.999) == (16, 32752, 14)
    with pytest.raises(numerics.ScaleRangeError, match="need a shift"):
        numerics.add_params(2.0**16, 1.0)


# ---- requantize against exact rational arithmetic


@given(RATIOS, I32)
@example(0.5, 1)
@example(0.5, -1)
@FORMS
def test_form_b_is_within_half_a_quantum(m: float, acc: int) -> None:
    p = numerics.requantize_params(m, rounding_in_bias=False)
    y = apply(p, acc, Scheme.FORM_B)
    # the multiplier is off by 2^-15 of itself, the pre-shift by less than one part in 2^14 of the useful range
    assert off_by(y, Fraction(m) * acc, -128, 127) <= Fraction(1, 2) + Fraction(127 * 3, 1 << 15)


@given(RATIOS, I32, st.integers(-128, 127))
@FORMS
def test_form_b_is_within_half_a_quantum_about_any_zero_point(m: float, acc: int, zero_point: int) -> None:
    p = numerics.requantize_params(m, zero_point, rounding_in_bias=False)
    y = apply(p, acc, Scheme.FORM_B, zero_point=zero_point)
    assert off_by(y, Fraction(m) * acc + zero_point, -128, 127) <= Fraction(1, 2) + Fraction(255 * 3, 1 << 15)


@given(st.floats(2.0**-12, 0.9), st.integers(-(1 << 20), 1 << 20))
@FORMS
def test_form_a_is_within_a_quantum_and_finer_for_small_ratios(m: float, acc: int) -> None:
    p = numerics.requantize_params(m, rounding_in_bias=True)
    y = apply(p, acc + p.rounding, Scheme.FORM_A)
    # its rounding term is half a step to the nearest accumulator unit, so up to m/2 of a quantum off
    bound = Fraction(1, 2) + Fraction(m) / 2 + Fraction(127 * 3, 1 << 15)
    assert off_by(y, Fraction(m) * acc, -128, 127) <= bound


@given(st.floats(2.0**-24, 2.0**10), I32)
@FORMS
def test_wide_is_within_half_a_quantum(m: float, acc: int) -> None:
    p = numerics.wide_params(m)
    y = apply(p, acc, Scheme.WIDE, -32768, 32767)
    assert off_by(y, Fraction(m) * acc, -32768, 32767) <= Fraction(1, 2) + Fraction(1, 1 << 15)


@given(RATIOS, I32, st.sampled_from([Scheme.FORM_A, Scheme.FORM_B]))
@FORMS
def test_saturating_to_16_bits_changes_nothing(m: float, acc: int, scheme: Scheme) -> None:
    """NUMERICS 4: what sat16 clips saturates anyway."""
    p = numerics.requantize_params(m, rounding_in_bias=False)
    half = 1 << p.post_shift >> 1 if scheme is Scheme.FORM_B else 0
    unbounded = ((acc >> p.pre_shift) * p.multiplier + half) >> p.post_shift
    assert apply(p, acc, scheme) == max(-128, min(127, unbounded))


def test_form_b_at_ratio_1_is_the_identity() -> None:
    p = numerics.requantize_params(1.0, rounding_in_bias=False)
    q = np.arange(-128, 128)
    y = numerics.requantize(q, Scheme.FORM_B, p.multiplier, p.pre_shift, p.post_shift, 0, -128, 127)
    assert np.array_equal(y, q)


def test_form_a_at_ratio_1_would_not_be() -> None:
    """Why ops without a bias use form B (D12): the term round(0.5 / 1) is a whole step."""
    p = numerics.requantize_params(1.0, rounding_in_bias=True)
    assert apply(p, 5 + p.rounding, Scheme.FORM_A) == 6


def test_wide_at_ratio_1_is_the_identity() -> None:
    p = numerics.wide_params(1.0)
    q = np.arange(-32768, 32768)
    assert np.array_equal(numerics.requantize(q, Scheme.WIDE, p.multiplier, 0, p.post_shift, 0, -32768, 32767), q)


def test_accumulators_saturate_to_i32_first() -> None:
    wide = numerics.requantize(
        np.array([1 << 40, -(1 << 40)]), Scheme.NONE, None, None, None, 0, -(1 << 31), (1 << 31) - 1
    )
    assert wide.tolist() == [(1 << 31) - 1, -(1 << 31)]
    p = numerics.wide_params(2.0**-20)
    assert apply(p, 1 << 40, Scheme.WIDE, -32768, 32767) == 2048


def test_float_scheme_rounds_half_to_even_and_saturates() -> None:
    acc = np.array([1, 3, 5, -1, -3, 1 << 30])
    y = numerics.requantize(acc, Scheme.FLOAT, np.float32(0.5), None, None, 1, -128, 127)
    assert y.tolist() == [1, 3, 3, 1, -1, 127]


def test_clamp_bounds_limit_every_scheme() -> None:
    p = numerics.requantize_params(0.5, rounding_in_bias=False)
    assert [apply(p, acc, Scheme.FORM_B, 0, 6) for acc in (-100, 5, 100)] == [0, 3, 6]


# ---- quantize and dequantize


def one(x: float, rounding: Rounding, scale: float = 1.0, zero_point: int = 0, lo: int = -128, hi: int = 127) -> int:
    return int(numerics.quantize(np.float32(x), np.float32(scale), np.int32(zero_point), rounding, lo, hi))


@pytest.mark.parametrize(
    ("x", "even", "away"),
    [
        (0.5, 0, 1),
        (1.5, 2, 2),
        (2.5, 2, 3),
        (-0.5, 0, -1),
        (-1.5, -2, -2),
        (-2.5, -2, -3),
        (126.5, 126, 127),
        (127.5, 127, 127),
    ],
)
def test_ties_follow_the_march(x: float, even: int, away: int) -> None:
    assert one(x, Rounding.HALF_EVEN_F32) == even
    assert one(x, Rounding.HALF_AWAY_F64) == away


@pytest.mark.parametrize("rounding", list(Rounding))
def test_nan_is_zero_and_infinities_saturate(rounding: Rounding) -> None:
    assert one(math.nan, rounding) == 0
    assert one(math.nan, rounding, zero_point=7) == 7
    assert one(math.inf, rounding, zero_point=-3) == 127
    assert one(-math.inf, rounding, zero_point=3) == -128
    assert one(3.4e38, rounding, scale=1e-30) == 127  # the quotient overflows float32


def test_the_two_roundings_differ_where_float32_division_lands_on_a_tie() -> None:
    x, scale = float(np.float32(0.21)), float(np.float32(0.06))
    assert 3.4999 < x / scale < 3.5
    assert one(x, Rounding.HALF_EVEN_F32, scale) == 4  # float32 says 3.5, whose even neighbour is 4
    assert one(x, Rounding.HALF_AWAY_F64, scale) == 3


@given(st.floats(width=32, allow_nan=False), st.floats(2.0**-20, 2.0**20, width=32), st.integers(-128, 127))
def test_half_away_matches_exact_rationals(x: float, scale: float, zero_point: int) -> None:
    y = one(x, Rounding.HALF_AWAY_F64, scale, zero_point)
    if math.isinf(x):
        assert y == (127 if x > 0 else -128)
        return
    exact = Fraction(x) / Fraction(scale)
    if abs(exact - round(exact * 2) / Fraction(2)) < Fraction(1, 1 << 40):
        return  # the float64 quotient may round onto the tie itself
    rounded = math.floor(abs(exact) + Fraction(1, 2)) * (1 if exact > 0 else -1)
    assert y == max(-128, min(127, rounded + zero_point))


@given(
    st.integers(-128, 127),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.integers(-128, 127),
    st.sampled_from(list(Rounding)),
)
def test_quantize_undoes_dequantize(q: int, scale: float, zero_point: int, rounding: Rounding) -> None:
    real = numerics.dequantize(np.int8(q), np.float32(scale), np.int32(zero_point))
    assert real.dtype == np.float32
    assert one(float(real), rounding, scale, zero_point) == q


def test_dequantize_centres_before_it_multiplies() -> None:
    y = numerics.dequantize(np.array([0, 255], np.uint8), np.float32(0.5), np.int32(128))
    assert y.tolist() == [-64.0, 63.5]
    wide = numerics.dequantize(np.array([16777217], np.int32), np.float32(1.0), np.int32(0))
    assert wide.tolist() == [16777216.0]  # float32(q) rounds half to even


# ---- roundings by name, tables, weights


@pytest.mark.parametrize(("x", "want"), [(2.5, 3), (-2.5, -2), (2.4999, 2), (-0.5, 0)])
def test_half_up_sends_ties_to_plus_infinity(x: float, want: int) -> None:
    assert numerics.round_half_up(x) == want


def test_half_away_does_not_add_a_half() -> None:
    just_below = np.nextafter(0.5, 0.0)  # adding 0.5 to it gives 1.0 in float64
    assert numerics.round_half_away([just_below, 0.5, -0.5, 2.5, -2.5]).tolist() == [0.0, 1.0, -1.0, 3.0, -3.0]


@given(st.integers(-(1 << 40), 1 << 40), st.integers(0, 40))
def test_round_shift_is_half_up(x: int, shift: int) -> None:
    y = int(numerics.round_shift_half_up(np.array(x, np.int64), shift))
    assert y == math.floor(Fraction(x, 1 << shift) + Fraction(1, 2))


@pytest.mark.parametrize(("dtype", "lo", "hi"), [(DType.I8, -128, 127), (DType.I16, -32768, 32767), (DType.U8, 0, 255)])
def test_saturate_clips_to_the_dtype(dtype: DType, lo: int, hi: int) -> None:
    y = numerics.saturate(np.array([lo - 1, lo, 5, hi, hi + 1]), dtype)
    assert y.tolist() == [lo, lo, 5, hi, hi]
    assert y.dtype == dtype.numpy


def test_calibrated_weights_stay_in_127() -> None:
    w = numerics.quantize_weight(np.array([1.0, -1.0, -1.01, 0.0035, -0.0035]), 1 / 127)
    assert w.tolist() == [127, -127, -127, 0, 0]
    assert numerics.quantize_weight([0.5, 1.5, -0.5], 1.0).tolist() == [1, 2, -1]


def test_tables_round_half_up_and_saturate() -> None:
    x = np.array([-1.0, -0.75, 0.25, 0.75, 2.0])
    assert numerics.lut_table(lambda v: v, x, 0.5, 0, -2, 2).tolist() == [-2, -1, 1, 2, 2]  # −1.5 goes up to −1
    with_nan = numerics.lut_table(np.sqrt, np.array([-1.0, 4.0]), 1.0, 5, -128, 127)
    assert with_nan.tolist() == [5, 7]  # NaN counts as 0
    assert numerics.lut_table(lambda v: 1 / v, np.array([0.0]), 1.0, 0, -128, 127).tolist() == [127]
