"""Byte convolutions by `vpmaddubsw`: what differs from `quad_conv.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
from llvmlite import ir

from .convolve import Operands
from .emitter import I64, i64
from .host import Host
from .pair_pack import choose_merge, pack_further, split_panels
from .pair_plan import PairPlan, make_pair_plan
from .pair_tile import PairTile, pair_function
from .quad_conv import QuadConvolution, QuadLoops, pack_quads
from .quad_plan import bytes_per_row, is_list, segments_of, steps_of
from .registry import KernelBuilder
from .window import Window

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PairPacked:
    """The plan, the panels, and the lists of further steps."""

    plan: PairPlan
    panels: Array
    further: Array


def plan_pairs(window: Window, host: Host, weights: int, *, fast: bool, positive: bool) -> PairPlan:
    """The cut of a convolution with as many bytes of weights, before it is known how many steps can be merged."""
    signed = not (positive and 0 <= window.fill + window.zero_point <= 127)
    return make_pair_plan(window, host, weights, fast=fast, signed=signed, merge=1 if signed else 2)


def pack_pairs(weight: Array, window: Window, host: Host, *, fast: bool, positive: bool) -> PairPacked:
    """Weights i8 [O, KH, KW, C/g], cut and packed. `positive`: the image is known to hold no negative number."""
    plan = plan_pairs(window, host, weight.size, fast=fast, positive=positive)
    signed, segments = plan.signed, segments_of(window)
    panels = pack_quads(weight, plan, window.group, segments)
    panels = panels.reshape(*panels.shape[:2], window.rows.kernel, segments, -1, *panels.shape[3:])
    plan = replace(plan, merge=choose_merge(panels, signed=signed))
    main, further = split_panels(panels, plan.merge, signed=signed)
    taken = window.channels // window.group
    pitch = window.channels if plan.in_place else taken
    strides = (bytes_per_row(window, plan), segments), window.columns.dilation * pitch, 4
    steps = steps_of(window.columns.kernel // segments * taken)
    return PairPacked(plan, main, pack_further(further, window.group * plan.chunks, steps, strides))


def convolve_pairs(k: KernelBuilder, c: QuadConvolution, at: Operands) -> None:
    """Emit the whole kernel; `at.bias` is the address of the lists of further steps."""
    loops = _PairLoops(k, c, at)
    if is_list(c.window, c.plan):
        loops.over_list()
    else:
        loops.over_rows()


class _PairLoops(QuadLoops):
    def tiles(self, left: ir.Value, first: ir.Value, panel: ir.Value, size: tuple[int, int]) -> None:
        """All tiles of a block of output pixels whose first is number `first`; what is left of a row is a tile, too."""
        k, columns, width = self.k, min(self.plan.tile_columns, size[1]), size[1]
        whole, rest = divmod(width, columns)
        panel_at = k.at(self.at.weight, k.b.mul(panel, i64(self.panel_bytes)))
        further = k.at(self.at.bias, k.load(self.at.bias, panel, I64))
        constants = panel_at, further, *self.of_panel(panel)
        with k.loop(0, whole) as number:
            self.one_tile(left, first, constants, columns, k.b.mul(number, i64(columns)))
        if rest:
            self.one_tile(left, first, constants, rest, i64(whole * columns))

    def one_tile(
        self, left: ir.Value, first: ir.Value, constants: tuple[ir.Value, ...], columns: int, pixel: ir.Value
    ) -> None:
        """The tile of `columns` pixels from number `first + pixel` on."""
        k, w, plan = self.k, self.w, self.plan
        assert isinstance(plan, PairPlan)
        panel_at, further, parameters, starts, channel = constants
        tile = self.pair_tile(plan, columns)
        source = k.at(left, k.b.mul(pixel, i64(tile.step)))
        element = k.b.add(k.b.mul(k.b.add(first, pixel), i64(w.outputs)), channel)
        out = k.at(self.at.out, element, self.c.finish.out.size)
        beside = self.c.finish.beside
        extra = out if beside is None else k.at(self.at.addend, element, beside.size)
        extent = w.rows.kernel, self.row_bytes, self.segments, w.columns.dilation * self.pitch, self.steps // plan.merge
        k.call(pair_function(k, tile), source, panel_at, *extent, parameters, starts, out, extra, further)

    def pair_tile(self, plan: PairPlan, columns: int) -> PairTile:
        """The tile function's key."""
        base = self.tile(1, columns)
        fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
        merged = self.steps >= plan.merge
        return PairTile(**fields, merge=plan.merge, tail=self.steps % plan.merge, groups=merged, signed=plan.signed)
