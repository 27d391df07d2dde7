"""Between reals and integers, and between one scale and another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import DType
from .base import (
    INT_OUT,
    Instruction,
    Opcode,
    Requantizing,
    Rounding,
    Scheme,
    Shaped,
    all_present,
    check_axis,
    check_operand_zero_point,
    operand_at,
    require,
)


@dataclass(frozen=True, kw_only=True)
class Quantize(Instruction):
    """f32 → integer: `clamp(round(x / scale) + zero_point)`.

    NaN gives round(0)=0 plus the zero point, ±inf saturates.
    """

    opcode = Opcode.QUANTIZE
    operands = ("x", "scale", "zero_point")  # f32; f32[1|C]; i32[1|C]
    axis: int = -1  # −1: per tensor
    rounding: Rounding
    clamp_min: int
    clamp_max: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, scale, zp = all_present(ins)
        dtypes = (x.dtype, scale.dtype, zp.dtype)
        require(dtypes == (DType.F32, DType.F32, DType.I32), "dtypes must be f32, f32, i32")
        check_axis(self.axis, x.shape, scale.shape, zp.shape)
        require(outs[0].dtype.is_integer and outs[0].dtype.size <= 4, f"output dtype is {outs[0].dtype.text}")
        require(outs[0].shape == x.shape, "output shape differs from the input's")
        lo, hi = outs[0].dtype.limits
        require(lo <= self.clamp_min <= self.clamp_max <= hi, f"clamp [{self.clamp_min}, {self.clamp_max}]")


@dataclass(frozen=True, kw_only=True)
class Dequantize(Instruction):
    """Integer → f32: `float32(q − zero_point) · scale`."""

    opcode = Opcode.DEQUANTIZE
    operands = ("x", "scale", "zero_point")  # int; f32[1|C]; i32[1|C]
    axis: int = -1

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, scale, zp = all_present(ins)
        require(x.dtype.is_integer and x.dtype.size <= 4, f"input dtype is {x.dtype.text}")
        require(scale.dtype is DType.F32 and zp.dtype is DType.I32, "scale and zero point must be f32 and i32")
        check_axis(self.axis, x.shape, scale.shape, zp.shape)
        require(outs[0].dtype is DType.F32 and outs[0].shape == x.shape, "output must be f32 of the input's shape")


@dataclass(frozen=True, kw_only=True)
class FlipSign(Instruction):
    """u8 ↔ i8 (or u16 ↔ i16) by flipping the top bit.

    The same real numbers with the zero point moved by half the range.
    """

    opcode = Opcode.FLIP_SIGN
    operands = ("x",)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        pairs = {(DType.U8, DType.I8), (DType.I8, DType.U8), (DType.U16, DType.I16), (DType.I16, DType.U16)}
        require((x.dtype, outs[0].dtype) in pairs, f"cannot flip {x.dtype.text} to {outs[0].dtype.text}")
        require(outs[0].shape == x.shape, "output shape differs from the input's")


@dataclass(frozen=True, kw_only=True)
class Requantize(Requantizing):
    """Integer → integer of another scale; the accumulator is `x − x_zero_point`. Scheme FORM_B, WIDE or FLOAT."""

    opcode = Opcode.REQUANTIZE
    operands = ("x", "multiplier", "pre_shift?", "post_shift?")
    axis: int = -1  # of per-channel multipliers; −1 where there is one
    x_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x = operand_at(ins, 0)
        require(x.dtype in INT_OUT, f"input dtype is {x.dtype.text}")
        require(self.scheme is not Scheme.NONE, "requantize needs a scheme")
        check_operand_zero_point(self.x_zero_point, x)
        require(-1 <= self.axis < len(x.shape), f"axis {self.axis} of rank {len(x.shape)}")
        self.check_scheme(ins[1], ins[2], ins[3], outs[0], x.shape[self.axis] if self.axis >= 0 else 1)
        require(outs[0].shape == x.shape, "output shape differs from the input's")
