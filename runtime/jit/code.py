"""What code generation comes to: object files, and the constants as the kernels want them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..program import ALIGN


@dataclass(frozen=True)
class Code:
    """A model's machine code.

    `objects` are files to be linked together. `packed` is 64-byte aligned; a thread needs `scratch` bytes; the tensors
    `flipped` (indices) are kept in the arena as q + 128; threads that run it together share `stages` (see share.py).
    A run takes about `work` elementary steps, of which `shared` are in stages that threads share.
    """

    objects: tuple[bytes, ...]
    packed: npt.NDArray[np.uint8]
    scratch: int
    flipped: tuple[int, ...] = ()
    stages: int = 0
    work: int = 0
    shared: int = 0


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Uninitialised bytes whose address is a multiple of ALIGN."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]
