"""Convolutions, pools, resizes and samplings between DequantizeLinear and QuantizeLinear, against ONNX Runtime.

Both sides see the same integers; distances are in quanta of the result. What is allowed, and why:

- maxima, nearest and borders move integers: 0 where operand and result share a scale;
- convolutions: 1 under `bpu` (NUMERICS 4's form A rounds by a coarse term), 1 under `onnx`: ONNX Runtime adds floats,
  one of which may fall on the other side of a tie of the exact sum;
- averages: 1, for the same reason; linear resizing: 2 (weights of 8 bits).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

import hbc
from tests.differential.quantised import ARITHS, Case, Scaled, cpu_reasons, one_op, quanta, scaled

MODEST = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
SEEDS = st.integers(0, 2**31)
NARROW = st.sampled_from([np.int8, np.uint8])
DTYPES = st.sampled_from([np.int8, np.uint8, np.int16])
ARITH = st.sampled_from(ARITHS)


def window(rng: np.random.Generator, rank: int, *, dilated: bool = True, padded: bool = True) -> dict[str, list[int]]:
    """Strides, dilations and asymmetric pads of `rank` axes; strides may exceed the kernel."""
    return {
        "strides": [int(v) for v in rng.integers(1, 4, rank)],
        "dilations": [int(v) for v in rng.integers(1, 3 if dilated else 2, rank)],
        "pads": [int(v) for v in rng.integers(0, 3 if padded else 1, 2 * rank)],
    }


def weight(case: Case, rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> str:
    w = rng.integers(-127, 128, shape).astype(np.int8)
    per_channel = rng.random() < 0.6
    scales = rng.uniform(0.001, 0.01, shape[axis]) if per_channel else rng.uniform(0.001, 0.01)
    return case.weight(w, np.float32(scales), axis)


def result_scale(rng: np.random.Generator, dtype: Any, x: Scaled, terms: int) -> Scaled:
    """A scale under which sums of `terms` products use the range and sometimes leave it."""
    deviation = x.scale * (74 if x.dtype.itemsize == 1 else 74 * 256) * 0.005 * 73 * math.sqrt(terms)
    steps = 64 if np.dtype(dtype).itemsize == 1 else 64 * 256
    return Scaled(float(np.float32(deviation / steps)), np.dtype(dtype).type(scaled(rng, dtype).zero))


def bias(case: Case, rng: np.random.Generator, channels: int) -> list[str]:
    return [case.const(rng.normal(0, 1, channels).astype(np.float32))] if rng.random() < 0.5 else []


@MODEST
@given(SEEDS, st.integers(1, 3), DTYPES, NARROW, ARITH)
def test_conv(seed: int, rank: int, act: Any, result: Any, arith: str) -> None:
    """1-D, 2-D and 3-D; groups, depthwise with a multiplier, batches, kernels beyond the unpadded input."""
    rng = np.random.default_rng(seed)
    group = int(rng.choice([1, 1, 2, 4]))
    cin, out = 4 * int(rng.integers(1, 3)), group * int(rng.integers(1, 4))
    kernel = tuple(int(v) for v in rng.integers(1, 4, rank))
    attrs = window(rng, rank)
    if "dilations" in attrs:  # nash strides only along axes that it doesn't dilate
        attrs["strides"] = [1 if d > 1 else s for s, d in zip(attrs["strides"], attrs["dilations"], strict=True)]
    size = tuple(int(v) for v in rng.integers(5, 9, rank))
    x_by = scaled(rng, act)
    terms = cin // group * math.prod(kernel)
    y_by = result_scale(rng, result, x_by, terms)

    def build(c: Case, d: str) -> str:
        w = weight(c, rng, (out, cin // group, *kernel), 0)
        y = c.op("Conv", d, w, *bias(c, rng, out), group=group, **attrs)
        return c.op("Relu", y) if rng.random() < 0.5 else y

    case = one_op(build, x_by.ints(rng, 2, cin, *size), x_by, y_by)
    assert quanta(case, arith) <= 1


@MODEST
@given(SEEDS, st.integers(1, 3), NARROW, ARITH)
def test_conv_transpose(seed: int, rank: int, act: Any, arith: str) -> None:
    """Strides, groups, output_padding and pads of 1 to 3 axes."""
    rng = np.random.default_rng(seed)
    group = int(rng.choice([1, 1, 2]))
    cin, og = 2 * group, int(rng.integers(1, 4))
    kernel = tuple(int(v) for v in rng.integers(2, 4, rank))
    strides = [int(v) for v in rng.integers(1, 4, rank)]
    extra = [int(rng.integers(0, s)) for s in strides]
    attrs = {"strides": strides, "output_padding": extra, "pads": [int(v) for v in rng.integers(0, 2, 2 * rank)]}
    size = tuple(int(v) for v in rng.integers(2, 5, rank))
    x_by = scaled(rng, act)
    y_by = result_scale(rng, act, x_by, cin * math.prod(kernel) // group)

    def build(c: Case, d: str) -> str:
        w = c.weight(rng.integers(-127, 128, (cin, og, *kernel)).astype(np.int8), np.float32(0.004))
        return c.op("ConvTranspose", d, w, *bias(c, rng, og * group), group=group, **attrs)

    case = one_op(build, x_by.ints(rng, 2, cin, *size), x_by, y_by)
    assert quanta(case, arith) <= 1


@pytest.mark.parametrize("arith", ARITHS)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_automatic_pads(op: str, rank: int, auto_pad: str, arith: str) -> None:
    """SAME with odd pads on either side; 3-D averages that drop pads along several axes are the CPU's."""
    rng = np.random.default_rng(7)
    kernel, strides, size = [3, 2, 4][:rank], [2, 3, 1][:rank], (7, 8, 6)[:rank]
    x_by = Scaled(0.03, np.int8(-7))

    def build(c: Case, d: str) -> str:
        if "Pool" in op:
            return c.op(op, d, kernel_shape=kernel, strides=strides, auto_pad=auto_pad)
        w = c.weight(rng.integers(-127, 128, (4, 4, *kernel)).astype(np.int8), np.float32(0.004))
        return c.op(op, d, w, strides=strides, auto_pad=auto_pad)

    on_cpu = op == "AveragePool" and rank == 3 and auto_pad != "VALID"
    y_by = x_by if "Pool" in op else result_scale(rng, np.int8, x_by, 4 * math.prod(kernel))
    assert quanta(one_op(build, x_by.ints(rng, 1, 4, *size), x_by, y_by), arith, cpu=on_cpu) <= 1


