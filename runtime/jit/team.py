"""The JIT functions around the entries: how a run is told to the helper threads, and what they do until it comes.

    void work(ptr team, ptr job, i64 thread)      one thread's part of a job
    i64 lead(ptr team, ptr job)         tell the helpers of the job, then work(team, job, 0); returns the CPU it ran on
    i64 serve(ptr team, i64 thread, i64 seen, i64 spins)   work on jobs as they come, until none does for a while

A job is JOB i64 words. The leader writes it to the team's memory, and never waits for a helper to read it: it does all
the work itself where none comes. So a helper may read while the next job is being written; it looks at `posted` before
and after, and reads again where that has changed (a sequence lock). A helper that is late by whole runs finds no work
left (see share.py) and touches no memory that a job names: nothing is read through its addresses before a piece is
taken.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from .emitter import I32, I64, PTR, VOID, Emitter, i64
from .host import Host
from .placing import cpu_address
from .share import LINE, pieces, state_of, words
from .waiting import pause


class Word(enum.IntEnum):
    """What each word of a job is."""

    SEGMENT = 0
    ARENA = 1  # addresses, up to SCRATCH
    CONSTANTS = 2
    PACKED = 3
    INPUTS = 4  # table of the addresses of input tensors; COUNT of them, one behind the other
    OUTPUTS = 5
    SCRATCH = 6  # of thread 0
    INPUT_STEP = 7  # bytes from one sample's table to the next one's
    OUTPUT_STEP = 8
    BASE = 9  # the run's number << RUN_BITS
    PARTS = 10  # threads that share the job; 0: the caller works alone
    COUNT = 11  # samples that threads take whole; 0: one sample, whose layers they share
    ARENA_STEP = 12  # bytes from one thread's arena to the next one's, where threads take whole samples


JOB = len(Word)
POSTED = 0  # offset of the i64 that changes with every job: its base; 0 while one is being written
CLOSING = LINE  # offset of the i64 that ends `serve`
WORDS = 2 * LINE  # offset of the job
_CPU = "hbc_cpu"
HEAD = WORDS + -(-JOB * 8 // LINE) * LINE  # bytes before the first stage
BATCH_STAGE = 0  # the stage whose items are samples
PRESENCE = 1  # no stage: in each part's line, base of the job that the thread came to last, and the CPU it was on
FIRST_STAGE = 2  # of the entries


def team_bytes(threads: int, stages: int) -> int:
    """Bytes of a team's memory, zeros at first: its head, then `stages` lines of `done`, then as many per thread."""
    return HEAD + (1 + threads) * stages * LINE


