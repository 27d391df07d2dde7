"""A model's BPU segments as machine code that runs: made here, or taken from the cache."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from ..errors import SessionClosed
from ..program import ALIGN, Model, NativeCode
from .barrier import ABANDONED, LINE, define_yield
from .code import Code
from .host import Host, host, target_machine
from .obtain import code_of, find
from .threads import Pool, Workspaces

_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 6, ctypes.c_int64, ctypes.c_int64)  # releases the GIL


def recall(content: str, natives: Sequence[NativeCode], threads: int) -> JitModel | None:
    """What `build` gives for a model with fingerprint `content`, where its code need not be made; else None."""
    machine = host()
    code = find(content, machine, natives)
    return None if code is None else JitModel(code, machine, threads)


def build(model: Model, threads: int = 1, natives: Sequence[NativeCode] = ()) -> JitModel:
    """Compile `model` for this machine, or load what was compiled before. `threads` is how many one run may use.

    `natives` is code made ahead of time that may be run: of the model, or foreign to it, which is found out.
    Raises NoKernel where an instruction cannot be compiled, naming it and its source nodes; UnknownIsa where HBC_ISA
    asks for an instruction set that this machine lacks. Thread-safe.
    """
    if threads < 1:
        msg = f"threads is {threads}; a run needs at least 1"
        raise ValueError(msg)
    machine = host()
    return JitModel(code_of(model, machine, natives), machine, threads)


def _linked(code: Code, machine: Host) -> llvm.ExecutionEngine:
    """The object in memory, its symbols resolved."""
    define_yield()
    nothing = llvm.parse_assembly("")
    nothing.triple = machine.triple
    engine = llvm.create_mcjit_compiler(nothing, target_machine(machine))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
    engine.finalize_object()
    return engine


class JitModel:
    """Machine code of one model, its packed constants and its helper threads. `run_segment` is thread-safe.

    The tensors `flipped` (indices) lie in the arena as q + 128, for whoever looks there.
    """

    def __init__(self, code: Code, machine: Host, threads: int) -> None:
        self.threads = threads
        self._engine = engine = _linked(code, machine)  # owns the code that the entries point to
        self._entries = {i: _ENTRY(engine.get_function_address(f"entry_{i}")) for i in code.segments}
        self._packed = code.packed
        self.flipped = frozenset(code.flipped)
        self._workspaces = Workspaces(LINE + ALIGN + code.scratch * threads)
        self._pool = Pool(threads) if threads > 1 else None
        self._close = weakref.finalize(self, self._pool.close) if self._pool else None
        self._closed = False

    def run_segment(self, i: int, arena: int, constants: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run segment `i` of `model.segments` (a BPU segment). All arguments but `i` are addresses.

        The GIL is released meanwhile. Runs may overlap: one of them gets the helper threads, the others do without;
        results are the same. The caller keeps the memory alive and gives each overlapping run its own arena.
        """
        if self._closed:
            msg = "the model is closed; open it again to run it"
            raise SessionClosed(msg)
        tables = [(ctypes.c_void_p * max(1, len(a)))(*a) for a in (inputs, outputs)]
        with self._workspaces.borrow() as block:
            block[:LINE] = 0
            base = block.ctypes.data
            args = (arena, constants, self._packed.ctypes.data, *tables, base)
            self._call(self._entries[i], args, block)

    def close(self) -> None:
        """End the helper threads. Runs under way finish; later ones raise SessionClosed."""
        self._closed = True
        if self._close is not None:
            self._close()

    def _call(self, entry: Any, args: tuple[Any, ...], block: npt.NDArray[np.uint8]) -> None:
        if self._pool is None or not self._pool.claim():
            entry(*args, 0, 1)
            return
        threads = self.threads

        def abandon() -> None:
            block[ABANDONED : ABANDONED + 4] = 1

        try:
            self._pool.run(lambda thread: entry(*args, thread, threads), abandon)
        finally:
            self._pool.release()
