"""One element at a time: sums and products of two tensors, limits, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import DType
from .base import (
    F32_MAX,
    INT_ACT,
    INT_OUT,
    Instruction,
    Opcode,
    Requantizing,
    Scheme,
    Shaped,
    all_present,
    broadcast,
    check_elementwise_clamp,
    check_operand_zero_point,
    operand_at,
    require,
)


@dataclass(frozen=True, kw_only=True)
class Add(Instruction):
    """NUMERICS D6: sat((((a−za)·lhs_multiplier + (b−zb)·rhs_multiplier + 2^(shift−1)) >> shift) + zp), broadcasting.

    In i64; both multipliers are i16 values, either may be negative (subtraction). shift 0 adds no rounding term.
    Scheme FLOAT: `nearbyint((f32(a−za)·lhs_scale + f32(b−zb)·rhs_scale) / out_scale) + zp`, every step float32.
    A negative rhs_scale subtracts.
    """

    opcode = Opcode.ADD
    operands = ("lhs", "rhs")
    scheme: Scheme  # FORM_B or FLOAT
    lhs_multiplier: int = 0
    rhs_multiplier: int = 0
    shift: int = 0
    lhs_scale: float = 0.0
    rhs_scale: float = 0.0
    out_scale: float = 1.0
    lhs_zero_point: int = 0
    rhs_zero_point: int = 0
    zero_point: int = 0
    clamp_min: int
    clamp_max: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        _check_binary(ins, outs)
        require(self.scheme in {Scheme.FORM_B, Scheme.FLOAT}, f"scheme {self.scheme.name}")
        require(max(abs(self.lhs_multiplier), abs(self.rhs_multiplier)) < 1 << 15, "multipliers are 16 bit")
        require(0 <= self.shift <= 62, f"shift is {self.shift}")
        check_elementwise_clamp(self.clamp_min, self.clamp_max, self.zero_point, outs[0])
        _check_scales(self.lhs_scale, self.rhs_scale, self.out_scale)
        check_operand_zero_point(self.lhs_zero_point, operand_at(ins, 0))
        check_operand_zero_point(self.rhs_zero_point, operand_at(ins, 1))


@dataclass(frozen=True, kw_only=True)
class Mul(Requantizing):
    """acc = (lhs − lhs_zero_point) · (rhs − rhs_zero_point), broadcasting; one multiplier (NUMERICS 5).

    Scheme FORM_B (i8 out), WIDE (i16 out), or FLOAT: `nearbyint(((f32(a−za)·lhs_scale) · (f32(b−zb)·rhs_scale)) /
    out_scale) + zp`, every step float32, no multiplier operand.
    """

    opcode = Opcode.MUL
    operands = ("lhs", "rhs", "multiplier?", "pre_shift?", "post_shift?")
    lhs_scale: float = 0.0
    rhs_scale: float = 0.0
    out_scale: float = 1.0
    lhs_zero_point: int = 0
    rhs_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        _check_binary(ins, outs)
        check_operand_zero_point(self.lhs_zero_point, operand_at(ins, 0))
        check_operand_zero_point(self.rhs_zero_point, operand_at(ins, 1))
        if self.scheme is Scheme.FLOAT:
            require(all(i is None for i in ins[2:]), "scheme FLOAT takes no multiplier here")
            check_elementwise_clamp(self.clamp_min, self.clamp_max, self.zero_point, outs[0])
            _check_scales(self.lhs_scale, self.rhs_scale, self.out_scale)
            return
        require(self.scheme in {Scheme.FORM_B, Scheme.WIDE}, f"scheme {self.scheme.name}")
        self.check_scheme(ins[2], ins[3], ins[4], outs[0], 1)


@dataclass(frozen=True, kw_only=True)
class Maximum(Instruction):
    """Elementwise maximum of two tensors of one scale and zero point, broadcasting."""

    opcode = Opcode.MAXIMUM
    operands = ("lhs", "rhs")

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        _check_binary(ins, outs)
        a, b = all_present(ins)
        require(a.dtype is b.dtype is outs[0].dtype, "operands and result must have one dtype")


@dataclass(frozen=True, kw_only=True)
class Minimum(Maximum):
    """Elementwise minimum of two tensors of one scale and zero point, broadcasting."""

    opcode = Opcode.MINIMUM


@dataclass(frozen=True, kw_only=True)
class Clamp(Instruction):
    """Integers limited to [clamp_min, clamp_max]; shape, dtype, scale unchanged."""

    opcode = Opcode.CLAMP
    operands = ("x",)
    clamp_min: int
    clamp_max: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        require(x.dtype in INT_OUT, f"input dtype is {x.dtype.text}")
        require(x.dtype is outs[0].dtype and x.shape == outs[0].shape, "shape and dtype must stay")
        lo, hi = x.dtype.limits
        require(lo <= self.clamp_min <= self.clamp_max <= hi, f"clamp [{self.clamp_min}, {self.clamp_max}]")


@dataclass(frozen=True, kw_only=True)
class Lut(Instruction):
    """y = table[x + 128]; x i8, table 256 entries of i8 or i16 (NUMERICS D7)."""

    opcode = Opcode.LUT
    operands = ("x", "table")

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, table = all_present(ins)
        require(x.dtype is DType.I8, f"input dtype is {x.dtype.text}, not i8")
        require(table.shape == (256,) and table.dtype in INT_ACT, "table must be i8[256] or i16[256]")
        fits = outs[0].dtype is table.dtype and outs[0].shape == x.shape
        require(fits, "output must be the input's shape, the table's dtype")


@dataclass(frozen=True, kw_only=True)
class SegmentLut(Instruction):
    """i16 → i8|i16 by segments with linear interpolation (NUMERICS D8).

    `segments` is i32[N, 3], N in 1..64: first input value (ascending; the first is −32768), shift, and table row;
    `table` is i16[R, 65]. In its segment, `p = x − first`, `i = min(p >> shift, 63)`, `f = p − (i << shift)`, and
    y = clamp(t[i] + (((t[i+1] − t[i]) · f + half) >> shift)), half = 2^(shift−1), or 0 where shift is 0.
    """

    opcode = Opcode.SEGMENT_LUT
    operands = ("x", "segments", "table")
    clamp_min: int
    clamp_max: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, seg, table = all_present(ins)
        require(x.dtype is DType.I16, f"input dtype is {x.dtype.text}, not i16")
        require(seg.dtype is DType.I32 and len(seg.shape) == 2, "segments")
        require(seg.shape[1] == 3 and 1 <= seg.shape[0] <= 64, "segments")
        require(table.dtype is DType.I16 and len(table.shape) == 2, "table")
        require(table.shape[1] == 65 and table.shape[0] >= 1, "table")
        require(outs[0].dtype in INT_ACT and outs[0].shape == x.shape, "output must be i8 or i16 of the input's shape")
        lo, hi = outs[0].dtype.limits
        require(lo <= self.clamp_min <= self.clamp_max <= hi, f"clamp [{self.clamp_min}, {self.clamp_max}]")


def _check_binary(ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
    a, b = operand_at(ins, 0), operand_at(ins, 1)
    require(a.dtype in INT_OUT and b.dtype in INT_OUT and outs[0].dtype in INT_OUT, "operands must be i8, i16 or i32")
    require(len(a.shape) == len(b.shape), "operands must have equal ranks")
    require(outs[0].shape == broadcast(a.shape, b.shape), f"output shape is {outs[0].shape}")


def _check_scales(lhs: float, rhs: float, out: float) -> None:
    require(abs(lhs) <= F32_MAX and abs(rhs) <= F32_MAX, f"scales {lhs} and {rhs} must be float32 numbers")
    require(0.0 < out <= F32_MAX, f"output scale is {out}")
