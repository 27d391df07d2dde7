"""Pooling over windows of [N,C,H,W], and reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from hbc_runtime.isa import windows_touch

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType
from .shapes import given, strided, taps, window_size


class Pool(Op):
    """Base of the pools. The result's shape is given, so that every rounding mode of the window count has one form.

    (C1) rank is 4.  (C2) the result keeps batch and channels.  (C3) every window meets the input.
    """

    x: Value = operand()
    kernel: tuple[int, int] = attr()
    strides: tuple[int, int] = attr(default=(1, 1))
    pads: tuple[int, int, int, int] = attr(default=(0, 0, 0, 0))
    dilations: tuple[int, int] = attr(default=(1, 1))

    def infer(self) -> Sequence[TensorType]:
        n, c, *size = self.x.type.shape
        spatial = tuple(
            window_size(size[i], self.kernel[i], self.strides[i], self.pads[i] + self.pads[2 + i], self.dilations[i])
            for i in range(2)
        )
        return [TensorType((n, c, *spatial), self.x.type.dtype, self.x.type.quant)]

    def verify(self) -> None:
        x, y = self.x.type.shape, self.out.type.shape
        self.require(len(x) == 4, "C1", f"x is {x}")
        self.require(x[:2] == y[:2], "C2", f"{x} to {y}")
        for i in range(2):
            window = self.kernel[i], self.strides[i], self.pads[i], self.dilations[i]
            self.require(y[2 + i] >= 1 and windows_touch(x[2 + i], y[2 + i], *window), "C3", f"{x} to {y}")

    def windows(self, x: np.ndarray, fill: float) -> np.ndarray:
        """[K, N, C, OH, OW]: the padded input seen by every tap of the kernel."""
        oh, ow = self.out.type.shape[2:]
        rows = zip((oh, ow), self.strides, self.dilations, self.kernel, strict=True)
        need = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in rows]
        grow = [max(0, n - p - size) for n, p, size in zip(need, self.pads, x.shape[2:], strict=False)]
        padded = np.pad(x, ((0, 0), (0, 0), (self.pads[0], grow[0]), (self.pads[1], grow[1])), constant_values=fill)
        starts = ([k * d for k, d in zip(tap, self.dilations, strict=True)] for tap in taps(self.kernel))
        return np.stack([strided(padded, s, (oh, ow), self.strides) for s in starts])


@define_op("max_pool")
class MaxPool(Pool):
    """The largest value of each window; positions outside don't count."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0])
        fill = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return [self.windows(x, fill).max(axis=0)]


@define_op("avg_pool")
class AvgPool(Pool):
    """The mean of each window: over inside positions, or with `count_include_pad` over inside and padded ones."""

    count_include_pad: bool = attr(default=False)

    def counts(self) -> np.ndarray:
        """[OH, OW] float64: how many positions each window counts. Beyond input and pads (ceil mode) nothing counts."""
        _, _, h, w = self.x.type.shape
        ones = np.ones((1, 1, h, w))
        if not self.count_include_pad:
            return self.windows(ones, 0.0).sum(axis=0)[0, 0]
        per_axis = []
        for i, size in enumerate((h, w)):
            start = np.arange(self.out.type.shape[2 + i])[:, None] * self.strides[i] - self.pads[i]
            position = start + np.arange(self.kernel[i])[None, :] * self.dilations[i]
            per_axis.append(((position >= -self.pads[i]) & (position < size + self.pads[2 + i])).sum(axis=1))
        return np.outer(per_axis[0], per_axis[1]).astype(np.float64)

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0])
        return [(self.windows(x.astype(np.float64), 0.0).sum(axis=0) / self.counts()).astype(np.float32)]


class Reduce(Op):
    """Base of the reductions; `axes` are not negative.

    (C1) axes are distinct axes of `x`.
    """

    FUNCTION: ClassVar[Callable[..., np.ndarray]]  # on float64, or on plain integers

    x: Value = operand()
    axes: tuple[int, ...] = attr()
    keepdims: bool = attr(default=True)

    def infer(self) -> Sequence[TensorType]:
        shape = self.x.type.shape
        kept = tuple(1 if i in self.axes else d for i, d in enumerate(shape) if self.keepdims or i not in self.axes)
        return [TensorType(kept, self.x.type.dtype, self.x.type.quant)]

    def verify(self) -> None:
        ok = len(set(self.axes)) == len(self.axes) and all(0 <= a < self.x.type.rank for a in self.axes)
        self.require(ok, "C1", f"axes {self.axes} of {self.x.type.shape}")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0])
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        y = type(self).FUNCTION(wide, axis=self.axes, keepdims=self.keepdims)
        return [y.astype(self.out.type.dtype.numpy)]


@define_op("reduce_mean")
class ReduceMean(Reduce):
    """Mean over `axes`."""

    FUNCTION = np.mean


@define_op("reduce_sum")
class ReduceSum(Reduce):
    """Sum over `axes`."""

    FUNCTION = np.sum


@define_op("reduce_max")
class ReduceMax(Reduce):
    """Largest value over `axes`."""

    FUNCTION = np.max


@define_op("reduce_min")
class ReduceMin(Reduce):
    """Smallest value over `axes`."""

    FUNCTION = np.min
