"""Memory around code generation: hundreds of thousands of small objects that live for a second, all at once."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def many_objects() -> Iterator[None]:
    """For work that makes many objects: Python doesn't look for cycles among them, as it would again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:  # not where somebody else, perhaps another such piece of work, has switched it off
            gc.enable()


def give_back() -> None:
    """Let the C library return free memory to the system, where it can be told to (glibc)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library; TypeError: Windows takes no None
        return
    trim(0)
