"""Matmul, in one of three ways: a 1×1 convolution where the right side is one constant matrix; bytes by dot products of
four (`quad_matmul.py`); else rows of lhs by panels of rhs in words, both packed by the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ...isa import Matmul, Scheme
from ...numerics import I16_MAX, I32_MAX
from ...program import Tensor
from ...types import DType
from ..convolve import Operands as Addresses
from ..convolve import limited, run_length
from ..emitter import I16, I32, const, element, i64
from ..finish import Finish, constant, finish, pack_bias
from ..finish import pack_parameters as pack_word_parameters
from ..host import Dot, Host
from ..loops import coordinates
from ..offset import flipped, is_offset
from ..quad_conv import pack_parameters
from ..quad_matmul import Entries, Product, ProductLoops
from ..quad_plan import make_quad_plan
from ..registry import Constants, KernelBuilder, Packed, kernel, operand, packing
from ..tiles import TileShape, accumulate, choose_pixels, choose_shape, steps_of, vector_start
from ..window import Axis, Copy, Window, copy_pixels
from .byte_conv import ByteVariant, is_quick, parameter_names, wrapped
from .conv import emit_window, pack_window

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AsConvolution:
    """The packing variant of a product by one constant matrix: that of the convolution."""

    own: Hashable


@packing(Matmul)
def pack_matmul(
    op: Matmul, ins: Sequence[Tensor | None], outs: Sequence[Tensor], constants: Constants, host: Host
) -> Packed:
    """Biases and the parameters of the requantisation, and the weights of what is a convolution; see the variants."""
    lhs, rhs = operand(ins, 0), operand(ins, 1)
    weight = None if constants[1] is None or outs[0].elements == 0 else _as_weight(constants[1], op.rhs_zero_point)
    if weight is not None:
        tensor = replace(rhs, shape=weight.shape, dtype=DType.of(weight.dtype))
        own = [constants[0], weight, *constants[2:]]
        packed = pack_window(op, _row_window(op, lhs, outs[0]), tensor, (lhs, outs[0]), own, host, 0)
        return Packed(packed.arrays, AsConvolution(packed.variant))
    bias = None if ins[2] is None else constant(constants, 2, "bias")
    start = 0 if bias is None else int(np.abs(bias.astype(np.int64)).max())
    far = _farthest(lhs.dtype, op.lhs_zero_point) * _farthest(rhs.dtype, op.rhs_zero_point)
    narrow = _fits_i16(lhs, op.lhs_zero_point) and _fits_i16(rhs, op.rhs_zero_point)
    wide = not narrow or lhs.shape[-1] * far + start > I32_MAX
    bytes_ = lhs.dtype is rhs.dtype is DType.I8 and host.dot in {Dot.U8S8, Dot.S8S8}
    if bytes_ and not wide and outs[0].elements > 0:
        return _pack_bytes(op, _product(op, lhs, rhs, outs[0]), lhs, outs[0], constants, host)
    shape = choose_shape(outs[0].shape[-1], host, wide=wide)
    names = [(3, "multiplier"), (4, "pre_shift"), (5, "post_shift")]
    present = names[: {Scheme.NONE: 0, Scheme.FLOAT: 1}.get(op.scheme, 3)]
    return Packed((pack_bias(bias, shape, 1), pack_word_parameters(constants, present, shape, 1)), shape)


def _as_weight(values: Array, zero_point: int) -> Array | None:
    """One constant matrix [1, …, k, n] less its zero point as weights [n, 1, 1, k]; None where there are several.

    None, too, where no i16 holds what is left.
    """
    if math.prod(values.shape[:-2]) != 1:
        return None
    centred = values.astype(np.int64) - zero_point
    for dtype in (np.int8, np.int16):
        if np.iinfo(dtype).min <= centred.min() and centred.max() <= np.iinfo(dtype).max:
            matrix = centred.reshape(values.shape[-2:]).T
            return np.ascontiguousarray(matrix, dtype).reshape(len(matrix), 1, 1, -1)
    return None


def _row_window(op: Matmul, lhs: Tensor, out: Tensor) -> Window:
    """The product by one matrix as a 1×1 convolution over the rows of all entries."""
    k, rows = lhs.shape[-1], math.prod(lhs.shape[:-1])
    return Window(
        1, k, 1, out.shape[-1], Axis(1, 1, 1, 1, 1, 0), Axis(rows, rows, 1, 1, 1, 0), 0, op.lhs_zero_point
    )  # fmt: skip


def _product(op: Matmul, lhs: Tensor, rhs: Tensor, out: Tensor) -> Product:
    (m, k), n, entries = lhs.shape[-2:], rhs.shape[-1], math.prod(out.shape[:-2])
    return Product(m, k, n, entries, op.lhs_zero_point, op.rhs_zero_point, is_offset(rhs))


def _pack_bytes(op: Matmul, p: Product, lhs: Tensor, out: Tensor, constants: Constants, host: Host) -> Packed:
    """Start values and parameters, for `ProductLoops`."""
    quick = is_quick(op, out, constants, host)
    plan = make_quad_plan(p.window, host, 0, fast=quick, offset=is_offset(lhs))
    rows = [constant(constants, index, name) for index, name in parameter_names(op)]
    bias = np.zeros(p.n, np.int64) if op.inputs[2] < 0 else constant(constants, 2, "bias").astype(np.int64)
    starts = wrapped(bias + p.k * p.rhs_zero_point * p.raised(host.dot))
    shifts = op.scheme in {Scheme.FORM_A, Scheme.FORM_B} and bool(np.any(rows[1]))
    return Packed((pack_parameters(plan, host, 1, starts, rows, op.scheme),), ByteVariant(plan, shifts))


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
    lhs, rhs, out = operand(ins, 0), operand(ins, 1), outs[0]
    if isinstance(k.variant, AsConvolution):
        k.variant = k.variant.own
        emit_window(k, op, _row_window(op, lhs, out), ins, out)
        return
    if isinstance(k.variant, ByteVariant):
        _emit_bytes(k, op, lhs, rhs, out)
        return
    shape: TileShape = k.variant
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
            _pack_panel(k, shape, s, (rhs, op.rhs_zero_point), columns, chunk, panel)
        row = k.smin(k.b.mul(number, i64(run)), i64(m - run))
        source = k.b.add(k.b.mul(_batch_entry(k, entry, s.batch, s.lhs_batch), i64(m)), row)
        copy = Copy(lhs.dtype, kind, op.lhs_zero_point, 0, inner, inner, flip=is_offset(lhs))
        copy_pixels(k, copy, k.at(k.ins[0], k.b.mul(source, i64(inner)), lhs.dtype.size), rows, run)
        first = k.b.add(k.b.mul(entry, i64(m)), row)
        _emit_tiles(k, shape, s, Finish.of(op, out), (rows, panel, tile), (chunk, first), out)


def _emit_bytes(k: KernelBuilder, op: Matmul, lhs: Tensor, rhs: Tensor, out: Tensor) -> None:
    """See `quad_matmul.py`."""
    p, variant, batch = _product(op, lhs, rhs, out), k.variant, out.shape[:-2]

    def entries_of(entry: ir.Value) -> Entries:
        flat = (_batch_entry(k, entry, batch, t.shape[:-2]) for t in (lhs, rhs))
        left, right = (k.b.mul(f, i64(size)) for f, size in zip(flat, (p.m * p.k, p.k * p.n), strict=True))
        return Entries(k.at(k.ins[0], left), k.at(k.ins[1], right))

    parameters, to = k.packed[0], k.outs[0]
    at = Addresses(k.ins[0], k.ins[1], parameters, parameters, to, to)
    ProductLoops(k, p, variant.plan, Finish.of(op, out), at, shifts=variant.shifts).emit(entries_of)


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
    source: tuple[Tensor, int],
    rhs: ir.Value,
    chunk: ir.Value,
    panel: ir.Value,
) -> None:
    """Columns of one chunk as `accumulate` reads them: pairs of rows, i16; wide: single rows, i32."""
    tensor, zero_point = source
    per_step = 1 if shape.wide else 2
    kind = I32 if shape.wide else I16

    def read(row: ir.Value, v: int) -> ir.Value:
        at = k.b.add(k.b.mul(row, i64(s.n)), vector_start(k, shape, chunk, v))
        x = k.load_first(rhs, at, element(tensor.dtype), shape.lanes, shape.used)
        x = k.resize(flipped(k, x) if is_offset(tensor) else x, kind)
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
