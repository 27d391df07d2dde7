"""Keeping a helper thread off the CPU of the thread that leads a run.

Left alone, a scheduler may wake a helper on the CPU of whoever woke it and leave it there: two threads were measured to
take turns on one CPU for seconds beside an idle one. So the leader takes its own CPU out of the helper's mask before it
wakes it, and the helper takes its mask back as soon as it runs: a push, no pinning. Only Linux has such masks for
threads; elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

Masks = dict[int, set[int]]  # thread id → its mask before it was pushed


def available_cpus() -> int:
    """How many CPUs the system lets this process use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_address() -> int:
    """The address of the C function `int f(void)` that tells the CPU of the calling thread; 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_getcpu, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return 0


def _cpu_function() -> Callable[[], int]:
    address = cpu_address()
    return ctypes.PYFUNCTYPE(ctypes.c_int)(address) if address else lambda: -1


this_cpu = _cpu_function()
"""The CPU that the calling thread runs on; −1 where the system doesn't tell."""


def push_away(thread: int, cpu: int, masks: Masks) -> None:
    """Let a thread (its system id) run on any CPU of its mask but `cpu`, until `restore`. If it waits, it moves now."""
    if cpu < 0 or not hasattr(os, "sched_setaffinity"):
        return
    try:
        allowed = masks.get(thread) or os.sched_getaffinity(thread)
        others = allowed - {cpu}
        if others and cpu in allowed:
            masks[thread] = allowed
            os.sched_setaffinity(thread, others)
    except OSError:  # the thread has ended, or the system forbids it: then it runs where it runs
        masks.pop(thread, None)


def restore(thread: int, masks: Masks) -> None:
    """Undo `push_away`."""
    allowed = masks.pop(thread, None)
    if allowed is None:
        return
    try:
        os.sched_setaffinity(thread, allowed)
    except OSError:  # none of these CPUs is left to this process: the system has set the mask anew
        return
