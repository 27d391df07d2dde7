"""Add, Mul, Maximum, Minimum, Clamp: the JIT gives the reference's integers, over every kind of broadcast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime import numerics
from hbc_runtime.isa import Add, Clamp, Maximum, Minimum, Mul, Scheme
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.light import EXACT, INTEGERS, Array, arrays, clamps, scheme_operands, shapes, zero_points

Shape = tuple[int, ...]
BOTH = frozenset({0, 1})
DTYPES = st.sampled_from(INTEGERS)
PRODUCTS = [(Scheme.FORM_B, np.int8), (Scheme.FORM_B, np.int16), (Scheme.WIDE, np.int16), (Scheme.WIDE, np.int32)]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Shape, Shape, Shape]:
    """(lhs, rhs, result): equal shapes, and axes of size 1 in either or both, up to rank 6."""
    out = draw(shapes(max_rank=6, max_side=5))
    kinds = [draw(st.sampled_from("==lr")) for _ in out] if draw(st.booleans()) else ["="] * len(out)
    lhs = tuple(1 if kind == "l" else d for d, kind in zip(out, kinds, strict=True))
    rhs = tuple(1 if kind == "r" else d for d, kind in zip(out, kinds, strict=True))
    return lhs, rhs, out


NAMED = [
    pytest.param((2, 5, 7, 33), (1, 1, 1, 33), id="channels"),
    pytest.param((1, 1, 1, 33), (2, 5, 7, 33), id="channels-first"),
    pytest.param((3, 5, 7, 20), (3, 1, 1, 20), id="squeeze-excite"),
    pytest.param((2, 5, 7, 20), (2, 5, 7, 1), id="per-pixel"),
    pytest.param((2, 5, 7, 20), (1, 1, 1, 1), id="scalar"),
    pytest.param((1, 6, 1, 5), (4, 1, 3, 1), id="outer-product"),
    pytest.param((200, 100), (200, 100), id="equal"),
]


@pytest.mark.parametrize(("lhs", "rhs"), NAMED)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_broadcasts(lhs: Shape, rhs: Shape, dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype)
    a, b = (rng.integers(info.min, info.max, s, np.dtype(dtype), endpoint=True) for s in (lhs, rhs))
    (y,) = run_both(
        Maximum(inputs=(), outputs=()),
        [a, b],
        [(np.broadcast_shapes(lhs, rhs), DType.of(dtype))],
        dynamic=BOTH,
        threads=(1, 2),
    )
    assert np.array_equal(y, np.maximum(a, b))


@given(st.data(), pairs(), DTYPES, DTYPES, DTYPES)
@EXACT
def test_add_in_integers(
    data: st.DataObject,
    pair: tuple[Shape, Shape, Shape],
    lhs: type[np.generic],
    rhs: type[np.generic],
    out: type[np.generic],
) -> None:
    lo, hi = data.draw(clamps(out))
    op = Add(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, clamp_min=lo, clamp_max=hi,
        lhs_multiplier=data.draw(st.integers(-32767, 32767)), rhs_multiplier=data.draw(st.integers(-32767, 32767)),
        shift=data.draw(st.one_of(st.integers(0, 20), st.integers(0, 62))), zero_point=data.draw(zero_points(out)),
        lhs_zero_point=data.draw(zero_points(lhs)), rhs_zero_point=data.draw(zero_points(rhs)),
    )  # fmt: skip
    a, b = data.draw(arrays(pair[0], lhs)), data.draw(arrays(pair[1], rhs))
    run_both(op, [a, b], [(pair[2], DType.of(out))], dynamic=BOTH, threads=(1, 2))


@given(st.data(), pairs(), DTYPES, DTYPES, DTYPES, st.sampled_from([Add, Mul]))
@EXACT
def test_add_and_mul_in_float32(
    data: st.DataObject,
    pair: tuple[Shape, Shape, Shape],
    lhs: type[np.generic],
    rhs: type[np.generic],
    out: type[np.generic],
    kind: type[Add | Mul],
) -> None:
    lo, hi = data.draw(clamps(out))
    scales = st.floats(2.0**-12, 2.0**4)
    op = kind(
        inputs=(), outputs=(), scheme=Scheme.FLOAT, clamp_min=lo, clamp_max=hi, zero_point=data.draw(zero_points(out)),
        lhs_scale=data.draw(scales), rhs_scale=data.draw(scales) * data.draw(st.sampled_from([1, -1])),
        out_scale=data.draw(scales),
        lhs_zero_point=data.draw(zero_points(lhs)), rhs_zero_point=data.draw(zero_points(rhs)),
    )  # fmt: skip
    operands: list[Array | None] = [data.draw(arrays(pair[0], lhs)), data.draw(arrays(pair[1], rhs))]
    operands += [None] * (len(kind.operands) - 2)
    run_both(op, operands, [(pair[2], DType.of(out))], dynamic=BOTH, threads=(1, 2))


@given(st.data(), pairs(), DTYPES, DTYPES, st.sampled_from(PRODUCTS))
@EXACT
def test_mul_in_integers(
    data: st.DataObject,
    pair: tuple[Shape, Shape, Shape],
    lhs: type[np.generic],
    rhs: type[np.generic],
    result: tuple[Scheme, type[np.generic]],
) -> None:
    scheme, out = result
    lo, hi = data.draw(clamps(out))
    op = Mul(
        inputs=(), outputs=(), scheme=scheme, clamp_min=lo, clamp_max=hi, zero_point=data.draw(zero_points(out)),
        lhs_zero_point=data.draw(zero_points(lhs)), rhs_zero_point=data.draw(zero_points(rhs)),
    )  # fmt: skip
    operands = [
        data.draw(arrays(pair[0], lhs)),
        data.draw(arrays(pair[1], rhs)),
        *data.draw(scheme_operands(scheme, 1)),
    ]
    run_both(op, operands, [(pair[2], DType.of(out))], dynamic=BOTH, threads=(1, 2))


@given(st.data(), pairs(), DTYPES, st.sampled_from([Maximum, Minimum]))
@EXACT
def test_maximum_and_minimum(
    data: st.DataObject, pair: tuple[Shape, Shape, Shape], dtype: type[np.generic], kind: type[Maximum]
) -> None:
    a, b = data.draw(arrays(pair[0], dtype)), data.draw(arrays(pair[1], dtype))
    run_both(kind(inputs=(), outputs=()), [a, b], [(pair[2], DType.of(dtype))], dynamic=BOTH, threads=(1, 2))


@given(st.data(), shapes(), DTYPES)
@EXACT
def test_clamp(data: st.DataObject, shape: Shape, dtype: type[np.generic]) -> None:
    lo, hi = data.draw(clamps(dtype))
    op = Clamp(inputs=(), outputs=(), clamp_min=lo, clamp_max=hi)
    (y,) = run_both(op, [data.draw(arrays(shape, dtype))], [(shape, DType.of(dtype))], threads=(1, 2))
    assert y.min() >= lo
    assert y.max() <= hi


def test_products_beyond_64_bits_saturate() -> None:
    info = np.iinfo(np.int32)
    ends = np.array([info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max], np.int32)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(ends, ends))
    mult, pre, post = np.array([1 << 30], np.int32), np.array([0], np.int8), np.array([30], np.int8)
    low, high = int(info.min), int(info.max)
    for lhs, rhs in ((low, high), (high, low), (low, low), (1, -1)):
        op = Mul(
            inputs=(), outputs=(), scheme=Scheme.WIDE, clamp_min=low, clamp_max=high,
            lhs_zero_point=lhs, rhs_zero_point=rhs,
        )  # fmt: skip
        (y,) = run_both(op, [a, b, mult, pre, post], [(a.shape, DType.I32)], dynamic=BOTH)
        exact = [(p - lhs) * (q - rhs) for p, q in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
        assert y.ravel().tolist() == [max(low, min(high, v)) for v in exact]


@pytest.mark.parametrize("shift", [0, 1, 30, 31, 32, 33, 62])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_add_shifts_at_the_edges_of_32_bits(shift: int, dtype: type[np.generic]) -> None:
    info = np.iinfo(dtype)
    ends = np.array([info.min, -1, 0, 1, info.max], dtype)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(ends, ends))
    for multiplier in (32767, -32767, 1):
        op = Add(
            inputs=(), outputs=(), scheme=Scheme.FORM_B, clamp_min=-(1 << 31), clamp_max=(1 << 31) - 1,
            lhs_multiplier=multiplier, rhs_multiplier=32767, shift=shift, zero_point=-5,
        )  # fmt: skip
        run_both(op, [a, b], [(a.shape, DType.I32)], dynamic=BOTH)
        narrow = replace(op, clamp_min=-128, clamp_max=127)
        (y,) = run_both(narrow, [a, b], [(a.shape, DType.I8)], dynamic=BOTH)
        exact = [p * multiplier + q * 32767 for p, q in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
        half = 1 << shift >> 1
        assert y.ravel().tolist() == [max(-128, min(127, ((v + half) >> shift) - 5)) for v in exact]


def test_every_pair_of_i8_adds_within_a_quantum_of_the_real_sum() -> None:
    q = np.arange(-128, 128, dtype=np.int8)
    a, b = (np.ascontiguousarray(v) for v in np.meshgrid(q, q))
    lhs, rhs, shift = numerics.add_params(0.7, -0.45)
    op = Add(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, clamp_min=-128, clamp_max=127,
        lhs_multiplier=lhs, rhs_multiplier=rhs, shift=shift,
    )  # fmt: skip
    (y,) = run_both(op, [a, b], [(a.shape, DType.I8)], dynamic=BOTH, threads=(1, 2))
    assert np.abs(y - np.clip(0.7 * a - 0.45 * b, -128, 127)).max() <= 0.52


# ---- bytes, in groups: every machine, whole groups and what is left of them, rows shorter than a group

EXTREMES = np.array([-128, -127, -1, 0, 1, 126, 127])
GROUPED = [
    pytest.param((3, 67), (3, 67), id="equal"),
    pytest.param((1, 7, 9, 24), (1, 1, 1, 24), id="channels"),
    pytest.param((1, 1, 1, 3), (2, 50, 9, 3), id="few-channels-first"),
    pytest.param((2, 800, 2), (2, 800, 1), id="per-pixel"),
    pytest.param((2, 5, 1), (1, 5, 130), id="outer"),
    pytest.param((3, 300, 5), (3, 1, 5), id="rows-of-each-entry"),
]


def bytes_of(shape: Shape, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.3, rng.choice(EXTREMES, shape), rng.integers(-128, 128, shape)).astype(
        np.int8
    )


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("lhs", "rhs"), GROUPED)
@pytest.mark.parametrize("shift", [0, 15, 22])
def test_sums_of_bytes(machine: Host, lhs: Shape, rhs: Shape, shift: int) -> None:
    op = Add(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, lhs_multiplier=(1 << 15) - 1 if shift > 9 else 3,
        rhs_multiplier=1 + shift - (1 << 15), shift=shift, lhs_zero_point=-128, rhs_zero_point=5 * (shift % 2),
        zero_point=3, clamp_min=-100, clamp_max=127,
    )  # fmt: skip
    out = np.broadcast_shapes(lhs, rhs), DType.I8
    operands = [bytes_of(lhs, 1), bytes_of(rhs, 2)]
    run_both(op, operands, [out], dynamic=BOTH, threads=(1, 2), machine=machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("lhs", "rhs"), GROUPED[:2])
@pytest.mark.parametrize(
    ("mult", "pre", "post", "zero_points"),
    [
        (32767, 0, 22, (-128, 127)), (19660, 0, 17, (0, 0)), (16384, 1, 16, (-128, 127)), (32767, 0, 15, (0, 0)),
        (-32767, 3, 15, (-128, -128)), (20000, 2, 9, (0, 0)), (3, 0, 0, (127, -128)), (32767, 0, 17, (127, 127)),
    ],
)  # fmt: skip
def test_products_of_bytes(
    machine: Host, lhs: Shape, rhs: Shape, mult: int, pre: int, post: int, zero_points: tuple[int, int]
) -> None:
    op = Mul(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, lhs_zero_point=zero_points[0], rhs_zero_point=zero_points[1],
        zero_point=-7, clamp_min=-128, clamp_max=99,
    )  # fmt: skip
    parameters = [np.array([mult], np.int16), np.array([pre], np.int8), np.array([post], np.int8)]
    operands = [bytes_of(lhs, 1), bytes_of(rhs, 2), *parameters]
    out = np.broadcast_shapes(lhs, rhs), DType.I8
    run_both(op, operands, [out], dynamic=BOTH, threads=(1, 2), machine=machine)
