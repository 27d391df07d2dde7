"""The instruction set: one frozen class per opcode, with its operands, attributes and constraints.

An instruction names its tensors by index; a missing optional operand is −1. Attributes are dataclass fields of type
int, float, str, bool, an IntEnum, or a tuple of ints or floats: the container stores them by name, the IR's `bpu.*` ops
are made from them, the reference (`reference/`) and the JIT (`jit/kernels/`) are registered by class.

Activations of spatial ops are NHWC. `check` raises ValueError naming the constraint that is broken; everything that
passes it can be executed without reading or writing out of bounds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from .types import DType

INT_ACT = (DType.I8, DType.I16)
INT_OUT = (DType.I8, DType.I16, DType.I32)
MAX_WINDOW = 1 << 16  # a stride, pad or dilation, and the area of a kernel: what the largest global pool needs


class Shaped(Protocol):
    """What `check` needs to know of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...


class Opcode(enum.IntEnum):
    """The container's numbers; never renumber."""

    QUANTIZE = 1
    DEQUANTIZE = 2
    FLIP_SIGN = 3
    REQUANTIZE = 4
    CONV2D = 5
    CONV_TRANSPOSE2D = 6
    MATMUL = 7
    ADD = 8
    MUL = 9
    MAXIMUM = 10
    MINIMUM = 11
    CLAMP = 12
    LUT = 13
    SEGMENT_LUT = 14
    MAX_POOL = 15
    AVG_POOL = 16
    REDUCE_SUM = 17
    REDUCE_MAX = 18
    REDUCE_MIN = 19
    CONCAT = 20
    SLICE = 21
    PAD = 22
    TRANSPOSE = 23
    RESHAPE = 24
    RESIZE_NEAREST = 25
    RESIZE_BILINEAR = 26
    GATHER = 27
    EXPAND = 28


class Scheme(enum.IntEnum):
    """How an accumulator becomes an output (NUMERICS 4). `zp` is the instruction's zero point."""

    NONE = 0  # the accumulator is the output, i32
    FORM_A = 1  # sat(((sat16(acc >> pre) · mult) >> post) + zp); the half step is in the bias
    FORM_B = 2  # sat(((sat16(acc >> pre) · mult + 2^(post−1)) >> post) + zp)
    WIDE = 3  # i16 outputs: sat(((acc · mult + 2^(post−1)) >> post) + zp) in i64, mult in [2^30, 2^31)
    FLOAT = 4  # --arith onnx: sat(nearbyint(f32(acc) · mult) + zp), mult float32, half to even


class Rounding(enum.IntEnum):
    """How Quantize rounds (NUMERICS 2)."""

    HALF_EVEN_F32 = 0  # sat(nearbyint(x / scale) + zp), float32 division
    HALF_AWAY_F64 = 1  # sat(round_half_away(x / scale) + zp), float64 division


