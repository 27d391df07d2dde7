"""Facts that can be read off a model's instructions: what a real BPU would refuse, how much work there is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hbc_runtime import isa
from hbc_runtime.program import BpuSegment, Model, Storage, Tensor, TensorInfo
from hbc_runtime.types import DType

MOVES = (isa.Transpose, isa.Reshape, isa.Slice, isa.Expand, isa.Gather)  # their results are their operands' elements
BORDER = (isa.Quantize, isa.Dequantize, isa.FlipSign)  # the host's steps: what they read or write need not suit the BPU


@dataclass(frozen=True)
class Affine:
    """A tensor of the BPU whose zero point is not 0."""

    name: str
    node: str
    zero_point: int


@dataclass(frozen=True)
class WideAccumulator:
    """A sum of products whose bound needs more than 31 bits and a sign."""

    name: str
    node: str
    bits: int


@dataclass(frozen=True)
class HighPrecision:
    """An output that is the accumulator itself, with this many scales."""

    scales: int


def instructions(model: Model) -> Iterator[isa.Instruction]:
    """Every instruction of the BPU segments, in order."""
    return (i for s in model.segments if isinstance(s, BpuSegment) for i in s.instructions)


def affine_tensors(model: Model) -> list[Affine]:
    """The tensors that BPU instructions read or write with a zero point, each once, in order (NUMERICS D1)."""
    found: dict[int, Affine] = {}
    moved: dict[int, int] = {}  # tensor → the tensor whose elements it holds
    for op in instructions(model):
        if isinstance(op, MOVES):
            moved[op.outputs[0]] = moved.get(op.inputs[0], op.inputs[0])
        for i in () if isinstance(op, BORDER) else (*op.inputs, *op.outputs):
            quant = model.tensors[i].quant if i >= 0 else None
            if quant is not None and not quant.is_symmetric:
                root = moved.get(i, i)
                node = op.loc[0] if op.loc else ""
                name = model.tensors[root].name or model.tensors[i].name or f"an operand of {node}"
                found.setdefault(root, Affine(name, node, next(z for z in quant.zero_point if z)))
    return list(found.values())


def high_precision(model: Model, output: TensorInfo) -> HighPrecision | None:
    """Whether `output` is an i32 accumulator, by itself or dequantised (or moved) on its way out."""
    tensor = behind_moves(model, output.tensor)
    if tensor.dtype is not DType.I32 or tensor.quant is None:
        return None
    return HighPrecision(len(tensor.quant.scale))


def behind_moves(model: Model, tensor: int) -> Tensor:
    """The quantised tensor that `tensor` is dequantised from or moved from; itself where there is none."""
    makers = {o: op for op in instructions(model) for o in op.outputs}
    at = tensor
    while model.tensors[at].quant is None and isinstance(makers.get(at), isa.Dequantize | isa.Transpose | isa.Reshape):
        at = makers[at].inputs[0]
    return model.tensors[at]


def accumulates(op: isa.Instruction) -> bool:
    """True for instructions whose accumulator may be an output (NUMERICS 6)."""
    return isinstance(op, isa.Conv2d | isa.ConvTranspose2d | isa.Matmul)


def macs(model: Model) -> int:
    """Multiply-accumulates of one run: convolutions and matrix products."""
    return sum(instruction_macs(model, op) for op in instructions(model))


def instruction_macs(model: Model, op: isa.Instruction) -> int:
    """Multiply-accumulates of one instruction; 0 for what multiplies no matrices."""
    if isinstance(op, isa.Conv2d):
        return model.tensors[op.outputs[0]].elements * _taps(model, op.inputs[1])
    if isinstance(op, isa.ConvTranspose2d):
        out_channels = model.tensors[op.inputs[1]].shape[0]
        x = model.tensors[op.inputs[0]]
        return x.elements // x.shape[3] * out_channels * _taps(model, op.inputs[1])
    if isinstance(op, isa.Matmul):
        return model.tensors[op.outputs[0]].elements * model.tensors[op.inputs[0]].shape[-1]
    return 0


def _taps(model: Model, weight: int) -> int:
    """Products per output element: all of a weight's axes but the first."""
    return math.prod(model.tensors[weight].shape[1:])


def wide_accumulators(model: Model) -> list[WideAccumulator]:
    """The sums that an i16 operand may carry past 32 bits, bounded by Σ|w|·max|x| + |bias| (NUMERICS 3, D3)."""
    found = []
    for op in instructions(model):
        bound = _bound(model, op)
        if bound >= 1 << 31:
            name = model.tensors[op.outputs[0]].name
            found.append(WideAccumulator(name, ", ".join(op.loc), math.ceil(math.log2(bound))))
    return found


def _bound(model: Model, op: isa.Instruction) -> int:
    if not isinstance(op, (isa.Conv2d, isa.ConvTranspose2d, isa.Matmul)):
        return 0
    x, weight = (model.tensors[i] for i in op.inputs[:2])
    if DType.I16 not in {x.dtype, weight.dtype}:
        return 0
    zero_point = op.lhs_zero_point if isinstance(op, isa.Matmul) else getattr(op, "x_zero_point", 0)
    largest = -x.dtype.limits[0] + abs(zero_point)
    if weight.storage is not Storage.CONSTANT:
        return x.shape[-1] * largest * -weight.dtype.limits[0]
    values = np.abs(model.constant(op.inputs[1]).astype(np.int64))
    axes = (-2,) if isinstance(op, isa.Matmul) else tuple(range(1, values.ndim))  # what one sum runs over
    bias = 0
    if op.inputs[2] >= 0 and model.tensors[op.inputs[2]].storage is Storage.CONSTANT:
        bias = int(np.abs(model.constant(op.inputs[2]).astype(np.int64)).max(initial=0))
    return int(values.sum(axis=axes).max(initial=0)) * largest + bias
