"""Bias correction: what rounded weights add to each channel on average is taken out of its bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.calibration.grid import Array
from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.copying import clone
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import Loc
from hbc.ir.types import TensorType
from hbc.passes.matching import const_value

from .collect import OnStep, Sample
from .legalise import Quantised
from .measure import rounded_constant
from .runner import Runner


def corrections(
    module: Module, made: Quantised, samples: Sequence[Sample], on_step: OnStep | None = None, threads: int = 1
) -> dict[Op, Array]:
    """For each product its corrected bias: b − E[f(x, w') − f(x, w)] per channel, w' the rounded weights, x the float
    model's activations, E over positions and samples.
    """
    copy = clone(module)
    twin_of = dict(zip(module.graph.ops, copy.graph.ops, strict=True))
    shifts: dict[Op, Value] = {}
    for op, weight in made.plan.weights.items():
        reals = const_value(weight)
        if reals is not None:
            shifts[op] = _shift(copy, twin_of[op], rounded_constant(reals, made.settings[weight]))
    runner = Runner(copy, shifts.values(), threads=threads)
    sums: dict[Op, Array] = {}
    for number, sample in enumerate(samples):
        found = runner.run(sample, list(shifts.values()))
        for op, value in shifts.items():
            sums[op] = sums.get(op, 0.0) + found[value].astype(np.float64).reshape(-1)
        if on_step is not None:
            on_step("correcting", number + 1, len(samples))
    return {op: _corrected(op, total / len(samples)) for op, total in sums.items()}


def _shift(module: Module, op: Op, rounded: Array) -> Value:
    """The mean over all but the channels of the op with `rounded` weights minus the op."""
    weight = _add(module, ops.Const, [], {"value": rounded}, op.loc, None)
    operands = [op.operands[0], weight, *op.operands[2:]]
    twin = _add(module, type(op), operands, op.attrs, op.loc, op.out.type)
    difference = _add(module, ops.Sub, [twin, op.out], {}, op.loc, op.out.type)
    rank = op.out.type.rank
    channel = rank - 1 if isinstance(op, ops.Linear) else 1
    axes = tuple(i for i in range(rank) if i != channel)
    return _add(module, ops.ReduceMean, [difference], {"axes": axes, "keepdims": False}, op.loc, None)


def _add(
    module: Module, cls: type[Op], operands: Sequence[Value | None], attrs: object, loc: Loc, t: TensorType | None
) -> Value:
    assert isinstance(attrs, dict)
    op = make_op(cls, list(operands), attrs, loc, None if t is None else [t])
    module.graph.ops.append(op)
    return op.out


def _corrected(op: Op, shift: Array) -> Array:
    bias = const_value(op.operands[2])
    before = np.zeros(len(shift)) if bias is None else bias.astype(np.float64)
    return (before - shift).astype(np.float32)
