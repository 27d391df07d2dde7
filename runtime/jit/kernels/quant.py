"""Quantize, Dequantize, FlipSign, Requantize: one element in, one out, with parameters per tensor or per channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from ...isa import Dequantize, FlipSign, Mul, Quantize, Requantize, Rounding, Scheme
from ...numerics import I16_MAX
from ...program import Tensor
from ...types import DType
from .. import numerics, words
from ..emitter import F32, I32, I64, Emitter, const, element, lanes_of
from ..host import Host
from ..loops import elementwise, rows, span
from ..offset import load_as_stored, load_q, store_q
from ..registry import Constants, KernelBuilder, Operands, Packed, kernel, operand, packing

Parameters = list["ir.Value | None"]
LoadParameters = Callable[["ir.Value | int", int], Parameters]


@kernel(Quantize)
def emit_quantize(k: KernelBuilder, op: Quantize, _ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS 2, D2."""
    out = outs[0]
    if op.axis < 0:
        quantizer = one_quantizer(k, op, out)

        def flat(i: ir.Value, lanes: int) -> None:
            (q,) = quantizer([k.load(k.ins[0], i, F32, lanes)])
            store_q(k, out, k.resize(q, element(out.dtype)), k.outs[0], i)

        elementwise(k, out.elements, (4 if out.dtype.size == 1 else 1) * k.host.lanes, flat)
        return

    def body(i: ir.Value, lanes: int, params: Parameters) -> None:
        x, (scale, zero_point) = k.load(k.ins[0], i, F32, lanes), _given(params)
        q = numerics.quantize(k, x, scale, zero_point, op.rounding, op.clamp_min, op.clamp_max)
        store_q(k, out, k.resize(q, element(out.dtype)), k.outs[0], i)

    _by_channel(k, out.shape, op.axis, k.host.lanes, _scale_and_zero_point(k), body)


