"""Sums of products: convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import DType
from .base import (
    INT_ACT,
    Opcode,
    Requantizing,
    Scheme,
    Shaped,
    broadcast,
    check_kernel,
    check_operand_zero_point,
    check_window,
    operand_at,
    require,
)


@dataclass(frozen=True, kw_only=True)
class Conv2d(Requantizing):
    """acc[n,oh,ow,o] = bias[o] + Σ x[n, oh·s−p+kh·d, ow·s−p+kw·d, g·Cg+c] · weight[o,kh,kw,c].

    Outside x reads as `pad_value`. With an addend (NUMERICS 5, D5):
    `acc += ((addend − addend_zero_point) · addend_multiplier) >> addend_shift` per output channel, a negative shift is
    a left shift; in scheme FLOAT the addend is added as `f32(acc)·mult + f32(addend − zp)·addend_multiplier` (f32)
    before nearbyint.
    """

    opcode = Opcode.CONV2D
    operands = (
        "x", "weight",  # [N,H,W,C] i8|i16; [O,KH,KW,C/g] i8|i16
        "bias?", "multiplier?", "pre_shift?", "post_shift?",  # i32[O]; the scheme's
        "addend?", "addend_multiplier?", "addend_shift?",  # [N,OH,OW,O]; i16|f32 [1|O]; i8 [1|O]
    )  # fmt: skip
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)  # top, left, bottom, right; never negative
    dilations: tuple[int, ...] = (1, 1)
    group: int = 1
    pad_value: int = 0
    addend_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, w, out = operand_at(ins, 0), operand_at(ins, 1), outs[0]
        _check_conv_operands(x, w, ins[2], self.group)
        n, h, wd, _ = x.shape
        o, kh, kw, _ = w.shape
        check_window(self.strides, self.pads, self.dilations)
        size = tuple(
            (d + self.pads[i] + self.pads[2 + i] - self.dilations[i] * (k - 1) - 1) // self.strides[i] + 1
            for i, (d, k) in enumerate(((h, kh), (wd, kw)))
        )
        require(min(size) >= 1, f"kernel {kh}x{kw} does not fit the padded input")
        require(out.shape == (n, *size, o), f"output shape is {out.shape}, not {(n, *size, o)}")
        lo, hi = x.dtype.limits
        require(lo <= self.pad_value <= hi, f"pad value {self.pad_value}")
        self.check_scheme(ins[3], ins[4], ins[5], out, o)
        addend, amult, ashift = ins[6], ins[7], ins[8]
        if addend is None:
            require(amult is None and ashift is None, "addend parameters without an addend")
            return
        require(self.scheme is not Scheme.NONE, "an addend needs a requantised output")
        require(addend.dtype in INT_ACT and addend.shape == out.shape, "addend must have the output's shape")
        want = DType.F32 if self.scheme is Scheme.FLOAT else DType.I16
        require(amult is not None and amult.dtype is want and amult.shape in {(1,), (o,)}, "addend_multiplier")
        if self.scheme is Scheme.FLOAT:
            require(ashift is None, "scheme FLOAT takes no addend shift")
        else:
            assert amult is not None
            require(ashift is not None and ashift.dtype is DType.I8 and ashift.shape == amult.shape, "addend_shift")


@dataclass(frozen=True, kw_only=True)
class ConvTranspose2d(Requantizing):
    """Each input pixel adds `(x − x_zero_point) · weight` into the output window at `ih·s − p + kh·d`.

    `bias` is i32[O]. Weight is [O, KH, KW, C/g] (output-channel major, as for Conv2d).
    """

    opcode = Opcode.CONV_TRANSPOSE2D
    operands = ("x", "weight", "bias?", "multiplier?", "pre_shift?", "post_shift?")
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    output_padding: tuple[int, ...] = (0, 0)
    group: int = 1
    x_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, w, out = operand_at(ins, 0), operand_at(ins, 1), outs[0]
        _check_conv_operands(x, w, ins[2], self.group)
        check_window(self.strides, self.pads, self.dilations)
        require(len(self.output_padding) == 2 and min(self.output_padding) >= 0, "output_padding")
        n, h, wd, _ = x.shape
        o, kh, kw, _ = w.shape
        size = tuple(
            (d - 1) * self.strides[i] + self.dilations[i] * (k - 1) + 1
            + self.output_padding[i] - self.pads[i] - self.pads[2 + i]
            for i, (d, k) in enumerate(((h, kh), (wd, kw)))
        )  # fmt: skip
        require(min(size) >= 1, "the output is empty")
        require(out.shape == (n, *size, o), f"output shape is {out.shape}, not {(n, *size, o)}")
        lo, hi = x.dtype.limits
        require(lo <= self.x_zero_point <= hi, f"zero point {self.x_zero_point}")
        self.check_scheme(ins[3], ins[4], ins[5], out, o)


@dataclass(frozen=True, kw_only=True)
class Matmul(Requantizing):
    """acc = Σ_k (lhs[…,m,k] − lhs_zero_point) · (rhs[…,k,n] − rhs_zero_point).

    Batch axes broadcast; ranks are equal, at least 2.
    """

    opcode = Opcode.MATMUL
    operands = ("lhs", "rhs", "bias?", "multiplier?", "pre_shift?", "post_shift?")  # bias i32[N]
    lhs_zero_point: int = 0
    rhs_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        a, b, out = operand_at(ins, 0), operand_at(ins, 1), outs[0]
        require(a.dtype in INT_ACT and b.dtype in INT_ACT, "operands must be i8 or i16")
        require(len(a.shape) == len(b.shape) and 2 <= len(a.shape) <= 6, "operands must have equal ranks of 2 to 6")
        require(a.shape[-1] == b.shape[-2], f"inner sizes {a.shape[-1]} and {b.shape[-2]} differ")
        require(a.shape[-1] >= 1, "inner size is 0")
        check_operand_zero_point(self.lhs_zero_point, a)
        check_operand_zero_point(self.rhs_zero_point, b)
        batch = broadcast(a.shape[:-2], b.shape[:-2])
        require(out.shape == (*batch, a.shape[-2], b.shape[-1]), f"output shape {out.shape}")
        bias = ins[2]
        require(bias is None or (bias.dtype is DType.I32 and bias.shape == (b.shape[-1],)), "bias must be i32[N]")
        self.check_scheme(ins[3], ins[4], ins[5], out, b.shape[-1])


def _check_conv_operands(x: Shaped, w: Shaped, bias: Shaped | None, group: int) -> None:
    require(x.dtype in INT_ACT and w.dtype in INT_ACT, "x and weight must be i8 or i16")
    require(len(x.shape) == 4 and len(w.shape) == 4, "x and weight must have rank 4")
    require(min(*x.shape, *w.shape) >= 1, "x or weight is empty")
    check_kernel(w.shape[1:3])
    divides = group >= 1 and x.shape[3] % group == 0 and w.shape[0] % group == 0
    require(divides, f"group {group} does not divide the channels")
    require(w.shape[3] == x.shape[3] // group, f"weight has {w.shape[3]} input channels, not {x.shape[3] // group}")
    require(bias is None or (bias.dtype is DType.I32 and bias.shape == (w.shape[0],)), "bias must be i32[O]")
