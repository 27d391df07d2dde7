"""From a tile of accumulators to results: fused addend, requantisation, store. And the packing of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..isa import Add, Requantizing, Scheme
from ..numerics import I16_MAX, I32_MAX
from ..program import Tensor
from ..types import DType
from . import numerics
from .emitter import F32, I8, I16, I32, I64, PTR, Emitter, const, element, i64, lanes_of, scalar_of, vector
from .offset import OFFSET, is_offset
from .registry import Constants
from .tiles import TileShape

Array = npt.NDArray[Any]
LoadRow = Callable[..., ir.Value]  # (row, scalar = I32) → a vector of parameters


@dataclass(frozen=True)
class Sum:
    """What an Add makes of a byte result a and a byte b beside it: (a · own + b · other + constant) >> shift, clamped.

    The three numbers are among the parameters (`Weights`); `beside` and `out` are how b and the sum are stored.
    """

    shift: int
    lo: int
    hi: int
    beside: DType
    out: DType

    @staticmethod
    def of(add: Add, beside: Tensor, out: Tensor) -> Sum:
        """The sum of an instruction (D6)."""
        up, aside = (OFFSET if is_offset(t) else 0 for t in (out, beside))
        dtypes = (DType.U8 if t else DType.I8 for t in (aside, up))
        return Sum(add.shift, add.clamp_min + up, add.clamp_max + up, *dtypes)


@dataclass(frozen=True)
class Weights:
    """The numbers of a sum, which differ from layer to layer; the constant holds zero points and rounding term."""

    own: int
    other: int
    constant: int

    @staticmethod
    def of(add: Add, beside: Tensor, out: Tensor, *, left: bool) -> Weights | None:
        """The numbers of an instruction, where its sums fit i32 whatever the bytes are; else None."""
        up, aside = (OFFSET if is_offset(t) else 0 for t in (out, beside))
        own, other = (add.lhs_multiplier, add.lhs_zero_point), (add.rhs_multiplier, add.rhs_zero_point)
        if not left:
            own, other = other, own
        rounding = 1 << (add.shift - 1) if add.shift > 0 else 0
        constant = rounding + ((add.zero_point + up) << add.shift) - own[0] * own[1] - other[0] * (other[1] + aside)
        if abs(constant) + 255 * (abs(own[0]) + abs(other[0])) > I32_MAX or add.shift > 31:
            return None
        return Weights(own[0], other[0], constant)


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
    sum: Sum | None = None

    @staticmethod
    def of(op: Requantizing, out: Tensor, addend: Tensor | None = None, addend_zero_point: int = 0) -> Finish:
        """The finish of an instruction. Tensors stored as q + 128 count as u8 with a zero point 128 larger."""
        up = OFFSET if is_offset(out) else 0
        dtype = DType.U8 if up else out.dtype
        own = op.scheme, op.zero_point + up, op.clamp_min + up, op.clamp_max + up, dtype
        if addend is None:
            return Finish(*own)
        if is_offset(addend):
            return Finish(*own, DType.U8, addend_zero_point + OFFSET)
        return Finish(*own, addend.dtype, addend_zero_point)

    @property
    def beside(self) -> DType | None:
        """How the tensor is stored that is read beside the accumulators, if there is one."""
        return self.sum.beside if self.sum is not None else self.addend

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
    if _narrows(e, shape, what):
        _emit_narrow_finish(e, shape, what)
        return
    tile, pixels, parameters, out, addend, channel, stride = e.args
    rows = Rows(e, parameters, shape.vectors, shape.lanes)
    starts = [e.smin(e.b.add(channel, i64(v * shape.lanes)), i64(shape.last)) for v in range(shape.vectors)]
    if what.scheme is Scheme.WIDE and what.addend is None:
        _emit_wide_finish(e, shape, what, rows, starts)
        return
    with e.loop(0, pixels) as pixel:
        row = e.b.mul(pixel, stride)
        words = e.b.mul(pixel, i64(shape.width))
        for v, start in enumerate(starts):
            at = e.b.add(row, start)
            acc = e.load(tile, e.b.add(words, i64(v * shape.lanes)), shape.accumulator, shape.lanes)
            y = result_of(e, what, acc, rows.of(v), addend, at, shape.used)
            e.store_first(e.resize(y, element(what.out)), shape.used, out, at)


def _emit_wide_finish(e: Emitter, shape: TileShape, what: Finish, rows: Rows, starts: list[ir.Value]) -> None:
    """Scheme WIDE: a vector of channels after the other, whose parameters, widened, stay in registers."""
    tile, pixels, _, out, _, _, stride = e.args
    for v, start in enumerate(starts):
        scale = numerics.WideScale.of(e, rows.load(0, v), rows.load(2, v))
        with e.loop(0, pixels) as pixel:
            words = e.b.add(e.b.mul(pixel, i64(shape.width)), i64(v * shape.lanes))
            acc = e.load(tile, words, shape.accumulator, shape.lanes)
            y = scale.apply(e, acc, what.zero_point, what.lo, what.hi)
            e.store_first(e.resize(y, element(what.out)), shape.used, out, e.b.add(e.b.mul(pixel, stride), start))


def _narrows(e: Emitter, shape: TileShape, what: Finish) -> bool:
    """True where AArch64's narrowing with saturation serves: bytes by form A, in whole vectors."""
    able = not e.host.x86 and not shape.wide and shape.used == shape.lanes and shape.lanes % 4 == 0
    return able and what.scheme is Scheme.FORM_A and what.out is DType.I8


