"""The helper threads of one JitModel, the memory that runs work in, and how many CPUs runs of this process may use.

A helper spends its life in the JIT function `serve`, where it waits for work without the GIL; after about HOT seconds
without any it parks: it sleeps in Python and costs nothing until a run wakes it. No thread is tied to a CPU for longer
than it takes to get there (placing.py).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..errors import TooManyThreads
from .code import aligned
from .placing import Masks, push_away, restore, this_cpu
from .team import CLOSING, POSTED, presence

HOT = 1e-3  # seconds that a helper spins for the next run
_SAMPLE = 2000  # pauses that are timed to learn how long one takes

Serve = Callable[[int, int, int, int], int]  # see team.py; the call releases the GIL


class Workspaces:
    """Scratch memory for runs, as many blocks as there were runs at once. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[tuple[npt.NDArray[np.uint8], int]] = []  # list.append and list.pop are atomic

    def take(self) -> tuple[npt.NDArray[np.uint8], int]:
        """A block that no other run uses, and its address."""
        try:
            return self._free.pop()
        except IndexError:
            block = aligned(self._nbytes)
            return block, block.ctypes.data

    def give(self, block: npt.NDArray[np.uint8], address: int) -> None:
        """Have a block back that `take` gave."""
        self._free.append((block, address))


class _Running:
    """How many threads of this process are in runs, so that runs at once share the CPUs instead of fighting.

    A run of one thread appends to `busy` and pops, which are atomic, and asks nobody.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.busy: list[None] = []  # an entry per thread

    def enter(self, wanted: int, cpus: int) -> int:
        """Threads for a run that could use `wanted`: as many as there are idle CPUs, the caller's own at least."""
        with self.lock:
            granted = max(1, min(wanted, cpus - len(self.busy)))
            self.busy += [None] * granted
        return granted

    def leave(self, granted: int) -> None:
        """The run is over."""
        del self.busy[-granted:]


RUNNING = _Running()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RUNNING.__init__)  # type: ignore[misc]  # no run goes on in the child


class _Shared:
    """What a helper holds on to: the team's memory and code, but not the model, so that dropping that ends it."""

    def __init__(self, threads: int, team: npt.NDArray[np.uint8], serve: Serve, code: object) -> None:
        self.team, self.serve, self.code = team, serve, code
        self.ids = [0] * threads  # the system's, once they run
        self.masks: Masks = {}
        self.address = team.ctypes.data
        self.posted = team[POSTED : POSTED + 8].view(np.int64)
        self.closing = team[CLOSING : CLOSING + 8].view(np.int64)
        self.parked = [False] * threads
        self.wake: list[queue.SimpleQueue[None]] = [queue.SimpleQueue() for _ in range(threads)]


class Pool:
    """`threads − 1` helper threads that take part in runs. One run at a time holds it.

    `team` is the team's memory (`team.team_bytes`), `serve` the JIT function, and `code` what keeps that alive. The
    threads end with `close`, or with the process. Raises TooManyThreads where the system starts no more of them.
    """

    def __init__(self, threads: int, team: npt.NDArray[np.uint8], serve: Serve, code: object) -> None:
        self._pid = os.getpid()
        self._held = threading.Lock()
        self._shared = _Shared(threads, team, serve, code)
        self._presence = presence(team, threads)
        for number in range(1, threads):
            helper = threading.Thread(target=_help, args=(self._shared, number), name=f"hbc-{number}", daemon=True)
            try:
                helper.start()
            except RuntimeError as err:  # the system's limit on threads
                self.close()
                msg = f"only {number} of {threads} threads could be started ({err}); open the model with fewer threads"
                raise TooManyThreads(msg) from err

    def claim(self) -> bool:
        """Take the pool if it is free. False where another run has it, and after a fork, which loses threads."""
        return os.getpid() == self._pid and self._held.acquire(blocking=False)

    def release(self) -> None:
        """Give the pool back."""
        self._held.release()

    def wake(self, threads: int) -> None:
        """Call those of the first `threads` that are parked. They may come late, or not at all: see share.py."""
        shared = self._shared
        for number in range(1, threads):
            if shared.parked[number]:
                shared.parked[number] = False
                push_away(shared.ids[number], this_cpu(), shared.masks)
                shared.wake[number].put(None)

    def look_after(self, threads: int, base: int, cpu: int) -> None:
        """After a run led from `cpu`: move on, for the next one, helpers that shared that CPU or did not come."""
        shared = self._shared
        for number in range(1, threads):
            came, where = self._presence[number]
            if (where == cpu or came != base) and not shared.parked[number]:
                push_away(shared.ids[number], cpu, shared.masks)
                restore(shared.ids[number], shared.masks)

    def close(self) -> None:
        """End the helper threads, after what they are doing."""
        self._shared.closing[0] = 1
        for wake in self._shared.wake[1:]:
            wake.put(None)


def _help(shared: _Shared, number: int) -> None:
    """A helper's life."""
    seen = 0
    own = shared.ids[number] = threading.get_native_id()
    spins = _spins(shared, number)
    while not shared.closing[0]:
        restore(own, shared.masks)
        seen = shared.serve(shared.address, number, seen, spins)
        shared.parked[number] = True  # before the last look: whoever posts after it sees this
        if shared.posted[0] in (0, seen) and not shared.closing[0]:
            shared.wake[number].get()
        shared.parked[number] = False


def _spins(shared: _Shared, number: int) -> int:
    """How many pauses take HOT seconds, on idle memory."""
    idle = aligned(shared.team.size)
    idle[:] = 0
    times = []
    for _ in range(3):
        start = time.perf_counter()
        shared.serve(idle.ctypes.data, number, 0, _SAMPLE)
        times.append(time.perf_counter() - start)
    return max(_SAMPLE, int(_SAMPLE * HOT / max(min(times), 1e-9)))
