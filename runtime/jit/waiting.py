"""How JIT code waits for another thread: it spins, and gives the CPU away now and then.

Spinning alone was measured to take 123 ms for a 10 ms network when both threads sat on one CPU, hence the yield.
"""

from __future__ import annotations

import ctypes
import sys

import llvmlite.binding as llvm
from llvmlite import ir

from .emitter import I32, I64, Emitter, const, i64

_PAUSES = 1024  # between two yields, a power of two: some ten microseconds
_YIELD = "hbc_yield"


def pause(e: Emitter, spins: ir.Value) -> None:
    """Emit one step of a waiting loop; `spins` (i64) counts them."""
    if e.host.x86:
        e.intrinsic("llvm.x86.sse2.pause", ir.VoidType())
    elif e.host.aarch64:
        e.intrinsic("llvm.aarch64.hint", ir.VoidType(), const(I32, 1))
    if define_yield():  # a platform without such a call keeps spinning, which is right if slow
        late = e.b.icmp_unsigned("==", e.b.and_(spins, i64(_PAUSES - 1)), i64(_PAUSES - 1))
        with e.when(late):
            fn = e.module.globals.get(_YIELD) or ir.Function(e.module, ir.FunctionType(I32, []), _YIELD)
            e.b.call(fn, [])


def spin_until(e: Emitter, address: ir.Value, value: ir.Value) -> None:
    """Emit a wait for the i64 at `address` to be at least `value`; sees what was written before it was."""
    b = e.b
    look, wait, done = (b.append_basic_block(n) for n in ("look", "wait", "done"))
    entry = b.block
    b.branch(look)
    b.position_at_end(look)
    spins = b.phi(I64)
    now = b.load_atomic(address, "acquire", 8, typ=I64)
    b.cbranch(b.icmp_signed(">=", now, value), done, wait)
    b.position_at_end(wait)
    pause(e, spins)
    spins.add_incoming(i64(0), entry)
    spins.add_incoming(b.add(spins, i64(1)), b.block)
    b.branch(look)
    b.position_at_end(done)


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
