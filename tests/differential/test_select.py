"""Comparisons, logic, where, arg_max and prelu between QDQ nodes: hbc against ONNX Runtime, optimiser off.

What is compared, joined and chosen is exact in both arithmetics (0 quanta). Where integers of another scale are chosen
a requantize rounds half up instead of half to even (bpu): 1 quantum, at ties. prelu multiplies on one side, by slopes
that became i16: 1 quantum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hbc
from tests.differential.quantised import ARITHS, Array, Case, Scaled, cpu_reasons, quanta, scaled
from tests.unit.frontend.net import Net

MODEST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NARROW = (np.int8, np.uint8, np.int16, np.uint16)
SEEDS = st.integers(0, 1 << 31)
RELATIONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
SHAPES = st.sampled_from([(7,), (3, 5), (2, 3, 4), (1, 3, 4, 5), (2, 4, 1, 3), (1, 2, 3, 1, 4)])
both = pytest.mark.parametrize("arith", ARITHS)


def near(by: Scaled, rng: np.random.Generator, *shape: int) -> Array:
    """Integers near the zero point, so that equal ones are frequent."""
    info = np.iinfo(by.dtype)
    return np.clip(int(by.zero) + rng.integers(-3, 4, shape), info.min, info.max).astype(by.dtype)


def broadcast(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with some axes of size 1, and now and then without its first ones."""
    ones = tuple(1 if rng.random() < 0.3 else d for d in shape)
    return ones[rng.integers(0, len(shape)) :] if rng.random() < 0.3 else ones


@both
@MODEST
@given(SEEDS, st.sampled_from(RELATIONS), st.sampled_from(NARROW), SHAPES)
def test_two_tensors_of_one_scale(arith: str, seed: int, op: str, dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, dtype)
    case = Case()
    a = case.activation(near(by, rng, *shape), by)
    b = case.activation(near(by, rng, *broadcast(rng, shape)), by)
    case.op(op, *((a, b) if rng.random() < 0.5 else (b, a)), out="y")
    case.output("y", dtype=np.bool_)
    assert quanta(case, arith) == 0


@both
@MODEST
@given(SEEDS, st.sampled_from(RELATIONS), st.sampled_from(NARROW), st.booleans())
def test_a_tensor_and_a_constant(arith: str, seed: int, op: str, dtype: Any, swap: bool) -> None:
    """Constants on, beside and between the tensor's reals, beyond both ends, infinite, NaN."""
    rng = np.random.default_rng(seed)
    by = scaled(rng, dtype)
    info = np.iinfo(dtype)
    x = np.arange(256).astype(dtype) if info.bits == 8 else by.ints(rng, 2000)
    real = np.float32(np.float32(int(rng.choice(x)) - int(by.zero)) * np.float32(by.scale))
    kinds = [real, np.nextafter(real, np.float32(np.inf)), np.nextafter(real, np.float32(-np.inf)),
             real + np.float32(by.scale / 3), np.float32(1e9), np.float32(-1e9), np.float32(np.inf),
             np.float32(-np.inf), np.float32(np.nan), np.float32(0)]  # fmt: skip
    constant = kinds[rng.integers(len(kinds))]
    case = Case()
    a, c = case.activation(x, by), case.const(np.float32(constant).reshape(rng.choice([0, 1]) * (1,)))
    case.op(op, *((c, a) if swap else (a, c)), out="y")
    case.output("y", dtype=np.bool_)
    assert quanta(case, arith) == 0


@both
@MODEST
@given(SEEDS, st.sampled_from(RELATIONS[1:]), st.sampled_from(NARROW))
def test_a_tensor_and_a_constant_per_channel(arith: str, seed: int, op: str, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, dtype)
    x = by.ints(rng, 1, 5, 4, 6)
    reals = (by.ints(rng, 5, 1, 1).astype(np.float32) - np.float32(by.zero)) * np.float32(by.scale)
    case = Case()
    case.op(op, case.activation(x, by), case.const(reals.astype(np.float32)), out="y")
    case.output("y", dtype=np.bool_)
    assert quanta(case, arith) == 0


