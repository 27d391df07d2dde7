"""ArgMax, ArgMin, Compare, Select, Logical: the JIT gives the reference's integers and truth values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import ArgMax, ArgMin, Compare, Comparison, Junction, Logical, Select
from hbc_runtime.jit.host import Host
from hbc_runtime.program import Storage, Tensor
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.light import EXACT, INTEGERS, Array, arrays, shapes

Shape = tuple[int, ...]
WIDER = st.sampled_from([*INTEGERS, np.int64])
ANY = st.sampled_from([np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_, np.float32])


@st.composite
def broadcasts(draw: st.DrawFn, count: int) -> tuple[list[Shape], Shape]:
    """(operands' shapes, result's shape): any operand may have size 1 along any axis."""
    out = draw(shapes(max_rank=5, max_side=5))
    sides = [list(out) for _ in range(count)]
    if draw(st.booleans()):
        for axis in range(len(out)):
            for i in draw(st.sets(st.integers(0, count - 1), max_size=count - 1)):
                sides[i][axis] = 1
    return [tuple(s) for s in sides], out


@st.composite
def bools(draw: st.DrawFn, shape: Shape) -> Array:
    """Truth values; now and then with bytes that NumPy itself never writes."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    high = draw(st.sampled_from([2, 4]))
    return rng.integers(0, high, shape, np.uint8).view(np.bool_)


@st.composite
def tensors(draw: st.DrawFn, shape: Shape, dtype: type[np.generic]) -> Array:
    """Any values of a dtype; integers are often few, so that ties are frequent."""
    if dtype is np.bool_:
        return draw(bools(shape))
    if dtype is np.float32:
        return np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape).astype(np.float32)
    x = draw(arrays(shape, dtype))
    if draw(st.booleans()):
        return x
    info = np.iinfo(dtype)
    few = np.array([info.min, 0, 1, info.max], dtype)
    return few[x.astype(np.int64) % 4]


