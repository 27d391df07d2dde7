"""Exact forward of sampling at a quantised grid (NUMERICS D11), by float tensors that hold its integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hbc_runtime.isa.sample import I16_LIMITS

from . import exact_constants as constants
from .exact_integers import recovered
from .exact_operations import RULES, Case, rule
from .units import QuantizedOperation


def has_rule(unit: QuantizedOperation) -> bool:
    """True for operations that a rule may serve, here or in `exact_operations`."""
    return unit.operation in RULES


@rule("grid_sample", makes=[["GridSample"], ["GridSample", "Requantize"]])
def _sampled(c: Case) -> Tensor | None:
    """Positions of 16 bits, four neighbours by 8-bit weights, half up once; a requantize where the scales differ."""
    op = next(i for i in c.instructions if type(i).__name__ == "GridSample")
    q = c.integers(0, float(c.limit() << 16))
    if q is None:
        return None
    n, channels, height, width = q.shape
    columns, rows = _positions(c, op, height, width)
    pixels = q.permute(0, 2, 3, 1).reshape(-1, channels)
    first = torch.arange(n, device=q.device).view(-1, 1, 1) * (height * width)

    def seen(row: Tensor, column: Tensor) -> Tensor:
        """[N·OH·OW, C]: what lies there, 0 outside."""
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = first + row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return pixels.index_select(0, index.reshape(-1)) * inside.view(-1, 1)

    if op.nearest:
        total = seen(_nearest(op, rows), _nearest(op, columns))
    else:
        total = torch.zeros(rows.numel(), channels, dtype=q.dtype, device=q.device)
        for row, height_weight in _neighbours(op, rows):
            for column, width_weight in _neighbours(op, columns):
                total.addcmul_(seen(row, column), (height_weight * width_weight).view(-1, 1).to(q.dtype))
        total = total.mul_(2.0**-16).add_(0.5).floor_()
    return c.rescaled(total.view(*rows.shape, channels).permute(0, 3, 1, 2).contiguous())


def _positions(c: Case, op: Any, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(columns, rows), int64 with `fraction_bits`, as `hbc.ir.fixed_point.sample` and the reference have them."""
    grid = recovered(c.operands[1], c.sources[1].scale).to(torch.int64)
    align = bool(c.argument(4, "align_corners", default=False))
    found = []
    for i, size in enumerate((width, height)):
        factor = (size - 1) / 2 if align else size / 2
        r = constants.requantization(c.scale(1) * factor * 2.0**op.fraction_bits, wide=True, bias=False)
        shift = int(r.post_shift[0])
        steps = grid[..., i] * int(r.multiplier[0]) + ((1 << shift) >> 1)
        position = ((steps >> shift) + op.origin[i]).clamp_(*I16_LIMITS)
        found.append(position.clamp_(0, (size - 1) << op.fraction_bits) if op.border else position)
    return found[0], found[1]


def _neighbours(op: Any, position: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The pixels at and behind a position, with their weights: 256 together."""
    low = position >> op.fraction_bits
    weight = (position - (low << op.fraction_bits)) << (8 - op.fraction_bits)
    yield low, 256 - weight
    yield low + 1, weight


def _nearest(op: Any, position: Tensor) -> Tensor:
    """The position without its fraction, half to even."""
    bits = op.fraction_bits
    if bits == 0:
        return position
    return (position + (1 << (bits - 1)) - 1 + ((position >> bits) & 1)) >> bits
