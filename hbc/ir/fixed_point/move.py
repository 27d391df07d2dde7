"""Moves as instructions: no arithmetic, any dtype (resize_linear aside, NUMERICS D10)."""

from __future__ import annotations

import numpy as np

from hbc_runtime import isa

from ..ops.move import Concat, Expand, Gather, Pad, Reshape, ResizeLinear, ResizeNearest, Slice, Transpose
from ..ops.quant import Reinterpret
from ..semantics import Semantics
from ..types import TensorType
from .core import NHWC, Arrays, Fixed, Ref, View, signed


def reshape(op: Reshape | Reinterpret, sem: Semantics, arrays: Arrays) -> Fixed:
    """reshape, reinterpret → Reshape."""
    return Fixed(isa.Reshape, (Ref(0),))


def transpose(op: Transpose, sem: Semantics, arrays: Arrays) -> Fixed:
    """transpose → Transpose."""
    return Fixed(isa.Transpose, (Ref(0),), {"perm": tuple(op.perm)})


def slice_(op: Slice, sem: Semantics, arrays: Arrays) -> Fixed:
    """slice → Slice."""
    return Fixed(isa.Slice, (Ref(0),), {"starts": tuple(op.starts), "steps": tuple(op.steps)})


def pad(op: Pad, sem: Semantics, arrays: Arrays) -> Fixed:
    """pad → Pad with the border in the (signed) integers of x."""
    return Fixed(isa.Pad, (Ref(0),), {"pads": tuple(op.pads), "value": _signed_fill(op, signed(op.x.type))})


def _signed_fill(op: Pad, t: TensorType) -> int:
    return int(op.fill) if t == op.x.type else int(op.fill) - (1 << (8 * t.dtype.size - 1))


def expand(op: Expand, sem: Semantics, arrays: Arrays) -> Fixed:
    """expand → Expand of equal ranks."""
    shape = (1,) * (len(op.shape) - op.x.type.rank) + op.x.type.shape
    return Fixed(isa.Expand, (Ref(0, View.RESHAPE, shape),))


def gather(op: Gather, sem: Semantics, arrays: Arrays) -> Fixed:
    """gather → Gather with an index constant."""
    return Fixed(isa.Gather, (Ref(0), np.asarray(op.indices, np.int32)), {"axis": op.axis})


def concat(op: Concat, sem: Semantics, arrays: Arrays) -> Fixed:
    """concat → Concat."""
    return Fixed(isa.Concat, tuple(Ref(i) for i in range(len(op.xs))), {"axis": op.axis})


def resize_nearest(op: ResizeNearest, sem: Semantics, arrays: Arrays) -> Fixed:
    """resize_nearest → ResizeNearest in NHWC."""
    tables = np.asarray(op.rows, np.int32), np.asarray(op.columns, np.int32)
    return Fixed(isa.ResizeNearest, (NHWC, *tables), {}, NHWC)


def resize_linear(op: ResizeLinear, sem: Semantics, arrays: Arrays) -> Fixed:
    """resize_linear → ResizeBilinear: 16.16 positions, 8-bit weights (D10)."""
    return Fixed(isa.ResizeBilinear, (NHWC, _linear_table(op, 0), _linear_table(op, 1)), {}, NHWC)


def _linear_table(op: ResizeLinear, axis: int) -> np.ndarray:
    """[n, 3]: low index, high index, weight of the high one in 0..256.

    From a 16.16 position: the top 8 fraction bits, half up.
    """
    position = np.floor(op.positions(axis) * 65536 + 0.5).astype(np.int64)
    weight = ((position & 0xFFFF) + 128) >> 8
    low = position >> 16
    last = op.x.type.shape[2 + axis] - 1
    return np.stack([np.minimum(low, last), np.minimum(low + 1, last), weight], axis=1).astype(np.int32)
