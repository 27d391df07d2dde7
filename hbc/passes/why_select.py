"""Why a comparison, a choice or a position stayed in reals, for `why_real`."""

from __future__ import annotations

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Op, Value
from hbc.ir.semantics import Semantics

from .matching import activation_behind, real_constant


def why_unlike(op: Op, sem: Semantics) -> Rejection | None:
    """A comparison of quantised tensors that no integers settle; None where it is something else."""
    if not isinstance(op, ops.Comparison):
        return None
    a, b = activation_behind(op.lhs), activation_behind(op.rhs)
    for x, other in ((a, op.rhs), (b, op.lhs)):
        constant = real_constant(other, sem)
        if x is not None and constant is not None:
            return _constant(constant)
    if a is None or b is None:
        return None
    what = f"its operands are {_scale(a)} and {_scale(b)}; integers of one dtype, scale and zero point are compared"
    return Rejection(what, "give both one scale by a Concat or by calibrating them together")


def _constant(constant: np.ndarray) -> Rejection:
    if np.isnan(constant).any():
        return Rejection("its constant holds NaN beside numbers", "remove the NaN from the constant")
    what = "no integers of the tensor's type stand for every element of its constant"
    return Rejection(what, "compare with one constant for the whole tensor")


def _scale(value: Value) -> str:
    q = value.type.quant
    assert q is not None
    return f"{value.type.dtype.text} of scale {q.scale[0]:.6g}, zero point {q.zero_point[0]}"
