"""The reference against its definitions, spelt out in Python integers, one element at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc_runtime import numerics, reference
from hbc_runtime.isa import (
    INSTRUCTIONS,
    AvgPool,
    Conv2d,
    ConvTranspose2d,
    Instruction,
    Matmul,
    MaxPool,
    ReduceMax,
    ReduceMin,
    ReduceSum,
    Scheme,
)
from hbc_runtime.reference.matmul import exact_matmul
from hbc_runtime.types import DType

Array = npt.NDArray[Any]
I32 = {"scheme": Scheme.NONE, "clamp_min": -(1 << 31), "clamp_max": (1 << 31) - 1}
FEW = settings(max_examples=25, deadline=None)
STEPS = st.tuples(st.integers(1, 3), st.integers(1, 3))
BORDERS = st.tuples(*[st.integers(0, 2)] * 4)


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of a result."""

    shape: tuple[int, ...]
    dtype: DType


def run(op: Instruction, operands: Sequence[Array | None], shape: tuple[int, ...], dtype: DType) -> Array:
    """Check, then execute; the result is dense and of its own memory."""
    outs = [Spec(shape, dtype)]
    op.check([None if x is None else Spec(x.shape, DType.of(x.dtype)) for x in operands], outs)
    (y,) = reference.execute(op, operands, outs)
    assert y.shape == shape
    assert y.dtype == dtype.numpy
    assert y.flags.c_contiguous
    assert not any(x is not None and np.shares_memory(x, y) for x in operands)
    return y


def indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int8) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)  # type: ignore[no-any-return]


def test_there_is_one_rule_per_instruction() -> None:
    assert set(reference.RULES) == set(INSTRUCTIONS.values())


@dataclass(frozen=True)
class Window:
    """Sizes of a convolution or pooling along one axis."""

    size: int
    kernel: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def out(self) -> int:
        return (self.size + self.before + self.after - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    def position(self, out: int, tap: int) -> int:
        return out * self.stride - self.before + tap * self.dilation


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, Window]:
    """Rows and columns whose kernels fit their padded inputs."""
    strides, dilations, pads = draw(STEPS), draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), draw(BORDERS)
    both = [
        Window(draw(st.integers(1, 6)), draw(st.integers(1, 3)), strides[i], pads[i], pads[2 + i], dilations[i])
        for i in range(2)
    ]
    fits = [w if w.out >= 1 else Window(w.size + 6, w.kernel, w.stride, w.before, w.after, w.dilation) for w in both]
    return fits[0], fits[1]


def spatial(rows: Window, columns: Window) -> dict[str, tuple[int, ...]]:
    """The attributes that a pair of windows stands for."""
    return {
        "strides": (rows.stride, columns.stride),
        "pads": (rows.before, columns.before, rows.after, columns.after),
        "dilations": (rows.dilation, columns.dilation),
    }


@st.composite
def channels(draw: st.DrawFn) -> tuple[int, int, int]:
    """(groups, input channels per group, output channels per group); depthwise among them."""
    return draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))


