"""`Outline`: of a model, what running its machine code takes. A file that is known need not be read for it."""

from __future__ import annotations

from dataclasses import dataclass

from .program import Constants, CpuSegment, Model, NativeCode, Program, Tensor, TensorInfo


@dataclass(frozen=True)
class CpuStep:
    """A CPU segment's border: the tensors that it reads and those that it writes."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Outline:
    """A model without its instructions. `steps` are its segments in order; None stands for one of the BPU."""

    march: str
    arith: str
    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    arena_size: int
    steps: tuple[CpuStep | None, ...]
    constants: Constants
    natives: tuple[NativeCode, ...] = ()


def outline_of(program: Program, model: Model) -> Outline:
    """The outline of a program's model."""
    return Outline(
        program.march,
        program.arith,
        model.name,
        model.inputs,
        model.outputs,
        model.arena_size,
        tuple(_step(model, s) if isinstance(s, CpuSegment) else None for s in model.segments),
        model.constants,
        tuple(n for n in program.natives if program.models[n.model] is model),
    )


def _step(model: Model, segment: CpuSegment) -> CpuStep:
    def tensors(indices: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(model.tensors[i] for i in indices)

    return CpuStep(tensors(segment.inputs), tensors(segment.outputs))
