"""3-D convolutions and averages of a float model as 2-D ones, with the batch norm and the relu behind them inside.

conv3d → bn → relu        =        planes as channels → conv2d' → relu → planes apart
"""

from __future__ import annotations

import numpy as np

from hbc.frontend.onnx_again import in_planes
from hbc.ir import ops
from hbc.ir.core import Graph, Module, Op, OpT, Value
from hbc.ir.rewriter import Rewriter
from hbc.passes.matching import const_value


def take_volumes_apart(module: Module) -> int:
    """Replace every call of a 3-D Conv with constant weights, or of an AveragePool; returns how many there were."""
    return sum(_apart(module, op) for op in module.graph.walk(ops.Call))


def _apart(module: Module, op: ops.Call) -> bool:
    if op.op_type not in {"Conv", "AveragePool"}:
        return False
    arrays = [a for a in map(const_value, op.xs[1:]) if a is not None]
    if len(arrays) < len(op.xs) - 1:
        return False
    rw = Rewriter(module.graph, op)
    last: Op = op
    norm = _only_user(op, ops.BatchNorm)
    if (
        norm is not None
        and arrays
        and const_value(norm.multiplier) is not None
        and const_value(norm.offset) is not None
    ):
        arrays, last = _normed(arrays, norm), norm
    given = [rw.op(ops.Const, value=np.asarray(a, np.float32)).out for a in arrays]
    weight, bias, *_ = (*given, None, None)
    y = in_planes(module.graph, op, weight, bias)
    if y is None:
        return False
    clip = _only_user(last, ops.Clip)
    if clip is not None and op.op_type == "Conv" and _clipped(y, clip, module.graph):
        last = clip
    Rewriter(module.graph, last).replace(last, y, op)
    return True


def _only_user(op: Op, kind: type[OpT]) -> OpT | None:
    result = op.results[0]
    users = result.users
    return users[0] if len(users) == 1 and not result.is_output and isinstance(users[0], kind) else None


def _normed(arrays: list[np.ndarray], norm: ops.BatchNorm) -> list[np.ndarray]:
    """Weight and bias with the norm in them."""
    multiplier, offset = const_value(norm.multiplier), const_value(norm.offset)
    assert multiplier is not None
    assert offset is not None
    weight, *bias = (a.astype(np.float64) for a in arrays)
    factor = multiplier.astype(np.float64)
    return [weight * factor.reshape(-1, *(1,) * (weight.ndim - 1)), offset + factor * (bias[0] if bias else 0.0)]


def _clipped(y: Value, clip: ops.Clip, graph: Graph) -> bool:
    """Put the clip between the 2-D convolution and the moves behind it, where it is one op with it."""
    mover: Op | None = None
    value: Value | None = y
    while value is not None and isinstance(value.op, ops.Move):
        mover, value = value.op, value.op.operands[0]
    if mover is None or value is None or not isinstance(value.op, ops.Conv2d):
        return False
    made = Rewriter(graph, mover).op(ops.Clip, value, loc=clip.loc, **clip.attrs)
    mover.set_operand(0, made.out)
    return True
