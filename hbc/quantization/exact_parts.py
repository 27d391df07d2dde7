"""Exact forward of the parts of a composite: ops of the IR, between 16-bit integers, computed in torch.

Multipliers and shifts are those that lowering derives (`hbc.ir.fixed_point`). Integers are int32 tensors, which hold
products of two of 16 bits; what a 31-bit multiplier makes of them is int64 meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.ir import fixed_point, ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Op, Value
from hbc.ir.fixed_point import Fixed
from hbc.ir.location import Loc
from hbc.ir.semantics import Semantics
from hbc.ir.types import TensorType
from hbc.passes.composites.parts import Function, Parts, Table, i16
from hbc.passes.quanta import scale_of
from hbc.passes.segments import FIRST, INPUTS, LAST, Division, divide
from hbc_runtime import isa, numerics
from hbc_runtime.isa import Scheme

_NARROW = 256  # inputs that segments of single inputs hold, whatever the function
_LARGEST = 1 << 15  # magnitude of an i16
_PIECE = 1 << 16  # elements: a quarter of a megabyte each time
_WIDEST = 1024  # inputs of a cell of the widest segment
_MEMORY = 64  # divisions that are remembered
_NONE = np.zeros((0, 3), np.int32), np.zeros((0, 65), np.int16)
_NOWHERE = Graph()
_NOTHING = Division(*_NONE, np.zeros(LAST - FIRST + 1, np.int64), 0)


class LeanParts(Parts):
    """Parts that are computed here and never emitted: a table is its results, and is divided only where that matters.

    Of at most 256 inputs the compiler's table is exact: their segments can all be 64 inputs wide, and there are 64.
    """

    divisions: dict[tuple[bytes, tuple[int, int]], Division] = {}  # noqa: RUF012 - one memory for all

    def __init__(self, loc: Loc) -> None:
        super().__init__(loc)
        self.tables: dict[Op, Division] = {}

    @classmethod
    def least_error(cls, loc: Loc, build: Callable[[Parts], float]) -> float:
        """The error that is left where tables have none: a bound, since every error of a table adds to the result's."""
        return build(_Sketch(loc))

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        """As `Parts.table`, without constants."""
        t = i16(x.type.shape, scale)
        q = np.arange(reach[0], reach[1] + 1)
        reals = f(q * scale_of(x.type))
        if _is_narrow(reach):
            division = _exact(_rounded(reals, scale_of(t)), q)
        else:
            values = np.zeros(len(INPUTS), np.int32)  # beyond the last cells that touch the reach they play no part
            near = INPUTS[max(reach[0] - _WIDEST - FIRST, 0) : reach[1] + _WIDEST + 1 - FIRST]
            with np.errstate(all="ignore"):  # there a function may have no value
                values[near - FIRST] = _rounded(f(near * scale_of(x.type)), scale_of(t))
            division = self._divided(values, reach)
        error = float(np.abs(division.at(q) * scale_of(t) - reals).max())
        out = self.make(ops.SegmentLut, x, *(self.make(ops.Const, value=a) for a in _NONE), type=t)
        self.tables[self.ops[-1]] = division
        return Table(out, error, division)

    def _divided(self, values: np.ndarray, reach: tuple[int, int]) -> Division:
        key = values.tobytes(), reach
        if key not in self.divisions:
            while len(self.divisions) >= _MEMORY:
                del self.divisions[next(iter(self.divisions))]
            self.divisions[key] = divide(values, reach)
        return self.divisions[key]


class _Sketch(LeanParts):
    """Parts of which only types are known; wide tables hold nothing, and have no error."""

    def make(self, cls: type[Op], *operands: Value, type: TensorType | None = None, **attrs: Any) -> Value:  # noqa: A002
        """A value of this type, of no op."""
        if type is None:
            (type,) = make_op(cls, operands, attrs, self.loc).infer()  # noqa: A001
        return Value(type, _NOWHERE, 0)

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        """Only what narrow tables hold is computed."""
        t = i16(x.type.shape, scale)
        if not _is_narrow(reach):
            return Table(self.make(ops.SegmentLut, x, type=t), 0.0, _NOTHING)
        q = np.arange(reach[0], reach[1] + 1)
        reals = f(q * scale_of(x.type))
        values = _rounded(reals, scale_of(t))
        error = float(np.abs(values * scale_of(t) - reals).max())
        return Table(self.make(ops.SegmentLut, x, type=t), error, _exact(values, q))


def _is_narrow(reach: tuple[int, int]) -> bool:
    return reach[1] - reach[0] < _NARROW


def _rounded(reals: np.ndarray, scale: float) -> np.ndarray:
    return numerics.lut_table(lambda _: reals, reals, scale, 0, FIRST, LAST)


def _exact(values: np.ndarray, q: np.ndarray) -> Division:
    result = np.zeros(LAST - FIRST + 1, np.int64)
    result[q - FIRST] = values
    return Division(*_NONE, result, 0)


Rule = Callable[..., Tensor]  # of the op, its instruction, and its operands' integers
Step = tuple[Value, Sequence[Value], Callable[..., Tensor]]  # result, operands, function of their integers


