"""AvgPool, and any pool: vectors run along the channels, loops over the positions of a window that lie inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...isa import AvgPool, MaxPool
from ...program import Tensor
from .. import numerics
from ..emitter import I32, I64, const, element, i64, lanes_of, scalar_of
from ..loops import coordinates
from ..offset import load_as_stored, load_q, store_q
from ..registry import KernelBuilder, kernel, operand
from .quant import load_scheme

Pool = MaxPool | AvgPool
Combine = Callable[[ir.Value, ir.Value], ir.Value]
Inside = tuple[ir.Value, ir.Value]


@kernel(AvgPool)
def emit_avg_pool(k: KernelBuilder, op: AvgPool, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """NUMERICS D13; the accumulator is Σ x less the zero point once per inside position."""
    x, out = operand(ins, 0), outs[0]
    lanes = fit_lanes(k.host.lanes, out.shape[3])
    taps = min(op.kernel[0], x.shape[1]) * min(op.kernel[1], x.shape[2])
    start = const(sum_type(x, taps), 0, lanes)
    by_position = operand(ins, 1).shape != (1,)

    def pixel(at: list[ir.Value], inside: list[Inside], position: ir.Value) -> None:
        rows, columns = (k.b.sub(end, begin) for begin, end in inside)
        count = k.b.mul(rows, columns)
        zero = k.resize(k.b.mul(count, i64(op.x_zero_point)), scalar_of(start))
        index = k.b.add(k.b.mul(at[1], i64(out.shape[2])), at[2]) if by_position else i64(0)
        mult, pre, post = splat_scheme(k, load_scheme(k, ins, 1, index, 1), lanes)

        def channels(c: ir.Value) -> None:
            acc = _window(k, op, x, (at, inside), c, start, k.b.add)
            acc = k.b.sub(acc, k.splat(zero, lanes))
            y = numerics.requantize(k, acc, op.scheme, mult, pre, post, op.zero_point, op.clamp_min, op.clamp_max)
            store_q(k, out, k.resize(y, element(out.dtype)), k.outs[0], k.b.add(position, c))

        each_vector(k, out.shape[3], lanes, channels)

    _each_pixel(k, op, x, out, pixel)


def combine_windows(k: KernelBuilder, op: Pool, x: Tensor, out: Tensor, start: ir.Constant, combine: Combine) -> None:
    """Every window's inside positions as they are stored, combined onto `start`, are the result."""

    def pixel(at: list[ir.Value], inside: list[Inside], position: ir.Value) -> None:
        def channels(c: ir.Value) -> None:
            k.store(_window(k, op, x, (at, inside), c, start, combine), k.outs[0], k.b.add(position, c))

        each_vector(k, out.shape[3], lanes_of(start), channels)

    _each_pixel(k, op, x, out, pixel)


def sum_type(x: Tensor, count: int) -> ir.IntType:
    """The type in which `count` differences x − zero_point add up without leaving it: i32, or i64."""
    return I32 if count << (8 * x.dtype.size) < 1 << 31 else I64


def splat_scheme(k: KernelBuilder, one: Sequence[ir.Value | None], lanes: int) -> list[ir.Value | None]:
    """Multiplier and shifts in every lane; None where absent."""
    return [None if p is None else k.splat(p, lanes) for p in one]


def fit_lanes(most: int, channels: int) -> int:
    """The largest power of two of lanes that neither a register nor the channels fall short of."""
    return min(most, 1 << (channels.bit_length() - 1))


def each_vector(k: KernelBuilder, channels: int, lanes: int, body: Callable[[ir.Value], None]) -> None:
    """`body(c)` for vectors of channels that cover them all; the last one overlaps its neighbour."""
    with k.loop(0, -(-channels // lanes)) as number:
        body(k.smin(k.b.mul(number, i64(lanes)), i64(channels - lanes)))


PixelBody = Callable[[list[ir.Value], list[Inside], ir.Value], None]


def _each_pixel(k: KernelBuilder, op: Pool, x: Tensor, out: Tensor, body: PixelBody) -> None:
    """`body([n, oh, ow], taps inside per axis, first output element)` for every output pixel; items are output rows."""
    n, oh, ow, c = out.shape
    k.work(n * oh, out.elements * op.kernel[0] * op.kernel[1] // 16)
    with k.loop(k.begin, k.end) as row:
        entry, y = coordinates(k, row, (n, oh))
        rows = _inside(k, op, 0, x.shape[1], y)
        with k.loop(0, ow) as column:
            position = k.b.mul(k.b.add(k.b.mul(row, i64(ow)), column), i64(c))
            body([entry, y, column], [rows, _inside(k, op, 1, x.shape[2], column)], position)


def _inside(k: KernelBuilder, op: Pool, axis: int, size: int, out: ir.Value) -> Inside:
    """[first, end) of the taps whose position out·stride − pad + tap·dilation lies in [0, size)."""
    dilation = op.dilations[axis]
    start = k.b.sub(k.b.mul(out, i64(op.strides[axis])), i64(op.pads[axis]))

    def ceil_div(x: ir.Value) -> ir.Value:  # of x ≥ 0
        return k.b.sdiv(k.b.add(x, i64(dilation - 1)), i64(dilation))

    first = ceil_div(k.smax(k.b.sub(i64(0), start), i64(0)))
    end = ceil_div(k.smax(k.b.sub(i64(size), start), i64(0)))
    return first, k.smin(end, i64(op.kernel[axis]))


def _window(
    k: KernelBuilder,
    op: Pool,
    x: Tensor,
    place: tuple[list[ir.Value], list[Inside]],
    channel: ir.Value,
    start: ir.Value,
    combine: Combine,
) -> ir.Value:
    """All inside positions of one window, for start's lanes of channels from `channel` on, combined onto `start`."""
    (entry, y, column), (rows, columns) = place
    _, h, w, c = x.shape
    read = load_as_stored if isinstance(op, MaxPool) else load_q
    lanes = lanes_of(start)

    def position(axis: int, out: ir.Value, tap: ir.Value) -> ir.Value:
        moved = k.b.sub(k.b.mul(out, i64(op.strides[axis])), i64(op.pads[axis]))
        return k.b.add(moved, k.b.mul(tap, i64(op.dilations[axis])))

    def per_row(tap: ir.Value, outer: list[ir.Value]) -> list[ir.Value]:
        line = k.b.add(k.b.mul(entry, i64(h)), position(0, y, tap))

        def per_column(inner_tap: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            pixel = k.b.add(k.b.mul(line, i64(w)), position(1, column, inner_tap))
            value = read(k, x, k.ins[0], k.b.add(k.b.mul(pixel, i64(c)), channel), lanes)
            return [combine(state[0], k.resize(value, scalar_of(start)))]

        return k.fold(*columns, outer, per_column)

    return k.fold(*rows, [start], per_row)[0]
