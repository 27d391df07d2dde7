"""Pairs of instructions that one kernel does in a single pass over memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from ..isa import Add, Conv2d, Instruction, Quantize, Scheme, Transpose
from ..program import BpuSegment, Model, Segment, Storage, Tensor
from ..types import DType
from .fused import AddedConv2d, QuantizeImage

TO_NHWC = (0, 2, 3, 1)
FEW = 4  # channels of a camera's image
CanAdd = Callable[[AddedConv2d], bool]


def fused(model: Model, can_add: CanAdd) -> dict[int, list[Instruction]]:
    """The instructions of every BPU segment (by its number) with such pairs replaced.

    What only passed between the two is never written. `can_add` says whether there is a kernel for an AddedConv2d.
    """
    reads = Counter(o.tensor for o in model.outputs)
    for segment in model.segments:
        reads.update(_reads(segment))
    own = ((i, s.instructions) for i, s in enumerate(model.segments) if isinstance(s, BpuSegment))
    return {i: _fused(instructions, model, reads, can_add) for i, instructions in own}


def _fused(
    instructions: Sequence[Instruction], model: Model, reads: Counter[int], can_add: CanAdd
) -> list[Instruction]:
    made: list[Instruction] = []
    for op in instructions:
        pair = _pair(made[-1], op, model, reads, can_add) if made else None
        if pair is None:
            made.append(op)
        else:
            made[-1] = pair
    return made


def _pair(
    before: Instruction, op: Instruction, model: Model, reads: Counter[int], can_add: CanAdd
) -> Instruction | None:
    """What does both, or None."""
    if isinstance(before, Quantize) and isinstance(op, Transpose) and _is_image(before, op, model, reads):
        return QuantizeImage(
            inputs=before.inputs, outputs=op.outputs, loc=(*before.loc, *op.loc), axis=-1, rounding=before.rounding,
            clamp_min=before.clamp_min, clamp_max=before.clamp_max,
        )  # fmt: skip
    if type(before) is Conv2d and isinstance(op, Add) and _is_sum(before, op, model, reads):
        left = op.inputs[0] == before.outputs[0]
        added = _added(before, op, left=left)
        return added if can_add(added) else None
    return None


def _reads(segment: Segment) -> Sequence[int]:
    if isinstance(segment, BpuSegment):
        return [i for op in segment.instructions for i in op.inputs]
    return segment.inputs


def _is_image(quantize: Quantize, transpose: Transpose, model: Model, reads: Counter[int]) -> bool:
    """True for an image of few channels, of which only `transpose` reads the integers.

    Behind a CPU segment the image may lie in the arena, and its memory be free for the result once it is quantised.
    """
    between = model.tensors[quantize.outputs[0]]
    passes = transpose.inputs[0] == quantize.outputs[0] and reads[quantize.outputs[0]] == 1
    small = len(between.shape) == 4 and 1 < between.shape[1] <= FEW and between.dtype is DType.I8
    inside = between.storage is Storage.ARENA and model.tensors[quantize.inputs[1]].shape == (1,)
    apart = not _overlap(model.tensors[quantize.inputs[0]], model.tensors[transpose.outputs[0]])
    return passes and small and inside and apart and transpose.perm == TO_NHWC


def _is_sum(conv: Conv2d, add: Add, model: Model, reads: Counter[int]) -> bool:
    """True where only `add` reads the convolution's result, and adds something of its shape.

    The sum must not lie where the convolution's image still is: it is written while that is read.
    """
    between = conv.outputs[0]
    if between not in add.inputs or reads[between] != 1 or conv.inputs[6] >= 0:
        return False
    tensors = [model.tensors[i] for i in (*add.inputs, add.outputs[0])]
    alike = all(t.shape == tensors[0].shape and t.dtype is DType.I8 for t in tensors)
    inside = model.tensors[between].storage is Storage.ARENA
    bytes_ = conv.scheme is Scheme.FORM_A and add.scheme is Scheme.FORM_B
    return alike and inside and bytes_ and not _overlap(model.tensors[conv.inputs[0]], tensors[2])


def _overlap(a: Tensor, b: Tensor) -> bool:
    same = (a.storage, a.index) == (b.storage, b.index)
    return same and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _added(conv: Conv2d, add: Add, *, left: bool) -> AddedConv2d:
    own = {f.name: getattr(conv, f.name) for f in dataclasses.fields(conv)}
    other = add.inputs[1 if left else 0]
    own |= {
        "inputs": (*conv.inputs[:6], other, -1, -1), "outputs": add.outputs, "loc": (*conv.loc, *add.loc)
    }  # fmt: skip
    bare = dataclasses.replace(add, inputs=(), outputs=(), loc=())  # equal sums share a kernel
    return AddedConv2d(**own, add=bare, left=left)
