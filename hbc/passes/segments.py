"""Dividing points of i16 tables by curvature: fine segments where a function bends, wide ones where it doesn't.

An i16 table has at most 64 segments of 64 cells (NUMERICS 7 [F]); inside a cell it interpolates (D8). Segments may
differ in width. Here each is 64·2^n inputs wide and starts at a multiple of its width, so that a cell is 2^n inputs and
a segment of 64 inputs holds every one of them: exact, whatever the function does there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

SEGMENTS, ENTRIES = 64, 64  # NUMERICS 7 [F]
FIRST, LAST = -32768, 32767
WIDTHS = tuple(65536 >> i for i in range(11))  # 65536 down to 64, where a cell is one input
INPUTS = np.arange(FIRST, LAST + 2)  # every i16, and where the last cell ends


@dataclass(frozen=True)
class Division:
    """A divided table: `segments` i32[N,3] and `table` i16[N,65] as `isa.SegmentLut` takes them.

    `result` is what the table gives for each i16 in order (int64, before the result's clamp), `worst` its largest
    distance in quanta from the function within the reach it was made for.
    """

    segments: np.ndarray
    table: np.ndarray
    result: np.ndarray
    worst: int

    def at(self, q: np.ndarray) -> np.ndarray:
        """The table's results for integers `q`."""
        return self.result[np.asarray(q, np.int64) - FIRST]


@dataclass(frozen=True)
class _Level:
    """Segments of one width: the error of each, as (largest, sum), and what they interpolate to."""

    largest: np.ndarray
    total: np.ndarray
    result: np.ndarray


def divide(values: np.ndarray, reach: tuple[int, int] = (FIRST, LAST)) -> Division:
    """Divide a function, given by its integers at INPUTS (65537 of them, each an i16).

    The segment with the largest error is halved until none has any, or 64 are used up; of equal ones that with the
    larger sum of errors. Inputs outside `reach` never come, so errors there don't count.
    """
    exact = np.asarray(values, np.int32)
    levels = [_level(exact, reach, width) for width in WIDTHS]

    def entry(level: int, index: int) -> tuple[int, int, int, int]:
        return (-int(levels[level].largest[index]), -int(levels[level].total[index]), level, index)

    heap = [entry(0, 0)]
    while len(heap) < SEGMENTS:
        largest, _, level, index = heap[0]
        if largest == 0:
            break
        heapq.heapreplace(heap, entry(level + 1, 2 * index))
        heapq.heappush(heap, entry(level + 1, 2 * index + 1))
    return _joined(exact, levels, sorted((i * WIDTHS[level], level) for _, _, level, i in heap), -heap[0][0])


def _joined(exact: np.ndarray, levels: list[_Level], chosen: list[tuple[int, int]], worst: int) -> Division:
    rows, tables, results = [], [], []
    for row, (start, level) in enumerate(chosen):
        width = WIDTHS[level]
        rows.append((FIRST + start, (width // ENTRIES).bit_length() - 1, row))
        tables.append(exact[start : start + width + 1 : width // ENTRIES])
        results.append(levels[level].result[start : start + width])
    joined = np.concatenate(results).astype(np.int64)
    return Division(np.array(rows, np.int32), np.array(tables, np.int16), joined, worst)


def _level(exact: np.ndarray, reach: tuple[int, int], width: int) -> _Level:
    """Every segment of `width` inputs: D8 between entries that lie width/64 apart.

    In int32, which holds a difference of two i16 times 1023, and half as many bytes to go through as int64.
    """
    shift = (width // ENTRIES).bit_length() - 1
    if shift == 0:  # a cell is one input
        none = np.zeros(len(exact) // width, np.int64)
        return _Level(none, none, exact[:-1])
    entries = exact[:: 1 << shift]
    result = np.multiply.outer(np.diff(entries), np.arange(1 << shift, dtype=np.int32))
    result += 1 << (shift - 1)
    result >>= shift
    result += entries[:-1, None]
    result = result.reshape(-1)
    error = np.zeros_like(result)
    inside = slice(max(reach[0], FIRST) - FIRST, max(reach[1] - FIRST + 1, 0))
    np.abs(np.subtract(result[inside], exact[:-1][inside]), out=error[inside])
    rows = error.reshape(-1, width)
    return _Level(rows.max(axis=1), rows.sum(axis=1, dtype=np.int64), result)
