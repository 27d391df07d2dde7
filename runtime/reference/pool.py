"""MaxPool and AvgPool, one kernel tap at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..isa import AvgPool, MaxPool, Shaped
from .common import Array, IntArray, Operands, cast, centred, operand, requantize


def max_pool(op: MaxPool, ins: Operands, out: Shaped) -> Array:
    """Outside positions never win: they hold the dtype's smallest value."""
    x = operand(ins, 0)
    lowest = int(np.iinfo(x.dtype).min)
    y = np.full(out.shape, lowest, np.int64)
    for tap in _taps(op, x.astype(np.int64), out.shape, lowest):
        y = np.maximum(y, tap)
    return cast(y, out)


def avg_pool(op: AvgPool, ins: Operands, out: Shaped) -> Array:
    """NUMERICS D13: outside positions add nothing; their count is in the multiplier, one or one per output position."""
    acc = np.zeros(out.shape, np.int64)
    for tap in _taps(op, centred(operand(ins, 0), op.x_zero_point), out.shape, 0):
        acc += tap
    by_position = acc.reshape(out.shape[0], -1, out.shape[3])
    return cast(requantize(op, by_position, ins[1:4], axis=1).reshape(out.shape), out)


def _taps(op: MaxPool | AvgPool, x: IntArray, shape: tuple[int, ...], outside: int) -> Iterator[IntArray]:
    """For each kernel tap, what it reads for every output position; `outside` beyond the input's edge."""
    starts, steps, dilations = op.pads[:2], op.strides, op.dilations
    # as far as the last window reaches, which may be past the pads where the output was sized by ceiling
    reach = [(shape[1 + i] - 1) * steps[i] + dilations[i] * (op.kernel[i] - 1) + 1 for i in range(2)]
    ends = [max(0, reach[i] - starts[i] - x.shape[1 + i]) for i in range(2)]
    border = ((0, 0), (starts[0], ends[0]), (starts[1], ends[1]), (0, 0))
    padded = np.pad(x, border, constant_values=outside)
    for i in range(op.kernel[0]):
        for j in range(op.kernel[1]):
            y, z = i * dilations[0], j * dilations[1]
            rows = slice(y, y + (shape[1] - 1) * steps[0] + 1, steps[0])
            columns = slice(z, z + (shape[2] - 1) * steps[1] + 1, steps[1])
            yield padded[:, rows, columns]
