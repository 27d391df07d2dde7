"""Softmax and the normalisations."""

from __future__ import annotations

import math

from hbc.ir.core import Value
from hbc.ir.ops import Add, GroupNorm, InstanceNorm, LayerNorm, LogSoftmax, Reshape, RmsNorm, Softmax
from hbc.ir.ops.norm import fits_into

from ..onnx_node import Node, Results
from .call import MS, alike
from .registry import onnx_op
from .shape import axis_of

_SOFTMAX = {"Softmax": Softmax, "LogSoftmax": LogSoftmax}


@onnx_op(*_SOFTMAX)
def softmax(n: Node) -> Results:
    """Along one axis; before opset 13 over everything from `axis` on."""
    operands = n.reals()
    if operands is None or operands[0].type.rank == 0:
        return n.call()
    (x,) = operands
    cls, rank, shape = _SOFTMAX[n.op_type], x.type.rank, x.type.shape
    axis = axis_of(n, rank, -1 if n.version >= 13 else 1)
    if n.version >= 13 or axis == rank - 1:
        return n.op(cls, x, axis=axis)
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    flat = n.op(cls, n.op(Reshape, x, shape=rows), axis=1)
    return n.op(Reshape, flat, shape=shape)


@onnx_op("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def layer_normalization(n: Node) -> Results:
    """Over everything from `axis` on; its second and third results (mean, 1/deviation) stay on the CPU."""
    operands = n.reals()
    if operands is None or n.wants(1) or n.wants(2) or not operands[0].type.rank:
        return n.call()
    x, *rest = operands
    axis = axis_of(n, x.type.rank, -1)
    axes = tuple(range(axis, x.type.rank))
    if not all(fits_into(v.type.shape, x.type.shape[axis:]) for v in rest):
        return n.call()
    epsilon = n.number("epsilon", 1e-5)
    return n.op(LayerNorm if n.op_type == "LayerNormalization" else RmsNorm, x, *rest, axes=axes, epsilon=epsilon)


@onnx_op("LayerNormalization", "SimplifiedLayerNormalization", domain=MS)
def microsoft_normalization(n: Node) -> Results:
    """As in ONNX's own domain."""
    ours = n.reals() is not None and not n.wants(1) and not n.wants(2)
    return layer_normalization(n) if ours else alike(n)


@onnx_op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MS)
def skip_normalization(n: Node) -> Results:
    """(x + skip + bias) normalised over the last axis; the sum is the fourth result."""
    operands = n.reals()
    simplified = n.op_type.startswith("SkipSimplified")
    positions = (0, 1, 3) if simplified else (0, 1, 4)  # operands of the sum
    if operands is None or n.wants(1) or n.wants(2) or n.x(1).type.shape != n.x(0).type.shape:
        return alike(n)
    total = n.x(0)
    for index in positions[1:]:
        total = n.op(Add, total, n.x(index)) if n.has(index) else total
    scale, bias = n.x(2), n.x(3) if not simplified and n.has(3) else None
    axes, epsilon = (total.type.rank - 1,), n.number("epsilon", 1e-12)
    if simplified:
        y = n.op(RmsNorm, total, scale, axes=axes, epsilon=epsilon)
    else:
        y = n.op(LayerNorm, total, scale, bias, axes=axes, epsilon=epsilon)
    made = [y, y, y, total]  # nothing reads the second and third
    return [v for v, name in zip(made, n.proto.output, strict=False) if name]


@onnx_op("InstanceNormalization")
def instance_normalization(n: Node) -> Results:
    """Per sample and channel."""
    operands = n.reals()
    if operands is None or not _is_per_channel(operands):
        return n.call()
    return n.op(InstanceNorm, *operands, epsilon=n.number("epsilon", 1e-5))


@onnx_op("GroupNormalization")
def group_normalization(n: Node) -> Results:
    """Per sample and group of channels. ONNX withdrew the forms before opset 21, whose scale was per group."""
    operands, groups = n.reals(), n.integer("num_groups")
    if operands is None or n.version < 21 or not _is_per_channel(operands) or groups < 1:
        return n.call()
    if operands[0].type.shape[1] % groups:
        return n.call()
    return n.op(GroupNorm, *operands, groups=groups, epsilon=n.number("epsilon", 1e-5))


def _is_per_channel(operands: list[Value]) -> bool:
    x, *rest = operands
    return x.type.rank >= 3 and all(v.type.shape == (x.type.shape[1],) for v in rest)
