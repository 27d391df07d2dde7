"""GridSample: positions in i64 scalars, one pixel's channels in vectors."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ...isa import GridSample
from ...isa.sample import I16_LIMITS
from ...program import Tensor
from .. import numerics
from ..emitter import I32, I64, const, element, i64, vector
from ..loops import coordinates, rows, span
from ..registry import KernelBuilder, Operands, kernel, operand

Place = tuple[ir.Value, ir.Value]  # a pixel's index along an axis (inside the input), and its weight (0 outside)


@kernel(GridSample)
def emit_grid_sample(k: KernelBuilder, op: GridSample, ins: Operands, outs: Sequence[Tensor]) -> None:
    """One output row is a work item. Outside pixels are read at the edge with weight 0; the padding gets the rest."""
    x, grid, (n, oh, ow, c) = operand(ins, 0), operand(ins, 1), outs[0].shape
    _, h, w, _ = x.shape

    def row(r: ir.Value) -> None:
        batch = coordinates(k, r, (n, oh))[0]
        image = k.b.mul(batch, i64(h))
        with k.loop(0, ow) as column:
            pixel = k.b.add(k.b.mul(r, i64(ow)), column)
            across = _places(k, op, _position(k, op, grid, pixel, 0, w), w)
            down = _places(k, op, _position(k, op, grid, pixel, 1, h), h)
            corners, weights = [], []
            for line, line_weight in down:
                start = k.b.mul(k.b.add(image, line), i64(w))
                for place, weight in across:
                    corners.append(k.b.mul(k.b.add(start, place), i64(c)))
                    weights.append(k.b.mul(line_weight, weight))
            _blend(k, op, corners, weights, k.b.mul(pixel, i64(c)), outs[0])

    rows(k, n * oh if c else 0, row, cost=4 * outs[0].elements)


def _position(k: KernelBuilder, op: GridSample, grid: Tensor, pixel: ir.Value, axis: int, size: int) -> ir.Value:
    """The position along x (axis 0) or y (axis 1), i64."""
    at = k.b.add(k.b.mul(pixel, i64(2)), i64(axis))
    entry = k.resize(k.load(k.ins[1], at, element(grid.dtype)), I64)
    steps = k.b.mul(k.b.sub(entry, i64(op.grid_zero_point)), i64(op.multipliers[axis]))
    position = k.b.add(numerics.round_shift_half_up(k, steps, i64(op.shifts[axis])), i64(op.origin[axis]))
    position = numerics.saturate(k, position, *I16_LIMITS)
    return numerics.saturate(k, position, 0, (size - 1) << op.fraction_bits) if op.border else position


def _places(k: KernelBuilder, op: GridSample, position: ir.Value, size: int) -> list[Place]:
    """The pixels along one axis that a position reads, with weights of 256 together."""
    bits = op.fraction_bits
    low = k.b.ashr(position, i64(bits))
    if op.nearest:
        if bits:
            odd = k.b.and_(low, i64(1))
            low = k.b.ashr(k.b.add(k.b.add(position, i64((1 << (bits - 1)) - 1)), odd), i64(bits))
        return [_place(k, low, const(I32, 256), size)]
    fraction = k.b.sub(position, k.b.shl(low, i64(bits)))
    high = k.resize(k.b.shl(fraction, i64(8 - bits)), I32)
    return [
        _place(k, low, k.b.sub(const(I32, 256), high), size),
        _place(k, k.b.add(low, i64(1)), high, size),
    ]


def _place(k: KernelBuilder, index: ir.Value, weight: ir.Value, size: int) -> Place:
    nearest = numerics.saturate(k, index, 0, size - 1)
    return nearest, k.b.select(k.b.icmp_signed("==", nearest, index), weight, const(I32, 0))


def _blend(
    k: KernelBuilder,
    op: GridSample,
    corners: Sequence[ir.Value],
    weights: Sequence[ir.Value],
    start: ir.Value,
    out: Tensor,
) -> None:
    """All channels of one pixel. Weights add up to 2^16 with the padding's, so that no sum of i16 values leaves i32."""
    ty = element(out.dtype)
    rest: ir.Value = const(I32, 1 << 16)
    for weight in weights:
        rest = k.b.sub(rest, weight)
    outside = k.b.mul(rest, const(I32, op.pad_value))

    def body(i: ir.Value, lanes: int) -> None:
        total = k.splat(outside, lanes)
        for corner, weight in zip(corners, weights, strict=True):
            v = k.resize(k.load(k.ins[0], k.b.add(corner, i), ty, lanes), I32)
            total = k.b.add(total, k.b.mul(v, k.splat(weight, lanes)))
        y = numerics.round_shift_half_up(k, total, const(vector(I32, lanes), 16))
        k.store(k.resize(y, ty), k.outs[0], k.b.add(start, i))

    span(k, 0, out.shape[3], k.host.lanes, body)
