"""How much work a program asks for, so that a few bytes cannot keep a machine busy for days."""

from __future__ import annotations

import math

from ..isa import AvgPool, Conv2d, ConvTranspose2d, Instruction, Matmul, MaxPool
from ..program import BpuSegment, Model, Tensor


def work(model: Model) -> int:
    """Elementary steps (products, elements moved) of one run of the BPU segments, to the order of magnitude."""
    segments = [s for s in model.segments if isinstance(s, BpuSegment)]
    return sum(_work(model, op) for s in segments for op in s.instructions)


def memory(model: Model) -> int:
    """Bytes that one run takes besides constants and scratch: its inputs, its outputs of known size and its arena."""
    border = (model.tensors[info.tensor] for info in (*model.inputs, *model.outputs))
    return model.arena_size + sum(t.nbytes for t in border if not t.is_dynamic)


def _work(model: Model, op: Instruction) -> int:
    ins = [model.tensors[i] for i in op.inputs if i >= 0]
    out = model.tensors[op.outputs[0]]
    return max([out.elements * _taps(op, ins), *(t.elements for t in ins)])


def _taps(op: Instruction, ins: list[Tensor]) -> int:
    """Steps for one element of the result."""
    if isinstance(op, Conv2d | ConvTranspose2d):
        return math.prod(ins[1].shape[1:])
    if isinstance(op, Matmul):
        return ins[0].shape[-1]
    if isinstance(op, MaxPool | AvgPool):
        return math.prod(op.kernel)
    return 1