@given(windows(), channels(), st.integers(-128, 127), st.booleans(), st.integers(0, 1 << 32))
@FEW
def test_conv2d_is_its_definition(
    sizes: tuple[Window, Window], groups: tuple[int, int, int], pad_value: int, with_bias: bool, seed: int
) -> None:
    rng, (rows, columns), (group, cg, og) = np.random.default_rng(seed), sizes, groups
    x = random(rng, (2, rows.size, columns.size, group * cg))
    w = random(rng, (group * og, rows.kernel, columns.kernel, cg))
    bias = random(rng, (group * og,), np.int16).astype(np.int32) if with_bias else None
    op = Conv2d(inputs=(), outputs=(), group=group, pad_value=pad_value, **spatial(rows, columns), **I32)
    y = run(op, [x, w, bias, *[None] * 6], (2, rows.out, columns.out, group * og), DType.I32)
    for n, oh, ow, o in indices(y.shape):
        acc = 0 if bias is None else int(bias[o])
        for kh, kw, c in indices(w.shape[1:]):
            h, wd = rows.position(oh, kh), columns.position(ow, kw)
            inside = 0 <= h < rows.size and 0 <= wd < columns.size
            acc += (int(x[n, h, wd, o // og * cg + c]) if inside else pad_value) * int(w[o, kh, kw, c])
        assert y[n, oh, ow, o] == acc


@given(windows(), channels(), st.integers(-128, 127), st.tuples(*[st.integers(0, 1)] * 2), st.integers(0, 1 << 32))
@FEW
def test_conv_transpose2d_is_its_definition(
    sizes: tuple[Window, Window],
    groups: tuple[int, int, int],
    zero_point: int,
    output_padding: tuple[int, int],
    seed: int,
) -> None:
    rng, (rows, columns), (group, cg, og) = np.random.default_rng(seed), sizes, groups
    x = random(rng, (2, rows.size, columns.size, group * cg))
    w = random(rng, (group * og, rows.kernel, columns.kernel, cg))
    bias = random(rng, (group * og,), np.int16).astype(np.int32)
    oh, ow = (
        (v.size - 1) * v.stride + v.dilation * (v.kernel - 1) + 1 + extra - v.before - v.after
        for v, extra in zip((rows, columns), output_padding, strict=True)
    )
    if min(oh, ow) < 1:
        return
    want = np.zeros((2, oh, ow, group * og), np.int64) + bias
    for n, h, wd, c in indices(x.shape):
        for j, kh, kw in indices((og, rows.kernel, columns.kernel)):
            o, p, q = c // cg * og + j, h * rows.stride - rows.before, wd * columns.stride - columns.before
            p, q = p + kh * rows.dilation, q + kw * columns.dilation
            if 0 <= p < oh and 0 <= q < ow:
                want[n, p, q, o] += (int(x[n, h, wd, c]) - zero_point) * int(w[o, kh, kw, c % cg])
    op = ConvTranspose2d(
        inputs=(), outputs=(), group=group, x_zero_point=zero_point, output_padding=output_padding,
        **spatial(rows, columns), **I32,
    )  # fmt: skip
    y = run(op, [x, w, bias, None, None, None], want.shape, DType.I32)
    assert np.array_equal(y, want)


def test_conv2d_requantises_per_channel_and_adds_the_addend() -> None:
    x = np.array([[[[3, -4]]]], np.int8)
    w = np.array([[[[10, 1]]], [[[1, 10]]]], np.int8)
    bias = np.array([100, -100], np.int32)  # accumulators 126 and −137
    mult, pre, post = np.array([16384, 24576], np.int16), np.array([0, 1], np.int8), np.array([17, 15], np.int8)
    addend = np.array([[[[5, -7]]]], np.int8)
    addend_mult, addend_shift = np.array([16384, 20000], np.int16), np.array([-1, 15], np.int8)
    op = Conv2d(
        inputs=(), outputs=(), scheme=Scheme.FORM_A, zero_point=3, clamp_min=-128, clamp_max=127, addend_zero_point=1
    )
    plain = run(op, [x, w, bias, mult, pre, post, None, None, None], (1, 1, 1, 2), DType.I8)
    assert plain.ravel().tolist() == [(126 * 16384 >> 17) + 3, ((-137 >> 1) * 24576 >> 15) + 3]
    y = run(op, [x, w, bias, mult, pre, post, addend, addend_mult, addend_shift], (1, 1, 1, 2), DType.I8)
    shifted = -137 + (-8 * 20000 >> 15)  # the first addend, 4 · 16384 << 1, saturates the result
    assert y.ravel().tolist() == [127, ((shifted >> 1) * 24576 >> 15) + 3]


def test_conv2d_in_floats_adds_the_addend_before_it_rounds() -> None:
    x, w = np.full((1, 1, 1, 1), 7, np.int8), np.full((1, 1, 1, 1), 3, np.int8)
    mult, addend_mult = np.array([0.25], np.float32), np.array([0.125], np.float32)
    op = Conv2d(
        inputs=(), outputs=(), scheme=Scheme.FLOAT, zero_point=-2, clamp_min=-128, clamp_max=127, addend_zero_point=-1
    )
    operands = [x, w, None, mult, None, None, np.full((1, 1, 1, 1), 9, np.int8), addend_mult, None]
    assert run(op, operands, (1, 1, 1, 1), DType.I8).item() == 4  # 5.25 + 1.25 = 6.5, whose even neighbour is 6


def test_accumulators_beyond_i32_saturate_once_at_the_end() -> None:
    x, w = np.full((1, 1, 1, 4), -32768, np.int16), np.full((2, 1, 1, 4), 32767, np.int16)
    w[1] = [32767, 32767, -32767, -32767]  # passes −2^31 on its way to 0
    op = Conv2d(inputs=(), outputs=(), **I32)
    y = run(op, [x, w, None, None, None, None, None, None, None], (1, 1, 1, 2), DType.I32)
    assert y.ravel().tolist() == [-(1 << 31), 0]


@pytest.mark.parametrize("k", [1, 5, 300])
def test_matmul_is_exact_beyond_float64(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = random(rng, (2, 1, 3, k), np.int16), random(rng, (1, 2, k, 4), np.int16)
    bias = random(rng, (4,), np.int16).astype(np.int32)
    op = Matmul(inputs=(), outputs=(), lhs_zero_point=-5, rhs_zero_point=32767, **I32)
    y = run(op, [a, b, bias, None, None, None], (2, 2, 3, 4), DType.I32)
    exact = (a.astype(object) + 5) @ (b.astype(object) - 32767) + bias
    assert np.array_equal(y, np.clip(exact, -(1 << 31), (1 << 31) - 1).astype(np.int64))


def test_exact_matmul_falls_back_to_integers() -> None:
    a = np.array([[(1 << 30) + 1, 1]])
    b = np.array([[(1 << 30) + 1], [1]])
    assert exact_matmul(a, b).item() == (1 << 60) + (1 << 31) + 2  # not a float64


@given(windows(), st.integers(0, 1 << 32), st.sampled_from([DType.I8, DType.I16]))
@FEW
def test_pools_read_inside_positions_only(sizes: tuple[Window, Window], seed: int, dtype: DType) -> None:
    rng, (rows, columns) = np.random.default_rng(seed), sizes
    x = random(rng, (2, rows.size, columns.size, 3), dtype.numpy)
    attributes: dict[str, Any] = {"kernel": (rows.kernel, columns.kernel), **spatial(rows, columns)}
    shape = (2, rows.out, columns.out, 3)
    inside = {
        (oh, ow): [
            (h, w)
            for kh, kw in indices((rows.kernel, columns.kernel))
            if 0 <= (h := rows.position(oh, kh)) < rows.size and 0 <= (w := columns.position(ow, kw)) < columns.size
        ]
        for oh, ow in indices(shape[1:3])
    }
    if not all(inside.values()):
        with pytest.raises(ValueError, match="outside the input"):
            run(MaxPool(inputs=(), outputs=(), **attributes), [x], shape, dtype)
        return
    y = run(MaxPool(inputs=(), outputs=(), **attributes), [x], shape, dtype)
    counts = [len(inside[p]) for p in indices(shape[1:3])]
    params = [numerics.requantize_params(1 / n, rounding_in_bias=False) for n in counts]
    mult, pre, post = (
        np.array([getattr(p, name) for p in params], t)
        for name, t in (("multiplier", np.int16), ("pre_shift", np.int8), ("post_shift", np.int8))
    )
    op = AvgPool(
        inputs=(), outputs=(), scheme=Scheme.FORM_B, clamp_min=-128, clamp_max=127, x_zero_point=7, **attributes
    )
    mean = run(op, [x, mult, pre, post], shape, DType.I8)
    for n, oh, ow, c in indices(shape):
        values = [int(x[n, h, w, c]) for h, w in inside[oh, ow]]
        assert y[n, oh, ow, c] == max(values)
        p = params[oh * shape[2] + ow]
        narrow = max(-32768, min(32767, (sum(values) - 7 * len(values)) >> p.pre_shift))
        scaled = (narrow * p.multiplier + (1 << p.post_shift >> 1)) >> p.post_shift
        assert mean[n, oh, ow, c] == max(-128, min(127, scaled))


def test_a_window_past_the_pads_reads_only_what_is_inside() -> None:
    """ONNX's ceil_mode makes the last window reach past the declared pads."""
    x = np.arange(5, dtype=np.int8).reshape(1, 5, 1, 1)
    op = MaxPool(inputs=(), outputs=(), kernel=(2, 1), strides=(2, 1))
    assert run(op, [x], (1, 3, 1, 1), DType.I8).ravel().tolist() == [1, 3, 4]


def test_reductions_keep_their_axes() -> None:
    x = np.array([[[1, -5], [7, 3]], [[-128, 127], [0, 9]]], np.int8)
    assert run(ReduceMax(inputs=(), outputs=(), axes=(0, 2)), [x], (1, 2, 1), DType.I8).ravel().tolist() == [127, 9]
    assert run(ReduceMin(inputs=(), outputs=(), axes=(1,)), [x], (2, 1, 2), DType.I8).ravel().tolist() == [
        1, -5, -128, 9,
    ]  # fmt: skip
    total = ReduceSum(inputs=(), outputs=(), axes=(0, 1, 2), x_zero_point=-2, **I32)
    assert run(total, [x, None, None, None], (1, 1, 1), DType.I32).item() == 14 + 16
