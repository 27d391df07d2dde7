"""Matmul: rows of lhs by panels of rhs, both packed by the kernel, since either may be computed at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from ...isa import Matmul, Scheme
from ...numerics import I16_MAX, I32_MAX
from ...program import Tensor
from ...types import DType
from ..convolve import limited, run_length
from ..emitter import I16, I32, const, element, i64
from ..finish import Finish, constant, finish, pack_bias, pack_parameters
from ..host import Host
from ..loops import coordinates
from ..registry import Constants, KernelBuilder, Packed, kernel, operand, packing
from ..tiles import TileShape, accumulate, choose_pixels, choose_shape, steps_of, vector_start
from ..window import Copy, copy_pixels


@packing(Matmul)
def pack_matmul(
    op: Matmul, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> Packed:
    """Biases and the parameters of the requantisation; the TileShape is the variant."""
    lhs, rhs = operand(ins, 0), operand(ins, 1)
    bias = None if ins[2] is None else constant(constants, 2, "bias")
    start = 0 if bias is None else int(np.abs(bias.astype(np.int64)).max())
    far = _farthest(lhs.dtype, op.lhs_zero_point) * _farthest(rhs.dtype, op.rhs_zero_point)
    narrow = _fits_i16(lhs, op.lhs_zero_point) and _fits_i16(rhs, op.rhs_zero_point)
    wide = not narrow or lhs.shape[-1] * far + start > I32_MAX
    shape = choose_shape(outs[0].shape[-1], host, wide=wide)
    names = [(3, "multiplier"), (4, "pre_shift"), (5, "post_shift")]
    present = names[: {Scheme.NONE: 0, Scheme.FLOAT: 1}.get(op.scheme, 3)]
    return Packed((pack_bias(bias, shape, 1), pack_parameters(constants, present, shape, 1)), shape)


def _farthest(dtype: DType, zero_point: int) -> int:
    return max(abs(bound - zero_point) for bound in dtype.limits)


def _fits_i16(t: Tensor, zero_point: int) -> bool:
    """True where elements less the zero point, which may be any integer, are i16."""
    lo, hi = t.dtype.limits
    return lo - zero_point >= -I16_MAX - 1 and hi - zero_point <= I16_MAX


@dataclass(frozen=True)
class _Sizes:
    """[…, m, k] by […, k, n]; `run` rows of lhs make one work item."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    run: int


