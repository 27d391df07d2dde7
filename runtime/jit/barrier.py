"""Where the threads of one run wait for each other: a spinning barrier in JIT code, and the call that yields the CPU.

Its memory is one cache line of the run's workspace: i32 arrived, i32 generation, i32 abandoned. Spinning alone was
measured to take 123 ms for a 10 ms network when both threads sat on one CPU, hence the yield after a while.
"""

from __future__ import annotations

import ctypes
import sys

import llvmlite.binding as llvm
from llvmlite import ir

from .emitter import I1, I32, PTR, Emitter, const

LINE = 64  # bytes of the barrier's memory
ABANDONED = 8  # offset of the i32 that makes every waiting thread leave
_SPINS = 1000  # pauses between two yields: a few microseconds
_YIELD = "hbc_yield"


def barrier(e: Emitter) -> ir.Function:
    """The module's `i1 barrier(ptr line, i32 threads)`: true where the run was abandoned and the caller must return."""
    return e.helper(("barrier",), [PTR, I32], _emit, I1)


def _emit(e: Emitter) -> ir.Value:
    b, (line, threads) = e.b, e.args
    generation_at, abandoned_at = e.at(line, 4), e.at(line, ABANDONED)
    names = ("last", "spin", "wait", "pause", "yield", "left")
    last, spin, wait, pause, yields, left = (b.append_basic_block(n) for n in names)
    generation = b.load_atomic(generation_at, "monotonic", 4, typ=I32)  # cannot move on before this thread arrives
    arrived = b.add(b.atomic_rmw("add", line, const(I32, 1), "acq_rel"), const(I32, 1))
    entry = b.block
    b.cbranch(b.icmp_unsigned("==", arrived, threads), last, spin)

    b.position_at_end(last)
    b.atomic_rmw("xchg", line, const(I32, 0), "monotonic")
    b.atomic_rmw("add", generation_at, const(I32, 1), "release")
    b.branch(left)

    b.position_at_end(spin)
    spins = b.phi(I32)
    now = b.load_atomic(generation_at, "acquire", 4, typ=I32)
    b.cbranch(b.icmp_unsigned("==", now, generation), wait, left)
    b.position_at_end(wait)
    abandoned = b.icmp_unsigned("!=", b.load_atomic(abandoned_at, "monotonic", 4, typ=I32), const(I32, 0))
    b.cbranch(abandoned, left, pause)
    b.position_at_end(pause)
    _emit_pause(e)
    more = b.add(spins, const(I32, 1))
    b.cbranch(b.icmp_unsigned("<", more, const(I32, _SPINS)), spin, yields)
    b.position_at_end(yields)
    _emit_yield(e)
    b.branch(spin)
    for value, block in ((const(I32, 0), entry), (more, pause), (const(I32, 0), yields)):
        spins.add_incoming(value, block)

    b.position_at_end(left)
    result = b.phi(I1)
    for value, block in ((const(I1, 0), last), (const(I1, 0), spin), (const(I1, 1), wait)):
        result.add_incoming(value, block)
    return result


def _emit_pause(e: Emitter) -> None:
    if e.host.x86:
        e.intrinsic("llvm.x86.sse2.pause", ir.VoidType())
    elif e.host.aarch64:
        e.intrinsic("llvm.aarch64.hint", ir.VoidType(), const(I32, 1))


def _emit_yield(e: Emitter) -> None:
    if not define_yield():
        return  # a platform without such a call keeps spinning, which is right if slow
    fn = e.module.globals.get(_YIELD) or ir.Function(e.module, ir.FunctionType(I32, []), _YIELD)
    e.b.call(fn, [])


def define_yield() -> bool:
    """Tell LLVM the address of the system's "give the CPU to someone else"; False where there is none."""
    address = _yield_address()
    if address:
        llvm.add_symbol(_YIELD, address)
    return bool(address)


def _yield_address() -> int:
    try:
        if sys.platform == "win32":
            call = ctypes.windll.kernel32.SwitchToThread
        else:
            call = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(call, ctypes.c_void_p).value or 0