@dataclass(frozen=True)
class Plan:
    """What computes the parts' result: constants and tables on the device, and a function for each op, in order."""

    constants: Mapping[Value, Tensor]
    steps: Sequence[Step]
    splits: bool  # the first axis is one of rows that have nothing to do with each other

    @staticmethod
    def of(parts: LeanParts, sem: Semantics, device: torch.device) -> Plan:
        """Raises HbcError where a scale has no multiplier."""
        constants, steps, splits = {}, [], True
        for op in parts.ops:
            operands = [v for v in op.operands if v is not None]
            if isinstance(op, ops.Const):
                constants[op.out] = torch.from_numpy(np.array(op.value, np.int32)).to(device)
                splits = splits and (op.value.ndim < parts.ops[-1].out.type.rank or op.value.shape[0] == 1)
            elif isinstance(op, ops.SegmentLut):
                table = torch.from_numpy(parts.tables[op].result.astype(np.int32)).to(device)
                steps.append((op.out, [op.x], partial(_looked_up, table)))
            elif isinstance(op, ops.Reshape):
                steps.append((op.out, [op.x], partial(torch.reshape, shape=op.out.type.shape)))
                splits = False
            else:
                fixed = fixed_point.derive(op, sem, [None] * len(op.operands))
                steps.append((op.out, operands, partial(_RULES[fixed.instruction], op, fixed)))
                splits = splits and 0 not in op.attrs.get("axes", ())
        return Plan(constants, steps, splits)

    def run(self, source: Value, x: Tensor) -> Tensor:
        """The integers of the result, int32, for those (int32) of `source`.

        Of a large tensor one piece at a time, which the processor's cache holds through all steps.
        """
        count = min(x.shape[0], x.numel() // _PIECE) if self.splits and x.device.type == "cpu" else 1
        if count < 2:
            return self._run(source, x)
        return torch.cat([self._run(source, piece) for piece in x.tensor_split(count)])

    def _run(self, source: Value, x: Tensor) -> Tensor:
        env = {**self.constants, source: x}
        y = x
        for out, operands, function in self.steps:
            y = env[out] = function(*[env[v] for v in operands])
        return y


def _looked_up(table: Tensor, x: Tensor) -> Tensor:
    return table.index_select(0, x.sub(FIRST).reshape(-1)).view(x.shape)


def _sum(op: Op, fixed: Fixed, *xs: Tensor) -> Tensor:
    """NUMERICS D6."""
    f: Any = fixed.fields
    ma, mb, shift = f["lhs_multiplier"], f["rhs_multiplier"], f["shift"]
    common = min(shift, _zeros(ma), _zeros(mb))  # x − largest is a difference, without shifts
    ma, mb, shift = ma >> common, mb >> common, shift - common
    half = (1 << shift) >> 1
    a, b = xs
    if (abs(ma) + abs(mb)) * _LARGEST + half > numerics.I32_MAX:
        a, b = a.long(), b.long()
    total = torch.add(a if ma == 1 else a * ma, b, alpha=mb)
    if shift > 0:
        total = total.add_(half).bitwise_right_shift_(shift)
    return total.clamp_(f["clamp_min"], f["clamp_max"]).int()


def _zeros(multiplier: int) -> int:
    """How many times 2 divides a multiplier."""
    return (multiplier & -multiplier).bit_length() - 1 if multiplier else 62


def _product(op: Op, fixed: Fixed, *xs: Tensor) -> Tensor:
    """NUMERICS 5: 30 bits."""
    return _requantized(xs[0] * xs[1], fixed, fixed.operands[2:5])


def _total(op: Op, fixed: Fixed, *xs: Tensor) -> Tensor:
    """NUMERICS 3, 4 and D13: a sum or mean over axes that stay, one multiplier for all."""
    axes: Any = op.attrs["axes"]
    count = math.prod(xs[0].shape[a] for a in axes)
    kind = torch.int32 if count * _LARGEST <= numerics.I32_MAX else torch.int64
    acc = xs[0].sum(list(axes), keepdim=True, dtype=kind).clamp_(numerics.I32_MIN, numerics.I32_MAX)
    return _requantized(acc, fixed, fixed.operands[1:4])


def _requantized(acc: Tensor, fixed: Fixed, parameters: Sequence[Any]) -> Tensor:
    """`numerics.requantize` by form B or the wide form, of integers of 32 bits; they are used up."""
    f: Any = fixed.fields
    mult, pre, post = (int(p[0]) for p in parameters)
    half = (1 << post) >> 1
    if f["scheme"] is Scheme.WIDE:
        acc = acc.long().mul_(mult).add_(half).bitwise_right_shift_(post)
    else:
        narrow = acc.bitwise_right_shift_(pre).clamp_(-_LARGEST, _LARGEST - 1).int()
        acc = narrow.mul_(mult).add_(half).bitwise_right_shift_(post)
    return acc.clamp_(f["clamp_min"], f["clamp_max"]).int()


def _limited(op: Op, fixed: Fixed, *xs: Tensor) -> Tensor:
    f: Any = fixed.fields
    return xs[0].clamp(f["clamp_min"], f["clamp_max"])


def _over_axes(function: Callable[..., Tensor]) -> Rule:
    return lambda op, _fixed, *xs: function(xs[0], list(op.attrs["axes"]), keepdim=True)


def _of_pair(function: Callable[..., Tensor]) -> Rule:
    return lambda _op, _fixed, *xs: function(*xs)


_RULES: dict[type[isa.Instruction], Rule] = {
    isa.Add: _sum,
    isa.Mul: _product,
    isa.ReduceSum: _total,
    isa.AvgPool: _total,
    isa.ReduceMax: _over_axes(torch.amax),
    isa.ReduceMin: _over_axes(torch.amin),
    isa.Maximum: _of_pair(torch.maximum),
    isa.Minimum: _of_pair(torch.minimum),
    isa.Clamp: _limited,
}
