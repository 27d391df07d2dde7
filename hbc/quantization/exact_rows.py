"""Exact forward of the parts of a composite on the CPU: one kernel over all rows (`hbc.native.rows`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hbc.ir import ops
from hbc.ir.core import Value
from hbc.ir.semantics import Semantics
from hbc.native import rows
from hbc.native.build import shared
from hbc.native.rows import Chain, Step
from hbc_runtime import numerics

from .lean_parts import Arithmetic, LeanParts, Part, arithmetic

_LARGEST = 1 << 15  # magnitude of an i16


@dataclass(frozen=True)
class Rows:
    """Parts as a chain over rows: the operand's axes in the order `axes` make rows of `length`; the chain's numbers;
    constants int32[period, length]; tables, which the numbers hold addresses of.
    """

    chain: Chain
    axes: tuple[int, ...]
    length: int
    numbers: np.ndarray
    constants: Sequence[np.ndarray]
    tables: Sequence[np.ndarray]
    limits: tuple[int, int]  # of the result

    @staticmethod
    def of(source: Value, parts: LeanParts, sem: Semantics) -> Rows | None:
        """None where the parts aren't a chain over rows. Raises ScaleRangeError where a scale has no multiplier."""
        reduced = {p.attrs["axes"] for p in parts.parts if "axes" in p.attrs}
        if len(reduced) != 1:
            return None
        made = _Builder(source, parts, sem, next(iter(reduced)))
        return made.rows() if made.fits else None

    def run(
        self, x: Tensor, scale: float, out_scale: float, limits: tuple[int, int], *, keeps: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(reals of the result, its integers before the clamp) for reals on the grid of `scale`."""
        moved = x.permute(self.axes)
        flat = moved.contiguous()
        y = torch.empty(flat.shape)
        q = torch.empty(flat.shape) if keeps else None
        low, high = max(self.limits[0], limits[0]), min(self.limits[1], limits[1])
        addresses = np.array([c.ctypes.data for c in self.constants] or [0], np.int64)
        periods = np.array([len(c) for c in self.constants] or [1], np.int64)
        places = [y.data_ptr(), 0 if q is None else q.data_ptr(), flat.data_ptr()]
        numbers = [self.numbers.ctypes.data, addresses.ctypes.data, periods.ctypes.data]
        call, kept = rows.runner(self.chain, keeps=keeps), max(1, len(self.chain.kept))

        def run(begin: int, end: int) -> None:
            scratch = np.empty(kept * self.length, np.int32)
            call(*places, 1 / scale, *numbers, scratch.ctypes.data, self.length, low, high, out_scale, begin, end)

        count = math.prod(flat.shape) // self.length
        shared(run, (), count, y.numel(), torch.get_num_threads())
        back = _inverse(self.axes)
        return y.permute(back), None if q is None else q.permute(back)


def _inverse(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=lambda i: axes[i])


class _Builder:
    """Makes a chain of parts, one value after the other; `fits` is False once something isn't one of rows."""

    def __init__(self, source: Value, parts: LeanParts, sem: Semantics, axes: tuple[int, ...]) -> None:
        self.parts, self.sem, self.fits = parts.parts, sem, True
        self.shape = source.type.shape
        first = self.parts[0]
        self.grouped = first.cls is ops.Reshape
        rank = len(first.out.type.shape if self.grouped else self.shape)
        self.axes = tuple(sorted(a % rank for a in axes))
        inner = first.out.type.shape if self.grouped else self.shape
        self.length = math.prod(inner[a] for a in self.axes)
        self.ids: dict[Value, int] = {source: 0}
        self.steps: list[Step] = []
        self.found: list[Arithmetic | None] = []
        self.tables: dict[int, tuple[np.ndarray, int]] = {}
        self.constants: list[np.ndarray] = []
        if self.grouped and self.axes != tuple(range(rank - len(self.axes), rank)):
            self.fits = False
        self.order = self._order()
        for part in self.parts if self.fits else ():
            self._add(part)

    def _order(self) -> tuple[int, ...]:
        """The operand's axes, those of a row last."""
        if self.grouped:
            return tuple(range(len(self.shape)))
        return (*(a for a in range(len(self.shape)) if a not in self.axes), *self.axes)

    def _add(self, part: Part) -> None:
        if part.cls is ops.Const:
            self._constant(part.out, part.attrs["value"])
            return
        a = arithmetic(part, self.sem)
        operands = tuple(self.ids[v] for v in part.operands)
        if a.what == "same":
            self.ids[part.out] = operands[0]
            return
        reduces = a.what in rows.REDUCES
        full = not reduces and any(self._is_full(i) for i in operands)
        self.steps.append(Step(a.what, operands, full, self._wide(a), a.scheme))
        self.found.append(a)
        self.ids[part.out] = len(self.steps)
        if part.table is not None:
            self.tables[len(self.steps)] = part.table.values, part.table.first

    def _is_full(self, i: int) -> bool:
        return i == 0 or self.steps[i - 1].full

    def _wide(self, a: Arithmetic) -> bool:
        if a.what == "total":
            return self.length * _LARGEST > numerics.I32_MAX
        ma, mb, shift = a.numbers
        return a.what == "sum" and (abs(ma) + abs(mb)) * _LARGEST + (1 << shift) > numerics.I32_MAX

    def _constant(self, out: Value, value: np.ndarray) -> None:
        """Spread over the rows after which it repeats: those of one entry of the first axis, unless that is reduced."""
        shape = self.shape
        array = np.asarray(value, np.int32)
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape) if array.ndim < len(shape) else array
        if array.size == 1:
            array = array.reshape(1, 1)
        elif array.ndim != len(shape) or (0 not in self.axes and array.shape[0] != 1):
            self.fits = False
        else:
            one = shape if 0 in self.axes and not self.grouped else (1, *shape[1:])
            array = np.ascontiguousarray(np.broadcast_to(array, one).transpose(self.order)).reshape(-1, self.length)
        self.constants.append(array)
        self.steps.append(Step("constant", (), full=array.size > 1))
        self.found.append(None)
        self.ids[out] = len(self.steps)

    def rows(self) -> Rows | None:
        """The chain with its numbers."""
        if not self.steps or not self.steps[-1].full:
            return None
        numbers = rows.numbers(len(self.steps))
        for k, a in enumerate(self.found):
            if a is None:
                continue
            numbers[k, :3] = a.numbers
            numbers[k, rows.LOW], numbers[k, rows.HIGH] = a.low, a.high
            if k + 1 in self.tables:
                values, first = self.tables[k + 1]
                numbers[k, :3] = values.ctypes.data, first, first + len(values) - 1
        last = self.found[-1]
        assert last is not None
        tables = [values for values, _ in self.tables.values()]
        chain = Chain(tuple(self.steps))
        return Rows(chain, self.order, self.length, numbers, self.constants, tables, (last.low, last.high))
