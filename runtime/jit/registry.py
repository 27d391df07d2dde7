"""Who emits what: kernel and packing rules by instruction class, and the builder that an emitting rule is handed.

    @kernel(Clamp)
    def emit_clamp(k: KernelBuilder, op: Clamp, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
        def body(i: ir.Value, lanes: int) -> None:                       # elements [i, i + lanes)
            x = k.load(k.ins[0], i, element(ins[0].dtype), lanes)
            k.store(numerics.saturate(k, x, op.clamp_min, op.clamp_max), k.outs[0], i)
        elementwise(k, outs[0].elements, 64, body)                       # loops.py; calls k.work

A kernel becomes one function `void(ptr in…, ptr out…, ptr packed…, ptr scratch, i64 begin, i64 end)`. It states with
`k.work(n)` how many independent items it has and does items [begin, end) only. Items run on any thread, in any order,
and do not read what another item of the same kernel writes; they may write the same values to the same place. Results
never overlap operands (only Reshape's may, if they are the same bytes).
Kernels are shared by all instructions of equal opcode, attributes, operand shapes and dtypes, and packing variant; so
nothing about an instruction's addresses or constants may be baked into one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir

from ..isa import Instruction
from ..program import Tensor
from .emitter import I64, PTR, VOID, Emitter
from .host import Host

Operands = Sequence["Tensor | None"]
Constants = Sequence["np.ndarray[Any, Any] | None"]


def operand(ins: Operands, index: int) -> Tensor:
    """Operand `index`, which `check` has found to be there."""
    x = ins[index]
    assert x is not None, index
    return x


@dataclass(frozen=True)
class Packed:
    """What a packing rule makes of constant operands: arrays in the order the kernel reads them, and a variant.

    The engine copies the arrays to 64-byte aligned memory and passes their addresses as `k.packed`. `variant` joins the
    kernel's key and is handed to the emitter as `k.variant`: facts about values (such as "fits 32 bits") go there.
    """

    arrays: tuple[np.ndarray[Any, Any], ...] = ()
    variant: Hashable = None


# `op` is Any: each rule takes its own instruction class, which the registry guarantees.
Emit = Callable[["KernelBuilder", Any, Sequence["Tensor | None"], Sequence[Tensor]], None]
Pack = Callable[[Any, Sequence["Tensor | None"], Sequence[Tensor], Constants, Host], Packed]
_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(*instructions: type[Instruction]) -> Callable[[_F], _F]:
    """Mark a function as the kernel emitter of these instruction classes; `collect` finds it."""
    return _mark("_kernel_of", instructions)


def packing(*instructions: type[Instruction]) -> Callable[[_F], _F]:
    """Mark a function `(op, ins, outs, constants, host) -> Packed` that prepares constants when a model is built.

    `constants[i]` is operand i's value where it is a constant, else None.
    """
    return _mark("_packing_of", instructions)


def _mark(attribute: str, instructions: tuple[type[Instruction], ...]) -> Callable[[_F], _F]:
    def decorate(fn: _F) -> _F:
        setattr(fn, attribute, instructions)
        return fn

    return decorate


@dataclass(frozen=True)
class Registry:
    """The rules of all kernel modules."""

    kernels: Mapping[type[Instruction], Emit]
    packings: Mapping[type[Instruction], Pack]


def collect(*modules: ModuleType) -> Registry:
    """Gather the marked functions of `modules`; two rules for one instruction are a bug."""
    kernels: dict[type[Instruction], Emit] = {}
    packings: dict[type[Instruction], Pack] = {}
    for module in modules:
        for rule in vars(module).values():
            if getattr(rule, "__module__", None) != module.__name__:
                continue  # imported there, defined elsewhere
            for attribute, table in (("_kernel_of", kernels), ("_packing_of", packings)):
                for cls in getattr(rule, attribute, ()):
                    assert cls not in table, f"two rules for {cls.__name__}"
                    table[cls] = rule
    return Registry(kernels, packings)


_UNKEYED = {"inputs", "outputs", "loc", "add", "left"}  # an AddedConv2d's variant holds what code depends on


def kernel_key(op: Instruction, ins: Sequence[Tensor | None], outs: Sequence[Tensor], variant: Hashable) -> Hashable:
    """Instructions with equal keys share one kernel."""
    attributes = tuple((f.name, getattr(op, f.name)) for f in fields(op) if f.name not in _UNKEYED)
    shapes = tuple(None if t is None else (t.shape, t.dtype, type(t)) for t in (*ins, *outs))
    return op.opcode, attributes, shapes, variant


class KernelBuilder(Emitter):
    """The function of one kernel under construction: see the module's docstring, and `Emitter` for loops and memory.

    `ins[i]` is None where operand i is absent. `scratch(n)` is memory of the running thread, undefined at entry.
    """

    def __init__(
        self,
        module: ir.Module,
        host: Host,
        helpers: dict[object, ir.Function],
        name: str,
        operands: tuple[Sequence[Tensor | None], Sequence[Tensor]],
        packed: Packed,
    ) -> None:
        ins, outs = operands
        count = sum(t is not None for t in ins) + len(outs) + len(packed.arrays) + 1
        function = ir.Function(module, ir.FunctionType(VOID, [PTR] * count + [I64, I64]), name)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        super().__init__(module, host, helpers, function)
        args = iter(function.args)
        self.ins: list[Any] = [None if t is None else next(args) for t in ins]
        self.outs: list[ir.Value] = [next(args) for _ in outs]
        self.packed: list[ir.Value] = [next(args) for _ in packed.arrays]
        self._scratch, self.begin, self.end = args
        self.variant: Any = packed.variant
        self.items = 0
        self.cost = math.prod(outs[0].shape) if outs else 0
        self.scratch_bytes = 0

    def part(
        self, number: int, operands: tuple[Sequence[Tensor | None], Sequence[Tensor]], variant: Hashable
    ) -> KernelBuilder:
        """A further function of the same operands and packed arrays, with items of its own: see `call_parts`."""
        packed = Packed(tuple(np.zeros(0) for _ in self.packed), variant)
        name = f"{self.function.name}_{number}"
        return KernelBuilder(self.module, self.host, self._helpers, name, operands, packed)

    def call_parts(self, parts: Sequence[KernelBuilder]) -> None:
        """Call finished parts: this kernel's items are those of all of them, one after the other."""
        self.work(sum(p.items for p in parts), sum(p.cost for p in parts))
        scratch, done = self.scratch(max(p.scratch_bytes for p in parts)), 0
        for part in parts:
            part.b.ret_void()
            begin = self.smax(self.begin, ir.Constant(I64, done))
            end = self.smin(self.end, ir.Constant(I64, done + part.items))
            with self.when(self.b.icmp_signed("<", begin, end)):
                mine = (self.b.sub(v, ir.Constant(I64, done)) for v in (begin, end))
                self.call(part.function, *self.args[:-3], scratch, *mine)
            done += part.items

    def work(self, items: int, cost: int | None = None) -> None:
        """State that the kernel has `items` independent items, about `cost` elementary steps in all.

        The default cost is the result's element count; cheap kernels run on one thread.
        """
        self.items = items
        self.cost = self.cost if cost is None else cost

    def scratch(self, nbytes: int) -> ir.Value:
        """The address of `nbytes` of scratch memory of this thread, 64-byte aligned; each call adds a further block."""
        offset = self.scratch_bytes
        self.scratch_bytes += -(-nbytes // 64) * 64
        return self.at(self._scratch, offset)
