"""The short way through a run: of a model that is one BPU segment, on inputs that fit as they are.

What a large network leaves in the caches is its weights: every Python object and function that the next run needs comes
from afar, at some microseconds for a handful. So this way makes and calls as little as it can, keeps what one run and
the next have in common, and leaves all that is unusual, and every error, to the long way (`binding.py`, `engines.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .outline import Outline
from .types import DYNAMIC

if TYPE_CHECKING:  # llvmlite loads with it
    from .jit.engine import JitModel, Job

Array = npt.NDArray[Any]


class _Frame:
    """The memory of one run, but for its inputs and outputs: `ins` and `outs` take their addresses."""

    __slots__ = ("arena", "ins", "job", "outs")

    def __init__(self, arena: Array, ins: Any, outs: Any, job: Job) -> None:
        self.arena, self.ins, self.outs, self.job = arena, ins, outs, job


class DirectRuns:
    """Runs of one model. Thread-safe: as many frames as there were runs at once."""

    def __init__(self, outline: Outline, jit: JitModel, constants: int) -> None:
        self._jit, self._constants, self._arena_size = jit, constants, outline.arena_size
        self._ins = tuple((i.name, i.shape, i.dtype.numpy.str, i.dtype.size) for i in outline.inputs)
        self._outs = tuple((o.name, o.shape, o.dtype.numpy) for o in outline.outputs)
        self.frames: list[_Frame] = []  # append and pop are atomic

    @staticmethod
    def serves(outline: Outline) -> bool:
        """True where a run is one call of machine code, and its outputs' sizes are known before it."""
        return outline.steps == (None,) and not any(DYNAMIC in o.shape for o in outline.outputs)

    def run(self, values: Mapping[str, npt.ArrayLike]) -> dict[str, Array] | None:
        """The outputs by name, new arrays; None, and nothing was done, where `values` don't fit as they are.

        Raises MemoryError where there is none for an output.
        """
        if type(values) is not dict or len(values) != len(self._ins):
            return None
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = self._frame()
        if not self._take(values, frame.ins):
            self.frames.append(frame)
            return None
        outputs = {}
        for n, (name, shape, dtype) in enumerate(self._outs):
            outputs[name] = y = np.empty(shape, dtype)
            frame.outs[n] = y.__array_interface__["data"][0]
        self._jit.run_job(frame.job)
        self.frames.append(frame)  # not where the run failed
        return outputs

    def _take(self, values: Mapping[str, Any], table: Any) -> bool:
        """The inputs' addresses to `table`; False where one isn't an array, dense and aligned, of the very kind."""
        for n, (name, shape, kind, size) in enumerate(self._ins):
            x = values.get(name)
            if type(x) is not np.ndarray:
                return False
            about = x.__array_interface__  # all that matters, in one object
            address = about["data"][0]
            dense = about["strides"] is None and address % size == 0
            if not dense or about["typestr"] != kind or about["shape"] != shape:
                return False
            table[n] = address
        return True

    def _frame(self) -> _Frame:
        from .engines import aligned

        arena = aligned(self._arena_size)
        ins, outs = ((ctypes.c_int64 * max(1, len(infos)))() for infos in (self._ins, self._outs))
        tables = ctypes.addressof(ins), ctypes.addressof(outs)
        return _Frame(arena, ins, outs, self._jit.job(0, arena.ctypes.data, self._constants, *tables))
