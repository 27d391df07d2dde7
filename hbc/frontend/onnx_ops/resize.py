"""Resize and Upsample: nearest as index lists along any axes, linear as first position and step along one or two axes.

Cubic, antialiased and linear along three axes run on the CPU: D10 rounds once, over four neighbours.

Source positions of output index i (ONNX operator text, Resize-19; scale = output size / input size unless given):
    half_pixel            (i + 0.5) / scale − 0.5
    half_pixel_symmetric  the same about the input's centre, where scale·size is not whole
    pytorch_half_pixel    half_pixel, 0 where the output has one element
    align_corners         i · (size − 1) / (out − 1), 0 where the output has one element
    asymmetric            i / scale
    tf_half_pixel_for_nn  (i + 0.5) / scale
    tf_crop_and_resize    from start·(size − 1) to end·(size − 1), in the middle where the output has one element
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import ResizeLinear, ResizeNearest
from hbc.ir.types import DType

from ..building import Building
from ..onnx_node import Node, Results
from ..onnx_weights import reshaped, transposed
from .pick import taken
from .reduce import normal_axes
from .registry import onnx_op

LONGEST = 1 << 16  # of a resized axis: index lists are attributes
_AFFINE = {
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
}
_ROUNDINGS = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}
_HINT = "resize by nearest or linear, along one or two axes"


@dataclass(frozen=True)
class Axis:
    """One axis: sizes before and after, the scale that positions are divided by (float32, as in files), its crop."""

    size: int
    out: int
    scale: np.float32
    start: np.float32 = np.float32(0)  # noqa: RUF009 - a value, not a call that makes a shared one
    end: np.float32 = np.float32(1)  # noqa: RUF009

    def keeps(self, mode: str) -> bool:
        """True where nothing along the axis moves."""
        whole = mode != "tf_crop_and_resize" or (float(self.start), float(self.end)) == (0.0, 1.0)
        return self.out == self.size and self.scale == 1 and whole

    def positions(self, mode: str) -> np.ndarray:
        """Source position of every output index, in float32 as ONNX Runtime has it: ties decide nearest modes."""
        i = np.arange(self.out, dtype=np.float32)
        half = (i + np.float32(0.5)) / self.scale - np.float32(0.5)
        if mode == "asymmetric":
            return i / self.scale
        if mode == "tf_half_pixel_for_nn":
            return (i + np.float32(0.5)) / self.scale
        if mode == "align_corners":
            return i * np.float32(self.size - 1) / np.float32(self.out - 1) if self.out > 1 else i * 0
        if mode == "tf_crop_and_resize":
            last = np.float32(self.size - 1)
            if self.out == 1:
                return i + np.float32(0.5) * (self.start + self.end) * last
            return self.start * last + i * (self.end - self.start) * last / np.float32(self.out - 1)
        if mode == "pytorch_half_pixel" and self.out == 1:
            return i * 0
        if mode == "half_pixel_symmetric":
            adjustment = np.float32(self.out) / (self.scale * np.float32(self.size))
            first, step = (1 - float(adjustment)) * self.size / 2 + 0.5 / float(self.scale) - 0.5, 1 / float(self.scale)
            return np.asarray(first + np.arange(self.out) * step, np.float32)
        return half

    def line(self, mode: str) -> tuple[float, float]:
        """(first, step) of the source positions, which are equally spaced in every mode."""
        scale, half = float(self.scale), 0.5 / float(self.scale) - 0.5
        if mode == "asymmetric":
            return 0.0, 1 / scale
        if mode == "tf_half_pixel_for_nn":
            return 0.5 / scale, 1 / scale
        if mode == "align_corners":
            return 0.0, (self.size - 1) / (self.out - 1) if self.out > 1 else 0.0
        if mode == "tf_crop_and_resize":
            first, last = (float(v) * (self.size - 1) for v in (self.start, self.end))
            return (first, (last - first) / (self.out - 1)) if self.out > 1 else ((first + last) / 2, 0.0)
        if mode == "pytorch_half_pixel" and self.out == 1:
            return 0.0, 0.0
        if mode == "half_pixel_symmetric":
            return self.size / 2 * (1 - self.out / (scale * self.size)) + half, 1 / scale
        return half, 1 / scale


def _rounded(p: np.ndarray, mode: str, *, shrinks: bool) -> np.ndarray:
    if mode == "simple":  # Upsample and Resize-10, which don't name a rounding: ONNX Runtime's
        return np.ceil(p) if shrinks else np.trunc(p)
    if mode == "round_prefer_floor":
        return np.ceil(p - np.float32(0.5))
    if mode == "round_prefer_ceil":
        return np.floor(p + np.float32(0.5))
    return np.ceil(p) if mode == "ceil" else np.floor(p)


@onnx_op("Upsample", "Resize")
def resize(n: Node) -> Results:
    """Nearest along any axes, linear along one or two; everything else on the CPU."""
    x = n.x(0)
    axes = _axes(n, x.type.shape)
    if axes is None:
        return n.call(reason="its sizes are computed at run time", hint="export with static shapes")
    mode = n.text("coordinate_transformation_mode", "half_pixel") if n.version >= 11 else "asymmetric"
    nearest = n.text("mode", "nearest") == "nearest"
    refused = _refusal(n, axes, mode, nearest=nearest)
    if refused:
        return n.call(reason=refused, hint=_HINT)
    if nearest:
        return _nearest(n, x, axes, mode)
    return n.call() if x.type.dtype is not DType.F32 else resize_linear(n, x, axes, mode)


def _refusal(n: Node, axes: Sequence[Axis], mode: str, *, nearest: bool) -> str:
    """Why the node runs on the CPU; empty where it doesn't."""
    kind, rounding = n.text("mode", "nearest"), n.text("nearest_mode", "round_prefer_floor")
    if mode not in _AFFINE or (nearest and rounding not in _ROUNDINGS) or kind not in {"nearest", "linear", "bilinear"}:
        return f"it resizes by {kind}, {mode}"
    if n.integer("antialias"):
        return "it filters what it shrinks (antialias)"
    if any(not 0 < a.out <= LONGEST or a.size < 1 for a in axes):
        return f"an axis becomes {max(a.out for a in axes)} long, or is empty"
    if mode == "tf_crop_and_resize" and any(not _stays_inside(a, mode) for a in axes):
        return "it reads outside its input (extrapolation_value)"
    moved = sum(not a.keeps(mode) for a in axes)
    if not nearest and moved > 2:
        return f"it interpolates along {moved} axes and rounds once"
    return ""


