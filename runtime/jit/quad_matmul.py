"""Products of two computed matrices of bytes by dot products of four: the tiles of byte convolutions over other panels.

The right matrix is packed when a thread comes to a new chunk of its columns, and summed on the way. With p what storing
the left bytes as q + 128 adds (`quad_plan.py`), and zero points zl and zr:

    Σ (l − zl)(r − zr) = Σ (l + p) r − (p + zl) Σ r − zr Σ (l + p) + k zr (p + zl)

The sums of columns join the start values; those of rows, wanted where zr is not 0, are a term of each row of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from .convolve import Operands, limited, run_length
from .emitter import I8, I16, I32, I64, PTR, Emitter, const, i64, lanes_of
from .finish import Finish
from .host import Dot
from .offset import OFFSET, flipped
from .quad_conv import QuadConvolution, QuadLoops
from .quad_plan import QuadPlan
from .quad_tile import Tile, dot4, rows_of_parameters
from .registry import KernelBuilder
from .window import Axis, Window, copy_pixels
from .x86 import interleave


@dataclass(frozen=True)
class Product:
    """[…, m, k] by […, k, n] in bytes, `entries` matrices in all; `flip`: the right ones are stored as q + 128."""

    m: int
    k: int
    n: int
    entries: int
    lhs_zero_point: int
    rhs_zero_point: int
    flip: bool

    @property
    def window(self) -> Window:
        """The product of one entry as a 1×1 convolution over a row of m pixels."""
        return Window(1, self.k, 1, self.n, Axis(1, 1, 1, 1, 1, 0), Axis(self.m, self.m, 1, 1, 1, 0), 0)

    def raised(self, dot: Dot) -> int:
        """p + zl: see the module."""
        return (OFFSET if dot is Dot.U8S8 else 0) + self.lhs_zero_point


@dataclass(frozen=True)
class Entries:
    """The addresses of an entry's own matrices."""

    lhs: ir.Value
    rhs: ir.Value


EntriesOf = Callable[[ir.Value], Entries]


