"""Pairs of instructions that one kernel does in a single pass over memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..isa import Instruction, Quantize, Transpose
from ..program import BpuSegment, Model, Segment, Storage
from ..types import DType

TO_NHWC = (0, 2, 3, 1)
FEW = 4  # channels of a camera's image


@dataclass(frozen=True, kw_only=True)
class QuantizeImage(Quantize):
    """Quantize of [N,C,H,W], C ≤ 4, by one scale, stored as [N,H,W,C]: an image on its way in."""


def fused(model: Model) -> dict[int, list[Instruction]]:
    """The instructions of every BPU segment (by its number) with such pairs replaced.

    What only passed between the two is never written.
    """
    reads = Counter(o.tensor for o in model.outputs)
    for segment in model.segments:
        reads.update(_reads(segment))
    own = ((i, s.instructions) for i, s in enumerate(model.segments) if isinstance(s, BpuSegment))
    return {i: _fused(instructions, model, reads) for i, instructions in own}


def _fused(instructions: Sequence[Instruction], model: Model, reads: Counter[int]) -> list[Instruction]:
    made: list[Instruction] = []
    for op in instructions:
        before = made[-1] if made else None
        if isinstance(before, Quantize) and isinstance(op, Transpose) and _is_image(before, op, model, reads):
            made[-1] = QuantizeImage(
                inputs=before.inputs, outputs=op.outputs, loc=(*before.loc, *op.loc), axis=-1, rounding=before.rounding,
                clamp_min=before.clamp_min, clamp_max=before.clamp_max,
            )  # fmt: skip
        else:
            made.append(op)
    return made


def _reads(segment: Segment) -> Sequence[int]:
    if isinstance(segment, BpuSegment):
        return [i for op in segment.instructions for i in op.inputs]
    return segment.inputs


def _is_image(quantize: Quantize, transpose: Transpose, model: Model, reads: Counter[int]) -> bool:
    between = model.tensors[quantize.outputs[0]]
    passes = transpose.inputs[0] == quantize.outputs[0] and reads[quantize.outputs[0]] == 1
    small = len(between.shape) == 4 and 1 < between.shape[1] <= FEW and between.dtype is DType.I8
    inside = between.storage is Storage.ARENA and model.tensors[quantize.inputs[1]].shape == (1,)
    return passes and small and inside and transpose.perm == TO_NHWC
