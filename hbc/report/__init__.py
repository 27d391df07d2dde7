"""What a compilation came to: frozen values, read off the final module and the program; rendered elsewhere."""

from __future__ import annotations

from .constants import Constants, constant_operands, constant_rows
from .core import Report, source_nodes
from .nodes import layer_rows, node_rows
from .rows import (
    FOLDED,
    QUANT_NODES,
    ConstantRow,
    LayerRow,
    NodeRow,
    OutputRow,
    RequantizeRow,
    SegmentRow,
    StreamRow,
    TableRow,
    TensorRow,
)

__all__ = [
    "FOLDED",
    "QUANT_NODES",
    "ConstantRow",
    "Constants",
    "LayerRow",
    "NodeRow",
    "OutputRow",
    "Report",
    "RequantizeRow",
    "SegmentRow",
    "StreamRow",
    "TableRow",
    "TensorRow",
    "constant_operands",
    "constant_rows",
    "layer_rows",
    "node_rows",
    "source_nodes",
]
