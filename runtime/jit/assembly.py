"""A model's BPU segments as one LLVM module: one entry per segment, all kernels shared by key."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..errors import NoKernel
from ..isa import Instruction, Opcode
from ..program import ALIGN, Model, Storage, Tensor
from .barrier import LINE, barrier
from .code import Code, aligned
from .emitter import I32, I64, PTR, VOID, Emitter, i64
from .fusion import fused
from .host import Dot, Host, target_machine
from .kernels import KERNELS
from .memory import give_back, many_objects
from .offset import is_offset, with_offsets
from .registry import KernelBuilder, Packed, kernel_key

SMALL = 1 << 14  # elementary steps below which handing out work costs more than the work


def assemble(model: Model, machine: Host) -> Code:
    """Machine code for `machine` that any number of threads may run together, and the constants that it reads.

    Raises NoKernel where an instruction cannot be compiled, naming it and its source nodes.
    """
    with many_objects():  # a fifth of the time otherwise
        code = _Assembly(model, machine).finish()
    give_back()
    return code


@dataclass(frozen=True)
class _Kernel:
    function: ir.Function
    items: int
    is_small: bool


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
    """Writes the module of one model."""

    def __init__(self, model: Model, machine: Host) -> None:
        self.model = with_offsets(model) if machine.dot is Dot.U8S8 else model
        self.host = machine
        self.module = ir.Module("model", context=ir.Context())  # a file names it: no text of its own in here
        self.module.triple = machine.triple
        self.helpers: dict[object, ir.Function] = {}
        self.kernels: dict[Hashable, _Kernel] = {}
        self.packed = _PackedLayout()
        self.scratch = 0

    def finish(self) -> Code:
        """Emit every entry, generate code."""
        steps = fused(self.model)
        calls = {i: [self.prepare(op) for op in own if not self.is_alias(op)] for i, own in steps.items()}
        for i, prepared in calls.items():  # after all kernels, when the scratch size is known
            _Entry(self, i).emit(prepared)
        flipped = tuple(i for i, t in enumerate(self.model.tensors) if is_offset(t))
        return Code(self.compile(), self.packed.block(), self.scratch, tuple(calls), flipped)

    def compile(self) -> bytes:
        """An object file. No pass pipeline runs: on such kernels it was measured to gain nothing, and to slow some."""
        machine = target_machine(self.host)
        self.module.data_layout = str(machine.target_data)
        parsed = llvm.parse_assembly(str(self.module))
        parsed.verify()
        return bytes(machine.emit_object(parsed))

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
        is_constant = [t is not None and t.storage is Storage.CONSTANT for t in ins]
        values = [self.model.constant(i) if c else None for i, c in zip(op.inputs, is_constant, strict=True)]
        return rule(op, ins, outs, values, self.host)

    def kernel(self, op: Instruction, ins: list[Tensor | None], outs: list[Tensor], packed: Packed) -> _Kernel:
        """The shared kernel for this key, emitted on first request."""
        key = kernel_key(op, ins, outs, packed.variant)
        if key not in self.kernels:
            name = f"{op.opcode.name.lower()}_{len(self.kernels)}"
            k = KernelBuilder(self.module, self.host, self.helpers, name, (ins, outs), packed)
            KERNELS.kernels[type(op)](k, op, ins, outs)
            k.b.ret_void()
            self.scratch = max(self.scratch, k.scratch_bytes)
            self.kernels[key] = _Kernel(k.function, k.items, k.items < 2 or k.cost < SMALL)
        return self.kernels[key]


class _Entry(Emitter):
    """`void entry_i(ptr arena, constants, packed, inputs, outputs, workspace, i64 thread, i64 threads)`."""

    def __init__(self, assembly: _Assembly, number: int) -> None:
        function = ir.Function(assembly.module, ir.FunctionType(VOID, [PTR] * 6 + [I64, I64]), f"entry_{number}")
        function.attributes.add("nounwind")
        super().__init__(assembly.module, assembly.host, assembly.helpers, function)
        self.arena, self.constants, self.packed, *self.tables, self.workspace, self.thread, self.threads = self.args
        mine = self.b.mul(self.thread, i64(assembly.scratch))
        self.scratch = self.at(self.at(self.workspace, LINE), mine)

    def emit(self, calls: Sequence[tuple[_Kernel, list[Tensor], list[int]]]) -> None:
        """Every kernel in order, a barrier wherever work of one thread may meet work of another."""
        clean = True  # nothing since the last barrier
        was_small = True
        for kernel, tensors, packed in calls:
            if kernel.items == 0:
                continue
            if not clean and not (was_small and kernel.is_small):
                self.wait()
            args = [*map(self.address, tensors), *(self.at(self.packed, o) for o in packed), self.scratch]
            self.call_kernel(kernel, args)
            clean, was_small = False, kernel.is_small
        self.b.ret_void()

    def address(self, tensor: Tensor) -> ir.Value:
        """Where a tensor's bytes lie in this run."""
        if tensor.storage is Storage.ARENA:
            return self.at(self.arena, tensor.offset)
        if tensor.storage is Storage.CONSTANT:
            return self.at(self.constants, tensor.offset)
        table = self.tables[0 if tensor.storage is Storage.INPUT else 1]
        return self.b.load(self.b.gep(table, [i64(tensor.index)], source_etype=PTR), typ=PTR, align=8)

    def call_kernel(self, kernel: _Kernel, args: list[ir.Value]) -> None:
        """This thread's share of the kernel's items; a small kernel is all thread 0's."""
        items = i64(kernel.items)
        if kernel.is_small:
            with self.when(self.b.icmp_signed("==", self.thread, i64(0))):
                self.call(kernel.function, *args, 0, items)
        else:
            begin = self.b.sdiv(self.b.mul(items, self.thread), self.threads)
            end = self.b.sdiv(self.b.mul(items, self.b.add(self.thread, i64(1))), self.threads)
            self.call(kernel.function, *args, begin, end)

    def wait(self) -> None:
        """Wait for the other threads; return from the entry where the run was abandoned."""
        alone = self.b.icmp_signed("==", self.threads, i64(1))
        with self.when(self.b.not_(alone)):
            count = self.b.trunc(self.threads, I32)
            left = self.call(barrier(self), self.workspace, count)
            with self.when(left):
                self.b.ret_void()


def _cannot(op: Instruction, why: str) -> NoKernel:
    at = f" (from {', '.join(op.loc)})" if op.loc else ""
    return NoKernel(f"cannot compile {op.opcode.name.lower()}{at}: {why}")
