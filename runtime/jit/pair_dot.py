"""Dot products of four bytes on x86 without an instruction for them: `vpmaddubsw`, then `vpmaddwd` by ones.

`vpmaddubsw` multiplies unsigned bytes by signed ones and adds neighbouring products with saturation to i16; `vpmaddwd`
adds neighbouring i16 to an i32. The first is exact where no sum of two can leave i16:

- The left bytes are known to lie in [0, 127] (`ranges.py`): |127·w0 + 127·w1| ≤ 2·127·128 = 32512.
- They are signed: the product is |x| · (w by the sign of x), and |128·w0| + |128·w1| ≤ 2·128·127 = 32512 where no
  weight is −128, whose negation is no byte (`pair_pack.py` sees to that).
"""

from __future__ import annotations

from llvmlite import ir

from . import x86
from .emitter import I1, I16, Emitter, const, lanes_of


def dot4_by_pairs(e: Emitter, acc: ir.Value, x: ir.Value, w: ir.Value) -> ir.Value:
    """acc[i] + Σ over j < 4 of x[4i+j] · w[4i+j], modulo 2^32, for bytes x in [0, 127]."""
    return add_words(e, acc, multiply_bytes(e, x, w, signed=False))


def add_words(e: Emitter, acc: ir.Value, words: ir.Value) -> ir.Value:
    """acc[i] + words[2i] + words[2i+1]."""
    ones = const(I16, 1, lanes_of(words))
    return e.b.add(acc, x86.multiply_add(e, words, ones))


def multiply_bytes(e: Emitter, x: ir.Value, w: ir.Value, *, signed: bool) -> ir.Value:
    """x[2i]·w[2i] + x[2i+1]·w[2i+1] as i16, for bytes; see the module for what makes it exact."""
    lanes = lanes_of(x) // 4
    if not signed:
        return x86.multiply_bytes(e, x, w)
    magnitude = e.intrinsic(f"llvm.abs.v{4 * lanes}i8", x.type, x, ir.Constant(I1, 0))
    zero = ir.Constant(x.type, None)
    if lanes == 8:
        turned = e.intrinsic("llvm.x86.avx2.psign.b", w.type, w, x)
    else:
        turned = e.b.select(e.b.icmp_signed("<", x, zero), e.b.sub(zero, w), w)
    return x86.multiply_bytes(e, magnitude, turned)
