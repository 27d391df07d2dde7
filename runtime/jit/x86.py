"""x86's vector instructions for bytes and words, which LLVM knows by name, for registers of 128, 256 and 512 bits.

Packs and interleavings work within each 128 bits: what `interleave` takes apart, a pack puts together again in order.
"""

from __future__ import annotations

from llvmlite import ir

from .emitter import I8, I16, I32, Emitter, lanes_of, scalar_of

_MULTIPLY_ADD = {32: "llvm.x86.avx512.pmaddw.d.512", 16: "llvm.x86.avx2.pmadd.wd", 8: "llvm.x86.sse2.pmadd.wd"}
_MULTIPLY_BYTES = {64: "llvm.x86.avx512.pmaddubs.w.512", 32: "llvm.x86.avx2.pmadd.ub.sw"}
_MULTIPLY_HIGH = {32: "llvm.x86.avx512.pmulh.w.512", 16: "llvm.x86.avx2.pmulh.w"}
_MULTIPLY_ROUND = {32: "llvm.x86.avx512.pmul.hr.sw.512", 16: "llvm.x86.avx2.pmul.hr.sw"}
_PACK_WORDS = {16: "llvm.x86.avx512.packssdw.512", 8: "llvm.x86.avx2.packssdw"}
_PACK_BYTES = {
    (32, False): "llvm.x86.avx512.packuswb.512", (32, True): "llvm.x86.avx512.packsswb.512",
    (16, False): "llvm.x86.avx2.packuswb", (16, True): "llvm.x86.avx2.packsswb",
}  # fmt: skip


def multiply_add(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    """vpmaddwd: a[2i]·b[2i] + a[2i+1]·b[2i+1] in i32, of words."""
    return e.intrinsic(_MULTIPLY_ADD[lanes_of(a)], ir.VectorType(I32, lanes_of(a) // 2), a, b)


def multiply_bytes(e: Emitter, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """vpmaddubsw: the same of bytes, the left ones without sign, saturated to i16."""
    return e.intrinsic(_MULTIPLY_BYTES[lanes_of(signed)], ir.VectorType(I16, lanes_of(signed) // 2), unsigned, signed)


def multiply_high(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    """vpmulhw: (a · b) >> 16, of words."""
    return e.intrinsic(_MULTIPLY_HIGH[lanes_of(a)], a.type, a, b)


def multiply_round(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    """vpmulhrsw: (a · b + 2^14) >> 15, of words, modulo 2^16."""
    return e.intrinsic(_MULTIPLY_ROUND[lanes_of(a)], a.type, a, b)


def pack_words(e: Emitter, low: ir.Value, high: ir.Value) -> ir.Value:
    """vpackssdw: two vectors of i32 saturated to one of words."""
    return e.intrinsic(_PACK_WORDS[lanes_of(low)], ir.VectorType(I16, 2 * lanes_of(low)), low, high)


def pack_bytes(e: Emitter, low: ir.Value, high: ir.Value, *, signed: bool) -> ir.Value:
    """vpacksswb, vpackuswb: two vectors of words saturated to one of bytes."""
    return e.intrinsic(_PACK_BYTES[lanes_of(low), signed], ir.VectorType(I8, 2 * lanes_of(low)), low, high)


def interleave(e: Emitter, a: ir.Value, b: ir.Value) -> list[ir.Value]:
    """vpunpckl, vpunpckh: elements of a and b in turns, of the lower and of the upper halves of each 128 bits."""
    per = 128 // scalar_of(a).width  # elements of 128 bits
    total = lanes_of(a)
    found = []
    for half in (0, per // 2):
        order = []
        for at in (g + half + i for g in range(0, total, per) for i in range(per // 2)):
            order += [at, total + at]
        found.append(e.shuffle(a, order, b))
    return found
