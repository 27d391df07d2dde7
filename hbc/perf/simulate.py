"""From works to times: a simulation of one run, engine by engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hbc_runtime.commands import Engine

from .boards import Board
from .work import COMMAND_BYTES, Work

CPU_TABLES = ("lut", "segment_lut")  # what a march may leave to the host of its own instructions


@dataclass(frozen=True)
class Span:
    """One engine at work, from `start` to `end` (microseconds from the beginning of the run)."""

    engine: str
    start: float
    end: float


@dataclass(frozen=True)
class Timed:
    """A work with its times in microseconds, and its DDR bytes."""

    work: Work
    start: float
    end: float
    compute: float  # without DDR
    transfer: float  # loads and stores
    loaded: int
    stored: int
    spans: tuple[Span, ...]

    @property
    def bound(self) -> str:
        """What the time went to: `compute`, `ddr` or `overhead`."""
        rest = self.end - self.start - max(self.compute, self.transfer)
        return "overhead" if rest > max(self.compute, self.transfer) else _bound(self.compute, self.transfer)


def _bound(compute: float, transfer: float) -> str:
    return "ddr" if transfer > compute else "compute"


def cycles(work: Work, board: Board) -> float:
    """Cycles that `work` takes of its engine once its data is on chip, without overhead.

    The tensor engine multiplies while features stream past it: the slower of the two counts. A vector engine makes so
    many elements in a cycle whatever it does with them.
    """
    rates = board.rates
    if work.engine is Engine.TENSOR:
        rate = {"dense": rates.dense, "depthwise": rates.depthwise, "matmul": rates.matmul}[work.kind]
        return max(work.padded_macs / rate, work.feature_bytes / board.feature)
    return work.elements / rates.vector


def run_segment(works: Iterable[Work], board: Board, start: float) -> list[Timed]:
    """The works of a BPU segment in order, from `start` µs on.

    Inside of a layer loads of weights, computing and stores overlap (they are double-buffered), so that the slower one
    counts; layer follows layer, as each needs all of the one before. What comes from the host is waited for: the tiny
    net's perf.json shows no computing before its input is there.
    """
    now = start
    timed: list[Timed] = []
    for work in works:
        timed.append(_timed(work, board, now))
        now = timed[-1].end
    return timed


def _timed(work: Work, board: Board, begin: float) -> Timed:
    clock, ddr = board.spec.clock_mhz, board.rates.ddr
    if work.engine is Engine.HOST:
        end = begin + (work.elements * board.cpu / 1e3 if work.kind in CPU_TABLES else 0.0)
        return Timed(work, begin, end, end - begin, 0.0, 0, 0, (Span("host", begin, end),))
    loaded = work.weight_bytes + COMMAND_BYTES
    wait, load, store = work.load_bytes / ddr, loaded / ddr, work.store_bytes / ddr
    compute = cycles(work, board) / clock
    ready = begin + wait + board.rates.command / clock
    end = ready + max(compute, load + store)
    spans = [Span(work.engine.name.lower(), ready, ready + compute), Span("load", ready, ready + load)]
    if wait:
        spans.insert(0, Span("load", begin, begin + wait))
    if store:
        spans.append(Span("store", end - store, end))
    loaded += work.load_bytes
    return Timed(work, begin, end, compute, wait + load + store, loaded, work.store_bytes, tuple(spans))
