"""Upsampling: nearest as index lists, bilinear as first position and step. Formulas as in PyTorch's UpSample kernels.

nearest        ⌊i · scale⌋            scale = 1 / scale_factor where one is given, else size / out; float32
nearest-exact  ⌊(i + 0.5) · scale⌋
bilinear       (i + 0.5) · scale − 0.5; with align_corners i · (size − 1) / (out − 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import GridSample, Linear, ResizeLinear

from ..onnx_ops.resize import resize_nearest
from ..onnx_weights import reshaped, transposed
from ..torch_calls import call_like, int64
from ..torch_node import Results, TorchNode
from .registry import torch_op
from .shape import whole


@torch_op("aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
          "aten::_upsample_nearest_exact1d", "aten::_upsample_nearest_exact2d")  # fmt: skip
def nearest(n: TorchNode) -> Results:
    """Each output element is one of the input's."""
    x = whole(n)
    factors, exact = _factors(n), "exact" in n.word
    lists = [np.arange(d) for d in x.type.shape[:2]]
    for size, out, factor in zip(x.type.shape[2:], n.result.shape[2:], factors, strict=True):
        scale = np.float32(1 / factor) if factor else np.float32(size) / np.float32(out)
        i = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
        lists.append(np.floor(i * scale).clip(0, size - 1).astype(np.int64))
    return resize_nearest(n, x, lists)


def _factors(n: TorchNode) -> list[float]:
    """The scale factor of each spatial axis; 0 where the output's size decides."""
    spatial = len(n.result.shape) - 2
    if n.has("scale_factors"):
        return [float(f) for f in n.arg("scale_factors")]
    names = ("scales_d", "scales_h", "scales_w")[-spatial:] if spatial > 1 else ("scales",)
    return [float(n.arg(name) or 0.0) for name in names]


@torch_op("aten::upsample_bilinear2d", "aten::upsample_linear1d")
def linear(n: TorchNode) -> Results:
    """Between the nearest two along each axis, rounded once."""
    x = n.real()
    sizes, outs = list(x.type.shape[2:]), list(n.result.shape[2:])
    lines = [_line(s, o, f, corners=n.flag("align_corners")) for s, o, f in zip(sizes, outs, _factors(n), strict=True)]
    if len(sizes) == 2:
        return _resized(n, x, outs, lines)
    lifted = reshaped(n, x, (*x.type.shape[:2], 1, *sizes))
    return reshaped(n, _resized(n, lifted, [1, *outs], [(0.0, 1.0), *lines]), n.result.shape)


def _resized(n: TorchNode, x: Value, outs: Sequence[int], lines: Sequence[tuple[float, float]]) -> Value:
    return n.op(ResizeLinear, x, size=tuple(outs), rows=lines[0], columns=lines[1])


def _line(size: int, out: int, factor: float, *, corners: bool) -> tuple[float, float]:
    """(first, step) of the source positions of one axis."""
    if corners:
        return 0.0, (size - 1) / (out - 1) if out > 1 else 0.0
    scale = 1 / factor if factor else size / out
    return 0.5 * scale - 0.5, scale


_MODES = ("linear", "nearest", "cubic")


@torch_op("aten::upsample_bicubic2d", "aten::upsample_trilinear3d")
def by_runtime(n: TorchNode) -> Results:
    """By cubic polynomials (a = −0.75), or linear along three axes. On the CPU."""
    x = n.real()
    kind = "cubic" if "cubic" in n.word else "linear"
    corners, factors = n.flag("align_corners"), _factors(n)
    mode = "align_corners" if corners else "half_pixel"
    scales = [f or o / s for f, s, o in zip(factors, x.type.shape[2:], n.result.shape[2:], strict=True)]
    if any(int(s * f) != o for s, f, o in zip(x.type.shape[2:], scales, n.result.shape[2:], strict=True)) or corners:
        operands = [x, None, None, int64(n, n.result.shape)]
    else:
        operands = [x, None, n.const(np.asarray([1, 1, *scales], np.float32))]
    reason = f"it resizes by {kind}" + (" along three axes" if kind == "linear" else "")
    return call_like(
        n, "Resize", operands, mode=kind, coordinate_transformation_mode=mode, cubic_coeff_a=-0.75,
        reason=reason, hint="resize by nearest or linear, along one or two axes",
    )  # fmt: skip


@torch_op("aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa")
def filtered(n: TorchNode) -> Results:
    """antialias=True: each axis is a product with the weights of its filter."""
    x = n.real()
    kernel, reach = (_cubic, 2.0) if "cubic" in n.word else (_triangle, 1.0)
    for axis, factor in zip((2, 3), _factors(n), strict=True):
        size, out = x.type.shape[axis], n.result.shape[axis]
        corners = n.flag("align_corners") and out > 1
        scale = (size - 1) / (out - 1) if corners else 1 / factor if factor else size / out
        weights = _filter(size, out, scale, kernel, reach)
        order = (0, 1, *((3, 2) if axis == 2 else (2, 3)))
        x = transposed(n, n.op(Linear, transposed(n, x, order), n.const(weights)), order)
    return x


def _filter(size: int, out: int, scale: float, kernel: Callable[[np.ndarray], np.ndarray], reach: float) -> np.ndarray:
    """[out, size] the weights of PyTorch's antialiased resize: `kernel`, stretched by `scale` where that shrinks."""
    stretch = max(scale, 1.0)
    centre = scale * (np.arange(out) + 0.5)
    first = np.maximum((centre - reach * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach * stretch + 0.5).astype(np.int64), size)
    i = np.arange(size)
    weights = kernel((i[None, :] - centre[:, None] + 0.5) / stretch)
    weights = np.where((i[None, :] >= first[:, None]) & (i[None, :] < last[:, None]), weights, 0.0)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0.0)


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys' cubic with a = −0.5, as Pillow has it."""
    x, a = np.abs(x), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


@torch_op("aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(n: TorchNode) -> Results:
    """Images read at computed positions: bilinear or nearest, beyond them zeros or the border; others on the CPU."""
    mode, padding = n.integer("interpolation_mode"), n.integer("padding_mode")
    corners = n.flag("align_corners")
    if len(n.shape(0)) != 4 or mode not in {0, 1} or padding not in {0, 1}:
        names = _MODES[mode], ("zeros", "border", "reflection")[padding]
        reason = f"it samples rank {len(n.shape(0))} by mode {names[0]}, padding {names[1]}"
        return call_like(
            n, "GridSample", [n.real(0), n.real(1)], mode=names[0], padding_mode=names[1], align_corners=int(corners),
            reason=reason, hint="sample images bilinearly or by the nearest pixel, with padding_mode zeros or border",
        )  # fmt: skip
    return n.op(GridSample, n.real(0), n.real(1), nearest=mode == 1, border=padding == 1, align_corners=corners)
