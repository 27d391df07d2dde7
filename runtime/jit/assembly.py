"""A model's BPU segments as LLVM modules: one entry per segment, all kernels shared by key."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..errors import NoKernel
from ..isa import Instruction, Opcode
from ..program import ALIGN, Model, Storage, Tensor
from .code import Code, aligned
from .emitter import PTR, Emitter, i64
from .fused import AddedConv2d
from .fusion import fused
from .host import Dot, Host
from .kernels import KERNELS
from .kernels.conv import can_add
from .memory import give_back, many_objects
from .offset import is_offset, with_offsets
from .parts import Parts, in_module
from .ranges import with_positives
from .registry import KernelBuilder, Packed, kernel_key
from .share import LINE, MOST_ITEMS, pieces, state_of
from .team import ENTRY, FIRST_STAGE, HEAD, Team

SMALL = 1 << 14  # elementary steps below which handing out work costs more than the work


def assemble(model: Model, machine: Host) -> Code:
    """Machine code for `machine`, which any number of threads may run together, and the constants that it reads.

    Raises NoKernel where an instruction cannot be compiled, naming it and its source nodes.
    """
    with many_objects():  # a fifth of the time otherwise
        code = _assembled(model, machine)  # whose objects are garbage when Python looks again
    give_back()
    return code


def _assembled(model: Model, machine: Host) -> Code:
    made = _Assembly(model, machine)
    with closing(made.parts):
        return made.finish()


@dataclass(frozen=True)
class _Kernel:
    function: ir.Function
    items: int
    cost: int  # elementary steps

    @property
    def is_small(self) -> bool:
        """True where handing out its items costs more than they do."""
        return self.items < 2 or self.cost < SMALL


@dataclass
class _PackedLayout:
    """Constant operands in the form that kernels want, one 64-byte aligned block."""

    arrays: list[tuple[int, npt.NDArray[Any]]] = field(default_factory=list)
    size: int = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        """Reserve room for `array`; returns its offset."""
        offset = self.size
        self.arrays.append((offset, np.ascontiguousarray(array)))
        self.size = -(-(offset + array.nbytes) // ALIGN) * ALIGN
        return offset

    def block(self) -> npt.NDArray[np.uint8]:
        """The filled memory, with a vector's worth of slack behind it."""
        memory = aligned(self.size + ALIGN)
        for offset, array in self.arrays:
            memory[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.arrays.clear()
        return memory


class _Assembly:
    """Writes the modules of one model."""

    def __init__(self, model: Model, machine: Host) -> None:
        known = {Dot.U8S8: with_offsets, Dot.PAIRS: with_positives}.get(machine.dot)
        self.model = model if known is None else known(model)
        self.host = machine
        self.parts = Parts(machine)
        self.helpers: dict[object, ir.Function] = {}
        self.kernels: dict[Hashable, _Kernel] = {}
        self.packed = _PackedLayout()
        self.scratch = 0

    def finish(self) -> Code:
        """Emit every entry, generate code."""
        steps = fused(self.model, self.can_add)
        calls = {i: [self.prepare(op) for op in own if not self.is_alias(op)] for i, own in steps.items()}
        stages = {i: _stages(prepared) for i, prepared in calls.items()}
        count = self.emit_entries(stages)
        flipped = tuple(i for i, t in enumerate(self.model.tensors) if is_offset(t))
        every = [stage for own in stages.values() for stage in own]
        work, shared = sum(s.cost for s in every), sum(s.cost for s in every if s.items > 1)
        return Code(self.parts.finish(), self.packed.block(), self.scratch, flipped, count, work, shared)

    def emit_entries(self, segments: Mapping[int, Sequence[_Stage]]) -> int:
        """The entries, and what calls them, once all kernels are there; returns how many stages there are."""
        count = FIRST_STAGE + sum(map(len, segments.values()))
        first, entries = FIRST_STAGE, {}
        for i, stages in segments.items():
            entry = _Entry(self, i, (first, count))
            entry.emit(stages)
            first += len(stages)
            entries[i] = entry.function
        Team(self.parts.module, self.host, self.helpers, entries, scratch=self.scratch, stages=count).emit()
        return count

    def tensors(self, indices: Sequence[int]) -> list[Tensor | None]:
        """The tensors of operand indices; −1 is an absent operand."""
        return [None if i < 0 else self.model.tensors[i] for i in indices]

    def is_alias(self, op: Instruction) -> bool:
        """True for a Reshape whose result is the very bytes of its operand: nothing to do."""
        if op.opcode is not Opcode.RESHAPE:
            return False
        a, b = self.model.tensors[op.inputs[0]], self.model.tensors[op.outputs[0]]
        return (a.storage, a.offset, a.index) == (b.storage, b.offset, b.index)

    def prepare(self, op: Instruction) -> tuple[_Kernel, list[Tensor], list[int]]:
        """The kernel of `op`, the tensors it takes, and the offsets of its packed constants."""
        ins = self.tensors(op.inputs)
        outs = [self.model.tensors[i] for i in op.outputs]
        if type(op) not in KERNELS.kernels:
            raise _cannot(op, "this runtime has no kernel for it; a newer hbc_runtime may")
        try:
            packed = self.pack(op, ins, outs)
            kernel = self.kernel(op, ins, outs, packed)
        except ValueError as error:
            raise _cannot(op, str(error)) from error
        return kernel, [t for t in (*ins, *outs) if t is not None], [self.packed.add(a) for a in packed.arrays]

    def pack(self, op: Instruction, ins: list[Tensor | None], outs: list[Tensor]) -> Packed:
        """What the instruction's packing rule, if any, makes of its constant operands."""
        rule = KERNELS.packings.get(type(op))
        if rule is None:
            return Packed()
        return rule(op, ins, outs, self.values(op), self.host)

    def values(self, op: Instruction) -> list[npt.NDArray[Any] | None]:
        """The operands that are constants."""
        held = [i >= 0 and self.model.tensors[i].storage is Storage.CONSTANT for i in op.inputs]
        return [self.model.constant(i) if c else None for i, c in zip(op.inputs, held, strict=True)]

    def can_add(self, op: AddedConv2d) -> bool:
        """Whether there is a kernel that convolves and adds."""
        ins, outs = self.tensors(op.inputs), [self.model.tensors[i] for i in op.outputs]
        return can_add(op, ins, outs, self.values(op), self.host)

    def kernel(self, op: Instruction, ins: list[Tensor | None], outs: list[Tensor], packed: Packed) -> _Kernel:
        """The shared kernel for this key, emitted on first request."""
        key = kernel_key(op, ins, outs, packed.variant)
        if key not in self.kernels:
            name = f"{op.opcode.name.lower()}_{len(self.kernels)}"
            if self.parts.full():
                for kernel in self.kernels.values():
                    kernel.function.linkage = "external"  # entries in another module call them
                self.parts.next()
                self.helpers = {}  # each module has its own
            k = KernelBuilder(self.parts.module, self.host, self.helpers, name, (ins, outs), packed)
            KERNELS.kernels[type(op)](k, op, ins, outs)
            k.b.ret_void()
            self.scratch = max(self.scratch, k.scratch_bytes)
            if k.items > MOST_ITEMS:
                msg = f"it is cut into {k.items} items of work; the limit is {MOST_ITEMS}"
                raise ValueError(msg)
            self.kernels[key] = _Kernel(k.function, k.items, k.cost)
        return self.kernels[key]


Call = tuple[_Kernel, list[Tensor], list[int]]


@dataclass(frozen=True)
class _Stage:
    """Calls between which threads need not meet: a single one, whose items they share, or small ones for one thread."""

    calls: tuple[Call, ...]

    @property
    def items(self) -> int:
        """What threads share."""
        kernel = self.calls[0][0]
        return 1 if kernel.is_small else kernel.items

    @property
    def cost(self) -> int:
        """Elementary steps."""
        return sum(kernel.cost for kernel, _, _ in self.calls)


def _stages(calls: Sequence[Call]) -> list[_Stage]:
    """The calls of a segment, in order; neighbours that are small together."""
    found: list[_Stage] = []
    for call in calls:
        kernel = call[0]
        if kernel.items == 0:
            continue
        if found and kernel.is_small and found[-1].calls[0][0].is_small:
            found[-1] = _Stage((*found[-1].calls, call))
        else:
            found.append(_Stage((call,)))
    return found


class _Entry(Emitter):
    """A segment's function: see `team.ENTRY`. `first` is the number of its first stage, of `count` in the module."""

    def __init__(self, assembly: _Assembly, number: int, stages: tuple[int, int]) -> None:
        module = assembly.parts.module
        function = ir.Function(module, ENTRY, f"entry_{number}")
        function.attributes.add("nounwind")
        super().__init__(module, assembly.host, assembly.helpers, function)
        self.arena, self.constants, self.packed, ins, outs, self.scratch, self.team, *self.share = self.args
        self.tables = ins, outs
        self.first, self.count = stages

    def emit(self, stages: Sequence[_Stage]) -> None:
        """Every stage in order."""
        state = state_of(self)
        base, thread, parts = self.share
        for number, stage in enumerate(stages, self.first):
            line = self.at(self.team, HEAD + number * LINE)
            args = [line, i64(self.count * LINE), base, i64(stage.items), thread, parts]
            with pieces(self, args, state) as (begin, end):
                for kernel, tensors, packed in stage.calls:
                    operands = [*map(self.address, tensors), *(self.at(self.packed, o) for o in packed), self.scratch]
                    share = (0, kernel.items) if kernel.is_small else (begin, end)
                    self.call(in_module(kernel.function, self.module), *operands, *share)
        self.b.ret_void()

    def address(self, tensor: Tensor) -> ir.Value:
        """Where a tensor's bytes lie in this run."""
        if tensor.storage is Storage.ARENA:
            return self.at(self.arena, tensor.offset)
        if tensor.storage is Storage.CONSTANT:
            return self.at(self.constants, tensor.offset)
        table = self.tables[0 if tensor.storage is Storage.INPUT else 1]
        return self.b.load(self.b.gep(table, [i64(tensor.index)], source_etype=PTR), typ=PTR, align=8)


def _cannot(op: Instruction, why: str) -> NoKernel:
    at = f" (from {', '.join(op.loc)})" if op.loc else ""
    return NoKernel(f"cannot compile {op.opcode.name.lower()}{at}: {why}")
