"""Pools and reductions in integers (NUMERICS 4, D13)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hbc_runtime import isa

from ..ops.pool import AvgPool, MaxPool, Pool, Reduce, ReduceMax, ReduceMean, ReduceMin
from ..semantics import Semantics
from ..types import TensorType
from .core import NHWC, Arrays, Fixed, Ref, View, signed
from .params import Parameters, choose_scheme, multipliers, result_fields, scalar_scale, scalar_zero_point, shared


def _window(op: Pool) -> dict[str, object]:
    return {"kernel": op.kernel, "strides": op.strides, "pads": op.pads, "dilations": op.dilations}


def max_pool(op: MaxPool, sem: Semantics, arrays: Arrays) -> Fixed:
    """max_pool → MaxPool in NHWC: no arithmetic."""
    return Fixed(isa.MaxPool, (NHWC,), _window(op), NHWC)


def reduced_ratio(x: TensorType, out: TensorType, count: np.ndarray | float) -> Any:
    """s_in / (count · s_out)."""
    return scalar_scale(x) / (count * scalar_scale(out))


def _average(
    x: TensorType, out: TensorType, counts: np.ndarray, sem: Semantics
) -> tuple[Parameters, dict[str, object]]:
    """(parameters, attributes) of sums requantised by s_in / (count · s_out)."""
    scheme = choose_scheme(out, sem, bias=False)
    params, _ = multipliers(reduced_ratio(x, out, counts), scheme, scalar_zero_point(out))
    return shared(params), result_fields(out, scheme) | {"x_zero_point": scalar_zero_point(x)}


def avg_pool(op: AvgPool, sem: Semantics, arrays: Arrays) -> Fixed:
    """avg_pool → AvgPool in NHWC; one multiplier, or one per output position where windows count differently."""
    params, fields = _average(signed(op.x.type), signed(op.out.type), op.counts().reshape(-1), sem)
    return Fixed(isa.AvgPool, (NHWC, *params), _window(op) | fields, NHWC)


def reduce_sum(op: Reduce, sem: Semantics, arrays: Arrays) -> Fixed:
    """reduce_mean, reduce_sum → ReduceSum; a mean over H and W of a rank-4 tensor is an average pool."""
    x, out = signed(op.x.type), signed(op.out.type)
    count = math.prod(x.shape[a] for a in op.axes) if isinstance(op, ReduceMean) else 1
    params, fields = _average(x, out, np.array([float(count)]), sem)
    kept = tuple(1 if i in op.axes else d for i, d in enumerate(x.shape))
    if x.rank == 4 and sorted(op.axes) == [2, 3] and op.keepdims and isinstance(op, ReduceMean):
        return Fixed(isa.AvgPool, (NHWC, *params), {"kernel": x.shape[2:], **fields}, NHWC)
    return Fixed(isa.ReduceSum, (Ref(0), *params), {"axes": tuple(op.axes), **fields}, Ref(0, View.RESHAPE, kept))


def reduce_extremum(op: ReduceMax | ReduceMin, sem: Semantics, arrays: Arrays) -> Fixed:
    """reduce_max, reduce_min of one scale: no arithmetic."""
    kept = tuple(1 if i in op.axes else d for i, d in enumerate(op.x.type.shape))
    cls = isa.ReduceMax if isinstance(op, ReduceMax) else isa.ReduceMin
    return Fixed(cls, (Ref(0),), {"axes": tuple(op.axes)}, Ref(0, View.RESHAPE, kept))
