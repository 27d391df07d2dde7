"""The op table: importing this package declares every op. `TABLE` maps `.hbir` names to classes."""

from ..define import OP_TABLE as TABLE
from . import bpu, conv, eltwise, misc, move, pool, quant, unary
from .bpu import BPU_OPS, BpuOp
from .conv import Conv2d, ConvTranspose2d, Linear, Matmul
from .eltwise import Add, Binary, Div, Maximum, Minimum, Mul, Pow, Sub
from .misc import BatchNorm, Call, Lut, SegmentLut
from .move import Concat, Expand, Gather, Move, Pad, Reshape, ResizeLinear, ResizeNearest, Slice, Transpose
from .pool import AvgPool, MaxPool, Pool, Reduce, ReduceMax, ReduceMean, ReduceMin, ReduceSum
from .quant import Cast, Const, Dequantize, FlipSign, Quantize, Reinterpret, Requantize
from .shapes import NO_CLIP
from .unary import PLAIN_UNARY, Clip, Unary

__all__ = [
    "BPU_OPS", "NO_CLIP", "PLAIN_UNARY", "TABLE",
    "Add", "AvgPool", "BatchNorm", "Binary", "BpuOp", "Call", "Cast", "Clip", "Concat", "Const", "Conv2d",
    "ConvTranspose2d", "Dequantize", "Div", "Expand", "FlipSign", "Gather", "Linear", "Lut", "Matmul", "MaxPool",
    "Maximum", "Minimum", "Move", "Mul", "Pad", "Pool", "Pow", "Quantize", "Reduce", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceSum", "Reinterpret", "Requantize", "Reshape", "ResizeLinear", "ResizeNearest", "SegmentLut",
    "Slice", "Sub", "Transpose", "Unary",
    "bpu", "conv", "eltwise", "misc", "move", "pool", "quant", "unary",
]  # fmt: skip
