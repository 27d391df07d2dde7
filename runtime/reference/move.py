"""Instructions that move elements without arithmetic."""

from __future__ import annotations

import numpy as np

from ..isa import Concat, Expand, Gather, Pad, Reshape, Shaped, Slice, Transpose
from .common import Array, Operands, cast, operand


def concat(op: Concat, ins: Operands, out: Shaped) -> Array:
    """Operands joined along `axis`."""
    return cast(np.concatenate([operand(ins, i) for i in range(len(ins))], axis=op.axis), out)


def slice_(op: Slice, ins: Operands, out: Shaped) -> Array:
    """y[i] = x[starts + i·steps]; picked by index arrays, which know no special case for negative steps."""
    x = operand(ins, 0)
    picks = [start + step * np.arange(size) for start, step, size in zip(op.starts, op.steps, out.shape, strict=True)]
    return cast(x[np.ix_(*picks)] if picks else x, out)


def pad(op: Pad, ins: Operands, out: Shaped) -> Array:
    """x in a border of `value`."""
    x = operand(ins, 0)
    y = np.full(out.shape, op.value, out.dtype.numpy)
    y[tuple(slice(op.pads[i], op.pads[i] + d) for i, d in enumerate(x.shape))] = x
    return y


def transpose(op: Transpose, ins: Operands, out: Shaped) -> Array:
    """Axis i of the result is axis perm[i] of x."""
    return cast(operand(ins, 0).transpose(op.perm), out)


def reshape(_op: Reshape, ins: Operands, out: Shaped) -> Array:
    """The same elements in row-major order; a copy, so that no result shares memory with its operand."""
    return cast(operand(ins, 0).reshape(out.shape), out)


def gather(op: Gather, ins: Operands, out: Shaped) -> Array:
    """x taken along `axis` at `indices`."""
    return cast(np.take(operand(ins, 0), operand(ins, 1), axis=op.axis), out)


def expand(_op: Expand, ins: Operands, out: Shaped) -> Array:
    """x repeated along its axes of size 1."""
    return cast(np.broadcast_to(operand(ins, 0), out.shape), out)
