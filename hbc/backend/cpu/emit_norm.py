"""ONNX forms of softmax and the normalisations."""

from __future__ import annotations

import numpy as np

from hbc.ir.core import Value
from hbc.ir.ops import GroupNorm, InstanceNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax
from hbc.ir.ops.norm import OverAxes, PerChannel, fits_into, grouped

from .emitter import EmitRules, Emitter

RULES = EmitRules()
_SOFTMAX = {Softmax: "Softmax", LogSoftmax: "LogSoftmax"}


@RULES(*_SOFTMAX)
def softmax(e: Emitter, op: Softmax | LogSoftmax) -> str:
    """Before opset 13 a softmax runs over all axes from `axis` on: only the last one is one axis."""
    name, rank = _SOFTMAX[type(op)], op.x.type.rank
    if e.opset >= 13 or op.axis == rank - 1:
        return e.node(name, e.tensor(op.x), axis=op.axis)
    swapped = list(range(rank))
    swapped[op.axis], swapped[-1] = swapped[-1], swapped[op.axis]
    y = e.node(name, e.node("Transpose", e.tensor(op.x), perm=swapped), axis=rank - 1)
    return e.node("Transpose", y, perm=swapped)


@RULES(LayerNorm)
def layer_norm(e: Emitter, op: LayerNorm) -> str:
    """LayerNormalization where the axes are the last ones and the opset has it, else its parts."""
    shape, first = op.x.type.shape, min(op.axes)
    last = shape[first:]
    fits = all(v is None or fits_into(v.type.shape, last) for v in (op.scale, op.bias))
    if e.opset >= 17 and sorted(op.axes) == list(range(first, len(shape))) and fits:
        scale = e.const(np.ones(last, np.float32)) if op.scale is None else e.tensor(op.scale)
        return e.node(
            "LayerNormalization", e.tensor(op.x), scale, e.tensor(op.bias), axis=first, epsilon=op.epsilon
        )  # fmt: skip
    x = e.tensor(op.x)
    return _over_root(e, op, e.node("Sub", x, _mean(e, op, x)))


@RULES(RmsNorm)
def rms_norm(e: Emitter, op: RmsNorm) -> str:
    """Its parts: the operator came with opset 23."""
    return _over_root(e, op, e.tensor(op.x))


def _over_root(e: Emitter, op: OverAxes, d: str) -> str:
    """d / √(mean of d² + epsilon), then the affine part."""
    power = _mean(e, op, e.node("Mul", d, d))
    root = e.node("Sqrt", e.node("Add", power, e.const(np.float32(op.epsilon))))
    return _affine(e, e.node("Div", d, root), e.tensor(op.scale), e.tensor(op.bias))


def _mean(e: Emitter, op: OverAxes, x: str) -> str:
    if e.opset >= 18:
        return e.node("ReduceMean", x, e.ints(op.axes), keepdims=1)
    return e.node("ReduceMean", x, axes=op.axes, keepdims=1)


def _affine(e: Emitter, y: str, scale: str, bias: str) -> str:
    y = e.node("Mul", y, scale) if scale else y
    return e.node("Add", y, bias) if bias else y


@RULES(InstanceNorm)
def instance_norm(e: Emitter, op: InstanceNorm) -> str:
    """InstanceNormalization; a missing scale is 1, a missing bias 0."""
    channels = op.x.type.shape[1]
    scale, bias = (_or_constant(e, v, channels, c) for v, c in ((op.scale, 1.0), (op.bias, 0.0)))
    return e.node("InstanceNormalization", e.tensor(op.x), scale, bias, epsilon=op.epsilon)


@RULES(GroupNorm)
def group_norm(e: Emitter, op: GroupNorm) -> str:
    """The groups as channels of an InstanceNormalization, then the affine part per channel."""
    rows = e.reshape(e.tensor(op.x), grouped(op.x.type.shape, op.groups))
    one, zero = (_or_constant(e, None, op.groups, c) for c in (1.0, 0.0))
    y = e.node("InstanceNormalization", rows, one, zero, epsilon=op.epsilon)
    return _affine(e, e.reshape(y, op.x.type.shape), _per_channel(e, op, op.scale), _per_channel(e, op, op.bias))


def _per_channel(e: Emitter, op: PerChannel, value: Value | None) -> str:
    if value is None:
        return ""
    return e.reshape(e.tensor(value), [1, -1] + [1] * (op.x.type.rank - 2))


def _or_constant(e: Emitter, value: Value | None, channels: int, otherwise: float) -> str:
    return e.const(np.full(channels, otherwise, np.float32)) if value is None else e.tensor(value)
