"""The helper threads of one JitModel, and the memory that runs work in."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..errors import TooManyThreads
from .code import aligned

Task = Callable[[int], None]


class Workspaces:
    """Scratch memory for runs, as many blocks as there were runs at once. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[npt.NDArray[np.uint8]] = []  # list.append and list.pop are atomic

    @contextmanager
    def borrow(self) -> Iterator[npt.NDArray[np.uint8]]:
        """A block that no other run uses; not given back where the run failed, since a helper might still be in it."""
        try:
            block = self._free.pop()
        except IndexError:
            block = aligned(self._nbytes)
        yield block
        self._free.append(block)


class Pool:
    """`threads − 1` helper threads that run one task together with the caller. One caller at a time holds it.

    The threads end with `close`, or with the process. Raises TooManyThreads where the system starts no more of them.
    """

    def __init__(self, threads: int) -> None:
        self._pid = os.getpid()
        self._held = threading.Lock()
        self._queues: list[queue.SimpleQueue[tuple[Task, threading.Semaphore] | None]] = []
        for number in range(1, threads):
            jobs: queue.SimpleQueue[tuple[Task, threading.Semaphore] | None] = queue.SimpleQueue()
            helper = threading.Thread(target=_serve, args=(jobs, number), name=f"hbc-{number}", daemon=True)
            try:
                helper.start()
            except RuntimeError as err:  # the system's limit on threads
                self.close()
                msg = f"only {number} of {threads} threads could be started ({err}); open the model with fewer threads"
                raise TooManyThreads(msg) from err
            self._queues.append(jobs)

    def claim(self) -> bool:
        """Take the pool if it is free. False where another run has it, and after a fork, which loses threads."""
        return os.getpid() == self._pid and self._held.acquire(blocking=False)

    def release(self) -> None:
        """Give the pool back."""
        self._held.release()

    def run(self, task: Task, abandon: Callable[[], None]) -> None:
        """`task(0)` here and `task(n)` on every helper; returns when all are done. The caller holds the pool.

        `abandon` is called where this thread fails before its part is over (Ctrl-C), to free helpers that wait for it.
        """
        done = threading.Semaphore(0)
        started = 0
        try:
            for jobs in self._queues:
                jobs.put((task, done))
                started += 1
            task(0)
        except BaseException:
            abandon()
            raise
        finally:
            for _ in range(started):
                done.acquire()

    def close(self) -> None:
        """End the helper threads, after what they are doing."""
        for jobs in self._queues:
            jobs.put(None)


def _serve(jobs: queue.SimpleQueue[tuple[Task, threading.Semaphore] | None], number: int) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        task, done = job
        try:
            task(number)
        finally:
            done.release()
        del job, task  # keep no model alive while waiting
