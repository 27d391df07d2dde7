"""Weights for `vpmaddubsw`: panels whose sums provably stay in i16, and lists of what had to be taken out of them.

The i16 of `merge` steps are added before they are widened. With left bytes in [0, 127] such a sum lies between −127 and
127 times the sums of its negative and of its positive weights, so both may be up to 258 (127 · 258 = 32766). With
signed bytes any weight may turn round, so the magnitudes together may be up to 255 (128 · 255 = 32640). Where a sum
could be larger, the weights of one of its steps move to a further step, which stands alone; a pair alone is always
within bounds. With signed bytes a weight of −128, which cannot be turned round, becomes −64 in two steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .pair_plan import MERGES

Array = npt.NDArray[Any]
MOST_POSITIVE = 258  # weights of one sign, times 127
MOST_SIGNED = 255  # magnitudes, times 128
_SAMPLE = 4  # panels that choose how many steps to merge
_FURTHER_COST = 1.4  # of a further step, where a step of a merged group costs 1


@dataclass(frozen=True)
class Further:
    """Steps that stand alone: of each, its panel [n], the number of the step that it repeats [n], and its weights
    i8 [n, vectors, lanes, 4].
    """

    panel: Array
    step: Array
    weights: Array

    @staticmethod
    def of(parts: list[tuple[Array, Array, Array]], shape: tuple[int, ...]) -> Further:
        """All of `parts` (panel, step, weights), by panel; a step's weights have `shape`."""
        empty = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, *shape), np.int8)
        panel, step, weights = (np.concatenate(each) for each in zip(empty, *parts, strict=True))
        order = np.argsort(panel, kind="stable")
        return Further(panel[order], step[order], weights[order].astype(np.int8))


def split_panels(panels: Array, merge: int, *, signed: bool) -> tuple[Array, Further]:
    """Panels i8 [group, chunks, KH, segments, steps, vectors, lanes, 4] → (the same, bounded), and what was taken out.

    Added together they are the panels. Steps are numbered through KH, segments and steps.
    """
    shape = panels.shape
    main = panels.reshape(shape[0] * shape[1], -1, *shape[4:]).astype(np.int16)  # [panels, runs, steps, …]
    parts = []
    if signed and main.min(initial=0) == -128:
        parts.append(_halved(main))
    for groups in _groups(main, merge):
        parts += _thinned(main, groups, signed=signed)
    return main.reshape(shape).astype(np.int8), Further.of(parts, shape[5:])


def _halved(main: Array) -> tuple[Array, Array, Array]:
    """−128 becomes −64, in place; what is left, as further steps."""
    lowest = main == -128
    panel, run, step = np.nonzero(lowest.any(axis=(3, 4, 5)))
    weights = np.where(lowest[panel, run, step], -64, 0)
    main[lowest] = -64
    return panel, run * main.shape[2] + step, weights


def _groups(main: Array, merge: int) -> Iterator[tuple[int, int]]:
    """(first step, steps) of the merged groups of a segment, all of one length at a time: see `_thinned`."""
    whole = main.shape[2] // merge * merge
    if whole:
        yield 0, merge
    if whole < main.shape[2]:
        yield whole, main.shape[2] - whole


