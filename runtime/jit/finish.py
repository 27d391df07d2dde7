"""From a tile of accumulators to results: fused addend, requantisation, store. And the packing of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..isa import Requantizing, Scheme
from ..numerics import I32_MAX
from ..types import DType
from . import numerics
from .emitter import F32, I32, I64, PTR, Emitter, element, i64, vector
from .registry import Constants
from .tiles import TileShape

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Finish:
    """What happens to an accumulator; equal values share one function."""

    scheme: Scheme
    zero_point: int
    lo: int
    hi: int
    out: DType
    addend: DType | None = None
    addend_zero_point: int = 0

    @staticmethod
    def of(op: Requantizing, out: DType, addend: DType | None = None, addend_zero_point: int = 0) -> Finish:
        """The finish of an instruction."""
        return Finish(op.scheme, op.zero_point, op.clamp_min, op.clamp_max, out, addend, addend_zero_point)

    @property
    def rows(self) -> int:
        """How many parameter vectors a channel vector has."""
        own = {Scheme.NONE: 0, Scheme.FLOAT: 1}.get(self.scheme, 3)
        added = {Scheme.NONE: 0, Scheme.FLOAT: 1}.get(self.scheme, 2) if self.addend is not None else 0
        return own + added


def constant(constants: Constants, index: int, name: str) -> Array:
    """Operand `index`, which must be a constant; ValueError otherwise."""
    value = constants[index]
    if value is None:
        msg = f"its {name} is computed at run time; it has to be a constant"
        raise ValueError(msg)
    return value


def pack_parameters(constants: Constants, present: list[tuple[int, str]], shape: TileShape, group: int) -> Array:
    """Per-channel operands as i32 words [group, chunks, rows, width]; float32 keeps its bits.

    `present` lists (operand index, name) in the order in which `finish` reads them: multiplier, pre_shift, post_shift,
    addend_multiplier, addend_shift, as far as the scheme has them.
    """
    rows = []
    for index, name in present:
        value = constant(constants, index, name)
        words = value.view(np.int32) if value.dtype == np.float32 else value.astype(np.int32)
        rows.append(shape.spread(np.broadcast_to(words, group * shape.columns).reshape(group, shape.columns)))
    return np.stack(rows, axis=2) if rows else np.zeros(0, np.int32)


def pack_bias(bias: Array | None, shape: TileShape, group: int) -> Array:
    """The accumulators' start values [group, chunks, width]: the bias, or 0."""
    dtype = np.int64 if shape.wide else np.int32
    values = np.zeros(group * shape.columns, dtype) if bias is None else bias.astype(dtype)
    return shape.spread(values.reshape(group, shape.columns))


def addend_bound(op_zero_point: int, addend: DType, multiplier: Array, shift: Array) -> int | None:
    """The largest |addend term| (D5) over all channels, or None where computing it needs more than i32."""
    lo, hi = addend.limits
    far = max(abs(lo - op_zero_point), abs(hi - op_zero_point))
    product = far * int(np.abs(multiplier.astype(np.int64)).max())
    if product > I32_MAX or int(shift.min()) < 0 or int(shift.max()) > 31:
        return None
    return (product >> int(shift.min())) + 1


def finish(e: Emitter, shape: TileShape, what: Finish) -> ir.Function:
    """`void(ptr tile, i64 pixels, ptr parameters, ptr out, ptr addend, i64 channel, i64 stride)`.

    `out` and `addend` point to the group's first channel of the tile's first pixel; `stride` is the elements from
    pixel to pixel; `channel` is where the chunk starts in the group. `addend` is not read where there is none.
    """
    key = ("finish", shape.lanes, shape.vectors, shape.used, shape.last, shape.wide, what)
    return e.helper(key, [PTR, I64, PTR, PTR, PTR, I64, I64], lambda inner: _emit_finish(inner, shape, what))


def _emit_finish(e: Emitter, shape: TileShape, what: Finish) -> None:
    tile, pixels, parameters, out, addend, channel, stride = e.args
    starts = [e.smin(e.b.add(channel, i64(v * shape.lanes)), i64(shape.last)) for v in range(shape.vectors)]
    with e.loop(0, pixels) as pixel:
        row = e.b.mul(pixel, stride)
        words = e.b.mul(pixel, i64(shape.width))
        for v, start in enumerate(starts):
            at = e.b.add(row, start)
            acc = e.load(tile, e.b.add(words, i64(v * shape.lanes)), shape.accumulator, shape.lanes)
            y = _result(e, shape, what, acc, _Rows(e, shape, parameters, v), addend, at)
            e.store_first(e.resize(y, element(what.out)), shape.used, out, at)


@dataclass(frozen=True)
class _Rows:
    """The parameter vectors of one channel vector."""

    e: Emitter
    shape: TileShape
    parameters: ir.Value
    v: int

    def load(self, row: int, scalar: ir.Type = I32) -> ir.Value:
        return self.e.load(
            self.parameters, row * self.shape.width + self.v * self.shape.lanes, scalar, self.shape.lanes
        )


def _result(
    e: Emitter, shape: TileShape, what: Finish, acc: ir.Value, rows: _Rows, addend: ir.Value, at: ir.Value
) -> ir.Value:
    """The i32 result of one vector of accumulators."""
    if what.addend is not None:
        q = e.load_first(addend, at, element(what.addend), shape.lanes, shape.used)
        if what.scheme is Scheme.FLOAT:
            return _float_sum(e, what, acc, rows, q)
        term = numerics.addend_to_accumulator(
            e, q, what.addend_zero_point, rows.load(3), rows.load(4), narrow=not shape.wide
        )
        acc = e.b.add(acc, term)
    mult = pre = post = None
    if what.scheme is Scheme.FLOAT:
        mult = rows.load(0, F32)
    elif what.scheme is not Scheme.NONE:
        mult, pre, post = (rows.load(row) for row in range(3))
    return numerics.requantize(e, acc, what.scheme, mult, pre, post, what.zero_point, what.lo, what.hi)


def _float_sum(e: Emitter, what: Finish, acc: ir.Value, rows: _Rows, q: ir.Value) -> ir.Value:
    """nearbyint(f32(acc)·mult + f32(addend − zp)·addend_mult) + zero_point, each step rounded to float32."""
    floats = vector(F32, rows.shape.lanes)
    main = e.b.fmul(e.b.sitofp(numerics.saturate_i32(e, acc), floats), rows.load(0, F32))
    centred = numerics.centred(e, e.resize(q, I32), what.addend_zero_point)
    term = e.b.fmul(e.b.sitofp(centred, floats), rows.load(1, F32))
    return numerics.nearbyint_f32(e, e.b.fadd(main, term), what.zero_point, what.lo, what.hi)