@MODEST
@given(SEEDS, st.integers(1, 3), DTYPES, ARITH)
def test_max_pool_moves_integers(seed: int, rank: int, act: Any, arith: str) -> None:
    rng = np.random.default_rng(seed)
    kernel = [int(v) for v in rng.integers(2, 4, rank)]
    attrs = window(rng, rank)
    attrs["pads"] = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]  # ONNX Runtime: a pad is below the kernel
    ceil = int(rng.integers(0, 2))
    by = scaled(rng, act)
    x = by.ints(rng, 2, 3, *(int(v) for v in rng.integers(6, 10, rank)))

    def build(c: Case, d: str) -> str:
        return c.op("MaxPool", d, kernel_shape=kernel, ceil_mode=ceil, **attrs)

    assert quanta(one_op(build, x, by, by), arith) == 0


@MODEST
@given(SEEDS, st.integers(1, 3), NARROW, st.booleans(), ARITH)
def test_average_pool(seed: int, rank: int, act: Any, include_pad: bool, arith: str) -> None:
    """3-D boxes that drop pads along one axis at most; the others are the CPU's (test below)."""
    rng = np.random.default_rng(seed)
    kernel = [int(v) for v in rng.integers(2, 4, rank)]
    attrs = window(rng, rank)
    pads = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
    if rank == 3:
        axis = int(rng.integers(0, 3))
        pads = [p if include_pad or i % 3 == axis else 0 for i, p in enumerate(pads)]
    attrs["pads"] = pads
    by = scaled(rng, act)
    x = by.ints(rng, 2, 3, *(int(v) for v in rng.integers(6, 10, rank)))

    def build(c: Case, d: str) -> str:
        return c.op("AveragePool", d, kernel_shape=kernel, count_include_pad=int(include_pad), **attrs)

    assert quanta(one_op(build, x, by, by), arith) <= 1


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("arith", ARITHS)
def test_global_pools(op: str, rank: int, arith: str) -> None:
    by = Scaled(0.03, np.uint8(77))
    x = by.ints(np.random.default_rng(rank), 2, 5, *(4, 3, 5)[:rank])
    assert quanta(one_op(lambda c, d: c.op(op, d), x, by, by), arith) <= int(op == "GlobalAveragePool")


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "reason"),
    [
        ("AveragePool", (1, 2, 6, 6, 6), {"kernel_shape": [3] * 3, "pads": [1] * 6}, "numbers of positions"),
        ("MaxPool", (1, 2, 4, 4, 4, 4), {"kernel_shape": [2] * 4}, "MaxPool has no BPU form"),
        ("Resize", (1, 2, 4, 4), {"mode": "cubic"}, "it resizes by cubic"),
        ("Resize", (1, 2, 4, 4, 4), {"mode": "linear"}, "interpolates along 3 axes"),
        ("Resize", (1, 2, 4, 4), {"mode": "linear", "antialias": 1}, "filters what it shrinks"),
    ],
)
def test_what_no_instruction_does_says_why(op: str, shape: tuple[int, ...], attrs: dict[str, Any], reason: str) -> None:
    by = Scaled(0.03, np.int8(3))
    scales = np.float32([1, 1, *[2.0] * (len(shape) - 2)])

    def build(c: Case, d: str) -> str:
        return c.op(op, d, *(["", c.const(scales)] if op == "Resize" else []), **attrs)

    case = one_op(build, by.ints(np.random.default_rng(0), *shape), by, by)
    assert any(reason in r for r in cpu_reasons(hbc.compile(case.model()).program))
    if len(shape) < 6:  # ONNX Runtime has no pool of four axes either
        assert quanta(case, "onnx", cpu=True) <= 1