def presence(team: npt.NDArray[np.uint8], threads: int) -> npt.NDArray[np.int64]:
    """[threads, 2] i64: base of the job that each helper came to last, and the CPU it was on. A view of the memory."""
    lines = team[HEAD:].view(np.int64).reshape(1 + threads, -1, LINE // 8)
    return lines[1:, PRESENCE, :2]


ENTRY = ir.FunctionType(VOID, [PTR] * 7 + [I64] * 3)
"""`void entry_i(arena, constants, packed, inputs, outputs, scratch, team, i64 base, thread, parts)`: this thread's part
of segment i, or all of it where `parts` is 0."""


class Team:
    """Writes the functions of one module: `entries` by segment; `scratch` bytes per thread; how many `stages`."""

    def __init__(
        self,
        module: ir.Module,
        host: Host,
        helpers: dict[object, ir.Function],
        entries: Mapping[int, ir.Function],
        *,
        scratch: int,
        stages: int,
    ) -> None:
        self.module, self.host, self.helpers, self.entries = module, host, helpers, entries
        self.scratch, self.pitch = scratch, stages * LINE

    def emit(self) -> None:
        """All three."""
        work = self.function("work", VOID, [PTR, PTR, I64])
        self.emit_work(work)
        lead = self.function("lead", I64, [PTR, PTR])
        self.emit_lead(lead, work.function)
        serve = self.function("serve", I64, [PTR, I64, I64, I64])
        _Serve(serve, work.function, self.pitch).emit()

    def function(self, name: str, ret: ir.Type, args: list[ir.Type]) -> Emitter:
        """An exported function."""
        function = ir.Function(self.module, ir.FunctionType(ret, args), name)
        function.attributes.add("nounwind")
        return Emitter(self.module, self.host, self.helpers, function)

    def emit_work(self, e: Emitter) -> None:
        """One sample: the entry. Several: the entry for each that this thread takes, in an arena of its own."""
        team, job, thread = e.args
        b = e.b
        word = {w: e.load(job, int(w), I64) for w in Word}
        arena, ins, outs = (b.inttoptr(word[w], PTR) for w in (Word.ARENA, Word.INPUTS, Word.OUTPUTS))
        fixed = [b.inttoptr(word[w], PTR) for w in (Word.CONSTANTS, Word.PACKED)]
        scratch = e.at(b.inttoptr(word[Word.SCRATCH], PTR), b.mul(thread, i64(self.scratch)))
        base, parts, count = word[Word.BASE], word[Word.PARTS], word[Word.COUNT]
        entry = self.by_number(e)
        state = state_of(e)

        def run(arena: ir.Value, ins: ir.Value, outs: ir.Value, parts: ir.Value) -> None:
            args = [arena, *fixed, ins, outs, scratch, team, base, thread, parts]
            e.call(entry, word[Word.SEGMENT], *args)

        with b.if_else(b.icmp_signed("==", count, i64(0))) as (one, several):
            with one:
                run(arena, ins, outs, parts)
            with several:
                own = e.at(arena, b.mul(thread, word[Word.ARENA_STEP]))
                stage = [e.at(team, HEAD + BATCH_STAGE * LINE), i64(self.pitch), base, count, thread, parts]
                with pieces(e, stage, state) as (begin, end), e.loop(begin, end) as n:
                    ahead = [b.mul(n, word[w]) for w in (Word.INPUT_STEP, Word.OUTPUT_STEP)]
                    run(own, e.at(ins, ahead[0]), e.at(outs, ahead[1]), i64(0))
        b.ret_void()

    def by_number(self, e: Emitter) -> ir.Function:
        """`void(i64 segment, …)`: the segment's entry, called on the other arguments."""

        def emit(inner: Emitter) -> None:
            segment, *args = inner.args
            done = inner.b.append_basic_block("done")
            switch = inner.b.switch(segment, done)
            for i, entry in self.entries.items():
                block = inner.b.append_basic_block(f"segment_{i}")
                switch.add_case(i64(i), block)
                inner.b.position_at_end(block)
                inner.call(entry, *args)
                inner.b.branch(done)
            inner.b.position_at_end(done)

        return e.helper(("by_number",), [I64, *ENTRY.args], emit)

    def emit_lead(self, e: Emitter, work: ir.Function) -> None:
        """The writer of the sequence lock."""
        team, job = e.args
        b = e.b
        posted = e.at(team, POSTED)
        b.atomic_rmw("xchg", posted, i64(0), "monotonic")
        b.fence("release")
        for w in Word:
            b.atomic_rmw("xchg", e.at(team, WORDS + 8 * w), e.load(job, int(w), I64), "monotonic")
        b.atomic_rmw("xchg", posted, e.load(job, int(Word.BASE), I64), "release")
        e.call(work, team, job, 0)
        b.ret(_cpu(e))


class _Serve:
    """The loop of a helper: waits, at most `spins` pauses, for a job; does it; waits for the next one."""

    def __init__(self, e: Emitter, work: ir.Function, pitch: int) -> None:
        self.e, self.work, self.pitch = e, work, pitch
        self.team, self.thread, self.first, self.spins = e.args
        self.job = words(e, JOB)

    def emit(self) -> None:
        b = self.e.b
        look, new, mine, busy, idle, wait, leave = (
            b.append_basic_block(n) for n in ("look", "new", "mine", "busy", "idle", "wait", "leave")
        )
        entry = b.block
        b.branch(look)

        b.position_at_end(look)
        seen, spins = b.phi(I64), b.phi(I64)
        posted = b.load_atomic(self.e.at(self.team, POSTED), "acquire", 8, typ=I64)
        nothing = b.or_(b.icmp_signed("==", posted, i64(0)), b.icmp_signed("==", posted, seen))
        b.cbranch(nothing, idle, new)

        b.position_at_end(new)
        parts = self.read()
        still = b.icmp_signed("==", b.load_atomic(self.e.at(self.team, POSTED), "monotonic", 8, typ=I64), posted)
        b.cbranch(still, mine, look)
        b.position_at_end(mine)
        b.cbranch(b.icmp_signed("<", self.thread, parts), busy, wait)
        b.position_at_end(busy)
        own = self.e.at(self.e.at(self.team, HEAD + PRESENCE * LINE + self.pitch), b.mul(self.thread, i64(self.pitch)))
        self.e.store(posted, own, 0)
        self.e.store(_cpu(self.e), own, 1)
        self.e.call(self.work, self.team, self.job, self.thread)
        b.branch(look)

        b.position_at_end(idle)
        closing = b.load_atomic(self.e.at(self.team, CLOSING), "monotonic", 8, typ=I64)
        late = b.icmp_signed(">=", spins, self.spins)
        b.cbranch(b.or_(late, b.icmp_signed("!=", closing, i64(0))), leave, wait)
        b.position_at_end(wait)
        known = b.phi(I64)
        known.add_incoming(posted, mine)
        known.add_incoming(seen, idle)
        pause(self.e, spins)
        more = b.add(spins, i64(1))
        waited = b.block
        b.branch(look)
        for value, count, block in (
            (self.first, i64(0), entry), (seen, spins, new), (posted, i64(0), busy), (known, more, waited),
        ):  # fmt: skip
            seen.add_incoming(value, block)
            spins.add_incoming(count, block)

        b.position_at_end(leave)
        b.ret(seen)

    def read(self) -> ir.Value:
        """The job's words to this thread's stack; returns PARTS. What was read is a job if `posted` is as before."""
        e, b = self.e, self.e.b
        words = [b.load_atomic(e.at(self.team, WORDS + 8 * w), "monotonic", 8, typ=I64) for w in Word]
        b.fence("acquire")
        for w, value in zip(Word, words, strict=True):
            e.store(value, self.job, int(w))
        return words[Word.PARTS]


def _cpu(e: Emitter) -> ir.Value:
    """The CPU that this code runs on, −1 where the system doesn't tell, as i64."""
    if not define_cpu():
        return i64(-1)
    fn = e.module.globals.get(_CPU) or ir.Function(e.module, ir.FunctionType(I32, []), _CPU)
    return e.b.sext(e.b.call(fn, []), I64)


def define_cpu() -> bool:
    """Tell LLVM the address of the system's "which CPU is this"; False where there is none."""
    address = cpu_address()
    if address:
        llvm.add_symbol(_CPU, address)
    return bool(address)
