"""Transposed convolutions as ordinary ones: each computes the output pixels that lie a stride apart.

Output o reads, for tap t, virtual position o + t − pad, which is real where the stuffing s divides it. So the outputs
p, p + s, p + 2s … all read the taps t0, t0 + s …, t0 = (pad − p) mod s, at input positions one apart: a convolution of
stride 1 with ⌈(K − t0) / s⌉ taps and padding ⌊(pad − p) / s⌋. Where the kernel is as wide as the stride, an input
pixel makes s output pixels that lie side by side: they are one pixel with s times the channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from .convolve import Operands, Spread
from .emitter import i64
from .quad_conv import QuadConvolution, QuadLoops
from .quad_tile import Tile
from .registry import KernelBuilder
from .window import Axis, Window

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PhaseWindow(Window):
    """The window of a phase: its output pixels are never one list."""

    @property
    def is_pointwise(self) -> bool:
        return False


@dataclass(frozen=True)
class Phase:
    """One such convolution: its window, which taps of the turned kernel it has, where its results lie (in elements)."""

    window: PhaseWindow
    taps: tuple[tuple[int, int], tuple[int, int]]  # (first, step) of rows and columns
    joined: int  # output pixels that one pixel of the window makes
    first: int  # the first result
    pixel: int  # from pixel to pixel
    line: int  # from row to row
    image: int  # from batch entry to batch entry

    @property
    def spread(self) -> Spread:
        """Where its results lie."""
        return Spread(self.first, self.pixel, self.line, self.image)

    def weights(self, turned: Array) -> Array:
        """Its part [outputs, KH, KW, C] of the turned kernel."""
        (row, row_step), (column, column_step) = self.taps
        if self.joined == 1:
            return turned[:, row::row_step, column::column_step]
        parts = [turned[:, row::row_step, self.joined - 1 - j : self.joined - j] for j in range(self.joined)]
        return np.concatenate(parts)


def phases_of(window: Window) -> tuple[Phase, ...]:
    """The phases of a transposed convolution's window; none where this way does not serve."""
    rows, columns = window.rows, window.columns
    plain = window.group == 1 and rows.dilation == columns.dilation == 1 and (rows.stuffing, columns.stuffing) != (1, 1)
    whole = min(rows.kernel - rows.stuffing, columns.kernel - columns.stuffing) >= 0
    enough = rows.out >= rows.stuffing and columns.out >= columns.stuffing
    image = rows.out * columns.out * window.outputs
    even = rows.stuffing * columns.out % columns.stuffing == 0  # rows are whole pixel pitches apart: _PhaseLoops
    if not (plain and whole and enough and even) or (window.batch > 1 and image % (columns.stuffing * window.outputs)):
        return ()
    return tuple(_phases(window, image))


def _phases(window: Window, image: int) -> Iterator[Phase]:
    rows, columns = window.rows, window.columns
    s = columns.stuffing
    joins = s == columns.kernel and columns.pad == s - 1 and columns.out == s * columns.size
    for p in range(rows.stuffing):
        row_tap, row_axis = _axis(rows, p)
        for q in range(1 if joins else s):
            column_tap, column_axis = _axis(columns, q)
            if joins:
                column_axis = Axis(columns.size, columns.size, 1, 1, 1, 0)
            outputs = window.outputs * (s if joins else 1)
            own = PhaseWindow(
                window.batch, window.channels, 1, outputs, row_axis, column_axis, window.fill, window.zero_point
            )  # fmt: skip
            yield Phase(
                own, ((row_tap, rows.stuffing), (column_tap, s)), s if joins else 1,
                first=(p * columns.out + q) * window.outputs, pixel=s * window.outputs,
                line=rows.stuffing * columns.out * window.outputs, image=image,
            )  # fmt: skip


def _axis(axis: Axis, phase: int) -> tuple[int, Axis]:
    """(first tap, geometry) of the outputs `phase`, `phase` + stuffing, …"""
    s = axis.stuffing
    pad, tap = divmod(axis.pad - phase, s)
    taps, outs = -(-(axis.kernel - tap) // s), -(-(axis.out - phase) // s)
    return tap, Axis(axis.size, outs, taps, 1, 1, pad)


def convolve_phase(k: KernelBuilder, c: QuadConvolution, phase: Phase, at: Operands) -> None:
    """Emit the kernel of one phase."""
    out = k.at(at.out, phase.first, c.finish.out.size)
    _PhaseLoops(k, c, dataclasses.replace(at, out=out), phase).over_rows()


class _PhaseLoops(QuadLoops):
    """Loops whose output pixels lie apart: the pitch of a pixel is that of the whole result's pixels, a stride apart.

    Rows are `phase.line` apart, which is a multiple of that pitch, and so are batch entries.
    """

    def __init__(self, k: KernelBuilder, c: QuadConvolution, at: Operands, phase: Phase) -> None:
        super().__init__(k, c, at)
        self.phase = phase
        self.w = dataclasses.replace(self.w, outputs=phase.pixel)

    def tiles(self, left: ir.Value, first: ir.Value, panel: ir.Value, size: tuple[int, int]) -> None:
        k, phase, w = self.k, self.phase, self.w
        number = k.b.udiv(first, i64(w.columns.out))  # of the row, over all batch entries
        n, row = k.b.udiv(number, i64(w.rows.out)), k.b.urem(number, i64(w.rows.out))
        moved = k.b.add(k.b.mul(n, i64(phase.image // phase.pixel)), k.b.mul(row, i64(phase.line // phase.pixel)))
        super().tiles(left, moved, panel, size)

    def tile(self, rows: int, columns: int) -> Tile:
        tile = super().tile(rows, columns)
        return dataclasses.replace(tile, out_line=self.phase.line) if rows > 1 else tile
