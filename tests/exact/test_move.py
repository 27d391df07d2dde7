"""Concat, Slice, Pad, Transpose, Reshape, Gather, Expand: the JIT moves the same elements to the same places."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime.isa import Concat, Expand, Gather, Pad, Reshape, Slice, Transpose
from hbc_runtime.jit.host import Host
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES, run_both
from tests.exact.light import EXACT, Array, arrays, shapes

Shape = tuple[int, ...]
ANY = st.sampled_from([DType.I8, DType.U8, DType.I16, DType.I32, DType.F32, DType.F16, DType.I64, DType.BOOL])
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@st.composite
def anything(draw: st.DrawFn, shape: Shape, dtype: DType) -> Array:
    """An array of any dtype. Floats are whole numbers: moving must not care, comparing must."""
    if dtype is DType.BOOL:
        return draw(arrays(shape, np.uint8)) > 127
    x = draw(arrays(shape, BITS[dtype.size]))
    return x.view(dtype.numpy) if dtype.is_integer else (x % 2048).astype(dtype.numpy)


@given(st.data(), shapes(max_rank=6, max_side=5), ANY, st.integers(1, 4))
@EXACT
def test_concat(data: st.DataObject, shape: Shape, dtype: DType, count: int) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = [data.draw(st.integers(1, 20)) for _ in range(count)]
    xs = [data.draw(anything((*shape[:axis], n, *shape[axis + 1 :]), dtype)) for n in sizes]
    out = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    op = Concat(inputs=(), outputs=(), axis=axis)
    (y,) = run_both(op, xs, [(out, dtype)], dynamic=set(range(count)), threads=(1, 2))
    assert np.array_equal(y, np.concatenate(xs, axis))


@given(st.data(), shapes(max_rank=6), ANY)
@EXACT
def test_slice(data: st.DataObject, shape: Shape, dtype: DType) -> None:
    starts, steps, sizes = [], [], []
    for d in shape:
        step = data.draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2, -5]))
        start = data.draw(st.integers(0, d - 1)) if data.draw(st.booleans()) else (0 if step > 0 else d - 1)
        room = (d - 1 - start) // step + 1 if step > 0 else start // -step + 1
        sizes.append(room if data.draw(st.booleans()) else data.draw(st.integers(1, room)))
        starts.append(start)
        steps.append(step)
    op = Slice(inputs=(), outputs=(), starts=tuple(starts), steps=tuple(steps))
    run_both(op, [data.draw(anything(shape, dtype))], [(tuple(sizes), dtype)], threads=(1, 2))


def test_slice_backwards_is_numpys() -> None:
    x = np.arange(2 * 70 * 3, dtype=np.int16).reshape(2, 70, 3)
    op = Slice(inputs=(), outputs=(), starts=(1, 69, 0), steps=(-1, -3, 1))
    (y,) = run_both(op, [x], [((2, 24, 3), DType.I16)])
    assert np.array_equal(y, x[::-1, ::-3])


def test_an_empty_slice_writes_nothing() -> None:
    op = Slice(inputs=(), outputs=(), starts=(0, 0), steps=(1, 1))
    (y,) = run_both(op, [np.ones((3, 4), np.int8)], [((3, 0), DType.I8)])
    assert y.shape == (3, 0)


@given(st.data(), shapes(max_rank=5, max_side=6), st.sampled_from([DType.I8, DType.U8, DType.I16, DType.I32]))
@EXACT
def test_pad(data: st.DataObject, shape: Shape, dtype: DType) -> None:
    pads = tuple(data.draw(st.sampled_from([0, 0, 1, 2, 17])) for _ in range(2 * len(shape)))
    lo, hi = dtype.limits
    value = data.draw(st.one_of(st.sampled_from([lo, 0, hi]), st.integers(lo, hi)))
    rank = len(shape)
    out = tuple(d + pads[i] + pads[rank + i] for i, d in enumerate(shape))
    x = data.draw(anything(shape, dtype))
    (y,) = run_both(Pad(inputs=(), outputs=(), pads=pads, value=value), [x], [(out, dtype)], threads=(1, 2))
    assert np.array_equal(y, np.pad(x, [(pads[i], pads[rank + i]) for i in range(rank)], constant_values=value))


@given(st.data(), shapes(max_rank=6, max_side=5), ANY)
@EXACT
def test_transpose(data: st.DataObject, shape: Shape, dtype: DType) -> None:
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    x, out = data.draw(anything(shape, dtype)), tuple(shape[p] for p in perm)
    (y,) = run_both(Transpose(inputs=(), outputs=(), perm=perm), [x], [(out, dtype)], threads=(1, 2))
    assert np.array_equal(y, x.transpose(perm))


@pytest.mark.parametrize("dtype", [DType.I8, DType.I16, DType.F32, DType.I64], ids=lambda d: d.text)
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 3, 40, 52), (0, 2, 3, 1)),
        ((2, 40, 52, 3), (0, 3, 1, 2)),
        ((1, 64, 17, 19), (0, 2, 3, 1)),
        ((1, 17, 19, 130), (0, 3, 1, 2)),
        ((2, 3, 16, 4, 32), (0, 2, 4, 1, 3)),
    ],
)
def test_layout_changes(shape: Shape, perm: Shape, dtype: DType) -> None:
    x = np.arange(np.prod(shape)).astype(dtype.numpy).reshape(shape)
    op = Transpose(inputs=(), outputs=(), perm=perm)
    run_both(op, [x], [(tuple(shape[p] for p in perm), dtype)], threads=(1, 2, 3))


def test_every_permutation_of_four_axes() -> None:
    x = np.arange(3 * 18 * 5 * 33, dtype=np.int16).reshape(3, 18, 5, 33)
    for perm in itertools.permutations(range(4)):
        run_both(Transpose(inputs=(), outputs=(), perm=perm), [x], [(tuple(x.shape[p] for p in perm), DType.I16)])


@given(st.data(), shapes(), ANY)
@EXACT
def test_reshape(data: st.DataObject, shape: Shape, dtype: DType) -> None:
    x = data.draw(anything(shape, dtype))
    out = data.draw(st.sampled_from([(x.size,), (1, x.size, 1), shape[::-1]]))
    run_both(Reshape(inputs=(), outputs=()), [x], [(out, dtype)], threads=(1, 2))


def test_copies_longer_than_a_work_item_are_shared_out() -> None:
    x = np.arange(100_003, dtype=np.int32)
    run_both(Reshape(inputs=(), outputs=()), [x], [((1, 100_003), DType.I32)], threads=(1, 2, 3))


@given(st.data(), shapes(max_rank=5, max_side=6), ANY)
@EXACT
def test_gather(data: st.DataObject, shape: Shape, dtype: DType) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    indices = np.array(data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=9)), np.int32)
    out = (*shape[:axis], len(indices), *shape[axis + 1 :])
    op = Gather(inputs=(), outputs=(), axis=axis)
    run_both(op, [data.draw(anything(shape, dtype)), indices], [(out, dtype)], threads=(1, 2))


@given(st.data(), shapes(max_rank=6, max_side=5), ANY)
@EXACT
def test_expand(data: st.DataObject, shape: Shape, dtype: DType) -> None:
    source = tuple(data.draw(st.sampled_from([1, d])) for d in shape)
    x = data.draw(anything(source, dtype))
    (y,) = run_both(Expand(inputs=(), outputs=()), [x], [(shape, dtype)], threads=(1, 2))
    assert np.array_equal(y, np.broadcast_to(x, shape))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("dtype", [DType.I8, DType.I16, DType.F32], ids=lambda d: d.text)
def test_few_planes_become_pixels(machine: Host, dtype: DType) -> None:
    """Runs of pixels with their ends; several images; and back, which is another copy."""
    rng = np.random.default_rng(0)
    for shape in ((1, 3, 67, 65), (2, 2, 1, 4097), (1, 4, 8, 8), (3, 3, 9, 11)):
        x = rng.integers(-128, 128, shape).astype(dtype.numpy)
        for perm in ((0, 2, 3, 1), (0, 3, 1, 2)):
            out = tuple(shape[p] for p in perm)
            op = Transpose(inputs=(), outputs=(), perm=perm)
            (y,) = run_both(op, [x], [(out, dtype)], machine=machine, threads=(1, 2))
            assert np.array_equal(y, x.transpose(perm))
