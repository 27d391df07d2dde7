"""The op table: importing this package declares every op. `TABLE` maps `.hbir` names to classes."""

from ..define import OP_TABLE as TABLE
from . import bpu, conv, eltwise, misc, move, norm, pool, quant, sample, select, unary
from .bpu import BPU_OPS, BpuOp
from .conv import Conv2d, ConvTranspose2d, Linear, Matmul
from .eltwise import Add, Binary, Div, Maximum, Minimum, Mul, Pow, Sub
from .misc import CALLS, BatchNorm, Call, CallGraph, Lut, SegmentLut
from .move import Concat, Expand, Gather, Move, Pad, Reshape, ResizeLinear, ResizeNearest, Slice, Transpose
from .norm import Composite, GroupNorm, InstanceNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax
from .pool import AvgPool, MaxPool, Pool, Reduce, ReduceMax, ReduceMean, ReduceMin, ReduceSum
from .quant import Cast, Const, Dequantize, FlipSign, Quantize, Reinterpret, Requantize
from .sample import GridSample
from .select import (
    ArgExtremum,
    ArgMax,
    ArgMin,
    Comparison,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Logical,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    Where,
)
from .shapes import NO_CLIP
from .unary import PLAIN_UNARY, Clip, Unary

__all__ = [
    "BPU_OPS", "CALLS", "NO_CLIP", "PLAIN_UNARY", "TABLE",
    "Add", "ArgExtremum", "ArgMax", "ArgMin", "AvgPool", "BatchNorm", "Binary", "BpuOp", "Call", "CallGraph", "Cast",
    "Clip", "Comparison", "Composite", "Concat", "Const", "Conv2d", "ConvTranspose2d", "Dequantize", "Div", "Equal",
    "Expand", "FlipSign", "Gather", "Greater", "GreaterOrEqual", "GridSample", "GroupNorm", "InstanceNorm",
    "LayerNorm", "Less", "LessOrEqual", "Linear", "LogSoftmax", "Logical", "LogicalAnd", "LogicalNot", "LogicalOr",
    "LogicalXor", "Lut", "Matmul", "MaxPool", "Maximum", "Minimum", "Move", "Mul", "Pad", "Pool", "Pow", "Quantize",
    "Reduce", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Reinterpret", "Requantize", "Reshape",
    "ResizeLinear", "ResizeNearest", "RmsNorm", "SegmentLut", "Slice", "Softmax", "Sub", "Transpose", "Unary",
    "Where",
    "bpu", "conv", "eltwise", "misc", "move", "norm", "pool", "quant", "sample", "select", "unary",
]  # fmt: skip
