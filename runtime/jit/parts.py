"""A model's functions as several LLVM modules, so that machine code of one is made while the next one is written.

Writing is Python's work, and holds its lock; making code is LLVM's, and does not. Modules end where functions say so
(`Parts.full`), not where time does: the same model always comes to the same objects.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import llvmlite.binding as llvm
from llvmlite import ir

from .host import Host, target_machine

ENOUGH = 4000  # instructions: a tenth of a second of LLVM's work


class Parts:
    """Modules on their way to object files. Close it in the end."""

    def __init__(self, machine: Host) -> None:
        self.module = _module(machine)
        self._machine = machine
        self._worker: ThreadPoolExecutor | None = None
        self._objects: list[Future[bytes]] = []
        self._counted = 0  # functions of the module
        self._size = 0  # their instructions

    def close(self) -> None:
        """End the thread that makes code, once it is through with what it is at."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)

    def full(self) -> bool:
        """True where the module has enough in it. Ask between functions that are whole."""
        functions = self.module.functions
        self._size += sum(len(b.instructions) for f in functions[self._counted :] for b in f.blocks)
        self._counted = len(functions)
        return self._size >= ENOUGH

    def next(self) -> None:
        """Have code made of the module, and begin another one."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "hbc-codegen")
        self._objects.append(self._worker.submit(self._make, *self._text()))
        for function in self.module.functions:  # what was written is not needed any more
            for block in function.blocks:
                block.instructions.clear()
            function.blocks.clear()
        self.module = _module(self._machine)
        self._counted = self._size = 0

    def finish(self) -> tuple[bytes, ...]:
        """All object files, once the last module is whole too."""
        last = self._make(*self._text())
        return (*(o.result() for o in self._objects), last)

    def _text(self) -> tuple[str, llvm.TargetMachine]:
        target = target_machine(self._machine)
        self.module.data_layout = str(target.target_data)
        return str(self.module), target

    @staticmethod
    def _make(text: str, target: llvm.TargetMachine) -> bytes:
        """An object file. No pass pipeline runs: on such kernels it was measured to gain nothing, and to slow some."""
        with llvm.create_context() as context, llvm.parse_assembly(text, context) as parsed:
            parsed.verify()
            return bytes(target.emit_object(parsed))


def _module(machine: Host) -> ir.Module:
    module = ir.Module("model", context=ir.Context())  # a file names it: no text of its own in here
    module.triple = machine.triple
    return module


def in_module(function: ir.Function, module: ir.Module) -> ir.Function:
    """The function itself, or in another module than its own a declaration of it, which makes it known to others."""
    if function.module is module:
        return function
    return module.globals.get(function.name) or ir.Function(module, function.function_type, function.name)