@both
@MODEST
@given(SEEDS, st.sampled_from(["And", "Or", "Xor"]), SHAPES)
def test_logic_of_comparisons_and_inputs(arith: str, seed: int, op: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, np.int8)
    case = Case()
    m = case.op("Greater", case.activation(near(by, rng, *shape), by), case.const(np.float32(0)))
    given_ = case.feed(rng.integers(0, 2, broadcast(rng, shape)).astype(bool))
    case.op("Not", case.op(op, m, given_), out="y")
    case.output("y", dtype=np.bool_)
    assert quanta(case, arith) == 0


@both
@MODEST
@given(SEEDS, st.sampled_from(NARROW), SHAPES, st.sampled_from(["one", "two", "constant"]))
def test_where(arith: str, seed: int, dtype: Any, shape: tuple[int, ...], kind: str) -> None:
    """Operands of the result's scale, of another one, and constants (beyond the result's range, too)."""
    rng = np.random.default_rng(seed)
    out = scaled(rng, dtype)
    by = scaled(rng, dtype) if kind == "two" else out
    case = Case()
    m = case.feed(rng.integers(0, 2, broadcast(rng, shape)).astype(bool))
    a = case.activation(by.ints(rng, *shape), by)
    if kind == "constant":
        b = case.const(np.float32(rng.choice([0, 0.11, -1e9, np.inf])).reshape((1,) * rng.integers(0, 2)))
    else:
        b = case.activation(out.ints(rng, *broadcast(rng, shape)), out)
    case.result(case.op("Where", m, *((a, b) if rng.random() < 0.5 else (b, a))), out)
    assert quanta(case, arith) <= (kind == "two")


def test_where_without_a_quantize_behind_it_stays_in_integers() -> None:
    rng = np.random.default_rng(0)
    by = scaled(rng, np.uint8)
    case = Case()
    a, b = (case.activation(by.ints(rng, 2, 3), by) for _ in range(2))
    case.op("Where", case.feed(np.array([[True, False, True]])), a, b, out="y")
    case.output("y")
    assert quanta(case, "onnx") == 0


@both
@MODEST
@given(SEEDS, st.sampled_from(["ArgMax", "ArgMin"]), st.sampled_from(NARROW), SHAPES, st.booleans(), st.booleans())
def test_positions(
    arith: str,
    seed: int,
    op: str,
    dtype: Any,
    shape: tuple[int, ...],
    keep: bool,
    last: bool,
) -> None:
    rng = np.random.default_rng(seed)
    by = scaled(rng, dtype)
    axis = int(rng.integers(-len(shape), len(shape)))
    case = Case()
    x = case.activation(near(by, rng, *shape), by)
    case.op(op, x, out="y", axis=axis, keepdims=int(keep), select_last_index=int(last))
    case.output("y", dtype=np.int64)
    assert quanta(case, arith) == 0


@both
def test_the_tail_of_a_segmentation_net(arith: str) -> None:
    """conv → arg_max over its channels → i32, all of it in integers and without a change of layout between."""
    rng = np.random.default_rng(3)
    x_by, y_by = scaled(rng, np.uint8), scaled(rng, np.uint8, 0.2, 0.4)
    case = Case(17)
    x = case.activation(x_by.ints(rng, 1, 3, 9, 10), x_by)
    w = case.weight(rng.integers(-127, 128, (19, 3, 3, 3)).astype(np.int8), np.full(19, 0.01, np.float32))
    c = case.op("Conv", x, w, pads=[1, 1, 1, 1])
    q = case.dq(case.q(c, y_by.scale, y_by.zero), y_by.scale, y_by.zero)
    case.op("Cast", case.op("ArgMax", q, axis=1, keepdims=0), out="y", to=6)
    case.output("y", dtype=np.int32)
    program = hbc.compile(case.model(), arith=arith).program
    kinds = [type(i).__name__ for s in program.models[0].segments for i in s.instructions]  # type: ignore[union-attr]
    assert kinds.count("Transpose") == 1, kinds  # the image's
    if arith == "onnx":
        assert quanta(case, arith) == 0


