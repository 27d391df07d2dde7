"""The on-chip memory while commands are written: what lies where, who touched it last, and where the next tile goes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from hbc_runtime.commands import Engine, Tile

from .boxes import Box

ENGINES = len(Engine)
NOBODY = (-1,) * ENGINES


@dataclass(slots=True, eq=False)
class Piece:
    """A tile on chip, and what is known of its future."""

    tile: Tile
    root: int  # the tensor that it is a piece of, behind views
    box: Box  # in the root
    room: int  # bytes, rounded up
    writer: int  # the command that wrote it
    touched: list[int]  # per engine the last command that wrote or read it
    next: int | None = None  # the next step that reads it
    constant: bool = False
    stored: bool = False  # DDR holds it too
    pinned: bool = False  # the step at hand needs it


@dataclass(slots=True)
class _Span:
    """A stretch of memory: a piece, or free since those who touched it last."""

    start: int
    end: int
    piece: Piece | None
    touched: tuple[int, ...] | list[int]


@dataclass
class Memory:
    """`size` bytes in spans without gaps, in order."""

    size: int
    spans: list[_Span] = field(default_factory=list)
    top: int = 0  # the end of the highest tile so far

    def __post_init__(self) -> None:
        self.spans = [_Span(0, self.size, None, NOBODY)]

    def find(self, room: int, step: int, recent: int) -> tuple[int, list[Piece]] | None:
        """Where `room` bytes should go, and the pieces that have to leave; None where pinned ones are in the way.

        Cheapest is memory that nobody uses and nobody touched since command `recent`; next is waiting for it, or giving
        up pieces whose next reader is far away, whichever moves fewer bytes.
        """
        best: tuple[float, int, int] | None = None
        spans = self.spans
        costs = [self._cost(s, room, step, recent) for s in spans]
        end, got, cost, dear = 0, 0, 0.0, 0  # the window from `first` to before `end`: bytes, cost, spans that cost
        for first, span in enumerate(spans):
            if end <= first:
                end, got, cost, dear = first, 0, 0.0, 0
            while end < len(spans) and got < room and costs[end] >= 0:
                got, cost, dear = got + spans[end].end - spans[end].start, cost + costs[end], dear + (costs[end] > 0)
                end += 1
            if got >= room and (not dear or best is None or cost < best[0]):
                best = cost, first, end - 1
                if not dear:
                    break
            if end > first:
                got, cost, dear = got - (span.end - span.start), cost - costs[first], dear - (costs[first] > 0)
        if best is None:
            return None
        _, first, last = best
        leaving = [s.piece for s in spans[first : last + 1] if s.piece is not None]
        return spans[first].start, leaving

    def _cost(self, span: _Span, room: int, step: int, recent: int) -> float:
        """What taking a span costs; below 0 where it cannot be taken."""
        piece = span.piece
        if piece is not None:
            return -1.0 if piece.pinned else _loss(piece, step)
        return 0.5 * min(room, span.end - span.start) if max(span.touched) >= recent else 0.0

    def put(self, piece: Piece) -> list[int]:
        """Take the memory of a new piece, which must be free; returns per engine who touched it last."""
        start = piece.tile.address
        end = start + piece.room
        first = last = bisect_right(self.spans, start, key=lambda s: s.start) - 1
        touched = list(NOBODY)
        while True:
            span = self.spans[last]
            assert span.piece is None, "memory in use"
            touched = [max(a, b) for a, b in zip(touched, span.touched, strict=True)]
            if span.end >= end:
                break
            last += 1
        piece.touched[:] = touched  # until it is written itself, whoever follows waits for those before it
        front = self.spans[first]
        before = [_Span(front.start, start, None, front.touched)] if front.start < start else []
        rest = [_Span(end, span.end, None, span.touched)] if span.end > end else []
        self.spans[first : last + 1] = [*before, _Span(start, end, piece, piece.touched), *rest]
        self.top = max(self.top, end)
        return touched

    def free(self, piece: Piece) -> None:
        """A piece leaves; who touched it last stays known. Small free neighbours become one."""
        at = bisect_left(self.spans, piece.tile.address, key=lambda s: s.start)
        span = self.spans[at]
        assert span.piece is piece
        span.piece, span.touched = None, tuple(piece.touched)
        for i in (at + 1, at):
            if 0 < i < len(self.spans):
                self._merge(i)

    def _merge(self, i: int) -> None:
        """Spans i − 1 and i, where both are free and the smaller one would hardly hold a tile of its own."""
        a, b = self.spans[i - 1], self.spans[i]
        if a.piece is not None or b.piece is not None or min(a.end - a.start, b.end - b.start) > self.size // 64:
            return
        a.end = b.end
        a.touched = tuple(max(x, y) for x, y in zip(a.touched, b.touched, strict=True))
        del self.spans[i]

    def join(self) -> None:
        """All of the memory, which every piece has left, as one span: what fits then lies side by side."""
        assert not self.pieces
        touched = tuple(max(s.touched[e] for s in self.spans) for e in range(ENGINES))
        self.spans = [_Span(0, self.size, None, touched)]

    @property
    def pieces(self) -> list[Piece]:
        """All that lie in it."""
        return [s.piece for s in self.spans if s.piece is not None]


def _loss(piece: Piece, step: int) -> float:
    """Bytes that giving up a piece costs: to store it, and to load it again, less so the later that is."""
    size = piece.room if piece.stored or piece.constant else 2 * piece.room
    ahead = (piece.next - step) if piece.next is not None else 1 << 20
    return size * 8.0 / (8 + max(ahead, 0))