def _emit_narrow_finish(e: Emitter, shape: TileShape, what: Finish) -> None:
    """As above, all channels of a chunk together where they lie side by side; parameters stay in registers."""
    tile, pixels, parameters, out, addend, channel, stride = e.args
    together = shape.vectors in {1, 2, 4} and (shape.vectors == 1 or shape.columns % shape.width == 0)
    lanes = shape.width if together else shape.lanes
    rows = Rows(e, parameters, shape.width // lanes, lanes)
    starts = [e.smin(e.b.add(channel, i64(v * lanes)), i64(shape.columns - lanes)) for v in range(rows.vectors)]
    held = [[rows.load(row, v) for row in range(what.rows)] for v in range(rows.vectors)]
    with e.loop(0, pixels) as pixel:
        row, words = e.b.mul(pixel, stride), e.b.mul(pixel, i64(shape.width))
        for v, start in enumerate(starts):
            at = e.b.add(row, start)
            acc = e.load(tile, e.b.add(words, i64(v * lanes)), I32, lanes)
            if what.addend is not None:
                q = e.load(addend, at, element(what.addend), lanes)
                acc = e.b.add(acc, _addend_term(e, what, q, *held[v][3:], narrow=True))
            e.store(_narrow_result(e, what, acc, *held[v][:3]), out, at)


def _narrow_result(e: Emitter, what: Finish, acc: ir.Value, mult: ir.Value, pre: ir.Value, post: ir.Value) -> ir.Value:
    """Form A to bytes, through words: each step that halves the width is one instruction, which saturates as well.

    Exact: where the words saturate, the result is outside of bytes, with any zero point, and saturates again.
    """
    a = numerics.saturate(e, e.b.ashr(acc, pre), -I16_MAX - 1, I16_MAX)
    y = _narrowed(e, e.b.ashr(e.b.mul(a, mult), post), I16)
    if what.zero_point:
        y = e.overloaded("llvm.sadd.sat", y, const(y.type, what.zero_point))
    return numerics.saturate(e, _narrowed(e, y, I8), what.lo, what.hi)


def _narrowed(e: Emitter, x: ir.Value, scalar: ir.IntType) -> ir.Value:
    half = 1 << (scalar.width - 1)
    return e.resize(numerics.saturate(e, x, -half, half - 1), scalar)


@dataclass(frozen=True)
class Rows:
    """The parameters of a chunk of channels: rows of `vectors` vectors of `lanes` i32."""

    e: Emitter
    base: ir.Value
    vectors: int
    lanes: int

    def load(self, row: int, n: int, scalar: ir.Type = I32) -> ir.Value:
        """Vector `n` of row `row`; of i16, twice as many lanes."""
        index = (row * self.vectors + n) * self.lanes
        if scalar is I16:
            return self.e.load(self.base, 2 * index, I16, 2 * self.lanes)
        return self.e.load(self.base, index, scalar, self.lanes)

    def of(self, n: int, first: int = 0) -> LoadRow:
        """What loads row `first + i` of vector `n` for a given i."""
        return lambda row, scalar=I32: self.load(first + row, n, scalar)


def result_of(
    e: Emitter, what: Finish, acc: ir.Value, row: LoadRow, addend: ir.Value, at: ir.Value, used: int
) -> ir.Value:
    """The i32 result of one vector of accumulators; `row(i)` loads its parameters, `used` lanes hold channels."""
    lanes = lanes_of(acc)
    if what.addend is not None:
        q = e.load_first(addend, at, element(what.addend), lanes, used)
        if what.scheme is Scheme.FLOAT:
            return _float_sum(e, what, acc, row, e.resize(q, I32, signed=what.addend.is_signed))
        acc = e.b.add(acc, _addend_term(e, what, q, row(3), row(4), narrow=scalar_of(acc) == I32))
    mult = pre = post = None
    if what.scheme is Scheme.FLOAT:
        mult = row(0, F32)
    elif what.scheme is not Scheme.NONE:
        mult, pre, post = row(0), row(1), row(2)
    return numerics.requantize(e, acc, what.scheme, mult, pre, post, what.zero_point, what.lo, what.hi)


def _addend_term(e: Emitter, what: Finish, q: ir.Value, mult: ir.Value, shift: ir.Value, *, narrow: bool) -> ir.Value:
    assert what.addend is not None
    if not what.addend.is_signed:
        q = e.resize(q, I32, signed=False)
    return numerics.addend_to_accumulator(e, q, what.addend_zero_point, mult, shift, narrow=narrow)


def _float_sum(e: Emitter, what: Finish, acc: ir.Value, row: LoadRow, q: ir.Value) -> ir.Value:
    """nearbyint(f32(acc)·mult + f32(addend − zp)·addend_mult) + zero_point, each step rounded to float32."""
    floats = vector(F32, lanes_of(acc))
    main = e.b.fmul(e.b.sitofp(numerics.saturate_i32(e, acc), floats), row(0, F32))
    centred = numerics.centred(e, e.resize(q, I32), what.addend_zero_point)
    term = e.b.fmul(e.b.sitofp(centred, floats), row(1, F32))
    return numerics.nearbyint_f32(e, e.b.fadd(main, term), what.zero_point, what.lo, what.hi)
