"""Comparing, choosing, and where the largest element stands: what has truth values or positions, and no arithmetic."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import DType
from .base import Instruction, Opcode, Shaped, all_present, broadcast, operand_at, require

ORDERED = (DType.I8, DType.I16, DType.I32)
COMPARABLE = (*ORDERED, DType.I64, DType.BOOL)
MAX_ARG = 1 << 31  # positions along an axis: what an i32 counts


class Comparison(enum.IntEnum):
    """The relations of Compare; bools are only ever equal or not."""

    EQUAL = 0
    LESS = 1
    LESS_OR_EQUAL = 2
    GREATER = 3
    GREATER_OR_EQUAL = 4


class Junction(enum.IntEnum):
    """The functions of Logical; NOT has one operand."""

    AND = 0
    OR = 1
    XOR = 2
    NOT = 3


@dataclass(frozen=True, kw_only=True)
class ArgMax(Instruction):
    """The position of the largest value along `axis` (kept as 1), counted from 0; i32 or i64.

    Of equal values the first one, or the last one with `select_last`.
    """

    opcode = Opcode.ARG_MAX
    operands = ("x",)
    axis: int
    select_last: bool = False

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        (x,) = all_present(ins)
        require(x.dtype in ORDERED, f"input dtype is {x.dtype.text}, not i8, i16 or i32")
        require(outs[0].dtype in {DType.I32, DType.I64}, f"output dtype is {outs[0].dtype.text}, not i32 or i64")
        require(0 <= self.axis < len(x.shape), f"axis {self.axis} of rank {len(x.shape)}")
        want = tuple(1 if i == self.axis else d for i, d in enumerate(x.shape))
        require(outs[0].shape == want and min(x.shape) >= 1, f"output shape is {outs[0].shape}, not {want}")
        require(x.shape[self.axis] < MAX_ARG, f"axis {self.axis} has {x.shape[self.axis]} elements")


@dataclass(frozen=True, kw_only=True)
class ArgMin(ArgMax):
    """The position of the smallest value along `axis` (kept as 1), counted from 0; i32 or i64.

    Of equal values the first one, or the last one with `select_last`.
    """

    opcode = Opcode.ARG_MIN


@dataclass(frozen=True, kw_only=True)
class Compare(Instruction):
    """bool: lhs `relation` rhs, for two tensors of one dtype (and one scale and zero point), broadcasting."""

    opcode = Opcode.COMPARE
    operands = ("lhs", "rhs")
    relation: Comparison

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        a, b = all_present(ins)
        require(a.dtype in COMPARABLE and a.dtype is b.dtype, f"operands are {a.dtype.text} and {b.dtype.text}")
        ordered = a.dtype is not DType.BOOL or self.relation is Comparison.EQUAL
        require(ordered, f"bools have no order for {self.relation.name}")
        require(outs[0].dtype is DType.BOOL, f"output dtype is {outs[0].dtype.text}, not bool")
        _check_broadcast([a, b], outs[0])


@dataclass(frozen=True, kw_only=True)
class Select(Instruction):
    """lhs where `condition` holds, else rhs; condition bool, the others of one dtype (and one scale); broadcasting."""

    opcode = Opcode.SELECT
    operands = ("condition", "lhs", "rhs")

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        condition, a, b = all_present(ins)
        require(condition.dtype is DType.BOOL, f"condition is {condition.dtype.text}, not bool")
        require(a.dtype is b.dtype is outs[0].dtype, "operands and result must have one dtype")
        _check_broadcast([condition, a, b], outs[0])


@dataclass(frozen=True, kw_only=True)
class Logical(Instruction):
    """and, or, xor of two bools, broadcasting; not of one. Any byte but 0 counts as true, results are 0 and 1."""

    opcode = Opcode.LOGICAL
    operands = ("lhs", "rhs?")
    junction: Junction

    def check(self, ins: Sequence[Shaped | None], outs: Sequence[Shaped]) -> None:
        a = operand_at(ins, 0)
        require((ins[1] is None) == (self.junction is Junction.NOT), "and, or, xor take two operands, not takes one")
        b = a if ins[1] is None else operand_at(ins, 1)
        require(a.dtype is b.dtype is outs[0].dtype is DType.BOOL, "operands and result must be bools")
        _check_broadcast([a, b], outs[0])


def _check_broadcast(operands: Sequence[Shaped], out: Shaped) -> None:
    shape = operands[0].shape
    for x in operands[1:]:
        require(len(x.shape) == len(shape), "operands must have equal ranks")
        shape = broadcast(shape, x.shape)
    require(out.shape == shape, f"output shape is {out.shape}, not {shape}")
