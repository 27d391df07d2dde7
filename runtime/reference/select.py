"""ArgMax, ArgMin, Compare, Select, Logical."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa import ArgMax, ArgMin, Compare, Comparison, Junction, Logical, Select, Shaped
from .common import Array, Operands, cast, operand

_RELATIONS: dict[Comparison, Callable[[Array, Array], Array]] = {
    Comparison.EQUAL: np.equal,
    Comparison.LESS: np.less,
    Comparison.LESS_OR_EQUAL: np.less_equal,
    Comparison.GREATER: np.greater,
    Comparison.GREATER_OR_EQUAL: np.greater_equal,
}
_JUNCTIONS: dict[Junction, Callable[[Array, Array], Array]] = {
    Junction.AND: np.logical_and,
    Junction.OR: np.logical_or,
    Junction.XOR: np.logical_xor,
}


def arg_max(op: ArgMax, ins: Operands, out: Shaped) -> Array:
    """Where the largest value along `axis` stands."""
    return _position(op, operand(ins, 0), out, np.argmax)


def arg_min(op: ArgMin, ins: Operands, out: Shaped) -> Array:
    """Where the smallest value along `axis` stands."""
    return _position(op, operand(ins, 0), out, np.argmin)


def _position(op: ArgMax, x: Array, out: Shaped, first: Callable[..., Array]) -> Array:
    """`first` finds the first of equal values; the last one is the first from behind."""
    if not op.select_last:
        return cast(first(x, axis=op.axis, keepdims=True), out)
    return cast(x.shape[op.axis] - 1 - first(np.flip(x, op.axis), axis=op.axis, keepdims=True), out)


def compare(op: Compare, ins: Operands, out: Shaped) -> Array:
    """lhs `relation` rhs; a bool is whether its byte is 0."""
    a, b = _truth(operand(ins, 0)), _truth(operand(ins, 1))
    return cast(_RELATIONS[op.relation](a, b), out)


def select(_op: Select, ins: Operands, out: Shaped) -> Array:
    """lhs where the condition holds, else rhs; a chosen bool becomes 0 or 1."""
    return cast(np.where(*(_truth(operand(ins, i)) for i in range(3))), out)


def logical(op: Logical, ins: Operands, out: Shaped) -> Array:
    """and, or, xor, not."""
    a = _truth(operand(ins, 0))
    if op.junction is Junction.NOT:
        return cast(np.logical_not(a), out)
    return cast(_JUNCTIONS[op.junction](a, _truth(operand(ins, 1))), out)


def _truth(x: Array) -> Array:
    """A bool by its byte, whatever that is; other arrays as they are."""
    return x.view(np.uint8) != 0 if x.dtype == np.bool_ else x
