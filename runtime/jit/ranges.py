"""Which i8 tensors hold no negative number: a fact that `vpmaddubsw` kernels live on, derived from the instructions.

Nothing in a file is believed but what instructions do: each result is proved from the clamp of the instruction that
makes it, or from its operands. What comes from outside (inputs, CPU segments) is not known.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .. import isa
from ..isa import Instruction
from ..program import BpuSegment, Model, Storage, Tensor
from ..types import DType

# results are limited to [clamp_min, clamp_max], whatever the scheme
_CLAMPED = (
    isa.Requantizing, isa.Quantize, isa.Add, isa.Clamp, isa.SegmentLut,
)  # fmt: skip
# every element of the result is an element of one of these operands
_COPIED: dict[type[Instruction], tuple[int, ...] | None] = {  # None: of any operand
    isa.Concat: None, isa.Slice: (0,), isa.Transpose: (0,), isa.Reshape: (0,), isa.Expand: (0,),
    isa.ResizeNearest: (0,), isa.Minimum: (0, 1), isa.Select: (1, 2),
}  # fmt: skip


@dataclass(frozen=True)
class PositiveTensor(Tensor):
    """An i8 tensor of which every element is in [0, 127]."""


def is_positive(tensor: Tensor | None) -> bool:
    """True for a tensor that is known to hold no negative number."""
    return isinstance(tensor, PositiveTensor)


def with_positives(model: Model) -> Model:
    """The model with every i8 tensor of the arena that is proved to hold no negative number a PositiveTensor."""
    proved: set[int] = set()
    refuted: set[int] = set()
    for segment in model.segments:
        if not isinstance(segment, BpuSegment):
            refuted.update(segment.outputs)
            continue
        for op in segment.instructions:
            (proved if _is_positive(model, op, proved - refuted) else refuted).update(op.outputs)
    chosen = {i for i in proved - refuted if _may_be(model.tensors[i])}
    tensors = tuple(_positive(t) if i in chosen else t for i, t in enumerate(model.tensors))
    return dataclasses.replace(model, tensors=tensors)


def _may_be(t: Tensor) -> bool:
    return t.dtype is DType.I8 and t.storage is Storage.ARENA


def _positive(t: Tensor) -> PositiveTensor:
    return PositiveTensor(**{f.name: getattr(t, f.name) for f in dataclasses.fields(t)})


def _is_positive(model: Model, op: Instruction, known: set[int]) -> bool:
    """True where no element of the results can be negative, given that those of `known` are not."""
    if isinstance(op, _CLAMPED):
        return op.clamp_min >= 0
    if isinstance(op, isa.Maximum) and not isinstance(op, isa.Minimum):
        return any(i in known for i in op.inputs[:2])
    if isinstance(op, isa.MaxPool):
        return op.inputs[0] in known and _every_window_reads(model, op)
    if isinstance(op, isa.Lut):
        table = model.tensors[op.inputs[1]]
        return table.storage is Storage.CONSTANT and int(model.constant(op.inputs[1]).min()) >= 0
    copied = _COPIED.get(type(op), ())
    read = op.inputs if copied is None else [op.inputs[i] for i in copied]
    return bool(read) and all(i in known for i in read)


def _every_window_reads(model: Model, op: isa.MaxPool) -> bool:
    """True where every window has a position inside the image; one that has none gives the least number there is."""
    x, out = model.tensors[op.inputs[0]], model.tensors[op.outputs[0]]
    for i in range(2):
        last = (out.shape[1 + i] - 1) * op.strides[i] - op.pads[i]
        if op.dilations[i] != 1 or op.pads[i] >= op.kernel[i] or last >= x.shape[1 + i]:
            return False
    return True
