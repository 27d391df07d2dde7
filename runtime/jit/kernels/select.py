"""Compare, Select, Logical with broadcasting; ArgMax, ArgMin along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ...isa import ArgMax, ArgMin, Compare, Comparison, Junction, Logical, Select
from ...program import Tensor
from ...types import DType
from ..broadcast import broadcasting
from ..emitter import I8, I32, I64, const, element, i64, lanes_of, mangled, vector
from ..loops import coordinates
from ..registry import KernelBuilder, Operands, kernel, operand
from .pool import fit_lanes

_RELATIONS = {
    Comparison.EQUAL: "==",
    Comparison.LESS: "<",
    Comparison.LESS_OR_EQUAL: "<=",
    Comparison.GREATER: ">",
    Comparison.GREATER_OR_EQUAL: ">=",
}


def _truth(k: KernelBuilder, x: ir.Value) -> ir.Value:
    """i1: whether a bool's byte is anything but 0."""
    return k.b.icmp_unsigned("!=", x, const(x.type, 0))


def _byte(k: KernelBuilder, flag: ir.Value) -> ir.Value:
    """An i1 as a bool's byte, 0 or 1."""
    return k.b.zext(flag, vector(I8, lanes_of(flag)))


@kernel(Compare)
def emit_compare(k: KernelBuilder, op: Compare, ins: Operands, outs: Sequence[Tensor]) -> None:
    """lhs `relation` rhs; equal bools are those of one truth."""
    relation, is_bool = _RELATIONS[op.relation], operand(ins, 0).dtype is DType.BOOL

    def combine(a: ir.Value, b: ir.Value) -> ir.Value:
        if is_bool:
            a, b = _truth(k, a), _truth(k, b)
        return _byte(k, k.b.icmp_signed(relation, a, b))

    broadcasting(k, ins, outs[0], combine)


@kernel(Select)
def emit_select(k: KernelBuilder, _op: Select, ins: Operands, outs: Sequence[Tensor]) -> None:
    """lhs where the condition holds, else rhs; a chosen bool becomes 0 or 1."""
    is_bool = outs[0].dtype is DType.BOOL

    def combine(condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        if is_bool:
            a, b = _byte(k, _truth(k, a)), _byte(k, _truth(k, b))
        return k.b.select(_truth(k, condition), a, b)

    broadcasting(k, ins, outs[0], combine)


@kernel(Logical)
def emit_logical(k: KernelBuilder, op: Logical, ins: Operands, outs: Sequence[Tensor]) -> None:
    """and, or, xor, not of what counts as true."""
    if op.junction is Junction.NOT:
        broadcasting(k, ins[:1], outs[0], lambda a: _byte(k, k.b.icmp_unsigned("==", a, const(a.type, 0))))
        return
    join = {Junction.AND: k.b.and_, Junction.OR: k.b.or_, Junction.XOR: k.b.xor}[op.junction]
    broadcasting(k, ins, outs[0], lambda a, b: _byte(k, join(_truth(k, a), _truth(k, b))))


# ---- positions


@dataclass(frozen=True)
class _Search:
    """Elements of type `kind` under a mask: ~x turns the order round, so that the smallest is the largest too."""

    kind: ir.Type
    lowest: int
    invert: bool
    last: bool

    def better(self, k: KernelBuilder, new: ir.Value, old: ir.Value) -> ir.Value:
        """i1: whether a later element takes the place of an earlier one."""
        return k.b.icmp_signed(">=" if self.last else ">", new, old)


@kernel(ArgMax, ArgMin)
def emit_position(k: KernelBuilder, op: ArgMax, ins: Operands, outs: Sequence[Tensor]) -> None:
    """Vectors across the axis where elements beside each other belong to different results, else along it."""
    x = operand(ins, 0)
    search = _Search(element(x.dtype), x.dtype.limits[0], isinstance(op, ArgMin), op.select_last)
    count, inner = x.shape[op.axis], math.prod(x.shape[op.axis + 1 :])
    outer = x.elements // (count * inner)
    lanes = fit_lanes(k.host.lanes, count if inner == 1 else inner)
    if inner == 1:
        k.work(outer, x.elements // 2)
        with k.loop(k.begin, k.end) as row:
            k.store(_along(k, search, k.b.mul(row, i64(count)), count, lanes, outs[0].dtype), k.outs[0], row)
        return
    vectors = -(-inner // lanes)
    k.work(outer * vectors, x.elements // 2)
    with k.loop(k.begin, k.end) as item:
        block, number = coordinates(k, item, (outer, vectors))
        first = k.smin(k.b.mul(number, i64(lanes)), i64(inner - lanes))
        base = k.b.add(k.b.mul(block, i64(count * inner)), first)
        start = [const(search.kind, search.lowest, lanes), const(I32, 0, lanes)]

        def step(i: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            new = _elements(k, search, k.b.add(base, k.b.mul(i, i64(inner))), lanes)
            return _keep(k, search, state, new, k.splat(k.b.trunc(i, I32), lanes))

        position = k.fold(0, count, start, step)[1]
        to = k.b.add(k.b.mul(block, i64(inner)), first)
        k.store(k.resize(position, element(outs[0].dtype)), k.outs[0], to)


def _elements(k: KernelBuilder, search: _Search, at: ir.Value, lanes: int) -> ir.Value:
    x = k.load(k.ins[0], at, search.kind, lanes)
    return k.b.xor(x, const(search.kind, -1, lanes)) if search.invert else x


def _keep(
    k: KernelBuilder, search: _Search, state: list[ir.Value], new: ir.Value, position: ir.Value
) -> list[ir.Value]:
    best, where = state
    better = search.better(k, new, best)
    return [k.b.select(better, new, best), k.b.select(better, position, where)]


def _along(k: KernelBuilder, search: _Search, base: ir.Value, count: int, lanes: int, dtype: DType) -> ir.Value:
    """Of `count` elements from `base` on: each lane keeps its best, then lanes compare, then come single elements."""
    whole = count // lanes * lanes
    number: ir.Value = const(I32, 0) if lanes == 1 else ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))

    def step(i: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        new = _elements(k, search, k.b.add(base, i), lanes)
        return _keep(k, search, state, new, k.b.add(k.splat(k.b.trunc(i, I32), lanes), number))

    def single(i: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        return _keep(k, search, state, _elements(k, search, k.b.add(base, i), 1), k.b.trunc(i, I32))

    state = k.fold(0, whole, [const(search.kind, search.lowest, lanes), number], step, step=lanes)
    if lanes > 1:
        state = _across(k, search, state, lanes)
    position = k.fold(whole, count, state, single)[1]
    return k.b.sext(position, I64) if dtype is DType.I64 else position


def _across(k: KernelBuilder, search: _Search, state: list[ir.Value], lanes: int) -> list[ir.Value]:
    """The best of all lanes, and the first (or last) position that holds it."""
    best, where = state
    top = k.intrinsic(f"llvm.vector.reduce.smax.{mangled(best.type)}", search.kind, best)
    none, pick = (-1, "smax") if search.last else ((1 << 31) - 1, "smin")
    at_top = k.b.select(k.b.icmp_signed("==", best, k.splat(top, lanes)), where, const(I32, none, lanes))
    return [top, k.intrinsic(f"llvm.vector.reduce.{pick}.{mangled(at_top.type)}", I32, at_top)]