def _thinned(main: Array, groups: tuple[int, int], *, signed: bool) -> list[tuple[Array, Array, Array]]:
    """Take steps out of merged groups until every sum is bounded, in place; what was taken: (panel, step, weights).

    `groups`: where in a segment the first group starts, and how many steps each has. Of the steps that could go, the
    one whose going leaves the fewest sums unbounded. At last one step stays per sum, and a pair is bounded.
    """
    start, length = groups
    panels, runs, steps, vectors, lanes, _ = main.shape
    count = (steps - start) // length
    view = main[:, :, start : start + count * length].reshape(panels, runs, count, length, vectors, lanes, 2, 2)
    panel, run, group = np.nonzero(_unbounded(view, signed=signed).any(axis=(3, 4, 5)))
    own = view[panel, run, group]  # [bad groups, length, vectors, lanes, 2, 2]
    taken, alive, gone = [], np.arange(len(own)), np.zeros((len(own), length), np.int64)
    for _ in range(length - 1):
        bad = _unbounded(own[alive], signed=signed)
        alive, bad = alive[still := bad.any(axis=(1, 2, 3))], bad[still]
        if not len(alive):
            break
        now = own[alive]
        left = [
            (_unbounded(np.delete(now, j, axis=1), signed=signed) & bad).sum(axis=(1, 2, 3))
            + bad[0].size * gone[alive, j]
            for j in range(length)
        ]
        step = np.argmin(left, axis=0)
        gone[alive, step] = 2
        weights = np.where(bad[..., None], own[alive, step], 0)
        own[alive, step] -= weights
        number = run[alive] * steps + start + group[alive] * length + step
        taken.append((panel[alive], number, weights.reshape(len(alive), vectors, lanes, 4)))
    view[panel, run, group] = own
    main[:, :, start : start + count * length] = view.reshape(panels, runs, count * length, vectors, lanes, 4)
    return taken


def _unbounded(groups: Array, *, signed: bool) -> Array:
    """[…, steps, vectors, lanes, 2, 2] → […, vectors, lanes, 2]: True for each i16 sum that may leave i16."""
    assert groups.shape[-5] * 2 * 128 < 1 << 15
    if signed:
        return np.asarray(_total(np.abs(groups)) > MOST_SIGNED)
    positive = _total(np.maximum(groups, 0))
    return np.asarray((positive > MOST_POSITIVE) | (positive - _total(groups) > MOST_POSITIVE))


def _total(groups: Array) -> Array:
    """The sum over steps and the two of a pair; of few bytes, so that it fits i16."""
    return np.asarray((groups[..., 0] + groups[..., 1]).sum(axis=-4, dtype=np.int16))


def choose_merge(panels: Array, *, signed: bool) -> int:
    """How many steps to merge, by what it costs in some of the panels: see `split_panels`."""
    if signed and int(panels.min(initial=0)) == -128:
        return 1  # a half of −128 must not meet the other half again
    steps = panels.shape[4]
    every = panels.reshape(-1, 1, *panels.shape[2:])
    some = every[:: -(-len(every) // _SAMPLE)]

    def cost(merge: int) -> float:
        _, further = split_panels(some, merge, signed=signed)
        whole, rest = divmod(steps, merge)
        runs = len(some) * panels.shape[2] * panels.shape[3]
        return runs * (whole * (merge + 1) + (rest and rest + 1)) + 2 * _FURTHER_COST * len(further.panel)

    return min((m for m in MERGES if m <= steps), key=lambda m: (cost(m), m))


def pack_further(further: Further, panels: int, steps: int, strides: tuple[tuple[int, int], int, int]) -> Array:
    """The lists as `pair_tile` reads them, i64 behind a table: where each panel's list starts, in bytes.

    `steps` are those of a segment; `strides` are (bytes from row to row, segments of a row), the bytes from segment to
    segment, and from step to step.
    """
    (row_bytes, segments), segment_bytes, step_bytes = strides
    run, step = np.divmod(further.step, steps)
    row, segment = np.divmod(run, segments)
    offset = row * row_bytes + segment * segment_bytes + step * step_bytes
    flat = np.ascontiguousarray(further.weights).reshape(len(offset), math.prod(further.weights.shape[1:]))
    entries = np.concatenate([offset.astype(np.int64)[:, None].view(np.int8), flat], axis=1)
    counts = np.bincount(further.panel, minlength=panels)
    before = np.cumsum(counts) - counts
    size = entries.shape[1]
    starts = 8 * panels + 8 * np.arange(panels) + before * size
    packed = np.zeros(16 * panels + len(offset) * size, np.int8)
    packed[: 8 * panels] = starts.astype(np.int64).view(np.int8)
    for i in range(8):
        packed[starts + i] = counts.astype(np.int64).view(np.int8).reshape(-1, 8)[:, i]
    at = 8 * panels + 8 * (further.panel + 1) + np.arange(len(offset)) * size
    packed[at[:, None] + np.arange(size)] = entries
    return packed
