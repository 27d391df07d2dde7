"""MaxPool. A maximum needs no arithmetic: lanes are as narrow as the elements, and meeting a position twice is no harm.

So where taps lie side by side, a position outside is replaced by the nearest one inside, which the window holds too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ...isa import MaxPool
from ...program import Tensor
from ..emitter import const, element, i64
from ..loops import coordinates, span
from ..offset import is_offset
from ..registry import KernelBuilder, kernel, operand
from .move import copy_bytes
from .pool import combine_windows, each_vector, fit_lanes

FEW_BYTES = 8  # of a pixel: with fewer, rows are combined as a whole
MOST_TAPS = 25  # of a window that is written out


@kernel(MaxPool)
def emit_max_pool(k: KernelBuilder, op: MaxPool, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """The way that suits the window."""
    p = _Pool.of(k, op, operand(ins, 0), outs[0])
    if op.dilations != (1, 1):
        _any_window(p)
    elif outs[0].shape[3] * outs[0].dtype.size < FEW_BYTES:
        _by_rows(p)
    elif op.kernel[0] * op.kernel[1] <= MOST_TAPS:
        _by_pixels(p)
    else:
        _any_window(p)


@dataclass(frozen=True)
class _Pool:
    k: KernelBuilder
    op: MaxPool
    x: Tensor
    out: Tensor
    ty: ir.Type
    unsigned: bool  # q + 128 is ordered as bytes without sign

    @staticmethod
    def of(k: KernelBuilder, op: MaxPool, x: Tensor, out: Tensor) -> _Pool:
        return _Pool(k, op, x, out, element(x.dtype), is_offset(x))

    @property
    def lanes(self) -> int:
        """Elements of a register."""
        return self.k.host.lanes * 4 // self.x.dtype.size

    def lowest(self, lanes: int) -> ir.Constant:
        return const(self.ty, 0 if self.unsigned else self.x.dtype.limits[0], lanes)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.k.overloaded("llvm.umax" if self.unsigned else "llvm.smax", a, b)

    def largest(self, values: Sequence[ir.Value]) -> ir.Value:
        result = values[0]
        for v in values[1:]:
            result = self.larger(result, v)
        return result

    def lines(self, row: ir.Value) -> list[ir.Value]:
        """The addresses of the input rows of output row `row` (over all batch entries), kept inside."""
        k, op, (_, h, w, c) = self.k, self.op, self.x.shape
        entry, y = coordinates(k, row, (self.out.shape[0], self.out.shape[1]))
        top = k.b.sub(k.b.mul(y, i64(op.strides[0])), i64(op.pads[0]))
        found = []
        for tap in range(op.kernel[0]):
            line = k.b.add(k.b.mul(entry, i64(h)), self.inside(k.b.add(top, i64(tap)), h))
            found.append(k.at(k.ins[0], k.b.mul(line, i64(w * c)), self.x.dtype.size))
        return found

    def inside(self, position: ir.Value, size: int) -> ir.Value:
        return self.k.smin(self.k.smax(position, i64(0)), i64(size - 1))


def _any_window(p: _Pool) -> None:
    lanes = fit_lanes(p.lanes, p.out.shape[3])
    combine_windows(p.k, p.op, p.x, p.out, p.lowest(lanes), p.larger)


def _by_pixels(p: _Pool) -> None:
    """A window is written out tap by tap; in the middle of a row all of its columns are known to lie inside."""
    k, op, (n, oh, ow, c), (_, _, w, _) = p.k, p.op, p.out.shape, p.x.shape
    lanes = fit_lanes(p.lanes, c)
    low = min(ow, -(-op.pads[1] // op.strides[1]))
    high = max(low, min(ow, (w - op.kernel[1] + op.pads[1]) // op.strides[1] + 1))

    def pixels(
        row: ir.Value, lines: list[ir.Value], span_: tuple[int, int], column_of: Callable[..., ir.Value]
    ) -> None:
        with k.loop(*span_) as column:
            left = k.b.sub(k.b.mul(column, i64(op.strides[1])), i64(op.pads[1]))
            starts = [k.b.mul(column_of(k.b.add(left, i64(tap))), i64(c)) for tap in range(op.kernel[1])]
            to = k.b.mul(k.b.add(k.b.mul(row, i64(ow)), column), i64(c))

            def channels(first: ir.Value) -> None:
                taps = [k.load(line, k.b.add(s, first), p.ty, lanes) for line in lines for s in starts]
                k.store(p.largest(taps), k.outs[0], k.b.add(to, first))

            each_vector(k, c, lanes, channels)

    k.work(n * oh, p.out.elements * op.kernel[0] * op.kernel[1] // 16)
    with k.loop(k.begin, k.end) as row:
        lines = p.lines(row)
        for edge in ((0, low), (high, ow)):
            if edge[0] < edge[1]:
                pixels(row, lines, edge, lambda v: p.inside(v, w))
        if low < high:
            pixels(row, lines, (low, high), lambda v: v)


def _by_rows(p: _Pool) -> None:
    """The rows of a window are combined element by element, then columns as far apart as a pixel is wide; then every
    stride-th pixel is taken.
    """
    k, op, (n, oh, ow, c), (_, _, w, _) = p.k, p.op, p.out.shape, p.x.shape
    size, (_, stride), (_, pad, _, _) = p.x.dtype.size, op.strides, op.pads
    columns = (ow - 1) * stride + op.kernel[1]  # of the padded row that windows reach
    real = min(w, columns - pad)
    kept = ((ow - 1) * stride + 1) * c
    tall, best = k.scratch(columns * c * size), k.scratch(kept * size)
    k.work(n * oh, p.x.elements // 4)
    span(k, 0, columns * c, p.lanes, lambda i, lanes: k.store(p.lowest(lanes), tall, i))
    with k.loop(k.begin, k.end) as row:
        lines = p.lines(row)
        to = k.at(k.outs[0], k.b.mul(row, i64(ow * c)), size)

        def rows(i: ir.Value, lanes: int) -> None:
            k.store(p.largest([k.load(line, i, p.ty, lanes) for line in lines]), k.at(tall, pad * c, size), i)

        def across(i: ir.Value, lanes: int) -> None:
            taps = [k.load(tall, k.b.add(i, i64(tap * c)), p.ty, lanes) for tap in range(op.kernel[1])]
            k.store(p.largest(taps), best if stride > 1 else to, i)

        span(k, 0, real * c, p.lanes, rows)
        span(k, 0, kept, p.lanes, across)
        if stride > 1:
            with k.loop(0, ow) as column:
                source = k.at(best, k.b.mul(column, i64(stride * c)), size)
                copy_bytes(k, k.at(to, k.b.mul(column, i64(c)), size), source, c * size)
