"""The integers at which a comparison changes its answer, and the ranges that integers are known to have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir import ops
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Op, Value
from hbc.ir.location import FileLoc
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.fold_select import is_injective, threshold
from hbc.passes.ranges import integer_range, real_range
from hbc_runtime import numerics

KINDS = (ops.Equal, ops.Less, ops.LessOrEqual, ops.Greater, ops.GreaterOrEqual)
SCALES = st.floats(2.0**-20, 2.0**10, width=32)


def reals_of(t: TensorType) -> tuple[np.ndarray, np.ndarray]:
    assert t.quant is not None
    lo, hi = t.dtype.limits
    q = np.arange(lo, hi + 1)
    return q.astype(t.dtype.numpy), numerics.dequantize(q, t.quant.scale[0], t.quant.zero_point[0])


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(KINDS), st.sampled_from([DType.I8, DType.I16]), SCALES)
def test_every_integer_gets_the_answer_of_its_real(
    data: st.DataObject, kind: type[ops.Comparison], dtype: DType, scale: float
) -> None:
    t = TensorType((), dtype, Quant.per_tensor(scale, data.draw(st.integers(*dtype.limits))))
    q, reals = reals_of(t)
    on = float(reals[data.draw(st.integers(0, len(q) - 1))])
    beside = st.sampled_from([on, float(np.nextafter(np.float32(on), np.float32(np.inf))), on + scale / 3])
    constant = data.draw(st.one_of(beside, st.sampled_from([np.inf, -np.inf, np.nan, 0.0]), st.floats(width=32)))
    found = threshold(t, kind, np.float32(constant))
    assert found is not None
    relation, integers = found
    assert integers.dtype == dtype.numpy
    want = kind.FUNCTION(reals, np.float32(constant))
    assert np.array_equal(relation.FUNCTION(q, integers), want)  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 31), st.sampled_from(KINDS[1:]))
def test_constants_that_differ_by_element(seed: int, kind: type[ops.Comparison]) -> None:
    rng = np.random.default_rng(seed)
    t = TensorType((), DType.I8, Quant.per_tensor(rng.uniform(0.01, 1), int(rng.integers(-128, 128))))
    q, reals = reals_of(t)
    constant = rng.uniform(reals[0] * 1.1 - 0.1, reals[-1] * 1.1 + 0.1, 4).astype(np.float32)
    found = threshold(t, kind, constant)
    want = kind.FUNCTION(reals[:, None], constant)
    always = want.all(0)
    never = ~want.any(0)
    if found is None:  # one element asks for a bound below the range, another for one above it
        assert always.any()
        assert never.any()
        return
    assert np.array_equal(found[0].FUNCTION(q[:, None], found[1]), want)  # type: ignore[attr-defined]


def test_what_no_integers_can_say() -> None:
    t = TensorType((), DType.I8, Quant.per_tensor(0.5))
    assert threshold(t, ops.Equal, np.float32([0.5, 0.6])) is None  # one has an integer, the other has none
    assert threshold(t, ops.Less, np.float32([0.5, np.nan])) is None
    relation, integers = threshold(t, ops.Equal, np.float32([0.6, 0.7]))  # type: ignore[misc]
    assert (relation, integers.tolist()) == (ops.Less, [-128, -128])


def test_scales_at_the_ends_of_float32_make_integers_one_real() -> None:
    def of(scale: float) -> TensorType:
        return TensorType((), DType.I8, Quant((scale,), (0,)))

    assert is_injective(of(0.1))
    assert not is_injective(of(float(np.float32(3e38))))
    assert not is_injective(of(0.0))


class Net:
    """A graph grown op by op."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.build = Builder(self.graph)

    def arg(self, zero: int = 0, scale: float = 0.1) -> Value:
        return self.graph.add_arg(f"x{len(self.graph.args)}", TensorType((4,), DType.I8, Quant.per_tensor(scale, zero)))

    def op(self, cls: type[Op], *operands: Value, **attrs: Any) -> Value:
        return self.build.op(cls, *operands, loc=FileLoc("t"), **attrs).out

    def quantized(self, x: Value, scale: float = 0.1, zero: int = 0, *, narrow: bool = False) -> Value:
        return self.op(ops.Quantize, x, type=TensorType((4,), DType.I8, Quant.per_tensor(scale, zero)), narrow=narrow)


def test_ranges_of_integers() -> None:
    net = Net()
    x = net.arg(-128)
    assert integer_range(x) == (-128, 127)
    clipped = net.op(ops.Clip, x, type=x.type, low=1.0, high=2.0)
    assert integer_range(clipped) == (-118, -108)
    table = net.op(ops.Const, value=np.arange(256).astype(np.int8) // 2)
    assert integer_range(net.op(ops.Lut, x, table, type=x.type)) == (-64, 63)
    real = net.op(ops.Dequantize, clipped)
    one = net.op(ops.Const, value=np.float32(1.0).reshape(1))
    assert real_range(real) == pytest.approx((1.0, 2.0))
    low, high = integer_range(net.quantized(net.op(ops.Add, real, one), 0.1, -10))
    assert (low, high) == (9, 21)  # 2.0 and 3.0 are 10 and 20; a requantize may be off by one
    assert integer_range(net.quantized(net.op(ops.Mul, real, one))) == (-128, 127)
    assert integer_range(net.quantized(net.op(ops.Mul, real, one), narrow=True)) == (-127, 127)
    assert integer_range(net.op(ops.Reshape, clipped, shape=(2, 2))) == (-118, -108)
    assert integer_range(net.op(ops.Pad, clipped, pads=(1, 1), value=0.0)) == (-128, 127)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 31))
def test_no_integer_lies_outside_its_range(seed: int) -> None:
    """A random chain of what the ranges know, over every integer."""
    rng = np.random.default_rng(seed)
    net = Net()
    x = net.arg(int(rng.integers(-128, 128)), float(rng.uniform(0.01, 0.2)))
    x.type = x.type.with_shape((256,))
    q = np.arange(-128, 128).astype(np.int8)
    assert x.type.quant is not None
    reals: np.ndarray = numerics.dequantize(q, x.type.quant.scale[0], x.type.quant.zero_point[0])
    value = net.op(ops.Dequantize, x)
    for _ in range(int(rng.integers(1, 5))):
        c = np.float32(rng.uniform(-5, 5))
        kind = rng.integers(4)
        if kind == 0:
            low, high = sorted(rng.uniform(-9, 9, 2))
            value, reals = (
                net.op(ops.Clip, value, low=low, high=high),
                np.clip(reals, np.float32(low), np.float32(high)),
            )
            continue
        cls = (ops.Add, ops.Maximum, ops.Minimum)[kind - 1]
        value = net.op(cls, value, net.op(ops.Const, value=np.full(1, c)))
        reals = cls.FUNCTION(reals, c)
    scale, zero = float(np.float32(rng.uniform(0.01, 0.2))), int(rng.integers(-128, 128))
    out = net.op(ops.Quantize, value, type=TensorType((256,), DType.I8, Quant.per_tensor(scale, zero)))
    got = np.clip(np.rint(reals / np.float32(scale)) + zero, -128, 127)
    low, high = integer_range(out)
    assert low <= got.min()
    assert got.max() <= high