def test_indices_of_a_max_pool_are_the_cpus() -> None:
    by = Scaled(0.03, np.int8(3))
    case = Case()
    d = case.activation(by.ints(np.random.default_rng(0), 1, 2, 6, 6), by)
    y = case.op("MaxPool", d, out=["m", "i"], kernel_shape=[2, 2], strides=[2, 2])
    case.output("i", dtype=np.int64)
    case.result(y, by)
    assert any("indices" in r for r in cpu_reasons(hbc.compile(case.model()).program))
    assert quanta(case, "onnx", cpu=True) == 0


# ---- what follows a 1-D or 3-D convolution goes into it


@MODEST
@given(SEEDS, st.sampled_from([1, 3]), ARITH)
def test_batch_norm_addition_and_relu_behind_a_lifted_conv(seed: int, rank: int, arith: str) -> None:
    """One rounding for all of it; two scales meet in the sum, so 1 quantum under either arithmetic."""
    rng = np.random.default_rng(seed)
    x_by, a_by = scaled(rng, np.int8), scaled(rng, np.uint8)
    size, kernel = (6, 5, 7)[:rank], (3, 2, 3)[:rank]
    out = tuple(d - k + 1 for d, k in zip(size, kernel, strict=True))

    def build(c: Case, d: str) -> str:
        y = c.op("Conv", d, weight(c, rng, (6, 4, *kernel), 0), *bias(c, rng, 6))
        if rng.random() < 0.7:
            y = c.op("BatchNormalization", y, *(c.const(rng.uniform(0.5, 1.5, 6).astype(np.float32)) for _ in range(4)))
        if rng.random() < 0.7:
            other = c.activation(a_by.ints(rng, 2, 6, *out), a_by)
            y = c.op("Add", *((y, other) if rng.random() < 0.5 else (other, y)))
        elif rng.random() < 0.5:
            y = c.op("Add", y, c.const(rng.normal(0, 1, (6, *[1] * rank)).astype(np.float32)))
        return c.op("Relu", y)

    y_by = result_scale(rng, np.int8, x_by, 4 * math.prod(kernel))
    case = one_op(build, x_by.ints(rng, 2, 4, *size), x_by, y_by)
    assert quanta(case, arith) <= 1


# ---- resizing