def require(ok: bool, what: str) -> None:  # noqa: FBT001
    """ValueError(what) unless `ok`."""
    if not ok:
        raise ValueError(what)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Base of all instructions."""

    opcode: ClassVar[Opcode]
    operands: ClassVar[tuple[str, ...]]  # a trailing `?` marks an optional operand, `*` a variadic one
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    loc: tuple[str, ...] = ()  # names of the source model's nodes

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        """Raise ValueError where shapes, dtypes or attributes do not fit together."""
        raise AssertionError(type(self))


def arity(cls: type[Instruction]) -> tuple[int, int | None]:
    """Smallest and largest number of entries in `inputs`; None where variadic."""
    if cls.operands[-1].endswith("*"):
        return 1, None
    return len(cls.operands), len(cls.operands)


@dataclass(frozen=True, kw_only=True)
class Requantizing(Instruction):
    """Attributes of an instruction whose accumulator is requantised: `multiplier`, `pre_shift`, `post_shift` operands.

    `multiplier` is i16 (FORM_A, FORM_B), i32 (WIDE) or f32 (FLOAT); the shifts are i8, absent for FLOAT; each has one
    entry or one per output channel. All three are absent for NONE. Results are clamped to [clamp_min, clamp_max].
    """

    scheme: Scheme
    zero_point: int = 0
    clamp_min: int
    clamp_max: int

    def check_scheme(
        self, mult: Shaped | None, pre: Shaped | None, post: Shaped | None, out: Shaped, channels: int
    ) -> None:
        """The constraints every requantising instruction shares."""
        require(out.dtype in INT_OUT, f"output dtype is {out.dtype.text}, not i8, i16 or i32")
        lo, hi = out.dtype.limits
        require(lo <= self.clamp_min <= self.clamp_max <= hi, f"clamp [{self.clamp_min}, {self.clamp_max}]")
        require(lo <= self.zero_point <= hi, f"zero point {self.zero_point} is outside {out.dtype.text}")
        if self.scheme is Scheme.NONE:
            require(mult is None and pre is None and post is None, "scheme NONE takes no multiplier or shifts")
            require(out.dtype is DType.I32 and self.zero_point == 0, "scheme NONE gives i32 with zero point 0")
            return
        wide = self.scheme in {Scheme.WIDE, Scheme.FLOAT}
        require(wide or out.dtype is not DType.I32, "i32 output needs scheme WIDE")
        want = {Scheme.WIDE: DType.I32, Scheme.FLOAT: DType.F32}.get(self.scheme, DType.I16)
        require(mult is not None, "multiplier is missing")
        assert mult is not None
        require(mult.dtype is want, f"multiplier is {mult.dtype.text}, scheme {self.scheme.name} wants {want.text}")
        require(mult.shape in {(1,), (channels,)}, f"multiplier has shape {mult.shape} for {channels} channels")
        if self.scheme is Scheme.FLOAT:
            require(pre is None and post is None, "scheme FLOAT takes no shifts")
            return
        for name, shift in (("pre_shift", pre), ("post_shift", post)):
            require(shift is not None and shift.dtype is DType.I8, f"{name} must be i8")
            require(shift is not None and shift.shape == mult.shape, f"{name} must have the multiplier's shape")


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
        x, scale, zp = _present(ins)
        dtypes = (x.dtype, scale.dtype, zp.dtype)
        require(dtypes == (DType.F32, DType.F32, DType.I32), "dtypes must be f32, f32, i32")
        _check_axis(self.axis, x.shape, scale.shape, zp.shape)
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
        x, scale, zp = _present(ins)
        require(x.dtype.is_integer and x.dtype.size <= 4, f"input dtype is {x.dtype.text}")
        require(scale.dtype is DType.F32 and zp.dtype is DType.I32, "scale and zero point must be f32 and i32")
        _check_axis(self.axis, x.shape, scale.shape, zp.shape)
        require(outs[0].dtype is DType.F32 and outs[0].shape == x.shape, "output must be f32 of the input's shape")


@dataclass(frozen=True, kw_only=True)
class FlipSign(Instruction):
    """u8 ↔ i8 (or u16 ↔ i16) by flipping the top bit.

    The same real numbers with the zero point moved by half the range.
    """

    opcode = Opcode.FLIP_SIGN
    operands = ("x",)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
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
        x = _one(ins, 0)
        require(x.dtype in INT_OUT, f"input dtype is {x.dtype.text}")
        require(self.scheme is not Scheme.NONE, "requantize needs a scheme")
        _check_operand_zero_point(self.x_zero_point, x)
        require(-1 <= self.axis < len(x.shape), f"axis {self.axis} of rank {len(x.shape)}")
        self.check_scheme(ins[1], ins[2], ins[3], outs[0], x.shape[self.axis] if self.axis >= 0 else 1)
        require(outs[0].shape == x.shape, "output shape differs from the input's")


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
        x, w, out = _one(ins, 0), _one(ins, 1), outs[0]
        _check_conv_operands(x, w, ins[2], self.group)
        n, h, wd, _ = x.shape
        o, kh, kw, _ = w.shape
        _check_window(self.strides, self.pads, self.dilations)
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
        x, w, out = _one(ins, 0), _one(ins, 1), outs[0]
        _check_conv_operands(x, w, ins[2], self.group)
        _check_window(self.strides, self.pads, self.dilations)
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
        a, b, out = _one(ins, 0), _one(ins, 1), outs[0]
        require(a.dtype in INT_ACT and b.dtype in INT_ACT, "operands must be i8 or i16")
        require(len(a.shape) == len(b.shape) and 2 <= len(a.shape) <= 6, "operands must have equal ranks of 2 to 6")
        require(a.shape[-1] == b.shape[-2], f"inner sizes {a.shape[-1]} and {b.shape[-2]} differ")
        require(a.shape[-1] >= 1, "inner size is 0")
        _check_operand_zero_point(self.lhs_zero_point, a)
        _check_operand_zero_point(self.rhs_zero_point, b)
        batch = _broadcast(a.shape[:-2], b.shape[:-2])
        require(out.shape == (*batch, a.shape[-2], b.shape[-1]), f"output shape {out.shape}")
        bias = ins[2]
        require(bias is None or (bias.dtype is DType.I32 and bias.shape == (b.shape[-1],)), "bias must be i32[N]")
        self.check_scheme(ins[3], ins[4], ins[5], out, b.shape[-1])


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
        _check_elementwise_clamp(self.clamp_min, self.clamp_max, self.zero_point, outs[0])
        _check_scales(self.lhs_scale, self.rhs_scale, self.out_scale)
        _check_operand_zero_point(self.lhs_zero_point, _one(ins, 0))
        _check_operand_zero_point(self.rhs_zero_point, _one(ins, 1))


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
        _check_operand_zero_point(self.lhs_zero_point, _one(ins, 0))
        _check_operand_zero_point(self.rhs_zero_point, _one(ins, 1))
        if self.scheme is Scheme.FLOAT:
            require(all(i is None for i in ins[2:]), "scheme FLOAT takes no multiplier here")
            _check_elementwise_clamp(self.clamp_min, self.clamp_max, self.zero_point, outs[0])
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
        a, b = _present(ins)
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
        (x,) = _present(ins)
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
        x, table = _present(ins)
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
        x, seg, table = _present(ins)
        require(x.dtype is DType.I16, f"input dtype is {x.dtype.text}, not i16")
        require(seg.dtype is DType.I32 and len(seg.shape) == 2, "segments")
        require(seg.shape[1] == 3 and 1 <= seg.shape[0] <= 64, "segments")
        require(table.dtype is DType.I16 and len(table.shape) == 2, "table")
        require(table.shape[1] == 65 and table.shape[0] >= 1, "table")
        require(outs[0].dtype in INT_ACT and outs[0].shape == x.shape, "output must be i8 or i16 of the input's shape")
        lo, hi = outs[0].dtype.limits
        require(lo <= self.clamp_min <= self.clamp_max <= hi, f"clamp [{self.clamp_min}, {self.clamp_max}]")


@dataclass(frozen=True, kw_only=True)
class MaxPool(Instruction):
    """Largest value in each window, outside positions ignored; NHWC.

    Every window holds at least one inside position.
    """

    opcode = Opcode.MAX_POOL
    operands = ("x",)
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)  # top, left, bottom, right
    dilations: tuple[int, ...] = (1, 1)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        require(x.dtype in INT_ACT and outs[0].dtype is x.dtype, "dtype must be i8 or i16, and stay")
        _check_pool(self, x, outs[0])


@dataclass(frozen=True, kw_only=True)
class AvgPool(Requantizing):
    """acc = Σ (x − x_zero_point) over the inside positions of a window; NHWC; form B (NUMERICS D13).

    `multiplier` has one entry, or one per output position (OH·OW, row-major) where windows count differently.
    FLOAT: nearbyint(f32(acc) · multiplier) + zp.
    """

    opcode = Opcode.AVG_POOL
    operands = ("x", "multiplier", "pre_shift?", "post_shift?")
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    x_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x = _one(ins, 0)
        require(x.dtype in INT_ACT, f"input dtype is {x.dtype.text}")
        require(self.scheme is not Scheme.NONE, "an average needs a scheme")
        _check_operand_zero_point(self.x_zero_point, x)
        _check_pool(self, x, outs[0])
        self.check_scheme(ins[1], ins[2], ins[3], outs[0], outs[0].shape[1] * outs[0].shape[2])


@dataclass(frozen=True, kw_only=True)
class ReduceSum(Requantizing):
    """acc = Σ (x − x_zero_point) over `axes` (kept as 1); one multiplier, form B, WIDE or FLOAT."""

    opcode = Opcode.REDUCE_SUM
    operands = ("x", "multiplier?", "pre_shift?", "post_shift?")
    axes: tuple[int, ...]
    x_zero_point: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x = _one(ins, 0)
        require(x.dtype in INT_ACT, f"input dtype is {x.dtype.text}")
        _check_operand_zero_point(self.x_zero_point, x)
        _check_reduce(self.axes, x, outs[0])
        self.check_scheme(ins[1], ins[2], ins[3], outs[0], 1)


@dataclass(frozen=True, kw_only=True)
class ReduceMax(Instruction):
    """Largest value over `axes` (kept as 1)."""

    opcode = Opcode.REDUCE_MAX
    operands = ("x",)
    axes: tuple[int, ...]

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        require(x.dtype in INT_ACT and outs[0].dtype is x.dtype, "dtype must be i8 or i16, and stay")
        _check_reduce(self.axes, x, outs[0])


@dataclass(frozen=True, kw_only=True)
class ReduceMin(ReduceMax):
    """Smallest value over `axes` (kept as 1)."""

    opcode = Opcode.REDUCE_MIN


@dataclass(frozen=True, kw_only=True)
class Concat(Instruction):
    """Tensors of one dtype joined along `axis`."""

    opcode = Opcode.CONCAT
    operands = ("xs*",)
    axis: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        xs, out = _present(ins), outs[0]
        rank = len(out.shape)
        require(0 <= self.axis < rank, f"axis {self.axis} of rank {rank}")
        for x in xs:
            require(x.dtype is out.dtype, "operands and result must have one dtype")
            require(len(x.shape) == rank, "operands must have one rank")
            same = all(i == self.axis or x.shape[i] == out.shape[i] for i in range(rank))
            require(same, "shapes differ off the axis")
        require(sum(x.shape[self.axis] for x in xs) == out.shape[self.axis], "sizes along the axis do not add up")


@dataclass(frozen=True, kw_only=True)
class Slice(Instruction):
    """y[i] = x[starts + i·steps] along every axis; starts are not negative, steps may be."""

    opcode = Opcode.SLICE
    operands = ("x",)
    starts: tuple[int, ...]
    steps: tuple[int, ...]

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        out = outs[0]
        rank = len(x.shape)
        require(x.dtype is out.dtype and len(out.shape) == rank, "dtype and rank must stay")
        require(len(self.starts) == rank and len(self.steps) == rank, "one start and step per axis")
        for d, o, start, step in zip(x.shape, out.shape, self.starts, self.steps, strict=True):
            require(step != 0, "step is 0")
            inside = o == 0 or (0 <= start < d and 0 <= start + (o - 1) * step < d)
            require(inside, f"slice leaves the axis of size {d}")


@dataclass(frozen=True, kw_only=True)
class Pad(Instruction):
    """x inside a border of `value`; `pads` holds begin then end for every axis, none negative."""

    opcode = Opcode.PAD
    operands = ("x",)
    pads: tuple[int, ...]
    value: int = 0

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        rank = len(x.shape)
        require(x.dtype is outs[0].dtype and x.dtype.is_integer, "dtype must be an integer, and stay")
        lo, hi = x.dtype.limits
        require(lo <= self.value <= hi, f"value {self.value} is outside {x.dtype.text}")
        require(len(self.pads) == 2 * rank and min(self.pads, default=0) >= 0, "pads")
        want = tuple(d + self.pads[i] + self.pads[rank + i] for i, d in enumerate(x.shape))
        require(outs[0].shape == want, f"output shape is {outs[0].shape}, not {want}")


@dataclass(frozen=True, kw_only=True)
class Transpose(Instruction):
    """Axis i of the result is axis perm[i] of x. Any dtype."""

    opcode = Opcode.TRANSPOSE
    operands = ("x",)
    perm: tuple[int, ...]

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        require(sorted(self.perm) == list(range(len(x.shape))), f"perm {self.perm}")
        require(x.dtype is outs[0].dtype and outs[0].shape == tuple(x.shape[p] for p in self.perm), "shape or dtype")


@dataclass(frozen=True, kw_only=True)
class Reshape(Instruction):
    """The same elements in row-major order under another shape. Any dtype; may alias its input (same bytes)."""

    opcode = Opcode.RESHAPE
    operands = ("x",)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        require(x.dtype is outs[0].dtype, "dtype must stay")
        require(math.prod(x.shape) == math.prod(outs[0].shape), f"{x.shape} does not reshape to {outs[0].shape}")


@dataclass(frozen=True, kw_only=True)
class ResizeNearest(Instruction):
    """y[n,h,w,c] = x[n, rows[h], columns[w], c]; index tables made by the compiler; NHWC."""

    opcode = Opcode.RESIZE_NEAREST
    operands = ("x", "rows", "columns")  # i32[OH], i32[OW]: constants with entries inside x, checked by the reader

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, rows, cols = _present(ins)
        require(len(x.shape) == 4 and x.dtype is outs[0].dtype, "input must have rank 4; dtype must stay")
        require(rows.dtype is DType.I32 and cols.dtype is DType.I32, "tables must be i32")
        require(len(rows.shape) == 1 and len(cols.shape) == 1, "tables must have rank 1")
        require(outs[0].shape == (x.shape[0], rows.shape[0], cols.shape[0], x.shape[3]), "output shape")


@dataclass(frozen=True, kw_only=True)
class ResizeBilinear(Instruction):
    """NUMERICS D10. Tables are i32[OH, 3], i32[OW, 3]: low index, high index, weight of the high one in 0..256.

    y = (Σ x[h][w]·wh·ww + 2^15) >> 16 over the four neighbours, in i64.
    """

    opcode = Opcode.RESIZE_BILINEAR
    operands = ("x", "rows", "columns")

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, rows, cols = _present(ins)
        require(len(x.shape) == 4 and x.dtype in INT_ACT, "input must be i8 or i16 of rank 4")
        require(x.dtype is outs[0].dtype, "dtype must stay")
        for t in (rows, cols):
            require(t.dtype is DType.I32 and len(t.shape) == 2 and t.shape[1] == 3, "tables must be i32[*, 3]")
        require(outs[0].shape == (x.shape[0], rows.shape[0], cols.shape[0], x.shape[3]), "output shape")


@dataclass(frozen=True, kw_only=True)
class Gather(Instruction):
    """y = x taken along `axis` at constant `indices` (i32, rank 1, entries inside the axis, checked by the reader)."""

    opcode = Opcode.GATHER
    operands = ("x", "indices")
    axis: int

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        x, idx = _present(ins)
        require(0 <= self.axis < len(x.shape), f"axis {self.axis} of rank {len(x.shape)}")
        require(idx.dtype is DType.I32 and len(idx.shape) == 1, "indices must be i32 of rank 1")
        want = (*x.shape[: self.axis], idx.shape[0], *x.shape[self.axis + 1 :])
        require(x.dtype is outs[0].dtype and outs[0].shape == want, f"output shape is {outs[0].shape}, not {want}")


@dataclass(frozen=True, kw_only=True)
class Expand(Instruction):
    """x repeated along axes of size 1 to the result's shape (equal ranks). Any dtype."""

    opcode = Opcode.EXPAND
    operands = ("x",)

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = _present(ins)
        require(x.dtype is outs[0].dtype and len(x.shape) == len(outs[0].shape), "dtype and rank must stay")
        require(all(a in {1, b} for a, b in zip(x.shape, outs[0].shape, strict=True)), "only axes of size 1 expand")


