"""How byte convolutions by `vpmaddubsw` are cut: their plan, and the estimate of time that it is chosen by."""

from __future__ import annotations

from dataclasses import dataclass

from .host import Host
from .quad_plan import SMALL_WEIGHTS, QuadPlan, reads_in_place, segments_of, steps_of
from .window import Window

MERGES = (4, 2, 1)  # steps that share a vpmaddwd
MULTIPLIES = 2  # a cycle
TURN = 0.2, 0.4  # cycles that bytes with a sign take besides: per product, and per pixel and step
NEAR = 24_000  # bytes of a panel that stay in the L1 cache; of a larger one, FAR bytes come in a cycle
FAR = 24
CALL = 12  # cycles for a tile besides its steps and its finish
_PER_VECTOR = {True: 1.2, False: 5.0}  # cycles to finish a vector: packed, or not


@dataclass(frozen=True)
class PairPlan(QuadPlan):
    """The cut, how many steps share a `vpmaddwd`, and whether the left bytes may be negative."""

    merge: int
    signed: bool


def make_pair_plan(window: Window, host: Host, weights: int, *, fast: bool, signed: bool, merge: int) -> PairPlan:
    """The cut with the least estimated time. `weights` are bytes; `fast`: results are 8 bits by form A."""
    outputs = window.outputs // window.group
    in_place = reads_in_place(window, host, offset=False)
    one_list = in_place and window.is_pointwise
    height = 1 if one_list else window.rows.out
    width = window.batch * window.rows.out * window.columns.out if one_list else window.columns.out
    steps = window.rows.kernel * segments_of(window) * _steps(window)

    def cost(v: int, c: int) -> float:
        whole, rest = divmod(width, c)
        chunks = -(-outputs // (v * host.lanes))

        def tile(count: int) -> float:
            return _tile(host, outputs, steps, v, merge, count, fast=fast, signed=signed)

        return chunks * height * (whole * tile(c) + (tile(rest) if rest else 0.0))

    vectors, columns = min(
        ((v, c) for v in (1, 2, 4) for c in range(1, 25) if _fits(host, outputs, width, v, c)),
        key=lambda s: (cost(*s), -s[0] * s[1]),
    )
    return PairPlan(
        outputs, host.lanes, vectors, 1, columns, in_place, flip=False, rows_outer=weights <= SMALL_WEIGHTS,
        packed=fast and _packs(host, outputs, vectors), prefetch=False, merge=merge, signed=signed,
    )  # fmt: skip


def _steps(window: Window) -> int:
    """Steps of a segment."""
    return steps_of(window.columns.kernel // segments_of(window) * (window.channels // window.group))


def _packs(host: Host, outputs: int, vectors: int) -> bool:
    return vectors > 1 and outputs >= vectors * host.lanes


def _fits(host: Host, outputs: int, width: int, vectors: int, columns: int) -> bool:
    accumulators = 10 if host.registers == 16 else 24  # measured: more are spilled
    return vectors * columns <= accumulators and vectors <= max(1, -(-outputs // host.lanes)) and columns <= width


def _tile(
    host: Host, outputs: int, steps: int, vectors: int, merge: int, columns: int, *, fast: bool, signed: bool
) -> float:
    """Estimated cycles of one tile."""
    products = vectors * columns
    multiplies = products * (merge + 1) / merge / MULTIPLIES + signed * (TURN[0] * products + TURN[1] * columns)
    loads = (vectors + columns) / 2
    panel = 4 * host.lanes * vectors
    far = panel / FAR if panel * steps > NEAR else 0.0
    packed = fast and _packs(host, outputs, vectors)
    return steps * (max(multiplies, loads, far) + 0.5) + products * _PER_VECTOR[packed] + CALL
