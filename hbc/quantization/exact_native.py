"""Exact forward on the CPU: kernels of `hbc.native` on PyTorch's tensors.

Each does in one pass what `exact_integers` takes one pass of torch per operation for. Other devices have that way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hbc.native import accumulators as native
from hbc.native.accumulators import Along, Held, Kind
from hbc.native.build import shared
from hbc_runtime.isa import Scheme
from hbc_runtime.numerics import I32_MAX

from .exact_constants import Floats, Ints, Requantization

MODERATE = (1e-30, 1e30)  # scales whose reciprocal is a normal float32
KINDS = {Held.F32: torch.float32, Held.SPLIT: torch.float32, Held.F64: torch.float64}


def serves(tensors: Sequence[Tensor], scales: Sequence[float]) -> bool:
    """True where the kernels take these operands."""
    return all(x.device.type == "cpu" and x.dtype is torch.float32 and x.numel() > 0 for x in tensors) and all(
        MODERATE[0] < s < MODERATE[1] for s in scales
    )


def unpacked(x: Tensor, scale: float, held: Held) -> Tensor:
    """The integers of reals on a grid, in `held`'s floats; of SPLIT, [2, …]: q = 256 · first + second."""
    x = x.contiguous()
    shape = (2, *x.shape) if held is Held.SPLIT else x.shape
    out = torch.empty(shape, dtype=KINDS[held])
    first, count = out.data_ptr(), x.numel()
    args = (first, first + 4 * count, x.data_ptr(), 1 / scale)
    shared(native.unpacker(held), args, count, count, torch.get_num_threads())
    return out


@dataclass(frozen=True)
class Accumulators:
    """Products as they were computed, and what joins them: per channel an `offset`, and an addend by D5.

    `values` is contiguous, [2, …] where SPLIT; `axis` is that of the channels in a result (of one channel: None).
    `bound`: the magnitude of all sums but the offset of a requantisation.
    """

    values: Tensor
    held: Held
    axis: int | None
    channels: int
    offset: Ints
    bound: float
    addend: Tensor | None = None
    addend_scale: float = 1.0
    mixed: tuple[Ints, Ints] | None = None

    def ends(self) -> tuple[Floats, Floats]:
        """The least and the largest accumulator of each channel."""
        kind = self._kind(self.bound)
        shape = self._shape()
        outer, inner = self._sizes()
        table = self._table()
        if kind.along is Along.PLANES:
            out, items = np.empty((outer, self.channels, 2)), outer * self.channels
        elif kind.along is Along.LAST:
            out, items, inner = np.empty((1, self.channels, 2)), self.channels, outer
        else:
            out, items = np.empty((1, 1, 2)), math.prod(shape)
        args = (out.ctypes.data, *self._sources(), table.ctypes.data, self.channels, inner, 1 / self.addend_scale)
        native.ranger(kind)(*args, 0, items)
        return out[..., 0].min(0), out[..., 1].max(0)

    def finished(
        self, r: Requantization, more: Ints, scales: np.ndarray, limits: tuple[int, int], *, keeps: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(reals of the result, its integers before the clamp); `more` joins the offset, `scales` are the result's."""
        offset = self.offset + more
        bound = self.bound + float(np.abs(offset).max(initial=0))
        kind = self._kind(bound, r.scheme, keeps=keeps)
        shape = self._shape()
        outer, inner = self._sizes()
        table = self._table()
        table[native.OFFSET] = offset
        table[native.MULTIPLIER], table[native.PRE], table[native.POST] = r.multiplier, r.pre_shift, r.post_shift
        y = torch.empty(shape)
        q = torch.empty(shape) if keeps else None
        scales = np.ascontiguousarray(scales, np.float32)
        items = {Along.NONE: y.numel(), Along.PLANES: outer * self.channels, Along.LAST: outer}[kind.along]
        args = (
            y.data_ptr(), 0 if q is None else q.data_ptr(), *self._sources(), table.ctypes.data, scales.ctypes.data,
            self.channels, inner, *limits, 1 / self.addend_scale,
        )  # fmt: skip
        shared(native.finisher(kind), args, items, y.numel(), torch.get_num_threads())
        return y, q

    def _kind(self, bound: float, scheme: Scheme = Scheme.NONE, *, keeps: bool = False) -> Kind:
        wide = bound > I32_MAX or self.held is not Held.F32
        along = Along.NONE if self.channels == 1 else Along.PLANES if self._sizes()[1] > 1 else Along.LAST
        return Kind(self.held, along, wide, self.addend is not None, scheme, keeps)

    def _shape(self) -> torch.Size:
        return self.values.shape[1:] if self.held is Held.SPLIT else self.values.shape

    def _sizes(self) -> tuple[int, int]:
        """(elements before the channels, elements behind them)."""
        shape = self._shape()
        if self.axis is None:
            return 1, math.prod(shape)
        return math.prod(shape[: self.axis]), math.prod(shape[self.axis + 1 :])

    def _table(self) -> np.ndarray:
        table = native.table(self.channels)
        table[native.OFFSET] = self.offset
        if self.mixed is not None:
            table[native.ADDEND], table[native.ADDEND_SHIFT] = self.mixed
        return table

    def _sources(self) -> tuple[int, int, int]:
        first = self.values.data_ptr()
        second = first + 2 * self.values.numel() if self.held is Held.SPLIT else 0  # half of it, 4 bytes each
        return first, second, 0 if self.addend is None else self.addend.data_ptr()
