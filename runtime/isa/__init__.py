"""The instruction set: one frozen class per opcode, with its operands, attributes and constraints.

An instruction names its tensors by index; a missing optional operand is −1. Attributes are dataclass fields of type
int, float, str, bool, an IntEnum, or a tuple of ints or floats: the container stores them by name, the IR's `bpu.*` ops
are made from them, the reference (`reference/`) and the JIT (`jit/kernels/`) are registered by class.

Activations of spatial ops are NHWC. `check` raises ValueError naming the constraint that is broken; everything that
passes it can be executed without reading or writing out of bounds.
"""

from __future__ import annotations

from . import border, elementwise, move, sample, select, weighted, window
from .base import (
    F32_MAX,
    INT_ACT,
    INT_OUT,
    MAX_WINDOW,
    Instruction,
    Opcode,
    Requantizing,
    Rounding,
    Scheme,
    Shaped,
    arity,
    require,
)
from .border import Dequantize, FlipSign, Quantize, Requantize
from .elementwise import Add, Clamp, Lut, Maximum, Minimum, Mul, SegmentLut
from .move import Concat, Expand, Gather, Pad, Reshape, ResizeBilinear, ResizeNearest, Slice, Transpose
from .sample import GridSample
from .select import ArgMax, ArgMin, Compare, Comparison, Junction, Logical, Select
from .weighted import Conv2d, ConvTranspose2d, Matmul
from .window import AvgPool, MaxPool, ReduceMax, ReduceMin, ReduceSum, windows_touch

__all__ = [
    "F32_MAX",
    "INSTRUCTIONS",
    "INT_ACT",
    "INT_OUT",
    "MAX_WINDOW",
    "Add",
    "ArgMax",
    "ArgMin",
    "AvgPool",
    "Clamp",
    "Compare",
    "Comparison",
    "Concat",
    "Conv2d",
    "ConvTranspose2d",
    "Dequantize",
    "Expand",
    "FlipSign",
    "Gather",
    "GridSample",
    "Instruction",
    "Junction",
    "Logical",
    "Lut",
    "Matmul",
    "MaxPool",
    "Maximum",
    "Minimum",
    "Mul",
    "Opcode",
    "Pad",
    "Quantize",
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "Requantize",
    "Requantizing",
    "Reshape",
    "ResizeBilinear",
    "ResizeNearest",
    "Rounding",
    "Scheme",
    "SegmentLut",
    "Select",
    "Shaped",
    "Slice",
    "Transpose",
    "arity",
    "require",
    "windows_touch",
]  # fmt: skip


def _declared() -> list[type[Instruction]]:
    families = (border, weighted, elementwise, window, move, select, sample)
    found = (c for family in families for c in vars(family).values() if isinstance(c, type))
    return [c for c in found if issubclass(c, Instruction) and "opcode" in vars(c)]


INSTRUCTIONS: dict[Opcode, type[Instruction]] = {c.opcode: c for c in sorted(_declared(), key=lambda c: c.opcode)}