def _subclasses(cls: type[Instruction]) -> list[type[Instruction]]:
    return [s for c in cls.__subclasses__() for s in (c, *_subclasses(c))]


INSTRUCTIONS: dict[Opcode, type[Instruction]] = {c.opcode: c for c in _subclasses(Instruction) if "opcode" in vars(c)}


# ---- shared constraints


def _one(ins: Sequence[Shaped | None], index: int) -> Shaped:
    x = ins[index]
    require(x is not None, f"operand {index} is missing")
    assert x is not None
    return x


def _present(ins: Sequence[Shaped | None]) -> list[Shaped]:
    return [_one(ins, i) for i in range(len(ins))]


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    require(all(x == y or 1 in {x, y} for x, y in zip(a, b, strict=True)), f"{a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _check_axis(axis: int, shape: tuple[int, ...], *params: tuple[int, ...]) -> None:
    require(-1 <= axis < len(shape), f"axis {axis} of rank {len(shape)}")
    want = (shape[axis],) if axis >= 0 else (1,)
    require(all(p == want for p in params), f"parameters must have shape {want}")


def _check_conv_operands(x: Shaped, w: Shaped, bias: Shaped | None, group: int) -> None:
    require(x.dtype in INT_ACT and w.dtype in INT_ACT, "x and weight must be i8 or i16")
    require(len(x.shape) == 4 and len(w.shape) == 4, "x and weight must have rank 4")
    require(min(*x.shape, *w.shape) >= 1, "x or weight is empty")
    _check_kernel(w.shape[1:3])
    divides = group >= 1 and x.shape[3] % group == 0 and w.shape[0] % group == 0
    require(divides, f"group {group} does not divide the channels")
    require(w.shape[3] == x.shape[3] // group, f"weight has {w.shape[3]} input channels, not {x.shape[3] // group}")
    require(bias is None or (bias.dtype is DType.I32 and bias.shape == (w.shape[0],)), "bias must be i32[O]")


def _check_window(strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...]) -> None:
    require(len(strides) == 2 and min(strides) >= 1 and max(strides) <= MAX_WINDOW, f"strides {strides}")
    require(len(dilations) == 2 and min(dilations) >= 1 and max(dilations) <= MAX_WINDOW, f"dilations {dilations}")
    require(len(pads) == 4 and min(pads) >= 0 and max(pads) <= MAX_WINDOW, f"pads {pads}")


def _check_kernel(kernel: tuple[int, ...]) -> None:
    require(len(kernel) == 2 and min(kernel) >= 1 and math.prod(kernel) <= MAX_WINDOW, f"kernel {kernel}")


def _check_pool(op: MaxPool | AvgPool, x: Shaped, out: Shaped) -> None:
    require(len(x.shape) == 4 and len(out.shape) == 4, "pooling takes rank 4")
    _check_kernel(op.kernel)
    _check_window(op.strides, op.pads, op.dilations)
    require(x.shape[0] == out.shape[0] and x.shape[3] == out.shape[3], "batch and channels must stay")
    require(min(x.shape) >= 1, "the input is empty")
    for i in range(2):
        require(out.shape[1 + i] >= 1, "the output is empty")
        sizes = x.shape[1 + i], out.shape[1 + i]
        touches = windows_touch(*sizes, op.kernel[i], op.strides[i], op.pads[i], op.dilations[i])
        require(touches, "a window lies outside the input")


def windows_touch(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> bool:
    """True where each of `out` windows along an axis of `size` positions holds at least one of them."""
    starts = range(-pad, (out - 1) * stride - pad + 1, stride)
    # Taps no farther apart than the input is long cannot step over it: if the first and last window touch it, all do.
    before = -(-pad // stride) if dilation > size else 1  # windows that begin before the input, or one of them
    return all(_touches(size, kernel, start, dilation) for start in (*starts[:before], starts[-1]))


def _touches(size: int, kernel: int, start: int, dilation: int) -> bool:
    tap = max(0, -(start // dilation))  # the first one that is not before the input
    return tap < kernel and start + tap * dilation < size


def _check_reduce(axes: tuple[int, ...], x: Shaped, out: Shaped) -> None:
    require(len(set(axes)) == len(axes) >= 1 and all(0 <= a < len(x.shape) for a in axes), f"axes {axes}")
    want = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    require(out.shape == want and min(x.shape) >= 1, f"output shape is {out.shape}, not {want}")


def _check_binary(ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
    a, b = _one(ins, 0), _one(ins, 1)
    require(a.dtype in INT_OUT and b.dtype in INT_OUT and outs[0].dtype in INT_OUT, "operands must be i8, i16 or i32")
    require(len(a.shape) == len(b.shape), "operands must have equal ranks")
    require(outs[0].shape == _broadcast(a.shape, b.shape), f"output shape is {outs[0].shape}")


def _check_elementwise_clamp(lo: int, hi: int, zero_point: int, out: Shaped) -> None:
    low, high = out.dtype.limits
    require(low <= lo <= hi <= high, f"clamp [{lo}, {hi}]")
    require(low <= zero_point <= high, f"zero point {zero_point}")


F32_MAX = 3.4028234663852886e38


def _check_scales(lhs: float, rhs: float, out: float) -> None:
    require(abs(lhs) <= F32_MAX and abs(rhs) <= F32_MAX, f"scales {lhs} and {rhs} must be float32 numbers")
    require(0.0 < out <= F32_MAX, f"output scale is {out}")


def _check_operand_zero_point(zero_point: int, x: Shaped) -> None:
    lo, hi = x.dtype.limits
    require(lo <= zero_point <= hi, f"operand zero point {zero_point} is outside {x.dtype.text}")
