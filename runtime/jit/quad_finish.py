"""From accumulators in registers to stored results (NUMERICS 4): forms A and B fast in bytes and words, or any way.

The fast way packs accumulators with saturation to i16 (which is the sat16 of the rule), multiplies high
(floor(x · m / 2^16)), shifts by what is left of the post shift, adds the zero point, packs with saturation to bytes,
and clamps. It is exact: floor(floor(a / 2^16) / 2^k) = floor(a / 2^(16+k)), and nothing between can overflow.

Form B adds half a step behind the multiplication: of a shift by s, s − 1 are done, then half up is 1 more, halved.

AArch64's instruction gives floor(2 · x · m / 2^16) instead, with saturation, which only −2^15 · −2^15 meets: such a
multiplier is left to the other way (`byte_conv.is_quick`). A shift of 0 may then be left, and the zero point is added
with saturation, which the bytes would do anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..isa import Scheme
from ..types import DType
from . import numerics, words, x86
from .emitter import I8, I16, I32, I64, Emitter, const, element, lanes_of
from .finish import Finish, Rows, Sum, result_of
from .offset import OFFSET, flipped, signed_byte

# Row 0 holds the accumulators' start values. Behind it, packed: pre shifts; multipliers and shifts as words, two to an
# i32; then, where there is an addend, its multipliers and shifts, or where there is a sum, its weights and constant.
PRE, WORDS, ADDEND = 1, 2, 3
SUM = ADDEND


def rounds(scheme: Scheme) -> int:
    """1 where half a step is added behind the multiplication, in form B; else 0."""
    return int(scheme is Scheme.FORM_B)


def parameter_rows(finish: Finish, *, packed: bool) -> int:
    """How many rows there are behind the start values."""
    if packed:
        return ADDEND - 1 + (2 if finish.beside is not None else 0)
    return finish.rows


def finish_vector(
    e: Emitter, what: Finish, rows: Rows, acc: ir.Value, which: tuple[int, int], to: tuple[ir.Value, ir.Value, ir.Value]
) -> None:
    """Any scheme, one vector: `which` is (its number, lanes in use), `to` (out, addend, element)."""
    (n, used), (out, addend, at) = which, to
    y = result_of(e, what, acc, rows.of(n, first=1), addend, at, used)
    e.store_first(e.resize(y, element(what.out)), used, out, at)


def finish_packed(
    e: Emitter,
    what: Finish,
    rows: Rows,
    by_pixel: Sequence[Sequence[ir.Value]],
    places: Sequence[int],
    to: tuple[ir.Value, ir.Value],
    *,
    shifts: bool,
) -> None:
    """Forms A and B to bytes: 2 or 4 vectors of channels per pixel, interleaved (`QuadPlan.channels`)."""
    out, addend = to
    if what.addend is not None:
        by_pixel = [_with_addend(e, what, rows, a, addend, p) for a, p in zip(by_pixel, places, strict=True)]
    pre = [rows.load(PRE, n) for n in range(rows.vectors)] if shifts else None
    packed = [_to_words(e, acc, pre) for acc in by_pixel]
    if rows.vectors == 4:
        mult, post = [rows.load(WORDS, i, I16) for i in (0, 1)], [rows.load(WORDS, i, I16) for i in (2, 3)]
        for two, place in zip(packed, places, strict=True):
            scaled = [_scaled(e, what, w, m, p) for w, m, p in zip(two, mult, post, strict=True)]
            if what.sum is not None:
                beside = _unpacked(e, e.load(addend, place, I8, 4 * rows.lanes), what.sum)
                scaled = [_summed(e, what, rows, a, b) for a, b in zip(scaled, beside, strict=True)]
            e.store(_to_bytes(e, what.sum or what, *scaled), out, place)
        return
    mult_, post_ = rows.load(WORDS, 0, I16), rows.load(WORDS, 1, I16)
    scaled = [_scaled(e, what, w[0], mult_, post_) for w in packed]
    if what.sum is not None:
        signed = what.sum.beside.is_signed
        loaded = [e.load(addend, p, I8, 2 * rows.lanes) for p in places]
        beside = [e.resize(b, I16, signed=signed) for b in loaded]
        scaled = [_summed(e, what, rows, a, b) for a, b in zip(scaled, beside, strict=True)]
    for i in range(0, len(scaled), 2):
        pair = min(i + 1, len(scaled) - 1)
        both = _to_bytes(e, what.sum or what, scaled[i], scaled[pair])
        halves = _separate(e, both)
        e.store(halves[0], out, places[i])
        if pair != i:
            e.store(halves[1], out, places[pair])


def _to_words(e: Emitter, acc: Sequence[ir.Value], pre: Sequence[ir.Value] | None) -> list[ir.Value]:
    """Pairs of vectors shifted, saturated to i16 and packed."""
    if pre is not None:
        acc = [e.b.ashr(a, s) for a, s in zip(acc, pre, strict=True)]
    if not e.host.x86:
        return [_narrowed(e, acc[i], acc[i + 1], I16) for i in range(0, len(acc), 2)]
    return [x86.pack_words(e, acc[i], acc[i + 1]) for i in range(0, len(acc), 2)]


def _scaled(e: Emitter, what: Finish, x: ir.Value, mult: ir.Value, post: ir.Value) -> ir.Value:
    """(x · mult) >> (16 + post), halved once more in form B, plus the zero point; without word shifts, a second time
    multiplied high.
    """
    if not e.host.x86:
        y = e.b.ashr(e.intrinsic("llvm.aarch64.neon.sqdmulh.v8i16", x.type, x, mult), post)
        if rounds(what.scheme):
            y = e.intrinsic("llvm.aarch64.neon.srhadd.v8i16", y.type, y, const(y.type, 0))  # (y + 0 + 1) >> 1
        return y if what.zero_point == 0 else e.overloaded("llvm.sadd.sat", y, const(y.type, what.zero_point))
    y = x86.multiply_high(e, x, mult)
    y = e.b.ashr(y, post) if e.host.lanes == 16 else x86.multiply_high(e, y, post)
    if rounds(what.scheme):  # at most 2^14 before: no overflow
        y = e.b.ashr(e.b.add(y, const(y.type, 1)), const(y.type, 1))
    return y if what.zero_point == 0 or _adds_late(what) else e.b.add(y, const(y.type, what.zero_point))


def _unpacked(e: Emitter, bytes_: ir.Value, what: Sum) -> list[ir.Value]:
    """The two vectors of words that packing to bytes would make `bytes_` of."""
    if not e.host.x86:
        return [e.resize(half, I16, signed=what.beside.is_signed) for half in _halves(e, bytes_)]
    zero = ir.Constant(bytes_.type, None)
    kind = ir.VectorType(I16, lanes_of(bytes_) // 2)
    if not what.beside.is_signed:
        return [e.b.bitcast(v, kind) for v in x86.interleave(e, bytes_, zero)]
    high = [e.b.bitcast(v, kind) for v in x86.interleave(e, zero, bytes_)]
    return [e.b.ashr(v, const(kind, 8)) for v in high]


def _summed(e: Emitter, what: Finish, rows: Rows, a: ir.Value, b: ir.Value) -> ir.Value:
    """Words of the result, not clamped yet, and words beside it → words of the sum, saturated to i16."""
    s = what.sum
    assert s is not None
    a = e.smin(e.smax(a, const(a.type, what.lo)), const(a.type, what.hi))
    if not e.host.x86:
        low, high = (_weighed(e, s, rows, x, y) for x, y in zip(_halves(e, a), _halves(e, b), strict=True))
        return _narrowed(e, low, high, I16)
    sums = words.pair_sums(e, a, b, rows.load(SUM, 0, I16), rows.load(SUM + 1, 0))
    low, high = (e.b.ashr(v, const(v.type, s.shift)) for v in sums)
    return x86.pack_words(e, low, high)


def _weighed(e: Emitter, s: Sum, rows: Rows, a: ir.Value, b: ir.Value) -> ir.Value:
    """AArch64: words to i32 sums; a product of words widens."""
    weights = [_halves(e, rows.load(SUM, n, I16))[0] for n in (0, 1)]
    x, y = (e.b.mul(e.resize(v, I32), e.resize(w, I32)) for v, w in zip((a, b), weights, strict=True))
    total = e.b.add(e.b.add(x, y), rows.load(SUM + 1, 0))
    return e.b.ashr(total, const(x.type, s.shift))


def _halves(e: Emitter, x: ir.Value) -> list[ir.Value]:
    half = lanes_of(x) // 2
    return [e.shuffle(x, range(first, first + half)) for first in (0, half)]


def _to_bytes(e: Emitter, what: Finish | Sum, a: ir.Value, b: ir.Value) -> ir.Value:
    """Packed to bytes with saturation, then clamped; where the zero point is the offset, it comes last, to bytes."""
    late = isinstance(what, Finish) and _adds_late(what)
    up = OFFSET if late else 0
    lo, hi = what.lo - up, what.hi - up
    signed = what.out is DType.I8 or (late and lo < 0)
    y = x86.pack_bytes(e, a, b, signed=signed) if e.host.x86 else _narrowed(e, a, b, I8)
    kind = "s" if signed else "u"
    least, most = (DType.I8 if signed else DType.U8).limits
    if lo > least:
        y = e.overloaded(f"llvm.{kind}max", y, const(y.type, signed_byte(lo)))
    if hi < most:
        y = e.overloaded(f"llvm.{kind}min", y, const(y.type, signed_byte(hi)))
    return flipped(e, y) if late else y


def _adds_late(what: Finish) -> bool:
    """True where the zero point is added to bytes: q to q + 128 is a flip of the top bit, once per 64 results."""
    return what.out is DType.U8 and what.zero_point == OFFSET


def _narrowed(e: Emitter, a: ir.Value, b: ir.Value, scalar: ir.IntType) -> ir.Value:
    """AArch64: both vectors saturated to lanes of half the width, one behind the other."""
    count = lanes_of(a)
    half = ir.VectorType(scalar, count)
    low, high = (e.intrinsic(f"llvm.aarch64.neon.sqxtn.v{count}i{scalar.width}", half, x) for x in (a, b))
    return e.shuffle(low, range(2 * count), high)


def _separate(e: Emitter, both: ir.Value) -> list[ir.Value]:
    """Two pixels whose groups of 8 bytes alternate → each pixel's bytes side by side."""
    count = lanes_of(both) // 8
    order = [*range(0, count, 2), *range(1, count, 2)]
    quads = e.b.bitcast(both, ir.VectorType(I64, count))
    if count == 8:  # by name: LLVM would make five instructions of what is one, and two stores
        index = ir.Constant(quads.type, order)
        quads = e.intrinsic("llvm.x86.avx512.permvar.di.512", quads.type, quads, index)
    else:
        quads = e.shuffle(quads, order)
    half = ir.VectorType(I8, 4 * count)
    return [e.b.bitcast(v, half) for v in _halves(e, quads)]


def _with_addend(
    e: Emitter, what: Finish, rows: Rows, acc: Sequence[ir.Value], addend: ir.Value, place: int
) -> list[ir.Value]:
    """NUMERICS D5 onto every accumulator of one pixel."""
    terms = []
    for n, q in enumerate(_spread_addend(e, what, rows, addend, place)):
        mult, shift = rows.load(ADDEND, n), rows.load(ADDEND + 1, n)
        terms.append(numerics.addend_to_accumulator(e, q, what.addend_zero_point, mult, shift, narrow=True))
    return [e.b.add(a, t) for a, t in zip(acc, terms, strict=True)]


def _spread_addend(e: Emitter, what: Finish, rows: Rows, addend: ir.Value, place: int) -> list[ir.Value]:
    """The addend's values of one pixel as i32 vectors, interleaved as the accumulators are."""
    assert what.addend is not None
    scalar, count = element(what.addend), rows.vectors * rows.lanes
    q = e.load(addend, place, scalar, count)
    found = []
    for n in range(rows.vectors):
        order = [4 * rows.vectors * (i // 4) + 4 * n + i % 4 for i in range(rows.lanes)]
        found.append(e.resize(e.shuffle(q, order), I32, signed=what.addend.is_signed))
    return found
