"""Pairs of instructions that one kernel does: the same integers as one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbc_runtime import reference
from hbc_runtime.isa import Quantize, Rounding, Transpose
from hbc_runtime.jit import engine
from hbc_runtime.jit.fused import AddedConv2d, QuantizeImage
from hbc_runtime.jit.fusion import fused
from hbc_runtime.jit.host import Host
from hbc_runtime.jit.obtain import code_of
from hbc_runtime.program import BpuSegment, Constants, Model, Storage, Tensor
from hbc_runtime.types import DType
from tests.exact.harness import MACHINES
from tests.exact.light import EXACT


def never(_: AddedConv2d) -> bool:
    """No kernel adds."""
    return False


def image_model(shape: tuple[int, int, int, int], scale: float, zero_point: int, rounding: Rounding) -> Model:
    """f32 [N,C,H,W] → quantize → transpose to NHWC, i8."""
    n, c, h, w = shape
    blob = np.float32(scale).tobytes() + bytes(60) + np.int32(zero_point).tobytes() + bytes(60)
    tensors = (
        Tensor("x", shape, DType.F32, Storage.INPUT),
        Tensor("scale", (1,), DType.F32, Storage.CONSTANT, 0),
        Tensor("zero_point", (1,), DType.I32, Storage.CONSTANT, 64),
        Tensor("q", shape, DType.I8, Storage.ARENA, 0),
        Tensor("y", (n, h, w, c), DType.I8, Storage.OUTPUT),
    )
    steps = (
        Quantize(inputs=(0, 1, 2), outputs=(3,), axis=-1, rounding=rounding, clamp_min=-128, clamp_max=127),
        Transpose(inputs=(3,), outputs=(4,), perm=(0, 2, 3, 1)),
    )
    arena = -(-n * c * h * w // 64) * 64
    return Model("m", (), (), tensors, (BpuSegment("s", steps),), arena, Constants(memoryview(blob)))


def run(model: Model, x: np.ndarray, threads: int, machine: Host) -> np.ndarray:
    y = np.full(model.tensors[4].shape, 77, np.int8)
    arena, blob = np.zeros(model.arena_size + 64, np.uint8), np.frombuffer(bytes(model.constants.data), np.uint8)
    code = code_of(model, machine)
    jit = engine.JitModel(code, machine, threads)
    jit.run_segment(0, arena.ctypes.data, blob.ctypes.data, [x.ctypes.data], [y.ctypes.data])
    jit.close()
    return y


def expected(model: Model, x: np.ndarray) -> np.ndarray:
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    quantize, transpose = segment.instructions
    (q,) = reference.execute(quantize, [x, model.constant(1), model.constant(2)], [model.tensors[3]])
    (y,) = reference.execute(transpose, [q], [model.tensors[4]])
    return y


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(2, 4), st.integers(1, 4), st.integers(1, 37)),
    scale=st.sampled_from([0.0078125, 0.0371, 1.0, 3.1e-4, 1e-38, 2.9e38]),
    zero_point=st.integers(-128, 127),
    rounding=st.sampled_from(list(Rounding)),
    kind=st.sampled_from(["ties", "any", "wild"]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**31),
)
@EXACT
def test_an_image_on_its_way_in(
    machine: Host, shape: tuple[int, int, int, int], scale: float, zero_point: int, rounding: Rounding, kind: str,
    threads: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    steps = rng.integers(-600, 600, shape) / 2 if kind == "ties" else rng.uniform(-300, 300, shape)
    with np.errstate(over="ignore"):
        x = (steps * np.float32(scale)).astype(np.float32)
    if kind == "wild":
        x.reshape(-1)[rng.integers(0, x.size, 3)] = [np.nan, np.inf, -np.inf]
    model = image_model(shape, scale, zero_point, rounding)
    assert [type(op) for op in fused(model, never)[0]] == [QuantizeImage]
    np.testing.assert_array_equal(run(model, x, threads, machine), expected(model, x))


def test_what_others_read_too_is_written() -> None:
    model = image_model((1, 3, 2, 2), 1.0, 0, Rounding.HALF_EVEN_F32)
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    twice = replace(model, segments=(segment, BpuSegment("t", segment.instructions[1:])))
    assert fused(twice, never)[0] == list(segment.instructions)


@pytest.mark.parametrize(("offset", "apart"), [(0, False), (32, False), (64, True)])
def test_what_a_cpu_segment_left_is_not_written_over_while_it_is_read(offset: int, apart: bool) -> None:
    """Its memory is free for the transposed integers once all of it is quantised."""
    model = image_model((1, 4, 2, 2), 1.0, 0, Rounding.HALF_EVEN_F32)
    image = replace(model.tensors[0], storage=Storage.ARENA, offset=0)
    result = replace(model.tensors[4], storage=Storage.ARENA, offset=offset)
    again = replace(model, tensors=(image, *model.tensors[1:4], result), arena_size=192)
    assert ([type(op) for op in fused(again, never)[0]] == [QuantizeImage]) == apart


@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (1, 5, 2, 2)])
def test_only_few_channels_are_interleaved(shape: tuple[int, int, int, int]) -> None:
    model = image_model(shape, 1.0, 0, Rounding.HALF_EVEN_F32)
    (segment,) = model.segments
    assert isinstance(segment, BpuSegment)
    assert fused(model, never)[0] == list(segment.instructions)
