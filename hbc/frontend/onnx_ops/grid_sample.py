"""GridSample."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import Add, GridSample, Mul

from ..onnx_node import Node, Results, known_value
from .registry import onnx_op

CLOSE = 2.0**-22  # two roundings of float32, relative to 1
MODES = {"bilinear": False, "linear": False, "nearest": True}  # opset 20 says linear; the value: does it round


@onnx_op("GridSample")
def grid_sample(n: Node) -> Results:
    """Bilinear and nearest reading of images, beyond which lie zeros or the border; other forms run on the CPU."""
    x, grid = n.x(0), n.x(1)
    mode, padding = n.text("mode", "bilinear" if n.version < 20 else "linear"), n.text("padding_mode", "zeros")
    hint = "sample images bilinearly or by the nearest pixel, with padding_mode zeros or border"
    if n.reals() is None:
        return n.call()
    if x.type.rank != 4:
        return n.call(reason=f"it samples tensors of rank {x.type.rank}", hint=hint)
    if mode not in MODES or padding not in {"zeros", "border"}:
        return n.call(reason=f"its mode is {mode}, its padding_mode {padding}", hint=hint)
    align = bool(n.integer("align_corners"))
    nearest, border = MODES[mode], padding == "border"
    pixels = None if align else _pixels(grid, x.type.shape[2:])
    if pixels is not None:
        return n.op(GridSample, x, pixels, nearest=nearest, border=border, pixels=True)
    return n.op(GridSample, x, grid, nearest=nearest, border=border, align_corners=align)


def _pixels(grid: Value, sizes: tuple[int, ...]) -> Value | None:
    """p where the grid is `p · 2 / size + 1 / size − 1`, constants of (column, row): positions in pixels."""
    added = grid.defined_by(Add)
    scaled = None if added is None else added.lhs.defined_by(Mul)
    if added is None or scaled is None:
        return None
    size = np.array(sizes[::-1], np.float64)
    for value, wanted in ((scaled.rhs, 2 / size), (added.rhs, 1 / size - 1)):
        constant = known_value(value)
        if constant is None or constant.shape != (2,) or not np.allclose(constant, wanted, rtol=CLOSE, atol=CLOSE):
            return None
    return scaled.lhs
