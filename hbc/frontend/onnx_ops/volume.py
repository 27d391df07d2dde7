"""Convolutions and pools of three spatial axes, as exact arrangements of 2-D ones: one rounding, as the 3-D op has.

A convolution sums over the taps of its depth as it sums over channels: the planes that a window sees become channels
of one image per output depth (decision 12).

    x [N,C,D,H,W] → gather OD·KD planes → [N·OD, C·KD, H, W] → conv2d, weight [O, C/g·KD, KH, KW] → [N,O,OD,OH,OW]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import (
    AvgPool,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Dequantize,
    MaxPool,
    Move,
    Pad,
    Pool,
    Reshape,
    Transpose,
)
from hbc.ir.types import TensorType

from ..building import Building
from ..onnx_weights import reshaped, transposed
from .pick import GATHER_LIMIT, taken
from .window import Window

OUTSIDE = -1  # in a table of positions


def is_integral(value: Value) -> bool:
    """True for reals that stand for integers: dequantised, then moved, pooled or limited at most."""
    while isinstance(value.op, (Move, Pool, Clip)):
        value = value.op.x
    return isinstance(value.op, Dequantize)


def window_table(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> np.ndarray:
    """[out, kernel] the position that each tap of each window reads, or OUTSIDE."""
    positions = np.arange(out)[:, None] * stride - pad + np.arange(kernel)[None, :] * dilation
    return np.where((positions >= 0) & (positions < size), positions, OUTSIDE)


def scatter_table(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> np.ndarray:
    """[out, kernel] the position of a transposed convolution's operand that reaches an output by a tap, or OUTSIDE."""
    reach = np.arange(out)[:, None] + pad - np.arange(kernel)[None, :] * dilation
    positions = reach // stride
    inside = (reach % stride == 0) & (positions >= 0) & (positions < size)
    return np.where(inside, positions, OUTSIDE)


def convolve_volume(n: Building, x: Value, weight: Value, bias: Value | None, w: Window, group: int) -> Value:
    """conv of x [N,C,D,H,W] by weight [O,C/g,KD,KH,KW] → [N,O,OD,OH,OW]; pads are not negative."""
    o, cg, kd, kh, kw = weight.type.shape
    table = window_table(x.type.shape[2], w.count(0, x.type.shape[2], n), kd, w.strides[0], w.pads[0], w.dilations[0])
    flat = w.planes()
    images = _images(n, x, table)
    kernel = reshaped(n, weight, (o, cg * kd, kh, kw))
    y = n.op(Conv2d, images, kernel, bias, strides=flat.strides, pads=flat.pads, dilations=flat.dilations, group=group)
    return _volumes(n, y, len(table))


def convolve_transposed_volume(
    n: Building, x: Value, weight: Value, bias: Value | None, w: Window, extra: Sequence[int], group: int
) -> Value:
    """conv_transpose of x [N,C,D,H,W] by weight [C,O/g,KD,KH,KW] → [N,O,OD,OH,OW]; pads are not negative."""
    c, og, kd, kh, kw = weight.type.shape
    depth = x.type.shape[2]
    out = (depth - 1) * w.strides[0] + w.dilations[0] * (kd - 1) + 1 + extra[0] - w.pads[0] - w.pads[3]
    if out < 1:
        raise n.fail("the pads leave nothing of the result", why=f"pads {list(w.pads)}, depth {depth}")
    table = scatter_table(depth, out, kd, w.strides[0], w.pads[0], w.dilations[0])
    flat = w.planes()
    kernel = reshaped(n, transposed(n, weight, (0, 2, 1, 3, 4)), (c * kd, og, kh, kw))
    y = n.op(
        ConvTranspose2d, _images(n, x, table), kernel, bias, strides=flat.strides, pads=flat.pads,
        dilations=flat.dilations, output_padding=tuple(extra[1:]), group=group,
    )  # fmt: skip
    return _volumes(n, y, out)


def _images(n: Building, x: Value, table: np.ndarray) -> Value:
    """[N,C,D,H,W] → [N·OD, C·KD, H, W]: for each row of `table` its planes as channels, a group's side by side."""
    count, c, _, h, w = x.type.shape
    out, taps = table.shape
    planes = picked(n, x, 2, table.reshape(-1))
    windows = reshaped(n, planes, (count, c, out, taps, h, w))
    if out > 1:
        windows = n.op(Transpose, windows, perm=(0, 2, 1, 3, 4, 5))
    return reshaped(n, windows, (count * out, c * taps, h, w))


