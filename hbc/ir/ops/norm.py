"""Softmax and the normalisations: ops on reals that `decompose` turns into their parts on integers (NUMERICS 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core import Op, Value
from ..define import attr, define_op, operand
from ..semantics import Semantics
from ..types import TensorType
from .shapes import along_channels, broadcast, given


class Composite(Op):
    """Base of the ops that have no instruction of their own; the result has the operand's shape."""

    x: Value = operand()

    def infer(self) -> Sequence[TensorType]:
        return [TensorType(self.x.type.shape, self.x.type.dtype)]


class AlongAxis(Composite):
    """Base of the softmaxes.

    (C1) `axis` is one of `x`'s, counted from the front.
    """

    axis: int = attr()

    def verify(self) -> None:
        self.require(0 <= self.axis < self.x.type.rank, "C1", f"axis {self.axis} of {self.x.type.shape}")


def _below_maximum(x: np.ndarray, axis: int) -> np.ndarray:
    return x - x.max(axis=axis, keepdims=True) if x.size else x


@define_op("softmax")
class Softmax(AlongAxis):
    """eˣ / Σ eˣ along `axis`."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            e = np.exp(_below_maximum(given(operands[0]).astype(np.float64), self.axis))
            return [(e / e.sum(axis=self.axis, keepdims=True)).astype(np.float32)]


@define_op("log_softmax")
class LogSoftmax(AlongAxis):
    """x − log Σ eˣ along `axis`."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            d = _below_maximum(given(operands[0]).astype(np.float64), self.axis)
            return [(d - np.log(np.exp(d).sum(axis=self.axis, keepdims=True))).astype(np.float32)]


class AffineNorm(Composite):
    """Base of the normalisations: `scale` and `bias`, where given, multiply and add to the normalised values."""

    scale: Value | None = operand(optional=True)
    bias: Value | None = operand(optional=True)


class OverAxes(AffineNorm):
    """Base of the normalisations over `axes`, each row of which has a mean and a variance of its own.

    (C1) axes are distinct axes of `x`, at least one.  (C2) `scale` and `bias` broadcast to `x`'s shape.
    """

    axes: tuple[int, ...] = attr()
    epsilon: float = attr(default=1e-5)

    def verify(self) -> None:
        shape = self.x.type.shape
        ok = len(set(self.axes)) == len(self.axes) >= 1 and all(0 <= a < len(shape) for a in self.axes)
        self.require(ok, "C1", f"axes {self.axes} of {shape}")
        for value in (self.scale, self.bias):
            fits = value is None or fits_into(value.type.shape, shape)
            self.require(fits, "C2", f"{None if value is None else value.type.shape} beside {shape}")

    def affine(self, y: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
        """y · scale + bias."""
        y = y if scale is None else y * scale.astype(np.float64)
        return (y if bias is None else y + bias.astype(np.float64)).astype(np.float32)


@define_op("layer_norm")
class LayerNorm(OverAxes):
    """(x − mean) / √(variance + epsilon) over `axes`, then · scale + bias."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0]).astype(np.float64)
        return [self.affine(standardised(x, tuple(self.axes), self.epsilon), operands[1], operands[2])]


@define_op("rms_norm")
class RmsNorm(OverAxes):
    """x / √(mean of x² + epsilon) over `axes`, then · scale + bias."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0]).astype(np.float64)
        with np.errstate(all="ignore"):
            mean_square = np.mean(x * x, axis=tuple(self.axes), keepdims=True)
            return [self.affine(x / np.sqrt(mean_square + self.epsilon), operands[1], operands[2])]


class PerChannel(AffineNorm):
    """Base of the normalisations with one scale and one bias per channel.

    (C1) `x` has at least 3 axes.  (C2) `scale` and `bias` have one entry per channel (axis 1).
    """

    epsilon: float = attr(default=1e-5)

    def verify(self) -> None:
        shape = self.x.type.shape
        self.require(len(shape) >= 3, "C1", f"x is {shape}")
        for value in (self.scale, self.bias):
            fits = value is None or value.type.shape == (shape[1],)
            self.require(fits, "C2", f"{None if value is None else value.type.shape} beside {shape}")

    def per_channel(self, y: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
        """y · scale + bias along axis 1."""
        y = y if scale is None else y * along_channels(scale.astype(np.float64), y.ndim)
        return (y if bias is None else y + along_channels(bias.astype(np.float64), y.ndim)).astype(np.float32)


@define_op("instance_norm")
class InstanceNorm(PerChannel):
    """Each channel of each sample by its own mean and variance, then · scale + bias per channel."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0]).astype(np.float64)
        return [self.per_channel(standardised(x, tuple(range(2, x.ndim)), self.epsilon), operands[1], operands[2])]


@define_op("group_norm")
class GroupNorm(PerChannel):
    """Each group of channels of each sample by its own mean and variance, then · scale + bias per channel.

    (C3) `groups` divides the channels.
    """

    groups: int = attr()

    def verify(self) -> None:
        super().verify()
        channels = self.x.type.shape[1]
        self.require(self.groups >= 1 and channels % self.groups == 0, "C3", f"{self.groups} of {channels} channels")

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        x = given(operands[0]).astype(np.float64)
        rows = x.reshape(grouped(x.shape, self.groups))
        y = standardised(rows, (2,), self.epsilon).reshape(x.shape)
        return [self.per_channel(y, operands[1], operands[2])]


def grouped(shape: tuple[int, ...], groups: int) -> tuple[int, int, int]:
    """[N, C, …] as [N, groups, everything of a group]."""
    return (shape[0], groups, math.prod(shape[1:]) // groups)


def fits_into(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """True where a tensor of `shape` broadcasts to `target` without making it larger."""
    try:
        return broadcast(shape, target) == target
    except ValueError:
        return False


def standardised(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    """(x − mean) / √(variance + epsilon) over `axes`."""
    with np.errstate(all="ignore"):
        d = x - x.mean(axis=axes, keepdims=True)
        return np.asarray(d / np.sqrt(np.mean(d * d, axis=axes, keepdims=True) + epsilon))
