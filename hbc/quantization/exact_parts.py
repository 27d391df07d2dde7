"""Exact forward of the parts of a composite: ops of the IR, between 16-bit integers, computed in torch.

Multipliers and shifts are those that lowering derives (`hbc.ir.fixed_point`). Integers are float tensors: sums and
products of 16-bit integers are exact in float64, what a 31-bit multiplier makes of them in int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.ir import fixed_point, ops
from hbc.ir.core import Op, Value
from hbc.ir.fixed_point import Fixed
from hbc.ir.location import Loc
from hbc.ir.semantics import Semantics
from hbc.passes.composites.parts import Function, Parts, Table, i16
from hbc.passes.quanta import scale_of
from hbc.passes.segments import FIRST, INPUTS, LAST, Division, divide
from hbc_runtime import isa, numerics
from hbc_runtime.isa import Scheme

from .exact_constants import Requantization
from .exact_integers import on_device, requantized_

_NARROW = 256  # inputs that segments of single inputs hold, whatever the function
_MEMORY = 64  # divisions that are remembered
_NONE = np.zeros((0, 3), np.int32), np.zeros((0, 65), np.int16)
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
        sketch = _Sketch(loc)
        error = build(sketch)
        sketch.drop()
        return error

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        """As `Parts.table`, without constants."""
        t = i16(x.type.shape, scale)
        if reach[1] - reach[0] < _NARROW:
            q = np.arange(reach[0], reach[1] + 1)
            division = _exact(numerics.lut_table(f, q * scale_of(x.type), scale_of(t), 0, FIRST, LAST), q)
        else:
            values = numerics.lut_table(f, INPUTS * scale_of(x.type), scale_of(t), 0, FIRST, LAST)
            division = self._divided(values.astype(np.int32), reach)
        q = np.arange(reach[0], reach[1] + 1)
        error = float(np.abs(division.at(q) * scale_of(t) - f(q * scale_of(x.type))).max())
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
    """Parts whose wide tables hold nothing yet, and have no error."""

    def table(self, x: Value, f: Function, scale: float, reach: tuple[int, int] = (FIRST, LAST)) -> Table:
        if reach[1] - reach[0] < _NARROW:
            return super().table(x, f, scale, reach)
        return Table(self.make(ops.SegmentLut, x, x, x, type=i16(x.type.shape, scale)), 0.0, _NOTHING)


def _exact(values: np.ndarray, q: np.ndarray) -> Division:
    result = np.zeros(LAST - FIRST + 1, np.int64)
    result[q - FIRST] = values
    return Division(*_NONE, result, 0)


def run(parts: LeanParts, known: Mapping[Value, Tensor], sem: Semantics) -> Tensor:
    """The integers of the last part's result, as a float tensor, for those of what the parts read."""
    env = dict(known)
    device = next(iter(env.values())).device
    for op in parts.ops:
        if isinstance(op, ops.Const):
            env[op.out] = torch.from_numpy(np.array(op.value, np.float32)).to(device)
        elif isinstance(op, ops.SegmentLut):
            env[op.out] = _looked_up(env[op.x], parts.tables[op])
        elif isinstance(op, ops.Reshape):
            env[op.out] = env[op.x].reshape(op.out.type.shape)
        else:
            fixed = fixed_point.derive(op, sem, [None] * len(op.operands))
            env[op.out] = _RULES[fixed.instruction](op, fixed, [env[v] for v in op.operands if v is not None])
    return env[parts.ops[-1].out]


def _looked_up(x: Tensor, division: Division) -> Tensor:
    table = torch.from_numpy(division.result.astype(np.float32)).to(x.device)
    return table.index_select(0, x.reshape(-1).to(torch.int32).sub_(FIRST)).view(x.shape)


def _sum(op: Op, fixed: Fixed, xs: Sequence[Tensor]) -> Tensor:
    """NUMERICS D6: 31-bit products, and powers of two of them, are exact in float64."""
    f: Any = fixed.fields
    shift = f["shift"]
    a, b = (x.double() for x in xs)
    total = torch.add(a * math.ldexp(f["lhs_multiplier"], -shift), b, alpha=math.ldexp(f["rhs_multiplier"], -shift))
    total = total.add_(0.5) if shift > 0 else total
    return total.floor_().clamp_(f["clamp_min"], f["clamp_max"]).float()


def _product(op: Op, fixed: Fixed, xs: Sequence[Tensor]) -> Tensor:
    """NUMERICS 5."""
    return _requantized(xs[0].double() * xs[1].double(), fixed, fixed.operands[2:5], 2.0**30)


def _total(op: Op, fixed: Fixed, xs: Sequence[Tensor]) -> Tensor:
    """NUMERICS 3, 4 and D13: a sum or mean over axes that stay, one multiplier for all."""
    axes: Any = op.attrs["axes"]
    bound = 32768.0 * math.prod(xs[0].shape[a] for a in axes)
    return _requantized(xs[0].double().sum(list(axes), keepdim=True), fixed, fixed.operands[1:4], bound)


def _requantized(acc: Tensor, fixed: Fixed, parameters: Sequence[Any], bound: float) -> Tensor:
    f: Any = fixed.fields
    scheme: Scheme = f["scheme"]
    mult, pre, post = (np.asarray(p, np.int64) for p in parameters)
    none = np.zeros_like(mult)
    r = Requantization(scheme, mult, pre, post, none)
    tensors = on_device(r, none, [1] * acc.dim(), acc.device, acc.dtype, bound)
    return requantized_(acc, tensors, bound).clamp_(f["clamp_min"], f["clamp_max"])


def _limited(op: Op, fixed: Fixed, xs: Sequence[Tensor]) -> Tensor:
    f: Any = fixed.fields
    return xs[0].clamp(f["clamp_min"], f["clamp_max"])


def _over_axes(function: Callable[..., Tensor]) -> Callable[[Op, Fixed, Sequence[Tensor]], Tensor]:
    return lambda op, _fixed, xs: function(xs[0], list(op.attrs["axes"]), keepdim=True)


def _of_pair(function: Callable[..., Tensor]) -> Callable[[Op, Fixed, Sequence[Tensor]], Tensor]:
    return lambda _op, _fixed, xs: function(*xs)


_RULES: dict[type[isa.Instruction], Callable[[Op, Fixed, Sequence[Tensor]], Tensor]] = {
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
