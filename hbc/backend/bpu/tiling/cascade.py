"""Row cascades: several instructions made band by band of rows, so that what lies between them never leaves the chip.

In band t of T each member makes the rows up to t/T of its result, and whatever more of them the members behind it read.
No row is made twice: what a window reads of earlier rows is still on chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hbc_runtime.commands import Engine
from hbc_runtime.program import Storage

from .boxes import Box, is_empty, meets, volume, whole
from .split import Budget
from .steps import Context, Step

ROWS = 1  # the axis of NHWC
BANDS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Shape:
    """How groups are cut out of ranges: at most so many `bands`, two of which take at most `share` of on-chip memory
    together with the constants, which alone take at most `weights` of it.
    """

    bands: int
    share: float
    weights: float


@dataclass(frozen=True)
class Group:
    """Instructions `first` to `last`, made in `bands` bands."""

    first: int
    last: int
    bands: int

    def rebanded(self, factor: float) -> Group:
        """The same in so many times the bands, at least 2."""
        return replace(self, bands=max(2, int(self.bands * factor)))


def joins(context: Context, index: int) -> bool:
    """True where an instruction may be a member: an engine's, with rows, and something left to make."""
    shape = context.shape(index)
    rows = len(shape) == 4 and not is_empty(whole(shape))
    return rows and context.engines[index] is not Engine.HOST


def merged(wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that may overlap or touch, as ranges that don't."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(wanted):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def groups_in(context: Context, ranges: Iterable[tuple[int, int]], budget: Budget, shape: Shape) -> tuple[Group, ...]:
    """Groups of two members or more, as long as `shape` lets them be, one behind the other in each range."""
    found: list[Group] = []
    for first, last in ranges:
        group: Group | None = None
        for index in range(first, last + 1):
            longer = _group(context, group.first if group else index, index, budget, shape)
            if longer is None and group is not None:
                found.append(group)
                longer = _group(context, index, index, budget, shape)
            group = longer
        if group is not None:
            found.append(group)
    return tuple(g for g in found if g.first < g.last)


def _group(context: Context, first: int, last: int, budget: Budget, shape: Shape) -> Group | None:
    """The range in as few bands as will do; None where it has no rows, or asks for too much."""
    weights = sum(constant_bytes(context, i) for i in range(first, last + 1))
    if not joins(context, last) or weights > shape.weights * budget.on_chip:
        return None
    for bands in BANDS:
        moving = sum(_band_bytes(context, i, bands) for i in range(first, last + 1))
        if bands <= shape.bands and weights + moving <= shape.share * budget.on_chip:
            return Group(first, last, bands)
    return None


def constant_bytes(context: Context, index: int) -> int:
    """Bytes of an instruction's constants."""
    tensors = context.model.tensors
    return sum(tensors[i].nbytes for i in context.op(index).inputs if i >= 0 and tensors[i].storage is Storage.CONSTANT)


def _band_bytes(context: Context, index: int, bands: int) -> int:
    """Two bands and a window's rest of a result."""
    shape = context.shape(index)
    t = context.model.tensors[context.op(index).outputs[0]]
    return t.nbytes // shape[ROWS] * min(shape[ROWS], 2 * -(-shape[ROWS] // bands) + 2)


def cascade(context: Context, group: Group) -> list[Step]:
    """The steps of a group, band after band."""
    return _Cascade(context, group).steps()


class _Cascade:
    def __init__(self, context: Context, group: Group) -> None:
        self.context, self.group = context, group
        self.members = [i for i in range(group.first, group.last + 1) if any(self._boxes(i, 0, self._rows(i)))]
        self.done = dict.fromkeys(self.members, 0)
        self.makers: dict[int, list[tuple[int, Box]]] = {}  # by root: who makes which box of it
        for i in self.members:
            y = context.op(i).outputs[0]
            root, box = context.views.root(y, whole(context.shape(i)))
            self.makers.setdefault(root, []).append((i, box))

    def steps(self) -> list[Step]:
        made: list[Step] = []
        for band in range(1, self.group.bands + 1):
            until = self._targets(band)
            for i in self.members:
                made += [self.context.step(i, box) for box in self._boxes(i, self.done[i], until[i])]
                self.done[i] = until[i]
        return made

    def _rows(self, index: int) -> int:
        return self.context.shape(index)[ROWS]

    def _boxes(self, index: int, first: int, last: int) -> Iterator[Box]:
        """Rows `first` to `last` of a result, less what views make."""
        if first < last:
            n, _, *rest = whole(self.context.shape(index))
            yield from self.context.left(index, [(n, (first, last), *rest)])

    def _targets(self, band: int) -> dict[int, int]:
        """Up to which row each member is made when the band ends: readers say what they need of those before them."""
        until = {i: max(self.done[i], -(-self._rows(i) * band // self.group.bands)) for i in self.members}
        for i in reversed(self.members):
            for box in self._boxes(i, self.done[i], until[i]):
                for read in self.context.step(i, box).reads:
                    for maker, whole_box in self.makers.get(read.root, ()):
                        if maker < i and meets(read.box, whole_box):
                            until[maker] = max(until[maker], self._row_in(maker, whole_box, read.box))
        return until

    def _row_in(self, maker: int, own: Box, read: Box) -> int:
        """The row of a member's result that a read of its root reaches to."""
        rows, shape = self._rows(maker), self.context.shape(maker)
        plain = len(own) == 4 and own[ROWS][1] - own[ROWS][0] == rows and volume(own) == volume(whole(shape))
        return min(rows, read[ROWS][1] - own[ROWS][0]) if plain else rows


def reach(context: Context, indices: Iterable[int]) -> list[tuple[int, int]]:
    """Each instruction of `indices`, to the last one that reads what it makes."""
    readers: dict[int, int] = {}
    for k, op in enumerate(context.segment.instructions):
        for tensor in op.inputs:
            if tensor >= 0:
                root, _ = context.views.root(tensor, whole(context.model.tensors[tensor].shape))
                readers[root] = k
    found = []
    for index in indices:
        y = context.op(index).outputs[0]
        root, _ = context.views.root(y, whole(context.shape(index)))
        found.append((index, readers.get(root, index)))
    return found
