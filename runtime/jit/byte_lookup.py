"""A table of 256 bytes looked up by vectors of bytes, in registers: permutations and shuffles of bytes."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..program import Tensor
from .emitter import I8, const
from .offset import flipped, is_offset
from .registry import KernelBuilder

LookUp = Callable[[ir.Value], ir.Value]

_SHUFFLE = {8: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.avx512.pshuf.b.512"}
ROW = 16  # entries that one shuffle chooses from


def byte_lookup(k: KernelBuilder, table: ir.Value, x: Tensor, out: Tensor) -> LookUp | None:
    """What gives table[q + 128] for 4 · lanes bytes of `x` as stored, as `out` stores them; None where no host's way.

    `table` is the address of 256 bytes; it is read here, once per call of the kernel.
    """
    if k.host.lanes == 16 and k.host.x86 and k.host.has("avx512vbmi"):
        return _by_permutation(k, table, x, out)
    if k.host.lanes in _SHUFFLE and k.host.x86:
        return _by_shuffles(k, table, x, out)
    if k.host.aarch64 and not is_offset(x) and not is_offset(out):
        return _by_quarters(k, table)
    return None


def _by_quarters(k: KernelBuilder, table: ir.Value) -> LookUp:
    """AArch64's tbl and tbx choose from 64 bytes; the table stays in 16 registers.

    An index beyond a quarter gives 0 by tbl, and leaves what is there by tbx; indices less 64 wrap, so that each one is
    inside of one quarter only.
    """
    parts = [k.load(table, 16 * i, I8, 16) for i in range(16)]

    def look_up(v: ir.Value) -> ir.Value:
        index = flipped(k, v)
        y = k.intrinsic("llvm.aarch64.neon.tbl4.v16i8", v.type, *parts[:4], index)
        for first in (4, 8, 12):
            index = k.b.sub(index, const(v.type, 64))
            y = k.intrinsic("llvm.aarch64.neon.tbx4.v16i8", v.type, y, *parts[first : first + 4], index)
        return y

    return look_up


def _by_permutation(k: KernelBuilder, table: ir.Value, x: Tensor, out: Tensor) -> LookUp:
    """vpermi2b chooses from 128 bytes by the low 7 bits, once per half of the table; the top bit says which half.

    Those bits count from the half's beginning in both forms: q and q + 128 differ in the top bit only.
    """
    quarters = [k.load(table, 64 * i, I8, 64) for i in range(4)]
    if is_offset(out):
        quarters = [flipped(k, q) for q in quarters]
    negative, positive = quarters[:2], quarters[2:]
    clear, set_ = (negative, positive) if is_offset(x) else (positive, negative)

    def look_up(v: ir.Value) -> ir.Value:
        def half(parts: list[ir.Value]) -> ir.Value:
            return k.intrinsic("llvm.x86.avx512.vpermi2var.qi.512", v.type, parts[0], v, parts[1])

        return k.b.select(k.b.icmp_signed("<", v, const(v.type, 0)), half(set_), half(clear))

    return look_up


def _by_shuffles(k: KernelBuilder, table: ir.Value, x: Tensor, out: Tensor) -> LookUp:
    """pshufb chooses from 16 bytes by the low 4 bits, and gives 0 where the index's top bit is set.

    The table's rows are kept as differences (xor) from the row before, one run of eight rows for each half of the
    bytes. A byte of the half counts down by 16 from row to row with saturation: it picks one difference from every row
    up to its own, which xor up to its own row's entry, and is negative for all later ones; a byte of the other half is
    negative from the start, and stays so.
    """
    width = 4 * k.host.lanes
    rows = k.scratch(16 * width)
    for half in range(2):
        before: ir.Value | None = None
        for r in range(8 * half, 8 * half + 8):
            entries = k.load(table, ROW * r, I8, ROW)
            if is_offset(out):
                entries = flipped(k, entries)
            row = entries if before is None else k.b.xor(entries, before)
            k.store(k.shuffle(row, [i % ROW for i in range(width)]), rows, r * width)
            before = entries
    name = _SHUFFLE[k.host.lanes]

    def look_up(v: ir.Value) -> ir.Value:
        other = flipped(k, v)
        y: ir.Value = const(v.type, 0)
        for half, start in enumerate((v, other) if is_offset(x) else (other, v)):
            index = start
            for r in range(8 * half, 8 * half + 8):
                y = k.b.xor(y, k.intrinsic(name, v.type, k.load(rows, r * width, I8, width), index))
                if r % 8 < 7:
                    index = k.overloaded("llvm.ssub.sat", index, const(v.type, ROW))
        return y

    return look_up
