"""Bringing one stage's tensor into another's order of axes, and both into numbers that can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.ir.ops.quant import per_axis
from hbc_runtime.types import DType, Quant

from .measure import Distance, measure
from .stage import Place

Array = npt.NDArray[Any]
HALVES = {DType.U8: 128, DType.U16: 32768}  # how far a zero point lies above the one after the sign is flipped


@dataclass(frozen=True)
class Pair:
    """One tensor of the stage that is judged (`to`) and the tensor of the other stage that it is compared with.

    `quantum`: the step in the tensor's unit, or None where there is none.
    """

    to: Place
    source: Place
    quantum: float | None

    def oriented(self, want: Array, shape: tuple[int, ...]) -> Array | None:
        """`want` with its axes in the order of `to`, or None where it cannot be of this shape."""
        moved = self.to.channels_last != self.source.channels_last
        first, second = (_turned(want, last=self.to.channels_last), want)
        views = (first, second) if moved else (second, _turned(want, last=True), _turned(want, last=False))
        return next((v for v in views if v.shape == shape), None)

    def fitted(self, want: Array, like: Array) -> Array | None:
        """`want` as `to` would hold it: of `like`'s shape and dtype; None where that cannot be."""
        turned = self.oriented(want, like.shape)
        if turned is None:
            return None
        if self.to.quant is not None and like.dtype.kind in "iu":
            return _quantised(turned, self.source.quant, self.to.quant, like.dtype)
        if self.source.quant is not None and turned.dtype.kind in "iu" and like.dtype.kind == "f":
            return to_reals(turned, self.source.quant).astype(like.dtype)
        if turned.dtype.kind == like.dtype.kind or (turned.dtype.kind in "biu" and like.dtype.kind in "biu"):
            return np.ascontiguousarray(turned, like.dtype)
        return None

    def numbers(self, want: Array, got: Array) -> tuple[Array, Array, float]:
        """Both in one unit, and that unit: steps of the judged tensor's scale where it has one scale, else reals.

        `want` is oriented. In steps, tensors of one scale are compared as the integers that they are.
        """
        ours = self.to.quant if got.dtype.kind in "iu" else None
        theirs = self.source.quant if want.dtype.kind in "iu" else None
        if ours is None and theirs is None:
            return want, got, 1.0
        if ours is None or ours.axis is not None or len(ours.scale) != 1:
            return to_reals(want, theirs), to_reals(got, ours), 1.0
        steps = got.astype(np.float64) - ours.zero_point[0]
        if theirs is not None and theirs.scale == ours.scale and theirs.axis is None:
            return want.astype(np.float64) - theirs.zero_point[0], steps, ours.scale[0]
        return to_reals(want, theirs) / ours.scale[0], steps, ours.scale[0]

    def reals(self, want: Array, got: Array) -> tuple[Array, Array]:
        """Both as reals; `want` is oriented."""
        pairs = ((self.source.quant, want), (self.to.quant, got))
        first, second = (to_reals(a, q if a.dtype.kind in "iu" else None) for q, a in pairs)
        return first, second

    def outside(self, want: Array, got: Array) -> float | None:
        """The share of `want` (oriented) beyond what `got`'s integers can be; None where these have no one scale."""
        if got.dtype.kind not in "iu" or self.to.quant is None or self.to.quant.axis is not None or not want.size:
            return None
        a, _, _ = self.numbers(want, got)
        low, high = DType.of(got.dtype).limits
        zero_point = self.to.quant.zero_point[0]
        beyond = (a < low - zero_point - 0.5) | (a > high - zero_point + 0.5)
        return float(np.count_nonzero(beyond)) / want.size

    def distance(self, want: Array, got: Array) -> Distance:
        """How far `got`, of `to`, is from `want`, of the other stage and oriented."""
        a, b, unit = self.numbers(want, got)
        return measure(b, a, unit=unit, quantum=self.quantum)


def to_reals(q: Array, quant: Quant | None) -> Array:
    """`scale · (q − zero_point)` in float64; plain numbers stay as they are."""
    if quant is None:
        return q.astype(np.float64)
    scale, zero_point = _spread(quant, q.ndim)
    return np.asarray(scale * (q.astype(np.float64) - zero_point))


def _spread(quant: Quant, rank: int) -> tuple[Array, Array]:
    scale, zero_point = (per_axis(v, quant.axis, rank, np.float64) for v in (quant.scale, quant.zero_point))
    return scale, zero_point


def _turned(a: Array, *, last: bool) -> Array:
    """Channels moved behind the other axes (`last`), or from there in front of them."""
    if a.ndim < 3:
        return a
    return np.moveaxis(a, 1, -1) if last else np.moveaxis(a, -1, 1)


def _quantised(want: Array, theirs: Quant | None, ours: Quant, dtype: np.dtype[Any]) -> Array | None:
    if ours.axis is not None and ours.axis >= want.ndim:
        return None
    scale, zero_point = _spread(ours, want.ndim)
    if want.dtype.kind in "iu" and theirs is None:
        return None
    if theirs is not None and want.dtype.kind in "iu" and theirs.scale == ours.scale and theirs.axis == ours.axis:
        q = want.astype(np.float64) - _spread(theirs, want.ndim)[1] + zero_point
    else:
        q = np.rint(to_reals(want, theirs if want.dtype.kind in "iu" else None) / scale) + zero_point
    low, high = DType.of(dtype).limits
    return np.ascontiguousarray(np.clip(np.nan_to_num(q), low, high).astype(dtype))


def as_stored(dtype: DType, quant: Quant | None, theirs: np.dtype[Any]) -> Quant | None:
    """How ONNX Runtime's integers stand for reals: by our scales, the zero point moved back where we flip the sign."""
    if theirs.kind == "f" or quant is None:
        return None
    move = HALVES.get(DType.of(theirs), 0) - HALVES.get(dtype, 0)
    return Quant(quant.scale, tuple(z + move for z in quant.zero_point), quant.axis)
