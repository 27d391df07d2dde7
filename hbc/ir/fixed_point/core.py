"""The form in which a quantised op becomes integers: one instruction, its operands, its derived parameters."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hbc_runtime import isa

from ..ops.conv import Matmul
from ..ops.eltwise import Binary
from ..ops.quant import flip_array, flip_type
from ..semantics import Semantics
from ..types import DType, TensorType


class View(enum.Enum):
    """How an instruction sees an operand (or gives a result) of the IR."""

    SAME = "same"
    NHWC = "nhwc"  # rank 4, channels last
    ROWS = "rows"  # […, K] as [rows, 1, 1, K]
    RESHAPE = "reshape"  # the same elements under the shape that is given


@dataclass(frozen=True)
class Ref:
    """Operand `index` of the op, seen as `view`; `shape` for RESHAPE."""

    index: int
    view: View = View.SAME
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fixed:
    """One instruction: its class, operands, attributes, result view.

    An operand is a reference to one of the op's, a derived constant, or None.
    """

    instruction: type[isa.Instruction]
    operands: tuple[Ref | np.ndarray | None, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    out: Ref = Ref(0)  # for RESHAPE: the shape the instruction gives


Arrays = Sequence[np.ndarray | None]  # an op's operands: the values of its constants, None elsewhere
Derive = Callable[[Any, Semantics, Arrays], Fixed]
NHWC = Ref(0, View.NHWC)


def pair(op: Binary | Matmul) -> tuple[Ref, Ref]:
    """Both operands under shapes of one rank."""
    shapes = op.lhs.type.shape, op.rhs.type.shape
    rank = max(map(len, shapes))
    lhs, rhs = ((1,) * (rank - len(s)) + s for s in shapes)
    return Ref(0, View.RESHAPE, lhs), Ref(1, View.RESHAPE, rhs)


def signed(t: TensorType) -> TensorType:
    """The type a tensor has inside a program: unsigned integers become signed with the zero point moved."""
    return flip_type(t) if t.dtype in {DType.U8, DType.U16} else t


def view_shape(shape: tuple[int, ...], ref: Ref) -> tuple[int, ...]:
    """The shape of a tensor of `shape` under a view."""
    match ref.view:
        case View.SAME:
            return shape
        case View.NHWC:
            n, c, h, w = shape
            return (n, h, w, c)
        case View.ROWS:
            return (math.prod(shape[:-1]), 1, 1, shape[-1])
        case View.RESHAPE:
            return ref.shape


def view_array(x: np.ndarray, ref: Ref) -> np.ndarray:
    """An array under a view."""
    return x.transpose(0, 2, 3, 1) if ref.view is View.NHWC else x.reshape(view_shape(x.shape, ref))


def unview_array(y: np.ndarray, ref: Ref, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `view_array`: an instruction's result back in the op's shape."""
    return y.transpose(0, 3, 1, 2) if ref.view is View.NHWC else y.reshape(shape)


def flip_in(x: np.ndarray | None) -> np.ndarray | None:
    """An operand's integers as a program holds them."""
    if x is None or x.dtype.kind != "u" or x.dtype.itemsize > 2:
        return x
    return flip_array(x)


def flip_out(x: np.ndarray, dtype: DType) -> np.ndarray:
    """A program's integers as the IR's (possibly unsigned) type holds them."""
    if dtype not in {DType.U8, DType.U16}:
        return x
    return flip_array(x)
