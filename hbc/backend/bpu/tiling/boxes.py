"""Boxes of tensors: per axis the first index and the one behind the last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
Box = tuple[Range, ...]


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, d) for d in shape)


def sizes(box: Box) -> tuple[int, ...]:
    """How many indices each axis has."""
    return tuple(hi - lo for lo, hi in box)


def starts(box: Box) -> tuple[int, ...]:
    """The first index of each axis."""
    return tuple(lo for lo, _ in box)


def volume(box: Box) -> int:
    """How many elements."""
    return math.prod(hi - lo for lo, hi in box)


def is_empty(box: Box) -> bool:
    """True where there is no element."""
    return any(hi <= lo for lo, hi in box)


def moved(box: Box, by: Sequence[int]) -> Box:
    """Shifted along every axis."""
    return tuple((lo + d, hi + d) for (lo, hi), d in zip(box, by, strict=True))


def meets(a: Box, b: Box) -> bool:
    """True where they share an element."""
    for (lo, hi), (low, high) in zip(a, b, strict=True):  # noqa: SIM110 - a third of the time that `all` takes
        if lo >= high or low >= hi:
            return False
    return True


def common(a: Box, b: Box) -> Box:
    """What they share; may be empty."""
    return tuple((max(lo, low), min(hi, high)) for (lo, hi), (low, high) in zip(a, b, strict=True))


def inside(a: Box, b: Box) -> bool:
    """True where all of `a` is in `b`."""
    return all(low <= lo and hi <= high for (lo, hi), (low, high) in zip(a, b, strict=True))


def without(box: Box, hole: Box) -> list[Box]:
    """`box` less `hole`, as disjoint boxes: the parts before and behind it, axis by axis."""
    if not meets(box, hole):
        return [box]
    parts = []
    rest = list(box)
    for i, ((lo, hi), (low, high)) in enumerate(zip(box, hole, strict=True)):
        if lo < low:
            parts.append((*rest[:i], (lo, low), *rest[i + 1 :]))
        if high < hi:
            parts.append((*rest[:i], (high, hi), *rest[i + 1 :]))
        rest[i] = max(lo, low), min(hi, high)
    return parts


def uncovered(box: Box, holes: Iterable[Box]) -> list[Box]:
    """What of `box` lies in none of `holes`, as disjoint boxes."""
    parts = [box]
    for hole in holes:
        parts = [p for part in parts for p in without(part, hole)]
    return parts


def blocks(shape: Sequence[int], block: Sequence[int], order: Sequence[int]) -> list[Box]:
    """The grid of `block`-sized boxes over `shape`; the last axis of `order` runs fastest."""
    found: list[list[Range]] = [[(0, 0)] * len(shape)]
    for axis in order:
        ranges = [(lo, min(lo + block[axis], shape[axis])) for lo in range(0, shape[axis], max(block[axis], 1))]
        found = [[*box[:axis], r, *box[axis + 1 :]] for box in found for r in ranges]
    return [tuple(box) for box in found]
