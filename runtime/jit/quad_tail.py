"""What is left of a kernel row behind its last whole four bytes, of several rows together.

A kernel row of 7 pixels by 3 channels is 21 bytes: five dot products of four, and a byte for which a sixth would be
spent. The seven rows' last bytes make two dot products instead of seven. They are brought together once per output row,
behind the gathered rows, in *tail rows* of the same pitch: tail row j holds at each output pixel's place the four bytes
4j … 4j + 3 of that pixel's list of left bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from .emitter import I1, I8, i64
from .registry import KernelBuilder


@dataclass(frozen=True)
class Tail:
    """`bytes` of each of `rows` kernel rows, from byte `start` of the row on."""

    rows: int
    start: int
    bytes: int

    @property
    def steps(self) -> int:
        """Dot products of four that take all of them: also the number of tail rows."""
        return -(-self.rows * self.bytes // 4)

    def source(self, number: int) -> tuple[int, int]:
        """(kernel row, byte within it) of a left byte."""
        return number // self.bytes, self.start + number % self.bytes


def tail_of(rows: int, row_bytes: int, step: int) -> Tail | None:
    """The tail of `rows` kernel rows of `row_bytes` bytes; None where it saves nothing.

    `step` is how many bytes lie between the windows of neighbouring pixels: four of each have to fit.
    """
    tail = Tail(rows, row_bytes // 4 * 4, row_bytes % 4)
    return tail if tail.bytes and tail.start and step >= 4 and tail.steps < rows else None


def split_tail(flat: npt.NDArray[np.int8], tail: Tail) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Weights [G, O, KH, row bytes] → those of whole steps [G, O, KH, start], the tail's [G, O, steps · 4]."""
    left = flat[..., tail.start :].reshape(*flat.shape[:2], -1)
    short = 4 * tail.steps - left.shape[-1]
    return flat[..., : tail.start], np.pad(left, [(0, 0), (0, 0), (0, short)])


def gather_tail(k: KernelBuilder, tail: Tail, rows: ir.Value, row_bytes: int, pixels: tuple[int, int]) -> None:
    """Fill the tail rows behind the gathered `rows` for `pixels` (count, bytes from one to the next) output pixels.

    Writes up to a vector and a pixel beyond the last tail row. Bytes that stand for nothing are any (their weights are
    0), as are those between the four bytes of a pixel and the next pixel's.
    """
    count, step = pixels
    lanes = 4 * k.host.lanes
    chunk = lanes // step * step
    for j in range(tail.steps):
        to = k.at(rows, (tail.rows + j) * row_bytes)
        numbers = range(4 * j, min(4 * j + 4, tail.rows * tail.bytes))
        with k.loop(0, -(-count * step // chunk)) as number:
            first = k.b.mul(number, i64(chunk))
            value: ir.Value = ir.Constant(ir.VectorType(I8, lanes), None)
            for m, (row, byte) in enumerate(map(tail.source, numbers)):
                there = k.load(k.at(rows, row * row_bytes + byte - m), first, I8, lanes)
                value = there if m == 0 else k.b.select(_every(step, m, lanes), there, value)
            k.store(value, to, first)


def _every(step: int, m: int, lanes: int) -> ir.Constant:
    """True in the lanes m, m + step, m + 2·step, …"""
    return ir.Constant(ir.VectorType(I1, lanes), [int(i % step == m) for i in range(lanes)])
