"""Instructions that move elements without arithmetic: most are one strided copy, seen as nested axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ...isa import Concat, Expand, Gather, Pad, Reshape, Slice, Transpose
from ...program import Tensor
from ...types import DType
from ..emitter import I1, I8, I32, I64, VOID, Emitter, const, i64, size_of
from ..loops import coordinates, rows, span
from ..registry import KernelBuilder, Operands, kernel, operand

COPY_BLOCK = 1 << 16  # bytes of one work item of a plain copy
TILE_BYTES = 16  # a transposed tile is this many bytes wide: one 128-bit register, which every host has
FEW_PLANES = 4  # up to which a pixel's elements are interleaved from as many vectors
PLANE_RUN = 4096  # pixels
LINE_TILES = 4  # tiles that one work item does side by side, so that whole cache lines of the source are used


@kernel(Concat)
def emit_concat(k: KernelBuilder, op: Concat, ins: Operands, outs: Sequence[Tensor]) -> None:
    """For every index over the axes before `axis`, one run of bytes from each operand."""
    out = outs[0]
    chunks = [operand(ins, i).dtype.size * math.prod(operand(ins, i).shape[op.axis :]) for i in range(len(ins))]
    total = sum(chunks)

    def row(r: ir.Value) -> None:
        start = k.b.mul(r, i64(total))
        for source, chunk in zip(k.ins, chunks, strict=True):
            copy_bytes(k, k.at(k.outs[0], start), k.at(source, k.b.mul(r, i64(chunk))), chunk)
            start = k.b.add(start, i64(chunk))

    rows(k, math.prod(out.shape[: op.axis]), row)


@kernel(Slice)
def emit_slice(k: KernelBuilder, op: Slice, ins: Operands, outs: Sequence[Tensor]) -> None:
    """A strided copy from where the first element lies."""
    strides = strides_of(operand(ins, 0).shape)
    steps = [step * stride for step, stride in zip(op.steps, strides, strict=True)]
    offset = sum(start * stride for start, stride in zip(op.starts, strides, strict=True))
    _copy_strided(k, outs[0], steps, offset)


@kernel(Transpose)
def emit_transpose(k: KernelBuilder, op: Transpose, ins: Operands, outs: Sequence[Tensor]) -> None:
    """A strided copy with the operand's strides permuted."""
    strides = strides_of(operand(ins, 0).shape)
    _copy_strided(k, outs[0], [strides[p] for p in op.perm])


@kernel(Expand)
def emit_expand(k: KernelBuilder, _op: Expand, ins: Operands, outs: Sequence[Tensor]) -> None:
    """A strided copy whose repeated axes stand still in the operand."""
    shape = operand(ins, 0).shape
    _copy_strided(k, outs[0], [0 if d == 1 else s for d, s in zip(shape, strides_of(shape), strict=True)])


@kernel(Reshape)
def emit_reshape(k: KernelBuilder, _op: Reshape, _ins: Operands, outs: Sequence[Tensor]) -> None:
    """The operand's bytes; the engine calls no kernel where the result aliases its operand."""
    _copy_flat(k, outs[0].nbytes)


@kernel(Pad)
def emit_pad(k: KernelBuilder, op: Pad, ins: Operands, outs: Sequence[Tensor]) -> None:
    """Rows along the last padded axis (and all after it): border, operand, border; or border only."""
    shape, out, rank = operand(ins, 0).shape, outs[0], len(outs[0].shape)
    axis = max((i for i in range(rank) if op.pads[i] or op.pads[rank + i]), default=-1)
    if axis < 0 or out.elements == 0:
        _copy_flat(k, out.nbytes)
        return
    inner = math.prod(shape[axis + 1 :])
    left, middle, right = op.pads[axis] * inner, shape[axis] * inner, op.pads[rank + axis] * inner
    ty, value = bits_of(out.dtype), op.value

    def row(r: ir.Value) -> None:
        start = k.at(k.outs[0], k.b.mul(r, i64(left + middle + right)), out.dtype.size)
        index = coordinates(k, r, out.shape[:axis])
        source, inside = _source_row(k, index, shape[:axis], op.pads)
        with k.b.if_else(inside) as (then, otherwise):
            with then:
                fill(k, start, ty, value, left)
                x = k.at(k.ins[0], k.b.mul(source, i64(middle)), out.dtype.size)
                copy_bytes(k, k.at(start, left, out.dtype.size), x, middle * out.dtype.size)
                fill(k, k.at(start, left + middle, out.dtype.size), ty, value, right)
            with otherwise:
                fill(k, start, ty, value, left + middle + right)

    rows(k, math.prod(out.shape[:axis]), row)


