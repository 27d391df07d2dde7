"""Ops that move elements: integers of every width come out as ONNX Runtime moves them, in both arithmetics.

Between DequantizeLinear and QuantizeLinear of one scale nothing is rounded; where the scales differ, one requantize is:
1 quantum under `bpu`, none under `onnx` (its float steps are ONNX Runtime's). All of it runs as instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

import hbc
from tests.differential.quantised import ARITHS, Array, Case, cpu_reasons, one_op, quanta, scaled

MODEST = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**31)
ARITH = st.sampled_from(ARITHS)
QUANTISED = [np.int8, np.uint8, np.int16, np.uint16]
PLAIN = [np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_, np.float32]
RNG = np.random.Generator
Build = Callable[[Case, str, tuple[int, ...], RNG], str]


def shape_of(rng: RNG, low: int = 1, high: int = 5) -> tuple[int, ...]:
    return tuple(int(v) for v in rng.integers(1, 5, rng.integers(low, high)))


def ints(case: Case, *values: Any) -> str:
    return case.const(np.concatenate([np.atleast_1d(np.asarray(v, np.int64)) for v in values]))


def transpose(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    return c.op("Transpose", x, perm=[int(p) for p in rng.permutation(len(shape))])


def reshape(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """0 copies a size, −1 is the rest."""
    target = list(shape)
    cut = int(rng.integers(0, len(shape)))
    target = [0 if rng.random() < 0.5 else d for d in target[:cut]] + [-1]
    return c.op("Reshape", x, ints(c, target))


def flatten(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    return c.op("Flatten", x, axis=int(rng.integers(-len(shape), len(shape) + 1)))


def squeeze(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """New axes of size 1, some of which go again."""
    new = sorted(int(a) for a in rng.choice(len(shape) + 2, 2, replace=False))
    wide = c.op("Unsqueeze", x, ints(c, new[0], new[1] - len(shape) - 2))
    return c.op("Squeeze", wide, ints(c, new[int(rng.integers(0, 2))]))


def slice_(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """Bounds beyond the axis clamp; steps may be negative."""
    axis = int(rng.integers(0, len(shape)))
    step = int(rng.choice([1, 2, -1, -3]))
    ends = (-100, 100) if rng.random() < 0.4 else (0, shape[axis])
    start, end = (ends[0], ends[1]) if step > 0 else (ends[1], -100)
    return c.op("Slice", x, *(ints(c, v) for v in (start, end, axis - len(shape), step)))


def split(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """Uneven parts, joined in another order."""
    axis = int(rng.integers(0, len(shape)))
    if rng.random() < 0.5 or shape[axis] < 3:
        sizes = ints(c, shape[axis] - shape[axis] // 2, shape[axis] // 2)
        c.op("Split", x, sizes, out=["left", "right"], axis=axis)
        return c.op("Concat", "right", "left", axis=axis)
    c.op("Split", x, out=["left", "right"], axis=axis, num_outputs=2)
    return c.op("Concat", "right", "left", "right", axis=axis - len(shape))


def gather(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """Scalars, lists and matrices of indices, negative ones among them."""
    axis = int(rng.integers(0, len(shape)))
    indices = rng.integers(-shape[axis], shape[axis], [(), (3,), (2, 2)][rng.integers(0, 3)])
    return c.op("Gather", x, c.const(np.asarray(indices, rng.choice([np.int32, np.int64]))), axis=axis)


def gather_elements(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    axis = int(rng.integers(0, len(shape)))
    picked = tuple(3 if i == axis else int(rng.integers(1, d + 1)) for i, d in enumerate(shape))
    return c.op("GatherElements", x, c.const(rng.integers(-shape[axis], shape[axis], picked)), axis=axis)


def gather_nd(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    batch = int(rng.integers(0, len(shape)))
    deep = int(rng.integers(1, len(shape) - batch + 1))
    sizes = shape[batch : batch + deep]
    indices = np.stack([rng.integers(-d, d, (*shape[:batch], 2)) for d in sizes], axis=-1)
    return c.op("GatherND", x, c.const(indices), batch_dims=batch)


def scatter_elements(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """Distinct targets: what several writes to one give, ONNX leaves open. The updates are a part of x."""
    axis = int(rng.integers(0, len(shape)))
    size = tuple(1 if i == axis else d for i, d in enumerate(shape))
    indices = rng.integers(-shape[axis], shape[axis], size)
    update = c.op("Slice", x, ints(c, 0), ints(c, 1), ints(c, axis))
    return c.op("ScatterElements", x, c.const(indices), update, axis=axis)


def scatter_nd(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    row = c.op("Slice", x, ints(c, -1), ints(c, 100), ints(c, 0))
    return c.op("ScatterND", x, c.const(np.array([[int(rng.integers(-shape[0], shape[0]))]])), row)


def expand(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    return c.op(
        "Expand", x, ints(c, 2, [3 if d == 1 else 1 for d in shape]) if rng.random() < 0.5 else ints(c, 2, shape)
    )


def tile(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    return c.op("Tile", x, ints(c, [int(v) for v in rng.integers(1, 3, len(shape))]))


def identity(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    return c.op("Identity", c.op("Identity", x))


def compress(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    axis = int(rng.integers(0, len(shape)))
    kept = rng.random(shape[axis]) < 0.6
    kept[0] = True
    return c.op("Compress", x, c.const(kept), axis=axis)


def border(c: Case, x: str, shape: tuple[int, ...], rng: RNG) -> str:
    """Mirrored and repeated borders, cropped where pads are negative."""
    mode = str(rng.choice(["reflect", "edge", "wrap"]))
    axis = int(rng.integers(0, len(shape)))
    most = shape[axis] - 1
    pads = [int(rng.integers(-1 if most > 1 else 0, max(1, most))) for _ in range(2)]
    return c.op("Pad", x, ints(c, pads), "", ints(c, axis - len(shape)), mode=mode)


ANY: dict[str, Build] = {
    f.__name__.strip("_"): f
    for f in (
        transpose, reshape, flatten, squeeze, slice_, split, gather, gather_elements, gather_nd, scatter_elements,
        scatter_nd, expand, tile, identity, compress, border,
    )
}  # fmt: skip


@pytest.mark.parametrize("move", ANY)
@MODEST
@given(SEEDS, st.sampled_from(QUANTISED), ARITH, st.booleans())
def test_quantised(move: str, seed: int, dtype: Any, arith: str, one_scale: bool) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng)
    by = scaled(rng, dtype)
    to = by if one_scale else scaled(rng, dtype)

    def build(c: Case, d: str) -> str:
        return ANY[move](c, d, shape, rng)

    apart = quanta(one_op(build, by.ints(rng, *shape), by, to), arith)
    assert apart <= (0 if one_scale or arith == "onnx" else 1)


def values(rng: RNG, dtype: Any, shape: tuple[int, ...]) -> Array:
    if dtype is np.bool_:
        return rng.random(shape) < 0.5
    if dtype is np.float32:
        return rng.normal(0, 1, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


HAVE_NO_KERNEL = {  # of ONNX Runtime 1.32's own CPU operators
    "border": {np.bool_, np.int16, np.uint16},
    "tile": {np.int16, np.uint16},
}


@pytest.mark.parametrize("move", ANY)
@pytest.mark.parametrize("dtype", PLAIN)
def test_plain(move: str, dtype: Any) -> None:
    """Integers that stand for nothing, truth values and reals."""
    if dtype in HAVE_NO_KERNEL.get(move, ()):
        pytest.skip(f"ONNX Runtime has no {move} of {np.dtype(dtype)}")
    for seed in range(6):
        rng = np.random.default_rng(seed)
        shape = shape_of(rng)
        case = Case()
        x = case.feed(values(rng, dtype, shape))
        case.op("Identity", ANY[move](case, x, shape, rng), out="y")
        case.output("y", dtype=dtype)
        assert quanta(case, "bpu") == 0


@pytest.mark.parametrize("arith", ARITHS)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_depth_to_space_and_back(block: int, mode: str, arith: str) -> None:
    rng = np.random.default_rng(block)
    by = scaled(rng, np.int8)
    x = by.ints(rng, 2, 2 * block * block, 3, 4)
    assert quanta(one_op(lambda c, d: c.op("DepthToSpace", d, blocksize=block, mode=mode), x, by, by), arith) == 0
    x = by.ints(rng, 2, 3, 2 * block, 4 * block)
    assert quanta(one_op(lambda c, d: c.op("SpaceToDepth", d, blocksize=block), x, by, by), arith) == 0


@MODEST
@given(SEEDS, st.sampled_from([np.int8, np.uint8, np.int16]), ARITH)
def test_pad_with_a_number(seed: int, dtype: Any, arith: str) -> None:
    """A border that is an integer of the result's scale; of x's own where nothing else is said."""
    rng = np.random.default_rng(seed)
    by = scaled(rng, dtype)
    shape = shape_of(rng)
    pads = [int(v) for v in rng.integers(0, 3, 2 * len(shape))]
    info = np.iinfo(dtype)
    value = (int(rng.integers(info.min, info.max, endpoint=True)) - int(by.zero)) * np.float32(by.scale)
    given_value = rng.random() < 0.5

    def build(c: Case, d: str) -> str:
        return c.op("Pad", d, ints(c, pads), *([c.const(np.float32(value))] if given_value else []))

    assert quanta(one_op(build, by.ints(rng, *shape), by, by), arith) == 0


@MODEST
@given(SEEDS, st.integers(2, 4), ARITH)
def test_concat_of_several_scales(seed: int, count: int, arith: str) -> None:
    """Each operand is requantised on its own: 1 quantum under `bpu`."""
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 2)
    axis = int(rng.integers(0, len(shape)))
    case = Case()
    parts = []
    for _ in range(count):
        by = scaled(rng, np.int8)
        own = tuple(int(rng.integers(1, 5)) if i == axis else d for i, d in enumerate(shape))
        parts.append(case.activation(by.ints(rng, *own), by))
    case.result(case.op("Concat", *parts, axis=axis), scaled(rng, np.int8))
    assert quanta(case, arith) <= int(arith == "bpu")


def test_eight_axes() -> None:
    rng = np.random.default_rng(8)
    by = scaled(rng, np.int16)
    x = by.ints(rng, 2, 1, 3, 1, 2, 2, 1, 3)

    def build(c: Case, d: str) -> str:
        return c.op("Concat", *[c.op("Transpose", d, perm=[7, 0, 6, 1, 5, 2, 4, 3])] * 2, axis=5)

    assert quanta(one_op(build, x, by, by), "bpu") == 0


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-2, 0, 1, 9])
def test_trilu_keeps_one_side_of_a_diagonal(k: int, upper: int) -> None:
    """The zeros of the other side are x's zero point."""
    rng = np.random.default_rng(k + 20)
    by = scaled(rng, np.uint8)
    case = one_op(lambda c, d: c.op("Trilu", d, c.const(np.int64(k)), upper=upper), by.ints(rng, 2, 4, 5), by, by)
    assert quanta(case, "bpu") == 0


@pytest.mark.parametrize("arith", ARITHS)
def test_constants_of_shapes_are_folded_and_joined_as_integers(arith: str) -> None:
    """EyeLike, Range, OneHot and ConstantOfShape of known operands leave no op behind."""
    rng = np.random.default_rng(1)
    by = scaled(rng, np.int8, 0.05, 0.06)
    case = Case()
    d = case.activation(by.ints(rng, 3, 3), by)
    steps = [case.const(np.int64(v)) for v in (0, 3, 1)]
    hot = case.op("OneHot", case.op("Range", *steps), case.const(np.int64(3)), case.const(np.float32([0.5, 1.5])))
    filled = case.op("ConstantOfShape", case.op("Shape", d))
    eye = case.op("EyeLike", d, k=1)
    case.result(case.op("Concat", d, hot, filled, eye, axis=0), scaled(rng, np.int8, 0.05, 0.06))
    assert quanta(case, arith) <= int(arith == "bpu")
    program = hbc.compile(case.model()).program
    assert not cpu_reasons(program)
    kinds = {type(op).__name__ for part in program.models[0].segments for op in part.instructions}
    assert kinds <= {"Concat", "Requantize"}