@kernel(Dequantize)
def emit_dequantize(k: KernelBuilder, op: Dequantize, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS 2."""
    x_dtype = operand(ins, 0).dtype

    def body(i: ir.Value, lanes: int, params: Parameters) -> None:
        wide, (scale, zero_point) = I64 if x_dtype is DType.U32 else I32, _given(params)
        q = k.resize(k.load(k.ins[0], i, element(x_dtype), lanes), wide, signed=x_dtype.is_signed)
        k.store(numerics.dequantize(k, q, scale, zero_point), k.outs[0], i)

    _by_channel(k, outs[0].shape, op.axis, k.host.lanes, _scale_and_zero_point(k), body)


def one_quantizer(k: KernelBuilder, op: Quantize, out: Tensor) -> Callable[[Sequence[ir.Value]], list[ir.Value]]:
    """What quantises float32 vectors by the only scale (operand 1) and zero point (operand 2): to integers."""
    scale, zero_point = k.load(k.ins[1], 0, F32), k.load(k.ins[2], 0, I32)
    small = op.rounding is Rounding.HALF_EVEN_F32 and out.dtype.size == 1
    by = numerics.ByteScale.of(k, scale, zero_point, op.clamp_min, op.clamp_max) if small else None

    def quantizer(xs: Sequence[ir.Value]) -> list[ir.Value]:
        lanes = lanes_of(xs[0])
        if by is not None and lanes > 1:
            return numerics.quantize_bytes(k, xs, by.splat(k, lanes), op.clamp_min, op.clamp_max)
        s, zp = k.splat(scale, lanes), k.splat(zero_point, lanes)
        return [numerics.quantize(k, x, s, zp, op.rounding, op.clamp_min, op.clamp_max) for x in xs]

    return quantizer


def _scale_and_zero_point(k: KernelBuilder) -> LoadParameters:
    """Operands 1 and 2 of Quantize and Dequantize."""

    def load(channel: ir.Value | int, lanes: int) -> Parameters:
        return [k.load(k.ins[1], channel, F32, lanes), k.load(k.ins[2], channel, I32, lanes)]

    return load


def _given(params: Parameters) -> list[ir.Value]:
    """Parameters of which none is absent."""
    assert None not in params
    return [p for p in params if p is not None]


@kernel(FlipSign)
def emit_flip_sign(k: KernelBuilder, _op: FlipSign, _ins: Operands, outs: Sequence[Tensor]) -> None:
    """The top bit of every element inverted."""
    ty = element(outs[0].dtype)

    def body(i: ir.Value, lanes: int) -> None:
        x = k.load(k.ins[0], i, ty, lanes)
        k.store(k.b.xor(x, const(x.type, -(1 << (ty.width - 1)))), k.outs[0], i)

    elementwise(k, outs[0].elements, 4 * k.host.lanes * 8 // ty.width, body)


@packing(Requantize)
def pack_requantize(
    op: Requantize, _ins: Operands, _outs: Sequence[Tensor], constants: Constants, _host: Host
) -> Packed:  # the one multiplier and its shifts become part of the code
    """Nothing to pack; the variant is (multiplier, pre shift, post shift) in form B."""
    return Packed((), form_b(op, constants[1:4]))


@kernel(Requantize)
def emit_requantize(k: KernelBuilder, op: Requantize, ins: Operands, outs: Sequence[Tensor]) -> None:
    """NUMERICS 5 (D12)."""
    x, out = operand(ins, 0), outs[0]
    x_dtype = x.dtype
    if x.dtype is out.dtype is DType.I8 and k.variant is not None and words.has_words(k.host):
        _requantize_bytes(k, op, x, out)
        return
    axis = -1 if operand(ins, 1).shape == (1,) else op.axis
    wide = I32 if op.x_zero_point == 0 or reach(x_dtype, op.x_zero_point) < 1 << 31 else I64

    def parameters(channel: ir.Value | int, lanes: int) -> Parameters:
        return load_scheme(k, ins, 1, channel, lanes)

    def body(i: ir.Value, lanes: int, params: Parameters) -> None:
        q = load_q(k, x, k.ins[0], i, lanes)
        y = requantize(k, op, difference(k, q, op.x_zero_point, wide), params)
        store_q(k, out, k.resize(y, element(out.dtype)), k.outs[0], i)

    _by_channel(k, out.shape, axis, (1 if op.scheme is Scheme.WIDE else 2) * k.host.lanes, parameters, body)


def _requantize_bytes(k: KernelBuilder, op: Requantize, x: Tensor, out: Tensor) -> None:
    """Form B on bytes, in words: x − x_zero_point is at most 9 bits wide, so that sat16 changes nothing."""
    mult, pre, post = k.variant

    def body(i: ir.Value, lanes: int) -> None:
        if lanes == 1:
            params: Parameters = [const(I32, v) for v in (mult, pre, post)]
            y = requantize(k, op, difference(k, load_q(k, x, k.ins[0], i, 1), op.x_zero_point, I32), params)
            store_q(k, out, k.resize(y, element(out.dtype)), k.outs[0], i)
            return
        results = []
        for w in words.words_of(k, x, load_as_stored(k, x, k.ins[0], i, lanes)):
            acc = words.plus(k, w, -words.raised(x, op.x_zero_point))
            results.append(words.scaled(k, k.b.ashr(acc, const(w.type, min(pre, 15))), mult, post))
        low, high = results
        k.store(words.finished(k, out, (low, high), op.zero_point, op.clamp_min, op.clamp_max), k.outs[0], i)

    elementwise(k, out.elements, words.group_of(k.host), body)


def load_scheme(k: KernelBuilder, ins: Operands, first: int, index: ir.Value | int, lanes: int) -> Parameters:
    """Multiplier, pre_shift, post_shift (operands `first` to `first + 2`) from entry `index` on; None where absent."""
    return [
        None if t is None else k.load(k.ins[first + j], index, element(t.dtype), lanes)
        for j, t in enumerate(ins[first : first + 3])
    ]


def requantize(e: Emitter, op: Requantize, acc: ir.Value, params: Parameters) -> ir.Value:
    """`acc` by the instruction's scheme, as i32."""
    mult, pre, post = params
    return numerics.requantize(e, acc, op.scheme, mult, pre, post, op.zero_point, op.clamp_min, op.clamp_max)


def form_b(op: Requantize | Mul, constants: Constants) -> tuple[int, int, int] | None:
    """(multiplier, pre shift, post shift) of form B where each is one constant, the multiplier i16; else None."""
    if op.scheme is not Scheme.FORM_B or any(c is None or c.shape != (1,) for c in constants):
        return None
    mult, pre, post = (int(c[0]) for c in constants if c is not None)
    return (mult, pre, post) if abs(mult) <= I16_MAX else None


def reach(dtype: DType, zero_point: int) -> int:
    """The largest |x − zero_point| of the dtype."""
    lo, hi = dtype.limits
    return max(abs(lo - zero_point), abs(hi - zero_point))


def difference(e: Emitter, x: ir.Value, zero_point: int, wide: ir.IntType) -> ir.Value:
    """x − zero_point in lanes of type `wide`, which holds it."""
    v = e.resize(x, wide)
    return v if zero_point == 0 else e.b.sub(v, const(v.type, zero_point))


def _by_channel(
    k: KernelBuilder,
    shape: tuple[int, ...],
    axis: int,
    lanes: int,
    parameters: LoadParameters,
    body: Callable[[ir.Value, int, Parameters], None],
) -> None:
    """`body(i, n, params)` for elements [i, i + n): parameters by channel along `axis`, entry 0 where axis is −1."""

    def splat(one: Parameters, n: int) -> Parameters:
        return [None if p is None else k.splat(p, n) for p in one]

    elements = math.prod(shape)
    if axis < 0:
        single = parameters(0, 1)
        elementwise(k, elements, lanes, lambda i, n: body(i, n, splat(single, n)))
        return
    channels, inner = shape[axis], math.prod(shape[axis + 1 :])

    def along_channels(row: ir.Value) -> None:
        first = k.b.mul(row, const(I64, channels))
        span(k, 0, channels, lanes, lambda c, n: body(k.b.add(first, c), n, parameters(c, n)))

    def within_channel(row: ir.Value) -> None:
        one = parameters(k.b.urem(row, const(I64, channels)), 1)
        first = k.b.mul(row, const(I64, inner))
        span(k, first, k.b.add(first, const(I64, inner)), lanes, lambda i, n: body(i, n, splat(one, n)))

    run = max(1, channels if inner == 1 else inner)
    rows(k, elements // run, along_channels if inner == 1 else within_channel)
