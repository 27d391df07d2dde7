"""Cross-layer equalisation: channels of one scale made alike, where a factor per channel cancels in the next product.

    a → relu → b        =        a / s → relu → b · s        for any s > 0 per channel

An activation has one scale. Where one channel is a hundred times larger than another, eight bits hold the large one
alone. Dividing each channel by its own factor, and multiplying the weights that read it, changes nothing in reals and
evens them out (Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction", 2019; the ranges
here are those of the samples). Weights have a scale per output channel, so those of `a` lose nothing. Those of `b` lose
what a spread over their inputs costs, so the two spreads are shared out: s = √(range of the channel / range of its
weights in b). A depthwise b has a scale for each of its inputs: there s takes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hbc.calibration.grid import Array
from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.copying import clone
from hbc.ir.core import Module, Op, Value
from hbc.ir.ops.unary import LeakyRelu
from hbc.passes.matching import const_value, is_default_clip

from .collect import OnStep, Sample
from .runner import Runner
from .split_norm import WEIGHTED

EQUALISED = "/equalised"  # behind the name of a tensor that isn't the float model's any more: nobody is to compare them
MOST = 100.0  # of a factor against another: a channel that is all but dead would make weights without bounds
ENOUGH = 1.05  # factors that differ by less are left alone


@dataclass(frozen=True)
class Pair:
    """Two products and what lies between: `values` are `first`'s result and what is made of it, channel by channel."""

    first: Op
    second: Op
    values: tuple[Value, ...]

    @property
    def channels(self) -> int:
        """Of the tensors between."""
        return self.first.out.type.shape[_axis(self.first)]


def pairs(module: Module) -> Iterator[Pair]:
    """The products that are read by one product alone, through ops that a factor per channel goes through."""
    for op in module.graph.ops:
        if not isinstance(op, WEIGHTED) or not (_has_constants(op) and _takes(op) and is_default_clip(op)):
            continue
        values, value = [op.out], op.out
        while value.has_one_use and not value.is_output:
            (user,) = value.users
            if isinstance(user, type(op) if isinstance(op, ops.Linear) else ops.Conv2d | ops.ConvTranspose2d):
                if user.operands[0] is value and _has_constants(user) and _takes(user):
                    yield Pair(op, user, tuple(values))
                break
            if not _goes_through(user, op):
                break
            value = user.out
            values.append(value)


def _goes_through(user: Op, first: Op) -> bool:
    if isinstance(user, ops.Clip):
        return user.low in {0.0, -math.inf} and user.high == math.inf
    if isinstance(user, LeakyRelu):
        return True
    spatial = ops.MaxPool | ops.AvgPool | ops.ResizeNearest | ops.ResizeLinear
    return not isinstance(first, ops.Linear) and isinstance(user, spatial)


def _has_constants(op: Op) -> bool:
    return all(isinstance(v.op, ops.Const) and v.has_one_use for v in op.operands[1:] if v is not None)


def _takes(op: Op) -> bool:
    return not isinstance(op, ops.ConvTranspose2d) or op.group == 1


def _axis(op: Op) -> int:
    return op.out.type.rank - 1 if isinstance(op, ops.Linear) else 1


def equalise(
    module: Module,
    samples: Sequence[Sample],
    *,
    keep: frozenset[str] = frozenset(),
    on_step: OnStep | None = None,
    threads: int = 1,
) -> int:
    """Equalise the module's products in place, but for tensors named in `keep`; returns how many pairs were."""
    found = [p for p in pairs(module) if not keep.intersection(str(v.name) for v in p.values)]
    if not found:
        return 0
    ranges = _ranges(module, [p.values[-1] for p in found], samples, on_step, threads)
    done = 0
    for pair in found:
        factors = _factors(pair, ranges[pair.values[-1]])
        if factors.max() < ENOUGH * factors.min():
            continue
        _scale(pair, factors)
        for value in pair.values:
            value.name = f"{value.name}{EQUALISED}"
        done += 1
    return done


