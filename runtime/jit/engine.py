"""A model's BPU segments as machine code that runs: made here, or taken from the cache."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from ..errors import SessionClosed
from ..program import ALIGN, Model, NativeCode
from .code import Code, aligned
from .host import Host, host, target_machine
from .obtain import code_of, find
from .placing import available_cpus
from .share import RUN_BITS
from .team import JOB, Word, define_cpu, team_bytes
from .threads import RUNNING, Pool, Workspaces
from .waiting import define_yield

_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)  # the calls release the GIL
_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_SERVE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 3)
_WORDS = ctypes.c_int64 * JOB
WORTH = 1 << 18  # elementary steps, some ten microseconds of one thread, from which sharing them pays for the calling


def recall(
    content: str, natives: Sequence[NativeCode], threads: int, sound: tuple[int, ...] | None = None
) -> JitModel | None:
    """What `build` gives for a model with fingerprint `content`, where its code need not be made; else None.

    `sound` is a state (`cache.State`) in which the cache's entry is known to be undamaged.
    """
    machine = host()
    code = find(content, machine, natives, sound)
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
    """The objects in memory, their symbols resolved."""
    define_yield()
    define_cpu()
    nothing = llvm.parse_assembly("")
    nothing.triple = machine.triple
    engine = llvm.create_mcjit_compiler(nothing, target_machine(machine))
    engine.remove_module(nothing)  # for which code would be made, though there is none: half the time of linking
    for data in code.objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return engine


@functools.cache
def _pointers(count: int) -> Any:
    """The type of a table of that many pointers (one at least): making it takes longer than filling it."""
    return ctypes.c_void_p * max(1, count)


@dataclass(frozen=True)
class Job:
    """A run's words, the address of the first one, and the scratch memory that they name. One run at a time."""

    words: ctypes.Array[ctypes.c_int64]
    at: int
    scratch: npt.NDArray[np.uint8]


class JitModel:
    """Machine code of one model, its packed constants and its helper threads. Its runs are thread-safe.

    A run uses at most `threads` threads, and no more than there are CPUs; one alone where there is too little to do.
    The tensors `flipped` (indices) lie in the arena as q + 128, for whoever looks there.
    """

    def __init__(self, code: Code, machine: Host, threads: int) -> None:
        self._cpus = available_cpus()
        self.threads = min(threads, self._cpus)
        self._engine = engine = _linked(code, machine)  # owns the code that these point to
        self._work = _WORK(engine.get_function_address("work"))
        self._lead = _LEAD(engine.get_function_address("lead"))
        self._packed = code.packed
        self._packed_at = code.packed.ctypes.data
        self.flipped = frozenset(code.flipped)
        self._workspaces = Workspaces(ALIGN + code.scratch * self.threads)
        self._work_of_one = code.work
        self._shares = self.threads > 1 and code.shared >= WORTH
        self._pool: Pool | None = None
        self._runs = 0  # of the pool
        if self.threads > 1:
            self._team = aligned(team_bytes(self.threads, code.stages))
            self._team[:] = 0
            self._team_at = self._team.ctypes.data
            serve = _SERVE(engine.get_function_address("serve"))
            self._pool = Pool(self.threads, self._team, serve, engine)
            weakref.finalize(self, self._pool.close)
        self._closed = False

    def run_segment(self, i: int, arena: int, constants: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run segment `i` of `model.segments` (a BPU segment) on one sample. All arguments but `i` are addresses.

        The GIL is released meanwhile. Runs may overlap: one of them gets the helper threads, the others do without;
        results are the same. The caller keeps the memory alive and gives each overlapping run its own arena.
        """
        tables = [_pointers(len(a))(*a) for a in (inputs, outputs)]
        self._run(i, arena, constants, [ctypes.addressof(t) for t in tables], (0, 0, 0, 0))

    def run_samples(
        self, i: int, arenas: tuple[int, int], constants: int, inputs: npt.NDArray[np.int64],
        outputs: npt.NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Run segment `i` on several samples, each by one thread: rows of `inputs` and `outputs` are their addresses.

        `arenas` is the address of `threads` arenas, and the bytes from one to the next. Otherwise as `run_segment`.
        """
        tables = [np.ascontiguousarray(a, np.int64) for a in (inputs, outputs)]
        samples = (len(inputs), arenas[1], *(8 * t.shape[1] for t in tables))
        self._run(i, arenas[0], constants, [t.ctypes.data for t in tables], samples)

    def job(self, i: int, arena: int, constants: int, inputs: int, outputs: int) -> Job:
        """A job to be run again and again, by one run at a time: `run_segment` with tables of addresses instead."""
        block, at = self._workspaces.take()
        words = _WORDS(i, arena, constants, self._packed_at, inputs, outputs, at)
        return Job(words, ctypes.addressof(words), block)

    def run_job(self, job: Job) -> None:
        """Do a job of one sample."""
        if self._shares:
            self._share(job.words, job.at, self.threads)
            return
        busy = RUNNING.busy
        busy.append(None)
        try:
            self._work(0, job.at, 0)
        finally:
            busy.pop()

    def close(self) -> None:
        """End the helper threads. Runs under way finish; later ones raise SessionClosed."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()

    def _run(self, i: int, arena: int, constants: int, tables: Sequence[int], samples: tuple[int, ...]) -> None:
        if self._closed:
            msg = "the model is closed; open it again to run it"
            raise SessionClosed(msg)
        count, arena_step, *steps = samples
        block, at = self._workspaces.take()
        words = _WORDS(i, arena, constants, self._packed_at, *tables, at, *steps, 0, 0, count, arena_step)
        worth = self._shares or count * self._work_of_one >= WORTH
        self._share(words, ctypes.addressof(words), min(self.threads, count or self.threads) if worth else 1)
        self._workspaces.give(block, at)  # not where the run failed

    def _share(self, words: ctypes.Array[ctypes.c_int64], at: int, wanted: int) -> None:
        """Do the job in this thread, with as many helpers, of `wanted` − 1, as there are idle CPUs for."""
        granted = RUNNING.enter(wanted, self._cpus)
        try:
            if granted == 1 or self._pool is None or not self._pool.claim():
                words[Word.PARTS] = 0
                self._work(0, at, 0)
                return
            try:
                self._runs += 1
                base = self._runs << RUN_BITS
                words[Word.BASE], words[Word.PARTS] = base, granted
                self._pool.wake(granted)
                cpu = self._lead(self._team_at, at)
                self._pool.look_after(granted, base, cpu)
            finally:
                self._pool.release()
        finally:
            RUNNING.leave(granted)
