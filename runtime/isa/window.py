"""Pools over windows, and reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import (
    INT_ACT,
    Instruction,
    Opcode,
    Requantizing,
    Scheme,
    Shaped,
    all_present,
    check_kernel,
    check_operand_zero_point,
    check_window,
    operand_at,
    require,
)


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
        (x,) = all_present(ins)
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
        x = operand_at(ins, 0)
        require(x.dtype in INT_ACT, f"input dtype is {x.dtype.text}")
        require(self.scheme is not Scheme.NONE, "an average needs a scheme")
        check_operand_zero_point(self.x_zero_point, x)
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
        x = operand_at(ins, 0)
        require(x.dtype in INT_ACT, f"input dtype is {x.dtype.text}")
        check_operand_zero_point(self.x_zero_point, x)
        _check_reduce(self.axes, x, outs[0])
        self.check_scheme(ins[1], ins[2], ins[3], outs[0], 1)


@dataclass(frozen=True, kw_only=True)
class ReduceMax(Instruction):
    """Largest value over `axes` (kept as 1)."""

    opcode = Opcode.REDUCE_MAX
    operands = ("x",)
    axes: tuple[int, ...]

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        require(x.dtype in INT_ACT and outs[0].dtype is x.dtype, "dtype must be i8 or i16, and stay")
        _check_reduce(self.axes, x, outs[0])


@dataclass(frozen=True, kw_only=True)
class ReduceMin(ReduceMax):
    """Smallest value over `axes` (kept as 1)."""

    opcode = Opcode.REDUCE_MIN


def _check_pool(op: MaxPool | AvgPool, x: Shaped, out: Shaped) -> None:
    require(len(x.shape) == 4 and len(out.shape) == 4, "pooling takes rank 4")
    check_kernel(op.kernel)
    check_window(op.strides, op.pads, op.dilations)
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