def _stays_inside(axis: Axis, mode: str) -> bool:
    positions = axis.positions(mode)
    return bool(positions.min() >= 0 and positions.max() <= axis.size - 1)


def _nearest(n: Node, x: Value, axes: Sequence[Axis], mode: str) -> Value:
    rounding = n.text("nearest_mode", "round_prefer_floor") if n.version >= 11 else "simple"
    lists = []
    for a in axes:
        index = _rounded(a.positions(mode), rounding, shrinks=bool(a.scale < 1)).clip(0, a.size - 1).astype(np.int64)
        lists.append(np.arange(a.size) if a.keeps(mode) else index)
    return resize_nearest(n, x, lists)


def resize_nearest(n: Building, x: Value, lists: Sequence[np.ndarray]) -> Value:
    """resize_nearest over H and W, or a gather per axis where others are resized; `lists`: sources by index."""
    moved = [i for i, size in enumerate(x.type.shape) if not np.array_equal(lists[i], np.arange(size))]
    quant = x.type.quant
    if x.type.rank == 4 and moved and min(moved) >= 2 and (quant is None or quant.axis in {None, 0, 1}):
        rows, columns = (tuple(int(i) for i in index) for index in lists[2:])
        return n.op(ResizeNearest, x, rows=rows, columns=columns)
    for i in moved:
        x = taken(n, x, i, lists[i])
    return x


