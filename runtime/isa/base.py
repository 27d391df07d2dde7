"""What every instruction is: opcodes, schemes, operands, and constraints that several families share."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ..types import DType

INT_ACT = (DType.I8, DType.I16)
INT_OUT = (DType.I8, DType.I16, DType.I32)
MAX_WINDOW = 1 << 16  # a stride, pad or dilation, and the area of a kernel: what the largest global pool needs
F32_MAX = 3.4028234663852886e38


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
    ARG_MAX = 29
    ARG_MIN = 30
    COMPARE = 31
    SELECT = 32
    LOGICAL = 33
    GRID_SAMPLE = 34


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


def operand_at(ins: Sequence[Shaped | None], index: int) -> Shaped:
    x = ins[index]
    require(x is not None, f"operand {index} is missing")
    assert x is not None
    return x


def all_present(ins: Sequence[Shaped | None]) -> list[Shaped]:
    return [operand_at(ins, i) for i in range(len(ins))]


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    require(all(x == y or 1 in {x, y} for x, y in zip(a, b, strict=True)), f"{a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def check_axis(axis: int, shape: tuple[int, ...], *params: tuple[int, ...]) -> None:
    require(-1 <= axis < len(shape), f"axis {axis} of rank {len(shape)}")
    want = (shape[axis],) if axis >= 0 else (1,)
    require(all(p == want for p in params), f"parameters must have shape {want}")


def check_window(strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...]) -> None:
    require(len(strides) == 2 and min(strides) >= 1 and max(strides) <= MAX_WINDOW, f"strides {strides}")
    require(len(dilations) == 2 and min(dilations) >= 1 and max(dilations) <= MAX_WINDOW, f"dilations {dilations}")
    require(len(pads) == 4 and min(pads) >= 0 and max(pads) <= MAX_WINDOW, f"pads {pads}")


def check_kernel(kernel: tuple[int, ...]) -> None:
    require(len(kernel) == 2 and min(kernel) >= 1 and math.prod(kernel) <= MAX_WINDOW, f"kernel {kernel}")


def check_operand_zero_point(zero_point: int, x: Shaped) -> None:
    lo, hi = x.dtype.limits
    require(lo <= zero_point <= hi, f"operand zero point {zero_point} is outside {x.dtype.text}")


def check_elementwise_clamp(lo: int, hi: int, zero_point: int, out: Shaped) -> None:
    low, high = out.dtype.limits
    require(low <= lo <= hi <= high, f"clamp [{lo}, {hi}]")
    require(low <= zero_point <= high, f"zero point {zero_point}")
