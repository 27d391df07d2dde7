"""ReduceSum, ReduceMax, ReduceMin over any axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ...isa import ReduceMax, ReduceMin, ReduceSum
from ...program import Tensor
from .. import numerics
from ..emitter import const, element, i64, lanes_of, mangled
from ..loops import coordinates
from ..registry import KernelBuilder, kernel, operand
from .pool import fit_lanes, splat_scheme, sum_type
from .quant import load_scheme


@dataclass(frozen=True)
class Reducer:
    """How elements combine: onto `start` of type `kind`, lane by lane by `combine`, across lanes by LLVM's `across`."""

    kind: ir.Type
    start: int
    combine: Callable[[ir.Value, ir.Value], ir.Value]
    across: str
    lanes: int


@kernel(ReduceSum)
def emit_reduce_sum(k: KernelBuilder, op: ReduceSum, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """NUMERICS 3 and 4; the zero point is taken off once per element."""
    x, out = operand(ins, 0), outs[0]
    count = math.prod(x.shape[a] for a in op.axes)
    params = load_scheme(k, ins, 1, 0, 1)

    def finish(acc: ir.Value, lanes: int) -> ir.Value:
        acc = k.b.sub(acc, const(acc.type, count * op.x_zero_point))
        mult, pre, post = splat_scheme(k, params, lanes)
        y = numerics.requantize(k, acc, op.scheme, mult, pre, post, op.zero_point, op.clamp_min, op.clamp_max)
        return k.resize(y, element(out.dtype))

    _reduce(k, x, op.axes, Reducer(sum_type(x, count), 0, k.b.add, "add", k.host.lanes), finish)


@kernel(ReduceMax)
def emit_reduce_max(k: KernelBuilder, op: ReduceMax, ins: Sequence[Tensor | None], _outs: Sequence[Tensor]) -> None:
    """Lanes are as narrow as the elements."""
    x = operand(ins, 0)
    lanes = k.host.lanes * 4 // x.dtype.size
    _reduce(k, x, op.axes, Reducer(element(x.dtype), x.dtype.limits[0], k.smax, "smax", lanes), _as_it_is)


@kernel(ReduceMin)
def emit_reduce_min(k: KernelBuilder, op: ReduceMin, ins: Sequence[Tensor | None], _outs: Sequence[Tensor]) -> None:
    """Lanes are as narrow as the elements."""
    x = operand(ins, 0)
    lanes = k.host.lanes * 4 // x.dtype.size
    _reduce(k, x, op.axes, Reducer(element(x.dtype), x.dtype.limits[1], k.smin, "smin", lanes), _as_it_is)


def _as_it_is(value: ir.Value, _lanes: int) -> ir.Value:
    return value


@dataclass(frozen=True)
class _Axis:
    size: int
    stride: int  # elements
    reduced: bool


def _collapse(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[_Axis]:
    """The axes of size over 1, neighbours of one kind joined, outermost first."""
    joined: list[_Axis] = []
    stride = 1
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] == 1:
            continue
        if joined and joined[0].reduced == (i in axes):
            joined[0] = _Axis(joined[0].size * shape[i], joined[0].stride, joined[0].reduced)
        else:
            joined.insert(0, _Axis(shape[i], stride, i in axes))
        stride *= shape[i]
    return joined or [_Axis(1, 1, reduced=False)]


Finish = Callable[[ir.Value, int], ir.Value]


def _reduce(k: KernelBuilder, x: Tensor, axes: tuple[int, ...], r: Reducer, finish: Finish) -> None:
    """Emit the kernel: vectors along the innermost axis, whether it is kept or reduced."""
    *outer, inner = _collapse(x.shape, axes)
    kept = [a for a in outer if not a.reduced]
    reduced = [a for a in outer if a.reduced]
    lanes = fit_lanes(r.lanes, inner.size)
    vectors = 1 if inner.reduced else -(-inner.size // lanes)
    k.work(math.prod(a.size for a in kept) * vectors, x.elements // 8)
    with k.loop(k.begin, k.end) as item:
        *place, number = coordinates(k, item, (*(a.size for a in kept), vectors))
        base: ir.Value = i64(0)
        for at, axis in zip(place, kept, strict=True):
            base = k.b.add(base, k.b.mul(at, i64(axis.stride)))
        if inner.reduced:
            result = _along(k, x, r, (reduced, inner, lanes), base)
            k.store(finish(result, 1), k.outs[0], item)
        else:
            first = k.smin(k.b.mul(number, i64(lanes)), i64(inner.size - lanes))
            start: list[ir.Value] = [const(r.kind, r.start, lanes)]
            acc = _nest(k, reduced, k.b.add(base, first), start, lambda at, s: [_join(k, x, r, at, s[0])])
            to = k.b.add(k.b.mul(k.b.sdiv(item, i64(vectors)), i64(inner.size)), first)
            k.store(finish(acc[0], lanes), k.outs[0], to)


def _along(k: KernelBuilder, x: Tensor, r: Reducer, axes: tuple[list[_Axis], _Axis, int], base: ir.Value) -> ir.Value:
    """Everything reduced, the innermost axis too: vectors along it, then single elements, then across the lanes."""
    outer, inner, lanes = axes
    whole = inner.size // lanes * lanes

    def line(at: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        def step(i: ir.Value, s: list[ir.Value]) -> list[ir.Value]:
            return [_join(k, x, r, k.b.add(at, i), s[0])]

        vectors = k.fold(0, whole, state[:1], step, step=lanes)
        return [*vectors, *k.fold(whole, inner.size, state[1:], step)]

    start: list[ir.Value] = [const(r.kind, r.start, lanes), const(r.kind, r.start)]
    many, single = _nest(k, outer, base, start, line)
    if lanes > 1:
        many = k.intrinsic(f"llvm.vector.reduce.{r.across}.{mangled(many.type)}", r.kind, many)
    return r.combine(many, single)


def _nest(
    k: KernelBuilder,
    axes: list[_Axis],
    base: ir.Value,
    state: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Loops over `axes`, outermost first, carrying `state` through `body(element, state)`."""
    if not axes:
        return body(base, state)
    axis, *rest = axes

    def step(i: ir.Value, s: list[ir.Value]) -> list[ir.Value]:
        return _nest(k, rest, k.b.add(base, k.b.mul(i, i64(axis.stride))), s, body)

    return k.fold(0, axis.size, state, step)


def _join(k: KernelBuilder, x: Tensor, r: Reducer, at: ir.Value, state: ir.Value) -> ir.Value:
    """`state` combined with the elements from `at` on."""
    return r.combine(state, k.resize(k.load(k.ins[0], at, element(x.dtype), lanes_of(state)), r.kind))