@kernel(Matmul)
def emit_matmul(k: KernelBuilder, op: Matmul, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """Items are (batch entry, chunk of columns, run of rows); a panel is packed when a thread comes to a new chunk."""
    lhs, rhs, out, shape = operand(ins, 0), operand(ins, 1), outs[0], k.variant
    m, inner, n = lhs.shape[-2], lhs.shape[-1], rhs.shape[-1]
    run = run_length(m, inner, choose_pixels(m, shape, k.host)) if m else 0
    s = _Sizes(lhs.shape[:-2], rhs.shape[:-2], out.shape[:-2], m, inner, n, run)
    if out.elements == 0:
        k.work(0)
        return
    kind = I32 if shape.wide else I16
    panel = k.scratch(limited(steps_of(inner, shape) * shape.width * 4))
    rows = k.scratch(limited(run * inner * 4 + 64))
    tile = k.scratch(shape.tile_bytes(choose_pixels(run, shape, k.host)))
    runs = -(-m // run)
    k.work(math.prod(s.batch) * shape.chunks * runs, out.elements * inner // 16)
    with k.loop(k.begin, k.end) as item:
        number, chunk_item = k.b.srem(item, i64(runs)), k.b.sdiv(item, i64(runs))
        chunk, entry = k.b.srem(chunk_item, i64(shape.chunks)), k.b.sdiv(chunk_item, i64(shape.chunks))
        with k.when(k.b.or_(k.b.icmp_signed("==", number, i64(0)), k.b.icmp_signed("==", item, k.begin))):
            base = k.b.mul(_batch_entry(k, entry, s.batch, s.rhs_batch), i64(inner * n))
            columns = k.at(k.ins[1], base, rhs.dtype.size)
            _pack_panel(k, shape, s, (rhs.dtype, op.rhs_zero_point), columns, chunk, panel)
        row = k.smin(k.b.mul(number, i64(run)), i64(m - run))
        source = k.b.add(k.b.mul(_batch_entry(k, entry, s.batch, s.lhs_batch), i64(m)), row)
        copy = Copy(lhs.dtype, kind, op.lhs_zero_point, 0, inner, inner)
        copy_pixels(k, copy, k.at(k.ins[0], k.b.mul(source, i64(inner)), lhs.dtype.size), rows, run)
        first = k.b.add(k.b.mul(entry, i64(m)), row)
        _emit_tiles(k, shape, s, Finish.of(op, out), (rows, panel, tile), (chunk, first), out)


def _emit_tiles(
    k: KernelBuilder,
    shape: TileShape,
    s: _Sizes,
    what: Finish,
    memory: tuple[ir.Value, ir.Value, ir.Value],
    place: tuple[ir.Value, ir.Value],
    out: Tensor,
) -> None:
    """The tiles of one run: `memory` is (rows, panel, tile), `place` (chunk, first row of the result)."""
    (rows, panel, tile), (chunk, first) = memory, place
    pixels, steps = choose_pixels(s.run, shape, k.host), steps_of(s.k, shape)
    row_bytes = s.k * (4 if shape.wide else 2)
    bias = k.at(k.packed[0], k.b.mul(chunk, i64(shape.tile_bytes(1))))
    parameters = k.at(k.packed[1], k.b.mul(chunk, i64(what.rows * shape.width * 4)))
    with k.loop(0, -(-s.run // pixels)) as number:
        row = k.smin(k.b.mul(number, i64(pixels)), i64(s.run - pixels))
        left = k.at(rows, k.b.mul(row, i64(row_bytes)))
        k.call(accumulate(k, shape, pixels, row_bytes), left, panel, 1, 0, 1, 0, steps, bias, tile)
        to = k.at(k.outs[0], k.b.mul(k.b.add(first, row), i64(s.n)), out.dtype.size)
        channel = k.b.mul(chunk, i64(shape.width))
        k.call(finish(k, shape, what), tile, pixels, parameters, to, to, channel, s.n)


def _batch_entry(k: KernelBuilder, entry: ir.Value, batch: tuple[int, ...], own: tuple[int, ...]) -> ir.Value:
    """The flat index into an operand's own batch axes, some of size 1, of the result's batch entry `entry`."""
    flat: ir.Value = i64(0)
    for at, size in zip(coordinates(k, entry, batch), own, strict=True):
        flat = k.b.add(k.b.mul(flat, i64(size)), i64(0) if size == 1 else at)
    return flat


def _pack_panel(
    k: KernelBuilder,
    shape: TileShape,
    s: _Sizes,
    source: tuple[DType, int],
    rhs: ir.Value,
    chunk: ir.Value,
    panel: ir.Value,
) -> None:
    """Columns of one chunk as `accumulate` reads them: pairs of rows, i16; wide: single rows, i32."""
    dtype, zero_point = source
    per_step = 1 if shape.wide else 2
    kind = I32 if shape.wide else I16

    def read(row: ir.Value, v: int) -> ir.Value:
        at = k.b.add(k.b.mul(row, i64(s.n)), vector_start(k, shape, chunk, v))
        x = k.resize(k.load_first(rhs, at, element(dtype), shape.lanes, shape.used), kind)
        return k.b.sub(x, const(x.type, zero_point)) if zero_point else x

    def write(step: ir.Value, v: int, value: ir.Value) -> None:
        at = k.b.mul(k.b.add(k.b.mul(step, i64(shape.width)), i64(v * shape.lanes)), i64(per_step))
        k.store(value, panel, at)

    whole = s.k // per_step
    with k.loop(0, whole) as step:
        for v in range(shape.vectors):
            parts = [read(k.b.add(k.b.mul(step, i64(per_step)), i64(j)), v) for j in range(per_step)]
            write(step, v, parts[0] if shape.wide else _joined(k, shape, *parts))
    if s.k % per_step:
        for v in range(shape.vectors):
            x = read(i64(s.k - 1), v)
            write(i64(whole), v, _joined(k, shape, x, const(x.type, 0)))


def _joined(k: KernelBuilder, shape: TileShape, a: ir.Value, b: ir.Value) -> ir.Value:
    lanes = a.type.count
    mask = list(range(2 * lanes)) if shape.apart else [i // 2 + (i % 2) * lanes for i in range(2 * lanes)]
    return k.shuffle(a, mask, b)
