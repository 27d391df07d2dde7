"""Slices and joins of dequantised constants whose scales run along the very axis: each index keeps its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.builder import make_op
from hbc.ir.core import Op
from hbc.ir.location import fuse
from hbc.ir.ops import Concat, Const, Slice
from hbc.ir.types import Quant, TensorType


def part_of_constants(op: Op, constants: Sequence[Const]) -> Const | None:
    """What `op` makes of the integers of `constants`, as one constant; None where it is no such slice or join."""
    if isinstance(op, Slice):
        found = _sliced(op, constants[0])
    elif isinstance(op, Concat):
        found = _joined(op, constants)
    else:
        return None
    if found is None:
        return None
    array, quant = found
    t = TensorType(array.shape, constants[0].out.type.dtype, quant)
    loc = fuse([*(c.loc for c in constants), op.loc])
    return make_op(Const, [], {"value": np.ascontiguousarray(array)}, loc, [t], [constants[0].out.name])


def _sliced(op: Slice, const: Const) -> tuple[np.ndarray, Quant] | None:
    quant = const.out.type.quant
    if quant is None or quant.axis is None:
        return None
    picked = [a + s * np.arange(n) for a, n, s in zip(op.starts, op.out.type.shape, op.steps, strict=True)]
    rows = picked[quant.axis]
    if not rows.size:
        return None
    scales, zeros = _lists(quant, const.value.shape[quant.axis])
    return const.value[np.ix_(*picked)], _quant(scales[rows], zeros[rows], quant.axis)


def _joined(op: Concat, constants: Sequence[Const]) -> tuple[np.ndarray, Quant] | None:
    quants = [c.out.type.quant for c in constants]
    if len({c.out.type.dtype for c in constants}) > 1 or any(
        q is None or q.axis not in {None, op.axis} for q in quants
    ):
        return None
    lists = [_lists(q, c.value.shape[op.axis]) for q, c in zip(quants, constants, strict=True) if q is not None]
    scales, zeros = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    return np.concatenate([c.value for c in constants], axis=op.axis), _quant(scales, zeros, op.axis)


def _lists(quant: Quant, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A scale and a zero point for every index."""
    return np.resize(np.asarray(quant.scale), size), np.resize(np.asarray(quant.zero_point), size)


def _quant(scales: np.ndarray, zeros: np.ndarray, axis: int) -> Quant:
    return Quant(tuple(float(s) for s in scales), tuple(int(z) for z in zeros), axis)
