"""Inputs at random, within the ranges that the model quantises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Value
from hbc_runtime import isa
from hbc_runtime.program import BpuSegment, Model, TensorInfo
from hbc_runtime.types import DType, Quant

from .base import Array, Input, Sample

Range = tuple[float, float] | None  # None: the reals aren't quantised


def random_samples(model: Model, count: int, seed: int) -> list[Sample]:
    """`count` samples; the same seed gives the same ones.

    A float input that is quantised first is drawn evenly from the range that its integers cover, another one from the
    standard normal distribution; an integer input from its dtype's range (0 or 1 where that is an index's: i32, i64).
    """
    return draw(model.inputs, {info.name: _range(model, info) for info in model.inputs}, count, seed)


def draw(inputs: Sequence[Input], ranges: Mapping[str, Range], count: int, seed: int) -> list[Sample]:
    """As `random_samples`, for inputs whose ranges are known."""
    rng = np.random.default_rng(seed)
    return [{i.name: _draw(rng, i, ranges.get(i.name)) for i in inputs} for _ in range(count)]


def ranges_of(module: Module) -> dict[str, Range]:
    """The reals that each argument's integers stand for, where it is quantised (possibly after it is moved)."""
    return {str(arg.name): _quantised_range(arg) for arg in module.graph.args}


def _quantised_range(arg: Value) -> Range:
    reached = [arg]
    for value in reached:
        for op in value.users:
            if isinstance(op, ops.Quantize):
                t = op.out.type
                return None if t.quant is None else _covered(t.quant, t.dtype)
            if isinstance(op, ops.Transpose | ops.Reshape):
                reached.append(op.out)
    return None


def _draw(rng: np.random.Generator, info: Input, bounds: Range) -> Array:
    dtype = info.dtype.numpy
    if info.dtype.is_float:
        x = rng.standard_normal(info.shape) if bounds is None else rng.uniform(*bounds, info.shape)
        return np.asarray(x, dtype)
    if info.dtype is DType.BOOL or info.dtype.size > 2:
        return rng.integers(0, 2, info.shape).astype(dtype)
    low, high = info.dtype.limits
    return rng.integers(low, high, info.shape, endpoint=True).astype(dtype)


def _range(model: Model, info: TensorInfo) -> Range:
    """The reals that the input's integers stand for, where it is quantised (possibly after it is moved)."""
    reached = {info.tensor}
    for segment in model.segments:
        for op in segment.instructions if isinstance(segment, BpuSegment) else ():
            if op.inputs[0] not in reached:
                continue
            if isinstance(op, isa.Quantize):
                out = model.tensors[op.outputs[0]]
                return None if out.quant is None else _covered(out.quant, out.dtype)
            if isinstance(op, isa.Transpose | isa.Reshape):
                reached.update(op.outputs)
    return None


def _covered(quant: Quant, dtype: DType) -> tuple[float, float]:
    low, high = dtype.limits
    pairs = list(zip(quant.scale, quant.zero_point, strict=True))
    return min(s * (low - z) for s, z in pairs), max(s * (high - z) for s, z in pairs)
