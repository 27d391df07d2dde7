"""The runtime of hbc: reads `.hbm` files and runs them, integer for integer.

    session = hbc_runtime.Session("model.hbm")
    outputs = session.run({"image": array})

Needs numpy, flatbuffers and llvmlite; never imports the compiler. The JIT and the container load when they are used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .errors import HbmError, HbmFormatError, HbmVersionError, InputMismatch, MissingDependency
from .program import Program
from .version import __version__

if TYPE_CHECKING:
    from .session import Session

__all__ = [
    "HbmError",
    "HbmFormatError",
    "HbmVersionError",
    "InputMismatch",
    "MissingDependency",
    "Program",
    "Session",
    "__version__",
    "load",
]


def load(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Program:
    """The program in a `.hbm` file (a path: mapped) or in a buffer, checked. Raises HbmError where it is not sound."""
    from .hbm import read

    return read(source)


def __getattr__(name: str) -> Any:
    if name == "Session":
        from .session import Session

        return Session
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
