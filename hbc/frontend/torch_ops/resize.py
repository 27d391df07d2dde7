"""Upsampling: nearest as index lists, bilinear as first position and step. Formulas as in PyTorch's UpSample kernels.

nearest        ⌊i · scale⌋            scale = 1 / scale_factor where one is given, else size / out; float32
nearest-exact  ⌊(i + 0.5) · scale⌋
bilinear       (i + 0.5) · scale − 0.5; with align_corners i · (size − 1) / (out − 1)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import GridSample, ResizeLinear

from ..onnx_ops.resize import resize_nearest
from ..onnx_weights import reshaped
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


@torch_op("aten::grid_sampler", "aten::grid_sampler_2d")
def grid_sampler(n: TorchNode) -> Results:
    """Images read at computed positions: bilinear or nearest, beyond which lie zeros or the border."""
    mode, padding = n.integer("interpolation_mode"), n.integer("padding_mode")
    if len(n.shape(0)) != 4 or mode not in {0, 1} or padding not in {0, 1}:
        why = f"it samples rank {len(n.shape(0))} by mode {mode}, padding {padding}"
        raise n.refuse(why, "sample images bilinearly or by the nearest pixel, with padding_mode zeros or border")
    corners = n.flag("align_corners")
    return n.op(GridSample, n.real(0), n.real(1), nearest=mode == 1, border=padding == 1, align_corners=corners)
