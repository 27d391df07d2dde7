"""Bytes stored as q + 128: the form in which x86's byte dot products read activations without touching them first.

Inside a run, an i8 tensor of the arena may be stored with its top bit flipped, if its maker and all its readers know of
it. Programs, inputs, outputs and constants know nothing of this: it is the JIT's own business.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from llvmlite import ir

from .. import isa
from ..isa import Instruction
from ..program import BpuSegment, Model, Storage, Tensor
from ..types import DType
from .emitter import I8, Emitter, const, element

# What makes a tensor from others of its kind without arithmetic: all its i8 operands and its result are stored alike.
ALIKE = (
    isa.Concat, isa.Slice, isa.Transpose, isa.Reshape, isa.Gather, isa.Expand, isa.ResizeNearest, isa.MaxPool,
)  # fmt: skip
# What reads and writes either form: the operands that may be, by class.
EITHER: dict[type[Instruction], tuple[int, ...]] = {
    isa.Conv2d: (0, 6), isa.ConvTranspose2d: (0,), isa.Matmul: (0, 1), isa.Add: (0, 1), isa.Mul: (0, 1),
    isa.AvgPool: (0,), isa.Maximum: (0, 1), isa.Minimum: (0, 1), isa.Compare: (0, 1), isa.Select: (1, 2),
    isa.Quantize: (), isa.Requantize: (0,), isa.Lut: (0,),
}  # fmt: skip
GAINS = (isa.Conv2d, isa.ConvTranspose2d, isa.Matmul)  # who is faster for it: for operand 0
OFFSET = 128


@dataclass(frozen=True)
class OffsetTensor(Tensor):
    """An i8 tensor whose bytes hold q + 128."""


def is_offset(tensor: Tensor | None) -> bool:
    """True for a tensor whose bytes hold q + 128."""
    return isinstance(tensor, OffsetTensor)


def load_q(e: Emitter, tensor: Tensor, base: ir.Value, index: ir.Value | int, lanes: int) -> ir.Value:
    """`lanes` elements of `tensor` from element `index` on, as the integers that they are."""
    x = e.load(base, index, element(tensor.dtype), lanes)
    return flipped(e, x) if is_offset(tensor) else x


def load_as_stored(e: Emitter, tensor: Tensor, base: ir.Value, index: ir.Value | int, lanes: int) -> ir.Value:
    """`lanes` elements as their bytes are."""
    return e.load(base, index, element(tensor.dtype), lanes)


def store_q(e: Emitter, tensor: Tensor, value: ir.Value, base: ir.Value, index: ir.Value | int) -> None:
    """Store integers as `tensor` wants them; `value` has its element type."""
    e.store(flipped(e, value) if is_offset(tensor) else value, base, index)


def signed_byte(value: int) -> int:
    """The i8 whose bits are those of the byte `value` in 0..255."""
    return value - 256 if value > 127 else value


def flipped(e: Emitter, x: ir.Value) -> ir.Value:
    """q + 128 from q and back: the top bit of every byte."""
    assert element(DType.I8) is I8
    return e.b.xor(x, const(x.type, -128))


def with_offsets(model: Model) -> Model:
    """The model with those tensors replaced by OffsetTensors that all who touch them know, and somebody gains by."""
    chosen = _Choice(model).tensors()
    tensors = tuple(_offset(t) if i in chosen else t for i, t in enumerate(model.tensors))
    return dataclasses.replace(model, tensors=tensors)


def _offset(t: Tensor) -> OffsetTensor:
    return OffsetTensor(**{f.name: getattr(t, f.name) for f in dataclasses.fields(t)})


class _Choice:
    """Groups of tensors that are stored alike, and whether they may be stored flipped."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.parent = list(range(len(model.tensors)))
        made = {i for s in model.segments if isinstance(s, BpuSegment) for op in s.instructions for i in op.outputs}
        self.barred: set[int] = {i for i, t in enumerate(model.tensors) if i not in made or not self._is_free(t)}
        self.gaining: set[int] = set()

    @staticmethod
    def _is_free(t: Tensor) -> bool:
        return t.dtype is DType.I8 and t.storage is Storage.ARENA

    def tensors(self) -> frozenset[int]:
        """The indices of the tensors to store flipped."""
        for segment in self.model.segments:
            if isinstance(segment, BpuSegment):
                for op in segment.instructions:
                    self._visit(op)
            else:
                self.barred.update((*segment.inputs, *segment.outputs))
        barred = {self._find(i) for i in self.barred}
        gaining = {self._find(i) for i in self.gaining}
        return frozenset(i for i in range(len(self.parent)) if self._find(i) in gaining - barred)

    def _visit(self, op: Instruction) -> None:
        if isinstance(op, ALIKE):
            alike = [i for i in (*op.inputs, *op.outputs) if i >= 0 and self.model.tensors[i].dtype is DType.I8]
            for other in alike[1:]:
                self.parent[self._find(other)] = self._find(alike[0])
            return
        known = EITHER.get(type(op))
        bytes_ = [(n, i) for n, i in enumerate(op.inputs) if i >= 0 and self.model.tensors[i].dtype is DType.I8]
        if known is None:
            self.barred.update(i for _, i in bytes_)
            self.barred.update(op.outputs)
            return
        self.barred.update(i for n, i in bytes_ if n not in known)
        if isinstance(op, GAINS):
            self.gaining.add(op.inputs[0])

    def _find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i