def _ranges(
    module: Module, values: Sequence[Value], samples: Sequence[Sample], on_step: OnStep | None, threads: int
) -> dict[Value, Array]:
    """The largest magnitude of each channel over all samples."""
    copy = clone(module)
    twins = dict(zip(module.graph.ops, copy.graph.ops, strict=True))
    made: dict[Value, Value] = {}
    for value in values:
        op = value.op
        assert op is not None, value
        axis = value.type.rank - 1 if value.type.rank < 4 else 1
        size = make_op(ops.PLAIN_UNARY["abs"], [twins[op].out], {}, op.loc)
        axes = tuple(i for i in range(value.type.rank) if i != axis)
        largest = make_op(ops.ReduceMax, [size.out], {"axes": axes, "keepdims": False}, op.loc)
        copy.graph.ops += [size, largest]
        made[value] = largest.out
    runner = Runner(copy, made.values(), optimised=True, threads=threads)
    found = {v: np.zeros(m.type.shape) for v, m in made.items()}
    for number, sample in enumerate(samples):
        arrays = runner.run(sample, list(made.values()))
        for value, twin in made.items():
            np.maximum(found[value], arrays[twin], out=found[value])
        if on_step is not None:
            on_step("equalising", number + 1, len(samples))
    return found


def _factors(pair: Pair, activation: Array) -> Array:
    """What each channel is divided by; their geometric mean is 1."""
    second = pair.second
    weight = const_value(second.operands[1])
    assert weight is not None, second
    places = _inputs_of(second, weight.shape)
    rows = np.abs(weight.astype(np.float64)).reshape(*weight.shape[:2], -1).max(2)
    out_axis = 1 if isinstance(second, ops.ConvTranspose2d) else 0
    rows = rows / np.maximum(rows.max(axis=1 - out_axis, keepdims=True), np.finfo(np.float64).tiny)
    reads = np.zeros(pair.channels)
    np.maximum.at(reads, places.reshape(-1), rows.reshape(-1))
    lone = weight.shape[1 - out_axis] == 1 and not isinstance(second, ops.ConvTranspose2d)
    ratio = np.maximum(activation, 1e-30) / (1.0 if lone else np.maximum(reads, 1e-30))
    factors = ratio if lone else np.sqrt(ratio)
    used = (activation > 0) & (reads > 0)
    if not used.any():
        return np.ones(pair.channels)
    factors = np.clip(factors, factors[used].max() / MOST, None)
    factors[~used] = factors[used].min()
    return np.asarray(factors / np.exp(np.log(factors).mean()))


def _inputs_of(op: Op, shape: tuple[int, ...]) -> np.ndarray:
    """For each of the weight's first two axes the channel of x that it multiplies."""
    if isinstance(op, ops.ConvTranspose2d):
        return np.broadcast_to(np.arange(shape[0])[:, None], shape[:2])
    out, each = shape[:2]
    group = op.group if isinstance(op, ops.Conv2d) else 1
    return (np.arange(out) // (out // group))[:, None] * each + np.arange(each)[None, :]


def _scale(pair: Pair, factors: Array) -> None:
    first, second = pair.first, pair.second
    axis = 1 if isinstance(first, ops.ConvTranspose2d) else 0
    weight = const_value(first.operands[1])
    assert weight is not None, first
    shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
    made = [weight / factors.reshape(shape)]
    bias = const_value(first.operands[2])
    if bias is not None:
        made.append(bias / factors)
    _rewrite(first, made)
    reader = const_value(second.operands[1])
    assert reader is not None, second
    by = factors[_inputs_of(second, reader.shape)].reshape(*reader.shape[:2], *(1,) * (reader.ndim - 2))
    _rewrite(second, [reader * by])


def _rewrite(op: Op, arrays: Sequence[Array]) -> None:
    """Weight and bias with other values, under their names."""
    for index, array in enumerate(arrays, 1):
        old = op.operands[index]
        assert old is not None
        assert old.op is not None
        old.op.attrs["value"] = array.astype(np.float32)