class ProductLoops(QuadLoops):
    """Items are (entry, chunk of columns, run of rows), runs innermost. `at.bias` is not read."""

    def __init__(
        self, k: KernelBuilder, p: Product, plan: QuadPlan, finish: Finish, at: Operands, *, shifts: bool
    ) -> None:
        super().__init__(k, QuadConvolution(p.window, plan, finish, shifts), at)
        self.p = p
        self.run = run_length(p.m, p.k, plan.tile_columns)
        self.panel = k.scratch(limited(self.panel_bytes))
        self.parameters = k.scratch(self.parameter_bytes)
        self.rows = None if plan.in_place else k.scratch(limited(self.run * p.k + 64))
        self.terms = k.scratch(limited(4 * self.run)) if p.rhs_zero_point else None

    def emit(self, entries_of: EntriesOf) -> None:
        """The whole kernel."""
        k, p, plan = self.k, self.p, self.plan
        runs = -(-p.m // self.run)
        k.work(p.entries * plan.chunks * runs, p.entries * self.w.work)
        with k.loop(k.begin, k.end) as item:
            number, rest = k.b.srem(item, i64(runs)), k.b.sdiv(item, i64(runs))
            chunk, entry = k.b.srem(rest, i64(plan.chunks)), k.b.sdiv(rest, i64(plan.chunks))
            at = entries_of(entry)
            with k.when(k.b.or_(k.b.icmp_signed("==", number, i64(0)), k.b.icmp_signed("==", item, k.begin))):
                self.pack(at.rhs, chunk)
            row = k.smin(k.b.mul(number, i64(self.run)), i64(p.m - self.run))
            left = k.at(at.lhs, k.b.mul(row, i64(p.k)))
            if self.rows is not None:
                copy_pixels(k, self.copy(), left, self.rows, self.run)
                left = self.rows
            if self.terms is not None:
                k.call(_row_terms(k, p.rhs_zero_point), left, self.terms, self.run, p.k)
            self.tiles(left, k.b.add(k.b.mul(entry, i64(p.m)), row), chunk, (1, self.run))

    # -- what tiles read

    def panel_at(self, panel: ir.Value) -> ir.Value:
        return self.panel

    def of_panel(self, panel: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        _, starts, channel = super().of_panel(panel)
        return self.parameters, starts, channel

    def beside(self, out: ir.Value, element: ir.Value, pixel: ir.Value) -> ir.Value:
        return out if self.terms is None else self.k.at(self.terms, pixel, 4)

    def tile(self, rows: int, columns: int) -> Tile:
        return replace(super().tile(rows, columns), terms=self.terms is not None)

    # -- packing

    def pack(self, rhs: ir.Value, chunk: ir.Value) -> None:
        """One chunk of columns to the panel, four rows at a time, and its start values to the parameters."""
        k, p, plan = self.k, self.p, self.plan
        columns = self.columns_of(chunk)
        size = 4 * plan.lanes
        ones = const(I8, 1, size)
        zero = ir.Constant(ir.VectorType(I32, plan.lanes), None)

        def step(number: ir.Value, count: int, sums: list[ir.Value]) -> list[ir.Value]:
            first = k.at(rhs, k.b.mul(number, i64(4 * p.n)))
            quads = self.quads([k.at(first, j * p.n) for j in range(count)], columns)
            to = k.at(self.panel, k.b.mul(number, i64(plan.vectors * size)))
            for n, quad in enumerate(quads):
                k.store(quad, to, n * size)
            return [dot4(k, s, ones, q) for s, q in zip(sums, quads, strict=True)] if sums else []

        summed = p.raised(k.host.dot) != 0
        sums = k.fold(0, p.k // 4, [zero] * (plan.vectors * summed), lambda i, s: step(i, 4, s))
        if p.k % 4:
            sums = step(i64(p.k // 4), p.k % 4, sums)
        self.store_parameters(chunk, sums)

    def store_parameters(self, chunk: ir.Value, sums: Sequence[ir.Value]) -> None:
        """The chunk's parameters; of its start values, what the sums of its columns say is taken off."""
        k, plan = self.k, self.plan
        source = k.at(self.at.parameters, k.b.mul(chunk, i64(self.parameter_bytes)))
        rows = rows_of_parameters(self.c.finish, packed=plan.packed)
        for n in range(rows * plan.vectors):
            value = k.load(source, n * plan.lanes, I32, plan.lanes)
            if n < len(sums):
                value = k.b.sub(value, k.b.mul(sums[n], const(value.type, self.p.raised(k.host.dot))))
            k.store(value, self.parameters, n * plan.lanes)

    def columns_of(self, chunk: ir.Value) -> list[ir.Value]:
        """Where each vector of a chunk starts; where packed, where all of them do, which lie side by side."""
        k, plan = self.k, self.plan
        if plan.packed:
            return [k.smin(k.b.mul(chunk, i64(plan.width)), i64(plan.columns - plan.width))]
        starts = (k.b.add(k.b.mul(chunk, i64(plan.width)), i64(n * plan.lanes)) for n in range(plan.vectors))
        return [k.smin(start, i64(plan.last)) for start in starts]

    def quads(self, rows: Sequence[ir.Value], columns: Sequence[ir.Value]) -> list[ir.Value]:
        """Up to four rows from these columns on: vectors of four bytes per column, in the accumulators' order."""
        lanes = self.plan.width if self.plan.packed else self.plan.lanes
        zero = ir.Constant(ir.VectorType(I8, lanes), None)
        found = []
        for column in columns:
            four = [self.read(row, column, lanes) for row in rows] + [zero] * (4 - len(rows))
            found += (
                _interleaved(self.k, four, self.plan.vectors) if self.plan.packed else [_side_by_side(self.k, four)]
            )
        return found

    def read(self, row: ir.Value, column: ir.Value, lanes: int) -> ir.Value:
        """Bytes of a row of the right matrix, with their sign; those beyond its last column are 0."""
        k, used = self.k, lanes if self.plan.packed else self.plan.used
        x = k.load_first(row, column, I8, lanes, used)
        return flipped(k, x) if self.p.flip else x


def _interleaved(e: Emitter, rows: list[ir.Value], vectors: int) -> list[ir.Value]:
    """Four rows of as many bytes as `vectors` vectors have lanes, as packed plans want them (`QuadPlan.channels`)."""
    if lanes_of(rows[0]) < 16:
        both = _side_by_side(e, rows)
        size = lanes_of(both) // 2
        return [e.shuffle(both, range(first, first + size)) for first in (0, size)]
    words = ir.VectorType(I16, lanes_of(rows[0]) // 2)
    pairs = [[e.b.bitcast(v, words) for v in interleave(e, *rows[j : j + 2])] for j in (0, 2)]
    quads = [q for a, b in zip(*pairs, strict=True) for q in interleave(e, a, b)]
    if vectors == 4:
        return [e.b.bitcast(q, rows[0].type) for q in quads]
    # two vectors: quads n and n + 2 follow each other within each 128 bits that a quad has
    parts = lanes_of(rows[0]) // 16
    index = [2 * (part + parts * j) + i for part in range(parts) for j in (0, 1) for i in (0, 1)]
    halves = [e.b.bitcast(q, ir.VectorType(I64, 2 * parts)) for q in quads]
    whole = (e.shuffle(halves[n], index, halves[n + 2]) for n in (0, 1))
    return [e.b.bitcast(v, ir.VectorType(I8, 2 * lanes_of(rows[0]))) for v in whole]


def _side_by_side(e: Emitter, rows: list[ir.Value]) -> ir.Value:
    """Four rows of bytes, column by column."""
    lanes = lanes_of(rows[0])

    def zipped(a: ir.Value, b: ir.Value) -> ir.Value:
        return e.shuffle(a, [i // 2 + (i % 2) * lanes for i in range(2 * lanes)], b)

    low, high = (e.b.bitcast(zipped(*rows[j : j + 2]), ir.VectorType(I16, lanes)) for j in (0, 2))
    return e.b.bitcast(zipped(low, high), ir.VectorType(I8, 4 * lanes))


def _row_terms(e: Emitter, zero_point: int) -> ir.Function:
    """`void(ptr left, ptr terms, i64 rows, i64 k)`: terms[i] = −zero_point · the sum of row i's bytes, modulo 2^32."""
    size = 4 * e.host.lanes
    unsigned = e.host.dot is Dot.U8S8

    def emit(f: Emitter) -> None:
        left, terms, rows, length = f.args
        ones = const(I8, 1, size)
        zero = ir.Constant(ir.VectorType(I32, f.host.lanes), None)
        whole = f.b.and_(length, i64(-size))
        with f.loop(0, rows) as row:
            at = f.at(left, f.b.mul(row, length))
            (many,) = f.fold(
                0, whole, [zero], lambda i, s: [dot4(f, s[0], f.load(at, i, I8, size), ones)], step=size
            )  # fmt: skip
            total = f.intrinsic(f"llvm.vector.reduce.add.v{f.host.lanes}i32", I32, many)
            (total,) = f.fold(
                whole, length, [total],
                lambda i, s: [f.b.add(s[0], f.resize(f.load(at, i, I8), I32, signed=not unsigned))],
            )  # fmt: skip
            f.store(f.b.mul(total, ir.Constant(I32, -zero_point)), terms, row)

    return e.helper(("row_terms", zero_point), [PTR, PTR, I64, I64], emit)