@kernel(Gather)
def emit_gather(k: KernelBuilder, op: Gather, ins: Operands, outs: Sequence[Tensor]) -> None:
    """For every index over the axes before `axis` and every entry of `indices`, one run of bytes."""
    shape, count = operand(ins, 0).shape, outs[0].shape[op.axis]
    nbytes = outs[0].dtype.size * math.prod(shape[op.axis + 1 :])
    outer = math.prod(shape[: op.axis])

    def row(r: ir.Value) -> None:
        before, j = coordinates(k, r, (outer, count))
        entry = k.resize(k.load(k.ins[1], j, I32), I64)
        source = k.b.add(k.b.mul(before, i64(shape[op.axis])), entry)
        copy_bytes(k, k.at(k.outs[0], r, nbytes), k.at(k.ins[0], source, nbytes), nbytes)

    rows(k, outer * count if nbytes else 0, row)


# ---- strided copies


@dataclass(frozen=True)
class Axis:
    """One axis of a copy: how many elements, and how far apart they lie in the source and in the result."""

    size: int
    source: int
    out: int


def bits_of(dtype: DType) -> ir.IntType:
    """The integer of an element's size: moving needs no more, and spares half floats a detour over float."""
    return ir.IntType(8 * dtype.size)


def strides_of(shape: tuple[int, ...]) -> list[int]:
    """Row-major strides, in elements."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def merge_axes(axes: Sequence[Axis]) -> list[Axis]:
    """The fewest axes that describe the same copy, outermost first; at least one."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        last = merged[-1] if merged else None
        if last and last.source == axis.size * axis.source and last.out == axis.size * axis.out:
            merged[-1] = Axis(last.size * axis.size, axis.source, axis.out)
        else:
            merged.append(axis)
    return merged or [Axis(1, 1, 1)]


def _copy_strided(k: KernelBuilder, out: Tensor, source_strides: Sequence[int], offset: int = 0) -> None:
    """A dense result from a source that is read with the given strides, in elements, from element `offset` on."""
    if out.elements == 0:
        k.work(0)
        return
    size, ty = out.dtype.size, bits_of(out.dtype)
    source = k.at(k.ins[0], offset, size)
    axes = merge_axes([Axis(*a) for a in zip(out.shape, source_strides, strides_of(out.shape), strict=True)])
    *outer, last = axes
    if not outer and last.source == 1:
        _copy_flat(k, out.nbytes, source)
        return
    contiguous = [axis for axis in outer if axis.source == 1]
    if contiguous and last.source > 1:
        _copy_transposed(k, source, axes, contiguous[0], ty)
        return

    def row(r: ir.Value) -> None:
        x = k.at(source, _offset(k, r, outer), size)
        y = k.at(k.outs[0], k.b.mul(r, i64(last.size)), size)
        _copy_row(k, y, x, last, ty)

    rows(k, math.prod(axis.size for axis in outer), row)


def _copy_row(k: KernelBuilder, out: ir.Value, source: ir.Value, axis: Axis, ty: ir.IntType) -> None:
    """`axis.size` consecutive elements from elements that lie together, far apart, or all in one place."""
    if axis.source == 1:
        copy_bytes(k, out, source, axis.size * size_of(ty))
        return
    if axis.source == 0:
        _fill_value(k, out, k.load(source, 0, ty), axis.size)
        return
    with k.loop(0, axis.size) as i:
        k.store(k.load(source, k.b.mul(i, i64(axis.source)), ty), out, i)