def _volumes(n: Building, y: Value, depth: int) -> Value:
    """[N·OD, O, OH, OW] → [N, O, OD, OH, OW]."""
    count, *image = y.type.shape
    stacked = n.op(Reshape, y, shape=(count // depth, depth, *image))
    return n.op(Transpose, stacked, perm=(0, 2, 1, 3, 4))


def picked(n: Building, x: Value, axis: int, indices: np.ndarray) -> Value:
    """x at `indices` along `axis`, zeros where one is OUTSIDE."""
    if indices.size > GATHER_LIMIT:
        raise n.fail(f"its windows read {indices.size} planes", why=f"at most {GATHER_LIMIT} are taken apart")
    size, rank = x.type.shape[axis], x.type.rank
    if (indices == OUTSIDE).any():
        pads = tuple(int(i == rank + axis) for i in range(2 * rank))
        x = n.op(Pad, x, pads=pads)
        indices = np.where(indices == OUTSIDE, size, indices)
    return taken(n, x, axis, indices)


# ---- pools


def max_volume(n: Building, x: Value, w: Window, counts: Sequence[int]) -> Value:
    """The largest of each box: of its planes first (all depths as channels), then along the depth."""
    count, c, d, h, wd = x.type.shape
    od, oh, ow = counts
    flat = w.planes()
    planes = _pooled(n, reshaped(n, x, (count, c * d, h, wd)), (oh, ow), flat)
    columns = reshaped(n, planes, (count, c, d, oh * ow))
    deep = Window((w.kernel[0], 1), (w.strides[0], 1), (w.pads[0], 0, w.pads[3], 0), (w.dilations[0], 1))
    return reshaped(n, _pooled(n, columns, (od, oh * ow), deep), (count, c, od, oh, ow))


def _pooled(n: Building, x: Value, counts: tuple[int, int], w: Window) -> Value:
    t = TensorType((*x.type.shape[:2], *counts), x.type.dtype, x.type.quant)
    return n.op(MaxPool, x, type=t, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations)


def average_volume(n: Building, x: Value, w: Window, counts: Sequence[int], *, include_pad: bool) -> Value | None:
    """The mean of each box: its KD·KH rows side by side, as one window of an avg_pool.

    None where windows count differently along more than one axis: rows that count and rows that don't would be one
    window then. That axis becomes the last one, whose counts avg_pool knows.
    """
    uneven = [i for i in range(3) if not _is_even(x.type.shape[2 + i], counts[i], w, i, include_pad=include_pad)]
    if len(uneven) > 1:
        return None
    last = uneven[0] if uneven else 2
    order = (*(i for i in range(3) if i != last), last)
    x = transposed(n, x, (0, 1, *(2 + i for i in order)))
    y = _averaged(n, x, w.ordered(order), [counts[i] for i in order], include_pad=include_pad)
    return None if y is None else transposed(n, y, (0, 1, *(2 + order.index(i) for i in range(3))))


def _is_even(size: int, count: int, w: Window, axis: int, *, include_pad: bool) -> bool:
    """True where every position of every window counts: inside the input, or with `include_pad` in its pads."""
    begin, end = w.pads[axis], w.pads[3 + axis]
    reach = (count - 1) * w.strides[axis] + w.dilations[axis] * (w.kernel[axis] - 1) - begin
    return reach < size + end if include_pad else begin == 0 and reach < size


def _averaged(n: Building, x: Value, w: Window, counts: Sequence[int], *, include_pad: bool) -> Value | None:
    """average_volume where all positions along the first two axes count."""
    count, c, d, h, wd = x.type.shape
    tables = [
        window_table(size, counts[i], w.kernel[i], w.strides[i], w.pads[i], w.dilations[i])
        for i, size in enumerate((d, h))
    ]
    deep, high = tables[0][:, None, :, None], tables[1][None, :, None, :]  # [OD, OH, KD, KH]
    rows = np.where((deep == OUTSIDE) | (high == OUTSIDE), OUTSIDE, deep * h + high).reshape(-1)
    if rows.size > GATHER_LIMIT:
        return None
    taps = w.kernel[0] * w.kernel[1]
    seen = picked(n, reshaped(n, x, (count, c, d * h, wd)), 2, rows)
    t = TensorType((count, c, counts[0] * counts[1], counts[2]), x.type.dtype, x.type.quant)
    y = n.op(
        AvgPool, seen, type=t, kernel=(taps, w.kernel[2]), strides=(taps, w.strides[2]),
        pads=(0, w.pads[2], 0, w.pads[5]), dilations=(1, w.dilations[2]), count_include_pad=include_pad,
    )  # fmt: skip
    return reshaped(n, y, (count, c, *counts))