@both
@MODEST
@given(SEEDS, st.sampled_from([np.int8, np.uint8]), st.sampled_from([(4, 1, 1), (1, 4, 1, 1), (5,), (4, 3, 5)]))
def test_prelu(arith: str, seed: int, dtype: Any, slope: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    by, out = scaled(rng, dtype), scaled(rng, dtype)
    case = Case()
    x = case.activation(by.ints(rng, 2, 4, 3, 5), by)
    case.result(case.op("PRelu", x, case.const(rng.uniform(-0.5, 1.5, slope).astype(np.float32))), out)
    assert quanta(case, arith) <= 1


POINTWISE: dict[str, Any] = {
    "mask": lambda c, x, k: c.op("Mul", x, c.op("Cast", c.op("Greater", x, k(0.13)), to=1)),
    "where": lambda c, x, k: c.op("Where", c.op("Less", x, k(0)), c.op("Mul", x, k(0.3)), c.op("Tanh", x)),
    "window": lambda c, x, k: c.op(
        "Where", c.op("And", c.op("Greater", x, k(-0.2)), c.op("Not", c.op("Equal", x, k(0)))), x, k(-0.1)
    ),
    "either": lambda c, x, k: c.op(
        "Cast", c.op("Or", c.op("LessOrEqual", x, k(-0.4)), c.op("GreaterOrEqual", x, k(0.3))), to=1
    ),
    "truth": lambda c, x, k: c.op("Where", c.op("Cast", x, to=9), k(1), k(0.5)),
}


@both
@pytest.mark.parametrize("kind", POINTWISE)
@MODEST
@given(SEEDS, st.sampled_from([np.int8, np.uint8]))
def test_an_expression_of_comparisons_over_one_tensor_is_one_table(
    arith: str, kind: str, seed: int, dtype: Any
) -> None:
    rng = np.random.default_rng(seed)
    by, out = scaled(rng, dtype), scaled(rng, dtype)
    case = Case()
    x = case.activation(np.arange(256).astype(dtype), by)
    case.result(POINTWISE[kind](case, x, lambda v: case.const(np.float32(v))), out)
    program = hbc.compile(case.model(), arith=arith).program
    (segment,) = program.models[0].segments
    kinds = [type(i).__name__ for i in segment.instructions if type(i).__name__ != "FlipSign"]  # type: ignore[union-attr]
    assert kinds == ["Lut"]
    assert quanta(case, arith) <= (kind in {"mask", "where", "window"})  # a float64 product may fall off a tie


@both
@MODEST
@given(SEEDS, st.sampled_from(["Max", "Min"]), st.integers(3, 5))
def test_largest_and_smallest_of_many(arith: str, seed: int, op: str, count: int) -> None:
    rng = np.random.default_rng(seed)
    out = scaled(rng, np.int8)
    case = Case()
    xs = []
    for i in range(count):
        by = out if i % 2 else scaled(rng, np.int8)
        xs.append(case.activation(by.ints(rng, 2, 1 if i == 2 else 3, 4), by))
    case.result(case.op(op, *xs, case.const(np.float32(0.07))), out)
    assert quanta(case, arith) <= 1


def reasons(case: Net, **options: Any) -> list[str]:
    return cpu_reasons(hbc.compile(case.model(), **options).program)


def test_why_a_comparison_stays_in_reals() -> None:
    rng = np.random.default_rng(0)
    case = Case()
    a, b = Scaled(0.1, np.int8(0)), Scaled(0.2, np.int8(3))
    case.op("Less", case.activation(a.ints(rng, 4), a), case.activation(b.ints(rng, 4), b), out="y")
    case.output("y", dtype=np.bool_)
    (reason,) = reasons(case)
    assert "scale 0.1, zero point 0 and i8 of scale 0.2, zero point 3" in reason
    assert quanta(case, "bpu", cpu=True) == 0


@pytest.mark.parametrize(
    ("march", "axis", "classes", "runs"),
    [("bayes", 1, 64, True), ("bayes", 1, 65, False), ("bayes-e", 3, 8, False), ("bernoulli2", 1, 64, True),
     ("nash-e", 3, 65, True)],
)  # fmt: skip
def test_arg_max_within_the_limits_of_a_march(march: str, axis: int, classes: int, runs: bool) -> None:
    rng = np.random.default_rng(0)
    by = Scaled(0.1, np.int8(0))
    shape = [1, 2, 3, 4]
    shape[axis] = classes
    case = Case()
    case.op("ArgMax", case.activation(by.ints(rng, *shape), by), out="y", axis=axis)
    case.output("y", dtype=np.int64)
    found = reasons(case, march=march)
    assert bool(found) != runs
    assert runs or "arg_max and arg_min run over at most" in found[0]
    assert quanta(case, "bpu", march, cpu=not runs) == 0