def position(data: st.DataObject, **run: Any) -> None:
    shape = data.draw(shapes(max_rank=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    cls, last = data.draw(st.sampled_from([ArgMax, ArgMin])), data.draw(st.booleans())
    x = data.draw(tensors(shape, data.draw(st.sampled_from(INTEGERS))))
    out = tuple(1 if i == axis else d for i, d in enumerate(shape))
    op = cls(inputs=(), outputs=(), axis=axis, select_last=last)
    (y,) = run_both(op, [x], [(out, data.draw(st.sampled_from([DType.I32, DType.I64])))], **run)
    found = np.take_along_axis(x, y, axis)
    best = x.max(axis, keepdims=True) if cls is ArgMax else x.min(axis, keepdims=True)
    assert np.array_equal(found, best)
    beyond = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    beyond = beyond > y if last else beyond < y
    assert not np.any((x == best) & beyond), "not the first, or last, of equal values"


def relation(data: st.DataObject, **run: Any) -> None:
    (a, b), out = data.draw(broadcasts(2))
    dtype = data.draw(st.one_of(WIDER, st.just(np.bool_)))
    kind = Comparison.EQUAL if dtype is np.bool_ else data.draw(st.sampled_from(Comparison))
    operands = [data.draw(tensors(a, dtype)), data.draw(tensors(b, dtype))]
    op = Compare(inputs=(), outputs=(), relation=kind)
    run_both(op, operands, [(out, DType.BOOL)], dynamic={0, 1}, **run)


def choice(data: st.DataObject, **run: Any) -> None:
    (c, a, b), out = data.draw(broadcasts(3))
    dtype = data.draw(ANY)
    operands = [data.draw(bools(c)), data.draw(tensors(a, dtype)), data.draw(tensors(b, dtype))]
    op = Select(inputs=(), outputs=())
    run_both(op, operands, [(out, DType.of(dtype))], dynamic={0, 1, 2}, **run)


def junction(data: st.DataObject, **run: Any) -> None:
    (a, b), out = data.draw(broadcasts(2))
    kind = data.draw(st.sampled_from(Junction))
    one = kind is Junction.NOT
    operands = [data.draw(bools(out if one else a)), None if one else data.draw(bools(b))]
    (y,) = run_both(Logical(inputs=(), outputs=(), junction=kind), operands, [(out, DType.BOOL)], dynamic={0, 1}, **run)
    assert y.view(np.uint8).max(initial=0) <= 1


def test_a_chosen_bool_is_0_or_1_whatever_its_byte_was() -> None:
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    operands = [np.array([True, False, True, False]), odd, odd[::-1].copy()]
    (y,) = run_both(Select(inputs=(), outputs=()), operands, [((4,), DType.BOOL)], dynamic={0, 1, 2})
    assert y.view(np.uint8).tolist() == [0, 1, 1, 0]


CHECKS = [position, relation, choice, junction]


@pytest.mark.parametrize("check", CHECKS)
@given(st.data())
@EXACT
def test_same_bits_on_one_thread_and_two(check: Any, data: st.DataObject) -> None:
    check(data, threads=(1, 2))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(st.data())
@EXACT
def test_other_vector_lengths(machine: Host, data: st.DataObject) -> None:
    data.draw(st.sampled_from(CHECKS))(data, machine=machine)


@pytest.mark.parametrize("shape", [(1, 19, 40, 70), (1, 40, 70, 19), (3000, 5), (2, 100000), (1, 1)])
@pytest.mark.parametrize("cls", [ArgMax, ArgMin])
def test_positions_of_every_axis_on_three_threads(shape: Shape, cls: type[ArgMax]) -> None:
    x = np.random.default_rng(5).integers(-4, 4, shape).astype(np.int8)
    for axis in range(len(shape)):
        for last in (False, True):
            out = tuple(1 if i == axis else d for i, d in enumerate(shape))
            op = cls(inputs=(), outputs=(), axis=axis, select_last=last)
            run_both(op, [x], [(out, DType.I64)], threads=(1, 3))


def test_the_lowest_of_all_values_has_a_position_too() -> None:
    for cls, end in ((ArgMax, -128), (ArgMin, 127)):
        for n in (1, 7, 64, 65):
            x = np.full((2, n), end, np.int8)
            for last in (False, True):
                op = cls(inputs=(), outputs=(), axis=1, select_last=last)
                (y,) = run_both(op, [x], [((2, 1), DType.I32)])
                assert y.tolist() == [[n - 1 if last else 0]] * 2


REFUSED = [
    (ArgMax(inputs=(), outputs=(), axis=2), [np.zeros((2, 3), np.int8)], ((2, 1), DType.I32)),
    (ArgMax(inputs=(), outputs=(), axis=1), [np.zeros((2, 3), np.int8)], ((2, 1), DType.I16)),
    (ArgMax(inputs=(), outputs=(), axis=1), [np.zeros((2, 3), np.float32)], ((2, 1), DType.I32)),
    (ArgMax(inputs=(), outputs=(), axis=1), [np.zeros((2, 0), np.int8)], ((2, 1), DType.I32)),
    (
        Compare(inputs=(), outputs=(), relation=Comparison.LESS),
        [np.zeros(3, np.int8), np.zeros(3, np.int16)],
        ((3,), DType.BOOL),
    ),
    (
        Compare(inputs=(), outputs=(), relation=Comparison.LESS),
        [np.zeros(3, bool), np.zeros(3, bool)],
        ((3,), DType.BOOL),
    ),
    (
        Compare(inputs=(), outputs=(), relation=Comparison.LESS),
        [np.zeros(3, np.int8), np.zeros(3, np.int8)],
        ((3,), DType.I8),
    ),
    (
        Select(inputs=(), outputs=()),
        [np.zeros(3, np.int8), np.zeros(3, np.int8), np.zeros(3, np.int8)],
        ((3,), DType.I8),
    ),
    (
        Select(inputs=(), outputs=()),
        [np.zeros(3, bool), np.zeros(3, np.int8), np.zeros(2, np.int8)],
        ((3,), DType.I8),
    ),
    (Logical(inputs=(), outputs=(), junction=Junction.AND), [np.zeros(3, bool), None], ((3,), DType.BOOL)),
    (Logical(inputs=(), outputs=(), junction=Junction.NOT), [np.zeros(3, bool), np.zeros(3, bool)], ((3,), DType.BOOL)),
    (Logical(inputs=(), outputs=(), junction=Junction.NOT), [np.zeros(3, np.int8), None], ((3,), DType.BOOL)),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{type(c[0]).__name__}-{i}" for i, c in enumerate(REFUSED)])
def test_what_does_not_fit_is_refused(case: tuple[Any, list[Array | None], tuple[Shape, DType]]) -> None:
    op, operands, (shape, dtype) = case
    ins = [None if x is None else Tensor("x", x.shape, DType.of(x.dtype), Storage.ARENA) for x in operands]
    with pytest.raises(ValueError, match=r"dtype|shape|broadcast|order|operands|axis|bool"):
        op.check(ins, [Tensor("y", shape, dtype, Storage.ARENA)])
