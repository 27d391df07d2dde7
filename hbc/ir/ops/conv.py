"""Convolutions and matrix products. NCHW here; layout is assigned later.

Float form: all operands f32. Quantised form: `x`, `weight`, `addend` quantised, `bias` f32 (real values) or i32
(accumulator steps), the result quantised, or i32 with per-channel scales where it is the accumulator itself
(NUMERICS 6). `clip` limits the result in real numbers (a fused relu is [0, inf]).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType
from .shapes import NO_CLIP, along_channels, given, strided, taps, window_size


@define_op("conv2d")
class Conv2d(Op):
    """2-D convolution [+ bias] [+ addend] [clipped]; x [N,C,H,W], weight [O,C/g,KH,KW], bias [O], addend [N,O,OH,OW].

    (C1) ranks are 4.  (C2) `group` divides C and O, and weight has C/group input channels.  (C3) the result has the
    windows' shape.  (C4) `addend` has the result's shape.  (C5) `pads` are top, left, bottom, right, not negative.
    """

    x: Value = operand()
    weight: Value = operand()
    bias: Value | None = operand(optional=True)
    addend: Value | None = operand(optional=True)
    strides: tuple[int, int] = attr(default=(1, 1))
    pads: tuple[int, int, int, int] = attr(default=(0, 0, 0, 0))
    dilations: tuple[int, int] = attr(default=(1, 1))
    group: int = attr(default=1)
    clip: tuple[float, float] = attr(default=NO_CLIP)

    def infer(self) -> Sequence[TensorType]:
        n, _, *size = self.x.type.shape
        o, _, *kernel = self.weight.type.shape
        spatial = tuple(
            window_size(size[i], kernel[i], self.strides[i], self.pads[i] + self.pads[2 + i], self.dilations[i])
            for i in range(2)
        )
        return [TensorType((n, o, *spatial), self.x.type.dtype)]

    def verify(self) -> None:
        x, w = self.x.type, self.weight.type
        self.require(x.rank == 4 and w.rank == 4, "C1", f"x is {x.shape}, weight is {w.shape}")
        fits = x.shape[1] % self.group == 0 and w.shape[0] % self.group == 0 and w.shape[1] * self.group == x.shape[1]
        self.require(fits, "C2", f"x has {x.shape[1]} channels, weight is {w.shape}, group is {self.group}")
        self.require(min(self.pads) >= 0, "C5", f"pads are {self.pads}")
        want, shape = self.infer()[0].shape, self.out.type.shape
        self.require(shape == want and min(want) > 0, "C3", f"result is {shape}, windows give {want}")
        if self.addend is not None:
            self.require(self.addend.type.shape == want, "C4", f"addend is {self.addend.type.shape}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x, w = given(operands[0]), given(operands[1])
        t, left, b, r = self.pads
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (t, b), (left, r)))
        o, cg, *kernel = w.shape
        n, _, *size = self.out.type.shape
        g = self.group
        acc = np.zeros((n, g, o // g, *size))
        for tap in taps(kernel):
            starts = [k * d for k, d in zip(tap, self.dilations, strict=True)]
            seen = strided(padded, starts, size, self.strides).reshape(n, g, cg, *size)
            at_tap = w[:, :, tap[0], tap[1]].reshape(g, o // g, cg)
            acc += np.einsum("ngchw,goc->ngohw", seen, at_tap.astype(np.float64))
        y = acc.reshape(self.out.type.shape)
        return [_finish(y, operands[2], operands[3], self.clip)]


@define_op("conv_transpose2d")
class ConvTranspose2d(Op):
    """2-D transposed convolution; x [N,C,H,W], weight [C,O/g,KH,KW], bias [O].

    (C1) ranks are 4.  (C2) `group` divides C, and weight has C rows.  (C3) the result has the inferred shape.
    """

    x: Value = operand()
    weight: Value = operand()
    bias: Value | None = operand(optional=True)
    strides: tuple[int, int] = attr(default=(1, 1))
    pads: tuple[int, int, int, int] = attr(default=(0, 0, 0, 0))
    dilations: tuple[int, int] = attr(default=(1, 1))
    output_padding: tuple[int, int] = attr(default=(0, 0))
    group: int = attr(default=1)
    clip: tuple[float, float] = attr(default=NO_CLIP)

    def infer(self) -> Sequence[TensorType]:
        n, _, *size = self.x.type.shape
        _, og, *kernel = self.weight.type.shape
        spatial = tuple(
            (size[i] - 1) * self.strides[i] + self.dilations[i] * (kernel[i] - 1) + 1
            + self.output_padding[i] - self.pads[i] - self.pads[2 + i]
            for i in range(2)
        )  # fmt: skip
        return [TensorType((n, og * self.group, *spatial), self.x.type.dtype)]

    def verify(self) -> None:
        x, w = self.x.type, self.weight.type
        self.require(x.rank == 4 and w.rank == 4, "C1", f"x is {x.shape}, weight is {w.shape}")
        self.require(x.shape[1] % self.group == 0 and w.shape[0] == x.shape[1], "C2", f"weight is {w.shape}")
        want, shape = self.infer()[0].shape, self.out.type.shape
        self.require(shape == want and min(want) > 0, "C3", f"result is {shape}, not {want}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x, w = given(operands[0]), given(operands[1])
        c, og, *kernel = w.shape
        n, _, *size = x.shape
        g = self.group
        full = [self.out.type.shape[2 + i] + self.pads[i] + self.pads[2 + i] for i in range(2)]
        acc = np.zeros((n, g * og, *full))
        seen = x.astype(np.float64).reshape(n, g, c // g, *size)
        for tap in taps(kernel):
            at_tap = w[:, :, tap[0], tap[1]].astype(np.float64)
            part = np.einsum("ngchw,gco->ngohw", seen, at_tap.reshape(g, c // g, og))
            starts = [k * d for k, d in zip(tap, self.dilations, strict=True)]
            strided(acc, starts, size, self.strides)[...] += part.reshape(n, g * og, *size)
        y = acc[:, :, self.pads[0] : full[0] - self.pads[2], self.pads[1] : full[1] - self.pads[3]]
        return [_finish(y, operands[2], None, self.clip)]


@define_op("linear")
class Linear(Op):
    """x · weightᵀ [+ bias] [+ addend] [clipped]; x […,K], weight [N,K], bias [N].

    (C1) weight has rank 2 and x's last size.  (C2) the result has the inferred shape.
    """

    x: Value = operand()
    weight: Value = operand()
    bias: Value | None = operand(optional=True)
    addend: Value | None = operand(optional=True)
    clip: tuple[float, float] = attr(default=NO_CLIP)

    def infer(self) -> Sequence[TensorType]:
        return [TensorType((*self.x.type.shape[:-1], self.weight.type.shape[0]), self.x.type.dtype)]

    def verify(self) -> None:
        w, x = self.weight.type, self.x.type
        fits = w.rank == 2 and x.rank >= 1 and w.shape[1] == x.shape[-1]
        self.require(fits, "C1", f"x is {x.shape}, weight is {w.shape}")
        self.require(self.out.type.shape == self.infer()[0].shape, "C2", f"result is {self.out.type.shape}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x, w, bias, addend = operands
        y = given(x).astype(np.float64) @ given(w).astype(np.float64).T
        if bias is not None:
            y = y + bias.astype(np.float64)
        return [_finish(y, None, addend, self.clip)]


@define_op("matmul")
class Matmul(Op):
    """Matrix product of two computed operands, batch axes broadcast (NumPy's rules, ranks of 2 and more) [clipped].

    (C1) the inner sizes agree.  (C2) the result has the inferred shape.
    """

    lhs: Value = operand()
    rhs: Value = operand()
    clip: tuple[float, float] = attr(default=NO_CLIP)

    def infer(self) -> Sequence[TensorType]:
        a, b = self.lhs.type.shape, self.rhs.type.shape
        batch = np.broadcast_shapes(a[:-2], b[:-2])
        return [TensorType((*batch, a[-2], b[-1]), self.lhs.type.dtype)]

    def verify(self) -> None:
        a, b = self.lhs.type.shape, self.rhs.type.shape
        self.require(len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2], "C1", f"{a} by {b}")
        self.require(self.out.type.shape == self.infer()[0].shape, "C2", f"result is {self.out.type.shape}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        lhs, rhs = (given(x).astype(np.float64) for x in operands)
        return [_finish(lhs @ rhs, None, None, self.clip)]


def _finish(y: np.ndarray, bias: np.ndarray | None, addend: np.ndarray | None, clip: tuple[float, float]) -> np.ndarray:
    if bias is not None:
        y = y + along_channels(bias.astype(np.float64), y.ndim)
    if addend is not None:
        y = y + addend.astype(np.float64)
    return np.clip(y, *clip).astype(np.float32)
