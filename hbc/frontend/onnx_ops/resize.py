"""Resize and Upsample: nearest as index lists, linear as first position and step, cubic on the CPU.

Source positions of output index i (ONNX operator text, Resize-19; scale = output size / input size unless given):
    half_pixel            (i + 0.5) / scale − 0.5
    half_pixel_symmetric  the same about the input's centre, where scale·size is not whole
    pytorch_half_pixel    half_pixel, 0 where the output has one element
    align_corners         i · (size − 1) / (out − 1), 0 where the output has one element
    asymmetric            i / scale
    tf_half_pixel_for_nn  (i + 0.5) / scale
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import ResizeLinear, ResizeNearest
from hbc.ir.types import DType

from ..onnx_node import Node, Results
from ..onnx_weights import reshaped
from .registry import onnx_op

LONGEST = 1 << 16  # of a resized axis: index lists are attributes
_AFFINE = {
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
}


@dataclass(frozen=True)
class Axis:
    """One resized axis: sizes before and after, and the scale that positions are divided by (float32, as in files)."""

    size: int
    out: int
    scale: np.float32

    def positions(self, mode: str) -> np.ndarray:
        """Source position of every output index, in float32 as ONNX Runtime has it: ties decide nearest modes."""
        i, one = np.arange(self.out, dtype=np.float32), np.float32(1)
        half = (i + np.float32(0.5)) / self.scale - np.float32(0.5)
        if mode == "asymmetric":
            return i / self.scale
        if mode == "tf_half_pixel_for_nn":
            return (i + np.float32(0.5)) / self.scale
        if mode == "align_corners":
            return i * np.float32(self.size - 1) / np.float32(self.out - 1) if self.out > 1 else i * 0
        if mode == "pytorch_half_pixel" and self.out == 1:
            return i * 0
        if mode == "half_pixel_symmetric":
            adjustment = np.float32(self.out) / (self.scale * np.float32(self.size))
            return np.float32(self.size / 2) * (one - adjustment) + half
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
    """Nearest and linear along the last one or two of three or four axes; everything else on the CPU."""
    x = n.x(0)
    axes = _axes(n, x.type.shape)
    nearest = n.text("mode", "nearest") == "nearest"
    if axes is None or not _is_plain(n, nearest) or not _is_spatial(axes, x, nearest):
        return n.call()
    mode = n.text("coordinate_transformation_mode", "half_pixel") if n.version >= 11 else "asymmetric"
    flat = x.type.rank == 3
    if flat:
        a, b, size = x.type.shape
        x, axes = reshaped(n, x, (a, b, 1, size)), [axes[0], axes[1], Axis(1, 1, np.float32(1)), axes[2]]
    y = _nearest(n, x, axes[2:], mode) if nearest else _linear(n, x, axes[2:], mode)
    return reshaped(n, y, (y.type.shape[0], y.type.shape[1], y.type.shape[3])) if flat else y


def _nearest(n: Node, x: Value, axes: Sequence[Axis], mode: str) -> Value:
    rounding = n.text("nearest_mode", "round_prefer_floor") if n.version >= 11 else "simple"
    lists = []
    for a in axes:
        index = _rounded(a.positions(mode), rounding, shrinks=bool(a.scale < 1)).clip(0, a.size - 1).astype(np.int64)
        index = np.arange(a.size) if a.out == a.size and a.scale == 1 else index
        lists.append(tuple(int(i) for i in index))
    if all(i == tuple(range(a.size)) for i, a in zip(lists, axes, strict=True)):
        return x
    return n.op(ResizeNearest, x, rows=lists[0], columns=lists[1])


def _linear(n: Node, x: Value, axes: Sequence[Axis], mode: str) -> Value:
    lines = [(0.0, 1.0) if a.out == a.size and a.scale == 1 else a.line(mode) for a in axes]
    if all(line == (0.0, 1.0) and a.out == a.size for line, a in zip(lines, axes, strict=True)):
        return x
    return n.op(ResizeLinear, x, size=tuple(a.out for a in axes), rows=lines[0], columns=lines[1])


def _is_plain(n: Node, nearest: bool) -> bool:  # noqa: FBT001
    """True where mode, positions and rounding are among those of the docstring."""
    mode = n.text("mode", "nearest")
    coordinates = n.text("coordinate_transformation_mode", "half_pixel")
    rounding = n.text("nearest_mode", "round_prefer_floor")
    roundings = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}
    kind = (nearest and rounding in roundings) or mode in {"linear", "bilinear"}
    return kind and coordinates in _AFFINE and not n.integer("antialias")


def _is_spatial(axes: Sequence[Axis], x: Value, nearest: bool) -> bool:  # noqa: FBT001
    """True where batch and channels stay, and the dtype and quantisation suit the mode."""
    t = x.type
    keeps = len(axes) in {3, 4} and all(a.out == a.size and a.scale == 1 for a in axes[:2])
    suits = t.dtype is DType.F32 or (nearest and (t.quant is None or t.quant.axis in {None, 0, 1}))
    return keeps and suits and all(0 < a.out <= LONGEST and a.size > 0 for a in axes[2:])


def _axes(n: Node, shape: tuple[int, ...]) -> list[Axis] | None:
    """Every axis of the input; None where the sizes are computed at run time."""
    scales, sizes = _operands(n)
    if scales is None and sizes is None:
        return None
    named = n.ints("axes")
    places = list(range(len(shape))) if named is None else [a % len(shape) for a in named]
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
        return axes
    assert sizes is not None
    for place, (out, ratio) in zip(places, _fitted(n, [shape[p] for p in places], sizes), strict=True):
        axes[place] = Axis(shape[place], out, ratio)
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
