"""ResizeNearest and ResizeBilinear: one row of the result at a time, along tables of source positions."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ...isa import ResizeBilinear, ResizeNearest
from ...program import Tensor
from .. import numerics
from ..emitter import I32, I64, const, element, i64, vector
from ..loops import coordinates, rows, span
from ..registry import KernelBuilder, Operands, kernel
from .move import copy_bytes


@kernel(ResizeNearest)
def emit_resize_nearest(k: KernelBuilder, _op: ResizeNearest, ins: Operands, outs: Sequence[Tensor]) -> None:
    """y[n,h,w,c] = x[n, rows[h], columns[w], c]: a pixel's channels are one run of bytes."""
    x, (n, oh, ow, c) = ins[0], outs[0].shape
    assert x is not None
    pixel = c * outs[0].dtype.size
    _, height, width, _ = x.shape

    def row(r: ir.Value) -> None:
        batch, h = coordinates(k, r, (n, oh))
        source = k.b.mul(_row_start(k, batch, height, _entry(k, 1, h)), i64(width))
        with k.loop(0, ow) as w:
            x_pixel = k.b.add(source, _entry(k, 2, w))
            y_pixel = k.b.add(k.b.mul(r, i64(ow)), w)
            copy_bytes(k, k.at(k.outs[0], y_pixel, pixel), k.at(k.ins[0], x_pixel, pixel), pixel)

    rows(k, n * oh if pixel else 0, row)


@kernel(ResizeBilinear)
def emit_resize_bilinear(k: KernelBuilder, _op: ResizeBilinear, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS D10. The weights of a pixel add up to 2^16, so its sum of i16 values, and all of it, fits i32."""
    x, (n, oh, ow, c) = ins[0], outs[0].shape
    assert x is not None
    ty = element(x.dtype)
    _, height, width, _ = x.shape

    def row(r: ir.Value) -> None:
        batch, h = coordinates(k, r, (n, oh))
        lines = [k.b.mul(_row_start(k, batch, height, _entry(k, 1, h, j, 3)), i64(width)) for j in range(2)]
        row_weights = _weights(k, 1, h)
        with k.loop(0, ow) as w:
            columns = [_entry(k, 2, w, j, 3) for j in range(2)]
            corners = [k.b.mul(k.b.add(line, column), i64(c)) for line in lines for column in columns]
            column_weights = _weights(k, 2, w)
            weights = [k.b.mul(a, b) for a in row_weights for b in column_weights]
            start = k.b.mul(k.b.add(k.b.mul(r, i64(ow)), w), i64(c))

            def body(i: ir.Value, lanes: int) -> None:
                total: ir.Value = const(vector(I32, lanes), 0)
                for corner, weight in zip(corners, weights, strict=True):
                    v = k.resize(k.load(k.ins[0], k.b.add(corner, i), ty, lanes), I32)
                    total = k.b.add(total, k.b.mul(v, k.splat(weight, lanes)))
                y = numerics.round_shift_half_up(k, total, const(total.type, 16))
                k.store(k.resize(y, ty), k.outs[0], k.b.add(start, i))

            span(k, 0, c, k.host.lanes, body)

    rows(k, n * oh, row, cost=4 * outs[0].elements)


def _entry(k: KernelBuilder, operand: int, index: ir.Value, column: int = 0, columns: int = 1) -> ir.Value:
    """Entry [index, column] of the i32 table that is operand number `operand`, as i64."""
    return k.resize(k.load(k.ins[operand], k.b.add(k.b.mul(index, i64(columns)), i64(column)), I32), I64)


def _row_start(k: KernelBuilder, batch: ir.Value, height: int, row: ir.Value) -> ir.Value:
    """The number of an input row over all batches."""
    return k.b.add(k.b.mul(batch, i64(height)), row)


def _weights(k: KernelBuilder, operand: int, index: ir.Value) -> list[ir.Value]:
    """The weights of the low and the high neighbour, as i32: 256 − w and w."""
    high = k.load(k.ins[operand], k.b.add(k.b.mul(index, i64(3)), i64(2)), I32)
    return [k.b.sub(const(I32, 256), high), high]