def _copy_flat(k: KernelBuilder, nbytes: int, source: ir.Value | None = None) -> None:
    """The result is `nbytes` consecutive bytes of the source, by default operand 0."""
    k.work(-(-nbytes // COPY_BLOCK))
    start = k.b.mul(k.begin, i64(COPY_BLOCK))
    stop = k.smin(k.b.mul(k.end, i64(COPY_BLOCK)), i64(nbytes))
    x = k.ins[0] if source is None else source
    with k.when(k.b.icmp_signed("<", start, stop)):
        copy_bytes(k, k.at(k.outs[0], start), k.at(x, start), k.b.sub(stop, start))


def _offset(k: KernelBuilder, row: ir.Value, axes: Sequence[Axis], *, out: bool = False) -> ir.Value:
    """The element of the source (or of the result) at which row number `row` over `axes` begins."""
    offset = i64(0)
    index = coordinates(k, row, tuple(axis.size for axis in axes))
    for i, axis in zip(index, axes, strict=True):
        offset = k.b.add(offset, k.b.mul(i, i64(axis.out if out else axis.source)))
    return offset


def _source_row(
    k: KernelBuilder, index: Sequence[ir.Value], shape: tuple[int, ...], pads: tuple[int, ...]
) -> tuple[ir.Value, ir.Value]:
    """For an index into the padded leading axes: the operand's row number, and whether it lies inside the operand."""
    source: ir.Value = i64(0)
    inside: ir.Value = ir.Constant(I1, 1)
    for i, size, before in zip(index, shape, pads, strict=False):
        position = k.b.sub(i, i64(before))
        inside = k.b.and_(inside, k.b.icmp_unsigned("<", position, i64(size)))  # a negative one is a huge unsigned
        source = k.b.add(k.b.mul(source, i64(size)), position)
    return source, inside


# ---- transposition in tiles


def _copy_transposed(k: KernelBuilder, source: ir.Value, axes: Sequence[Axis], along: Axis, ty: ir.IntType) -> None:
    """A copy whose last axis is far apart in the source, where `along` (one of `axes`) is contiguous.

    Few planes are interleaved. Otherwise a work item is a strip of LINE_TILES tiles along that axis, over the whole of
    the last one.
    """
    last, tile = axes[-1], TILE_BYTES // size_of(ty)
    if last.size <= FEW_PLANES and last.out == 1 and along.out == last.size and along.size >= 4 * k.host.lanes:
        _copy_planes(k, source, axes, along, ty)
        return
    strip = LINE_TILES * tile
    strips = -(-along.size // strip)
    others = [axis for axis in axes[:-1] if axis is not along]
    whole = last.size // tile * tile

    def body(item: ir.Value) -> None:
        outer, number = coordinates(k, item, (math.prod(axis.size for axis in others), strips))
        x = k.at(source, _offset(k, outer, others), size_of(ty))
        y = k.at(k.outs[0], _offset(k, outer, others, out=True), size_of(ty))
        first = k.b.mul(number, i64(strip))
        stop = k.smin(k.b.add(first, i64(strip)), i64(along.size))
        tiles_end = k.b.add(first, k.b.mul(k.b.sdiv(k.b.sub(stop, first), i64(tile)), i64(tile)))

        def copy_one(q: ir.Value, j: ir.Value) -> None:
            value = k.load(x, k.b.add(q, k.b.mul(j, i64(last.source))), ty)
            k.store(value, y, k.b.add(k.b.mul(q, i64(along.out)), j))

        with k.loop(0, whole, tile) as j:
            with k.loop(first, tiles_end, tile) as q:
                corner = k.at(x, k.b.add(q, k.b.mul(j, i64(last.source))), size_of(ty))
                target = k.at(y, k.b.add(k.b.mul(q, i64(along.out)), j), size_of(ty))
                _transpose_tile(k, corner, last.source, target, along.out, ty)
            with k.loop(tiles_end, stop) as q, k.loop(j, k.b.add(j, i64(tile))) as one:
                copy_one(q, one)
        with k.loop(whole, last.size) as j, k.loop(first, stop) as q:
            copy_one(q, j)

    rows(k, math.prod(axis.size for axis in others) * strips, body)


def _transpose_tile(
    k: KernelBuilder, source: ir.Value, source_stride: int, out: ir.Value, out_stride: int, ty: ir.IntType
) -> None:
    """A square tile, through registers: interleaving row i with row i + n/2, log2(n) times, transposes n rows."""
    n = TILE_BYTES // size_of(ty)
    vectors = [k.load(source, i * source_stride, ty, n) for i in range(n)]
    orders = [[i // 2 + n * (i % 2) + start for i in range(n)] for start in (0, n // 2)]
    for _ in range(n.bit_length() - 1):
        pairs = list(zip(vectors[: n // 2], vectors[n // 2 :], strict=True))
        vectors = [k.shuffle(a, order, b) for a, b in pairs for order in orders]
    for i, v in enumerate(vectors):
        k.store(v, out, i * out_stride)


def _copy_planes(k: KernelBuilder, source: ir.Value, axes: Sequence[Axis], along: Axis, ty: ir.IntType) -> None:
    """A copy whose last axis is a few planes, each contiguous along the axis before it: pixels of some channels.

    A work item is a run of PLANE_RUN pixels.
    """
    last = axes[-1]
    others = [axis for axis in axes[:-1] if axis is not along]
    runs, size = -(-along.size // PLANE_RUN), size_of(ty)

    def body(item: ir.Value) -> None:
        outer, number = coordinates(k, item, (math.prod(axis.size for axis in others), runs))
        x = k.at(source, _offset(k, outer, others), size)
        y = k.at(k.outs[0], _offset(k, outer, others, out=True), size)
        first = k.b.mul(number, i64(PLANE_RUN))

        def pixels(i: ir.Value, lanes: int) -> None:
            planes = [k.load(x, k.b.add(i, i64(p * last.source)), ty, lanes) for p in range(last.size)]
            at = k.b.mul(i, i64(last.size))
            if lanes > 1:
                k.store(interleaved_planes(k, planes, lanes), y, at)
                return
            for p, value in enumerate(planes):
                k.store(value, y, k.b.add(at, i64(p)))

        stop = k.smin(k.b.add(first, i64(PLANE_RUN)), i64(along.size))
        span(k, first, stop, k.host.lanes * (2 if size <= 2 else 1), pixels)

    rows(k, math.prod(axis.size for axis in others) * runs, body)


def interleaved_planes(k: Emitter, planes: list[ir.Value], lanes: int) -> ir.Value:
    """Vectors p0, p1, … → p0[0], p1[0], …, p0[1], p1[1], …"""
    joined, count = planes[0], 1
    for plane in planes[1:]:  # side by side first: a shuffle takes two vectors of one length
        width = count * lanes
        padded = k.shuffle(plane, [min(j, lanes - 1) for j in range(width)])
        joined = k.shuffle(joined, range(width + lanes), padded)
        count += 1
    order = [p * lanes + j for j in range(lanes) for p in range(count)]
    return k.shuffle(joined, order)


# ---- bytes


def copy_bytes(e: Emitter, out: ir.Value, source: ir.Value, nbytes: ir.Value | int) -> None:
    """memcpy; LLVM writes small constant sizes as loads and stores."""
    if nbytes == 0:
        return
    e.intrinsic("llvm.memcpy.p0.p0.i64", VOID, out, source, i64(nbytes), ir.Constant(I1, 0))


def fill(e: Emitter, out: ir.Value, ty: ir.IntType, value: int, count: int) -> None:
    """`count` elements of a constant value."""
    if count == 0:
        return
    octets = set((value % (1 << ty.width)).to_bytes(size_of(ty), "little"))
    if len(octets) == 1:
        e.intrinsic(
            "llvm.memset.p0.i64", VOID, out, ir.Constant(I8, octets.pop()), i64(count * size_of(ty)), ir.Constant(I1, 0)
        )
        return
    _fill_value(e, out, const(ty, value), count)


def _fill_value(e: Emitter, out: ir.Value, value: ir.Value, count: int) -> None:
    """`count` elements of one scalar value."""
    lanes = max(1, 4 * e.host.lanes // size_of(value.type))
    span(e, 0, count, lanes, lambda i, n: e.store(e.splat(value, n), out, i))
