"""Exact forward of the parts of a composite on the CPU: one kernel over all rows (`hbc.native.rows`)."""

from __future__ import annotations

import functools
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
from hbc_runtime.isa import Scheme

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
        first = parts.parts[0]
        if len(reduced) != 1:
            return None
        viewed = first.out.type.shape if first.cls is ops.Reshape else None
        layout = _Layout.of(source.type.shape, viewed, next(iter(reduced)))
        return None if layout is None else _made(source, parts.parts, sem, layout)

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


@dataclass(frozen=True)
class _Layout:
    """How an operand is cut into rows: its axes in order, those of a row last; which those are; their length."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    axes: tuple[int, ...]
    length: int
    grouped: bool  # rows are another view of the operand

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of(shape: tuple[int, ...], viewed: tuple[int, ...] | None, axes: tuple[int, ...]) -> _Layout | None:
        """Of an operand that is `viewed` in another shape, or None, and reduced over `axes`; None where none fits."""
        inner = viewed or shape
        axes = tuple(sorted(a % len(inner) for a in axes))
        if viewed is not None and axes != tuple(range(len(inner) - len(axes), len(inner))):
            return None
        kept = tuple(a for a in range(len(shape)) if viewed is not None or a not in axes)
        length = math.prod(inner[a] for a in axes)
        return _Layout(shape, kept if viewed is not None else (*kept, *axes), axes, length, viewed is not None)

    def spread(self, value: np.ndarray) -> np.ndarray | None:
        """A constant as int32[rows after which it repeats, length], or one number; None where rows can't have it."""
        if value.size == 1:
            return np.array(value, np.int32).reshape(1, 1)
        array: np.ndarray = value.reshape([1] * max(0, len(self.shape) - value.ndim) + list(value.shape))
        first = 0 in self.axes and not self.grouped
        if array.ndim != len(self.shape) or (array.shape[0] != 1 and not first):
            return None
        whole = np.broadcast_to(array, self.shape if first else (1, *self.shape[1:])).transpose(self.order)
        return np.ascontiguousarray(whole.reshape(-1, self.length), np.int32)


_Fields = tuple[str, tuple[int, ...], bool, bool, Scheme]  # of a Step: plain tuples are made and compared faster


@functools.lru_cache(maxsize=256)
def _chain(steps: tuple[_Fields, ...]) -> Chain:
    """One chain for all that have its steps: it knows what follows from them."""
    return Chain(tuple(Step(*fields) for fields in steps))


def _wide(a: Arithmetic, length: int) -> bool:
    """Whether sums of 16-bit integers may leave i32."""
    if a.what == "total":
        return length * _LARGEST > numerics.I32_MAX
    ma, mb, shift = a.numbers
    return a.what == "sum" and (abs(ma) + abs(mb)) * _LARGEST + (1 << shift) > numerics.I32_MAX


def _made(source: Value, parts: Sequence[Part], sem: Semantics, layout: _Layout) -> Rows | None:
    ids, full = {source: 0}, [True]
    steps: list[_Fields] = []
    constants: list[np.ndarray] = []
    tables: list[np.ndarray] = []
    numbers: list[tuple[int, ...]] = []
    a = Arithmetic("same")
    for part in parts:
        if part.cls is ops.Reshape:
            ids[part.out] = ids[part.operands[0]]
            continue
        if part.cls is ops.Const:
            array = layout.spread(part.attrs["value"])
            if array is None:
                return None
            constants.append(array)
            full.append(array.size > 1)
            steps.append(("constant", (), full[-1], False, Scheme.NONE))
            numbers.append((0, 0, 0, 0, 0))
        else:
            a = arithmetic(part, sem)
            operands = tuple([ids[v] for v in part.operands])
            full.append(a.what not in rows.REDUCES and True in [full[i] for i in operands])
            given = a.numbers
            if part.table is not None:
                values, first = part.table.values, part.table.first
                tables.append(values)
                given = values.ctypes.data, first, first + len(values) - 1
            numbers.append((*given, a.low, a.high))
            steps.append((a.what, operands, full[-1], _wide(a, layout.length), a.scheme))
        ids[part.out] = len(steps)
    if not steps or not full[-1]:
        return None
    return Rows(
        _chain(tuple(steps)),
        layout.order,
        layout.length,
        np.array(numbers, np.int64),
        constants,
        tables,
        (a.low, a.high),
    )
