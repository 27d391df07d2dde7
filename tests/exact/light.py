"""Strategies that the tests of light kernels share: shapes, and arrays full of extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hbc_runtime import numerics
from hbc_runtime.isa import Scheme

Array = npt.NDArray[Any]
INTEGERS = (np.int8, np.int16, np.int32)
EXACT = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Random values over the dtype's whole range, about one in eight of them at or near an end of it (or near 0)."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, shape, np.dtype(dtype), endpoint=True)
    edges = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype)
    return np.where(rng.random(shape) < 1 / 8, rng.choice(edges, shape), x).astype(dtype)


@st.composite
def floats(draw: st.DrawFn, shape: tuple[int, ...], scale: float) -> Array:
    """Float32: multiples of half a quantum of `scale` (ties), arbitrary reals, and NaN, ±inf, ±0 and denormals."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    ties = rng.integers(-600, 600, shape) * 0.5 * scale
    reals = rng.normal(0, 100 * scale, shape)
    odd = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3.4e38, -3.4e38]), shape)
    kind = rng.random(shape)
    return np.where(kind < 0.5, ties, np.where(kind < 0.9, reals, odd)).astype(np.float32)


def shapes(min_rank: int = 1, max_rank: int = 4, max_side: int = 9) -> st.SearchStrategy[tuple[int, ...]]:
    """Small shapes, some with one long axis so that whole vectors and tails both occur."""
    sides = st.one_of(st.integers(1, max_side), st.sampled_from([1, 16, 33, 64, 67]))

    def bounded(shape: tuple[int, ...]) -> bool:
        return int(np.prod(shape)) <= 20000

    return st.lists(sides, min_size=min_rank, max_size=max_rank).map(tuple).filter(bounded)


@st.composite
def clamps(draw: st.DrawFn, dtype: type[np.generic]) -> tuple[int, int]:
    """(lo, hi) in the dtype's range, often the whole of it."""
    info = np.iinfo(dtype)
    if draw(st.booleans()):
        return int(info.min), int(info.max)
    lo, hi = sorted(draw(st.tuples(*[st.integers(int(info.min), int(info.max))] * 2)))
    return lo, hi


def zero_points(dtype: type[np.generic]) -> st.SearchStrategy[int]:
    """Zero points of the dtype: 0, its ends, and what lies between."""
    info = np.iinfo(dtype)
    return st.one_of(
        st.just(0), st.sampled_from([int(info.min), int(info.max)]), st.integers(int(info.min), int(info.max))
    )


@st.composite
def scheme_operands(draw: st.DrawFn, scheme: Scheme, count: int) -> tuple[Array | None, Array | None, Array | None]:
    """Multiplier, pre_shift and post_shift with `count` entries: from scale ratios, or any a container may hold."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    ratios = 2.0 ** rng.uniform(-15, draw(st.sampled_from([1, 13])), count)
    if scheme is Scheme.FLOAT:
        return ratios.astype(np.float32), None, None
    is_wide = scheme is Scheme.WIDE
    if draw(st.booleans()):
        params = [
            numerics.wide_params(m) if is_wide else numerics.requantize_params(m, rounding_in_bias=False)
            for m in ratios
        ]
        mult = np.array([p.multiplier for p in params])
        pre, post = np.array([p.pre_shift for p in params]), np.array([p.post_shift for p in params])
    else:
        mult = rng.integers(1 << 30, 1 << 31, count) if is_wide else rng.integers(1, 1 << 15, count)
        pre, post = rng.integers(0, 32, count), rng.integers(0, 63 if is_wide else 32, count)
    return mult.astype(np.int32 if is_wide else np.int16), pre.astype(np.int8), post.astype(np.int8)
