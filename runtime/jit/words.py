"""Elementwise arithmetic on bytes in words of 16 bits, by x86's multiplications and saturating packs.

A group is 4 · lanes bytes, handled as two vectors of words (i16), in order: what is taken apart by `x86.interleave` is
put together again by a pack.
"""

from __future__ import annotations

from llvmlite import ir

from ..program import Tensor
from . import x86
from .emitter import I16, I32, Emitter, const, lanes_of, vector
from .host import Host
from .offset import OFFSET, is_offset, signed_byte

Words = tuple[ir.Value, ir.Value]


def has_words(host: Host) -> bool:
    """True where these instructions are there."""
    return host.x86 and host.lanes >= 8


def group_of(host: Host) -> int:
    """Bytes of a group."""
    return 4 * host.lanes


def raised(tensor: Tensor, value: int) -> int:
    """`value` in the integers that `tensor` stores: 128 larger where those are q + 128."""
    return value + OFFSET if is_offset(tensor) else value


def words_of(e: Emitter, tensor: Tensor, stored: ir.Value) -> Words:
    """A group's bytes as words: q, or q + 128 where the tensor holds that."""
    half = lanes_of(stored) // 2
    order = range(half), range(half, 2 * half)
    parts = (e.shuffle(stored, o) for o in order)
    low, high = (e.resize(p, I16, signed=not is_offset(tensor)) for p in parts)
    return low, high


def plus(e: Emitter, x: ir.Value, value: int) -> ir.Value:
    """x + value, modulo the width of a lane."""
    return x if value == 0 else e.b.add(x, const(x.type, value))


def weighted_sum(e: Emitter, a: ir.Value, b: ir.Value, weights: tuple[int, int], start: int) -> Words:
    """a · weights[0] + b · weights[1] + start in i32, modulo 2^32, of vectors of words; weights are i16."""
    both = ir.Constant(a.type, [*weights] * (lanes_of(a) // 2))
    start = (start + (1 << 31)) % (1 << 32) - (1 << 31)
    return pair_sums(e, a, b, both, const(I32, start, lanes_of(a) // 2) if start else None)


def pair_sums(e: Emitter, a: ir.Value, b: ir.Value, both: ir.Value, start: ir.Value | None) -> Words:
    """The same with weights in turns, words like `a` and `b`, and a vector of i32 to start from, if any."""
    low, high = (x86.multiply_add(e, pairs, both) for pairs in x86.interleave(e, a, b))
    return (low, high) if start is None else (e.b.add(low, start), e.b.add(high, start))


def product(e: Emitter, a: ir.Value, b: ir.Value) -> Words:
    """a · b in i32, in the order that `x86.pack_words` takes."""
    both = x86.interleave(e, e.b.mul(a, b), x86.multiply_high(e, a, b))
    low, up = (e.b.bitcast(v, vector(I32, e.host.lanes)) for v in both)
    return low, up


def scaled(e: Emitter, words: ir.Value, multiplier: int, shift: int) -> ir.Value:
    """sat16((words · multiplier + half) >> shift), half = 2^(shift − 1), or 0 where shift is 0; multiplier i16.

    From 17 on the product's upper half is enough: floor(floor(p / 2^16) / 2^(s − 17)) = floor(p / 2^(s − 1)), and half
    up is that plus 1, halved. At 15 one instruction does it, unless both factors are −2^15.
    """
    m = const(words.type, multiplier)
    if shift >= 17:
        high = x86.multiply_high(e, words, m)
        nearly = e.b.ashr(high, const(words.type, shift - 17)) if shift > 17 else high
        return e.b.ashr(plus(e, nearly, 1), const(words.type, 1))
    if shift == 15 and multiplier > -(1 << 15):
        return x86.multiply_round(e, words, m)
    zero = const(words.type, 0)
    sums = weighted_sum(e, words, zero, (multiplier, 0), 1 << (shift - 1) if shift else 0)
    low, high = (e.b.ashr(v, const(v.type, shift)) for v in sums)
    return x86.pack_words(e, low, high)


def finished(e: Emitter, out: Tensor, words: Words, zero_point: int, lo: int, hi: int) -> ir.Value:
    """clip(words + zero_point, lo, hi) as `out` stores it, a group of bytes. Words that were saturated stay exact:
    what sat16 cut off is clipped anyway, as |zero_point| is far below 2^15 − 2^8, and the sum saturates.
    """
    signed, zp = not is_offset(out), raised(out, zero_point)
    if zp:
        words = tuple(e.overloaded("llvm.sadd.sat", w, const(w.type, zp)) for w in words)  # type: ignore[assignment]
    packed = x86.pack_bytes(e, *words, signed=signed)
    y = e.shuffle(packed, _unpacked(group_of(e.host)))
    kind, (least, most) = ("s", (-128, 127)) if signed else ("u", (0, 255))
    lo, hi = raised(out, lo), raised(out, hi)
    if lo > least:
        y = e.overloaded(f"llvm.{kind}max", y, const(y.type, signed_byte(lo)))
    if hi < most:
        y = e.overloaded(f"llvm.{kind}min", y, const(y.type, signed_byte(hi)))
    return y


def _unpacked(count: int) -> list[int]:
    """Where, after a pack of two vectors, the bytes of the first one lie, and then those of the second."""
    return [16 * g + 8 * part + i for part in (0, 1) for g in range(count // 16) for i in range(8)]
