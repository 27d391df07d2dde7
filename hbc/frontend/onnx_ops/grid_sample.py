"""GridSample."""

from __future__ import annotations

from hbc.ir.ops import GridSample

from ..onnx_node import Node, Results
from .registry import onnx_op

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
    return n.op(GridSample, x, grid, nearest=MODES[mode], border=padding == "border", align_corners=align)
