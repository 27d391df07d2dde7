"""Strategies that the tests of heavy kernels share: windows, channel counts, arrays that reach their dtype's ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hbc_runtime.isa import Scheme
from hbc_runtime.numerics import I32_MAX, I32_MIN
from hbc_runtime.types import DType

from .light import arrays, scheme_operands

Array = npt.NDArray[Any]
Parameters = tuple["Array | None", "Array | None", "Array | None"]
EXACT = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ACTIVATIONS = st.sampled_from([np.int8, np.int16])
CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33, 40, 64, 72])
SCHEMES = st.sampled_from(list(Scheme))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Mostly random values; sometimes one of the dtype's ends everywhere, which gives the largest sums."""
    if draw(st.integers(0, 5)) == 0:
        info = np.iinfo(dtype)
        return np.full(shape, draw(st.sampled_from([int(info.min), int(info.max)])), dtype)
    return draw(arrays(shape, dtype))


def outputs(scheme: Scheme) -> st.SearchStrategy[DType]:
    """The result dtypes that a scheme may have."""
    if scheme is Scheme.NONE:
        return st.just(DType.I32)
    narrow = [DType.I8, DType.I16]
    return st.sampled_from([*narrow, DType.I32] if scheme in {Scheme.WIDE, Scheme.FLOAT} else narrow)


@st.composite
def ranges(draw: st.DrawFn, scheme: Scheme, out: DType) -> dict[str, int]:
    """`zero_point`, `clamp_min` and `clamp_max` for a result dtype: often the whole range and 0."""
    lo, hi = out.limits
    if draw(st.booleans()):
        lo, hi = sorted(draw(st.tuples(*[st.integers(lo, hi)] * 2)))
    free = scheme is not Scheme.NONE and draw(st.booleans())
    zero_point = draw(st.integers(*out.limits)) if free else 0
    return {"zero_point": zero_point, "clamp_min": lo, "clamp_max": hi}


@st.composite
def parameters(draw: st.DrawFn, scheme: Scheme, channels: int) -> Parameters:
    """Multiplier and shifts, one or one per channel; odd floats (NaN, ±inf, 0, huge) occur in scheme FLOAT."""
    if scheme is Scheme.NONE:
        return None, None, None
    count = draw(st.sampled_from([1, channels]))
    mult, pre, post = draw(scheme_operands(scheme, count))
    if scheme is Scheme.FLOAT and mult is not None and draw(st.integers(0, 3)) == 0:
        mult[draw(st.integers(0, count - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, 3e38, 1e-42]))
    return mult, pre, post


@st.composite
def biases(draw: st.DrawFn, channels: int) -> Array | None:
    """No bias, small ones, or any i32 with its ends, which push sums over the edge of i32 (D3)."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    match draw(st.sampled_from(["none", "small", "any", "ends"])):
        case "none":
            return None
        case "small":
            return rng.integers(-3000, 3000, channels).astype(np.int32)
        case "any":
            return rng.integers(I32_MIN, I32_MAX, channels, endpoint=True).astype(np.int32)
        case _:
            return rng.choice([I32_MIN, I32_MAX], channels).astype(np.int32)


@st.composite
def axis_windows(draw: st.DrawFn, most: int = 9) -> tuple[int, int, int, int, int, int]:
    """(size, kernel, stride, pad before, pad after, dilation) of an axis whose window fits the padded input."""
    size, kernel = draw(st.integers(1, most)), draw(st.integers(1, 4))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    reach = dilation * (kernel - 1) + 1
    return max(size, reach - before - after), kernel, stride, before, after, dilation
