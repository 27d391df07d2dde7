"""Lut and SegmentLut: bytes looked up in registers where the host can, else one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from ...isa import Lut, SegmentLut
from ...numerics import IntArray, round_shift_half_up
from ...program import Tensor
from ...types import DType
from .. import numerics
from ..byte_lookup import byte_lookup
from ..emitter import I8, I16, I32, I64, Emitter, element, i64
from ..host import Host
from ..loops import elementwise
from ..offset import load_q, store_q
from ..registry import Constants, KernelBuilder, Operands, Packed, kernel, operand, packing

UNROLL = 8  # look-ups in flight; each waits for a load
WORTH_A_TABLE = 1024  # elements from which on a table of 65536 results is made of a table in segments


@kernel(Lut)
def emit_lut(k: KernelBuilder, _op: Lut, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS D7: table[x + 128]."""
    x, out, ty = operand(ins, 0), outs[0], element(outs[0].dtype)
    middle = k.at(k.ins[1], 128, out.dtype.size)

    def one(i: ir.Value) -> None:
        index = k.resize(load_q(k, x, k.ins[0], i, 1), I64)
        store_q(k, out, k.load(middle, index, ty), k.outs[0], i)

    look_up = byte_lookup(k, k.ins[1], x, out) if out.dtype is DType.I8 else None
    if look_up is None:
        elementwise(k, out.elements, UNROLL, lambda i, n: _each(k, i, n, one))
        return
    found = look_up
    width = 4 * k.host.lanes

    def body(i: ir.Value, n: int) -> None:
        if n == 1:
            one(i)
        else:
            k.store(found(k.load(k.ins[0], i, I8, n)), k.outs[0], i)

    elementwise(k, out.elements, width, body)


@packing(SegmentLut)
def pack_segment_lut(
    op: SegmentLut, ins: Operands, outs: Sequence[Tensor], constants: Constants, _host: Host
) -> Packed:
    """For tensors that are worth it, the results for all i16 values; the variant says whether they are there."""
    segments, table = constants[1:3]
    if segments is None or table is None or outs[0].elements < WORTH_A_TABLE:
        return Packed((), variant=False)
    return Packed((every_result(op, segments, table).astype(outs[0].dtype.numpy),), variant=True)


def every_result(op: SegmentLut, segments: np.ndarray[Any, Any], table: np.ndarray[Any, Any]) -> IntArray:
    """NUMERICS D8 of −32768 … 32767, as int64 [65536]."""
    x, segments = np.arange(-(1 << 15), 1 << 15), segments.astype(np.int64)
    first, shift, row = segments[np.searchsorted(segments[:, 0], x, side="right") - 1].T
    entry = np.minimum((x - first) >> shift, 63)
    fraction = x - first - (entry << shift)
    low, high = (table[row, entry + j].astype(np.int64) for j in range(2))
    y = low + round_shift_half_up((high - low) * fraction, shift)
    return np.clip(y, op.clamp_min, op.clamp_max)


@kernel(SegmentLut)
def emit_segment_lut(k: KernelBuilder, op: SegmentLut, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS D8: look the result up, or find the segment, then interpolate half up inside it, in i64."""
    segments = ins[1]
    assert segments is not None
    count = segments.shape[0]
    if k.variant:
        ty = element(outs[0].dtype)
        middle = k.at(k.packed[0], 1 << 15, outs[0].dtype.size)

        def look_up(i: ir.Value) -> None:
            k.store(k.load(middle, k.resize(k.load(k.ins[0], i, I16), I64), ty), k.outs[0], i)

        elementwise(k, outs[0].elements, UNROLL, lambda i, n: _each(k, i, n, look_up))
        return

    def one(i: ir.Value) -> None:
        x = k.resize(k.load(k.ins[0], i, I16), I64)
        at = k.b.mul(find_segment(k, x, k.ins[1], count), i64(3))
        first, shift, row = (k.resize(k.load(k.ins[1], k.b.add(at, i64(j)), I32), I64) for j in range(3))
        position = k.b.sub(x, first)
        entry = k.smin(k.b.ashr(position, shift), i64(63))
        fraction = k.b.sub(position, k.b.shl(entry, shift))
        cell = k.b.add(k.b.mul(row, i64(65)), entry)
        low, high = (k.resize(k.load(k.ins[2], k.b.add(cell, i64(j)), I16), I64) for j in range(2))
        step = numerics.round_shift_half_up(k, k.b.mul(k.b.sub(high, low), fraction), shift)
        y = numerics.saturate(k, k.b.add(low, step), op.clamp_min, op.clamp_max)
        k.store(k.resize(y, element(outs[0].dtype)), k.outs[0], i)

    elementwise(k, outs[0].elements, 1, lambda i, _: one(i))


def find_segment(e: Emitter, x: ir.Value, segments: ir.Value, count: int) -> ir.Value:
    """The last of `count` segments whose first value is at or below `x`, by binary search without branches.

    Each step is added as a shifted 0 or 1: a select may become a branch, and one that is often guessed wrong.
    """
    found = i64(0)
    for bit in reversed(range((count - 1).bit_length())):
        candidate = e.b.add(found, i64(1 << bit))
        readable = e.smin(candidate, i64(count - 1))
        first = e.resize(e.load(segments, e.b.mul(readable, i64(3)), I32), I64)
        better = e.b.and_(e.b.icmp_signed("<", candidate, i64(count)), e.b.icmp_signed("<=", first, x))
        found = e.b.add(found, e.b.shl(e.b.zext(better, I64), i64(bit)))
    return found


def _each(k: KernelBuilder, first: ir.Value, count: int, one: Callable[[ir.Value], None]) -> None:
    """`one` for each of `count` elements: a straight line of independent look-ups."""
    for j in range(count):
        one(k.b.add(first, i64(j)))