def resize_linear(n: Building, x: Value, axes: Sequence[Axis], mode: str) -> Value:
    """resize_linear over the last two of four axes, which every case is brought to."""
    moved = [i for i, a in enumerate(axes) if not a.keeps(mode)]
    rank, shape = x.type.rank, x.type.shape
    if not moved:
        return x
    if rank == 4 and min(moved) >= 2:
        return _interpolated(n, x, axes[2:], mode)
    result = [a.out for a in axes]
    if len(moved) == 1:
        (i,) = moved
        after = math.prod(shape[i + 1 :])
        lifted = reshaped(n, x, (1, math.prod(shape[:i]), shape[i], after))
        return reshaped(n, _interpolated(n, lifted, [axes[i], Axis(after, after, np.float32(1))], mode), tuple(result))
    order = (*(i for i in range(rank) if i not in moved), *moved)
    lead = tuple(shape[i] for i in order[:-2])
    planes = reshaped(n, transposed(n, x, order), (1, math.prod(lead), *(shape[i] for i in moved)))
    y = _interpolated(n, planes, [axes[i] for i in moved], mode)
    y = reshaped(n, y, (*lead, *(result[i] for i in moved)))
    return transposed(n, y, tuple(order.index(i) for i in range(rank)))


def _interpolated(n: Building, x: Value, axes: Sequence[Axis], mode: str) -> Value:
    """x [N,C,H,W] resized along H and W."""
    rows, columns = ((0.0, 1.0) if a.keeps(mode) else a.line(mode) for a in axes)
    return n.op(ResizeLinear, x, size=tuple(a.out for a in axes), rows=rows, columns=columns)


def _axes(n: Node, shape: tuple[int, ...]) -> list[Axis] | None:
    """Every axis of the input; None where the sizes are computed at run time."""
    scales, sizes = _operands(n)
    if scales is None and sizes is None:
        return None
    named = n.ints("axes")
    places = list(range(len(shape))) if named is None else [a % len(shape) for a in named]
    if named is not None:
        normal_axes(n, named, len(shape))
    count = len(scales) if scales is not None else len(sizes or ())
    if len(places) != count:
        raise n.fail(
            "scales or sizes don't fit the input", why=f"the input has rank {len(shape)}", hint="export the model again"
        )
    axes = [Axis(d, d, np.float32(1)) for d in shape]
    if scales is not None:
        for place, scale in zip(places, scales, strict=True):
            if not (math.isfinite(scale) and 0 < scale <= LONGEST):
                raise n.fail(f"the scale {scale} is no positive number", hint="export the model again")
            axes[place] = Axis(
                shape[place], math.floor(np.float32(shape[place]) * np.float32(scale)), np.float32(scale)
            )
        return _cropped(n, axes, places)
    assert sizes is not None
    for place, (out, ratio) in zip(places, _fitted(n, [shape[p] for p in places], sizes), strict=True):
        axes[place] = Axis(shape[place], out, ratio)
    return _cropped(n, axes, places)


def _cropped(n: Node, axes: list[Axis], places: Sequence[int]) -> list[Axis] | None:
    """The axes with their part of `roi`; None where that is computed at run time."""
    if n.text("coordinate_transformation_mode") != "tf_crop_and_resize":
        return axes
    roi = n.array(1) if n.has(1) else None
    if roi is None:
        return None
    if roi.size != 2 * len(places) or not np.isfinite(roi).all():
        raise n.fail("the operand roi doesn't fit the axes", why=f"{roi.size} entries for {len(places)} axes")
    starts, ends = roi.astype(np.float32).reshape(2, -1)
    for place, start, end in zip(places, starts, ends, strict=True):
        axes[place] = replace(axes[place], start=start, end=end)
    return axes


def _operands(n: Node) -> tuple[tuple[float, ...] | None, tuple[int, ...] | None]:
    """(scales, sizes), where they are known: one of them is not None."""
    if n.op_type == "Upsample" and n.version < 9:
        return n.floats("scales"), None
    at = 1 if n.version < 11 else 2
    if n.has(at):
        array = n.array(at)
        if array is None or array.size:
            return None if array is None else tuple(float(s) for s in array.reshape(-1)), None
    return None, n.known_integers(3) if n.has(3) else None


def _fitted(n: Node, before: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, np.float32]]:
    """(size, scale) per axis under `keep_aspect_ratio_policy`."""
    if min(before, default=1) < 1 or min(sizes, default=1) < 1:
        raise n.fail(f"sizes {list(sizes)} of {list(before)}", why="a resized axis has at least one element")
    policy = n.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [(s, np.float32(s) / np.float32(d)) for d, s in zip(before, sizes, strict=True)]
    pick = min if policy == "not_larger" else max
    scale = pick(s / d for d, s in zip(before, sizes, strict=True))
    return [(math.floor(d * scale + 0.5), np.float32(scale)) for d in before]