@MODEST
@given(
    SEEDS,
    st.integers(1, 3),
    DTYPES,
    st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]),
    ARITH,
)
def test_resize_nearest_moves_integers(seed: int, rank: int, act: Any, rounding: str, mode: str, arith: str) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, act)
    scales = np.float32([1, 1, *rng.uniform(0.4, 2.6, rank)])
    x = by.ints(rng, 2, 3, *(int(v) for v in rng.integers(3, 8, rank)))
    sizes = np.floor(np.float32(x.shape) * scales)
    assume((sizes != x.shape).any())  # where no size changes ONNX Runtime copies, whatever the scales say
    if mode == "half_pixel_symmetric":  # float32 steps that ONNX's text doesn't order decide what lies at a tie
        assume(not any(symmetric_tie(d, float(s)) for d, s in zip(x.shape[2:], scales[2:], strict=True)))

    def build(c: Case, d: str) -> str:
        attrs = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": mode}
        return c.op("Resize", d, "", c.const(scales), **attrs)

    assert quanta(one_op(build, x, by, by), arith) == 0


def symmetric_tie(size: int, scale: float) -> bool:
    """True where a position of half_pixel_symmetric is a whole number or one and a half, give or take float error."""
    out = math.floor(np.float32(size) * np.float32(scale))
    position = size / 2 * (1 - out / (scale * size)) + (np.arange(out) + 0.5) / scale - 0.5
    return bool((np.abs(2 * position - np.rint(2 * position)) < 1e-5).any())


@MODEST
@given(
    SEEDS,
    st.sampled_from([(2, 3, 7), (1, 3, 5, 7), (2, 2, 3, 5, 4), (1, 6, 7, 3)]),
    NARROW,
    st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]),
    ARITH,
)
def test_resize_linear(seed: int, shape: tuple[int, ...], act: Any, mode: str, arith: str) -> None:
    """8-bit weights shift a value by 255/512 quanta per axis at most: 2, with both roundings. CPU under `onnx`."""
    rng = np.random.default_rng(seed)
    by = scaled(rng, act)
    axes = [1, 2] if shape == (1, 6, 7, 3) else list(range(len(shape)))[-min(2, len(shape) - 2) :]
    scales = np.ones(len(shape), np.float32)
    scales[axes] = rng.uniform(1.2, 2.6, len(axes))

    def build(c: Case, d: str) -> str:
        return c.op("Resize", d, "", c.const(scales), mode="linear", coordinate_transformation_mode=mode)

    assert quanta(one_op(build, by.ints(rng, *shape), by, by), arith, cpu=arith == "onnx") <= 2


@pytest.mark.parametrize("arith", ARITHS)
@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_average_of_boxes(last: int, arith: str) -> None:
    """Microsoft's operator takes three axes, too."""
    rng = np.random.default_rng(5)
    by, to = scaled(rng, np.uint8), scaled(rng, np.uint8)
    case = Case()
    case.opsets["com.microsoft"] = 1
    x = case.feed(by.ints(rng, *((2, 5, 6, 4, 3) if last else (2, 3, 5, 6, 4))))
    operands = [case.const(v) for v in (np.float32(by.scale), by.zero, np.float32(to.scale), to.zero)]
    attrs = {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1], "channels_last": last}
    case.op("QLinearAveragePool", x, *operands, out="y", domain="com.microsoft", **attrs)
    case.output("y", dtype=np.uint8)
    assert quanta(case, arith) <= 1


@pytest.mark.parametrize("arith", ARITHS)
def test_qlinear_conv_of_volumes_is_identical_in_onnx_arithmetic(arith: str) -> None:
    """Integer sums and one float rounding on both sides: 0 under `onnx`, 1 under `bpu`."""
    rng = np.random.default_rng(6)
    by, to = scaled(rng, np.uint8), scaled(rng, np.uint8)
    to = Scaled(by.scale * 4, to.zero)
    case = Case()
    x = case.feed(by.ints(rng, 2, 4, 5, 6, 4))
    w = case.const(rng.integers(-127, 128, (6, 2, 3, 2, 2)).astype(np.int8))
    parameters = (rng.uniform(0.001, 0.01, 6).astype(np.float32), np.zeros(6, np.int8), np.float32(to.scale), to.zero)
    head = [x, case.const(np.float32(by.scale)), case.const(by.zero), w]
    bias = case.const(rng.integers(-3000, 3000, 6).astype(np.int32))
    case.op("QLinearConv", *head, *map(case.const, parameters), bias, out="y", group=2, pads=[1, 0, 1, 1, 1, 0])
    case.output("y", dtype=np.uint8)
    assert quanta(case, arith) <= int(arith == "bpu")
