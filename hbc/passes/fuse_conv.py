"""Fuse what follows a convolution or an addition into it, while everything is still real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType

from .base import Pass, Target
from .matching import (
    activation_behind,
    const_value,
    feeds_only_quantize,
    is_default_clip,
    narrowed,
    real_constant,
    weight_behind,
)
from .quanta import TOP, sixteen_bits

CLIPPABLE = (
    ops.Conv2d, ops.ConvTranspose2d, ops.Linear, ops.Matmul, ops.BatchNorm, ops.Add, ops.Sub, ops.Mul,
)  # fmt: skip
WEIGHTED = (ops.Conv2d, ops.ConvTranspose2d, ops.Linear)


@dataclass(frozen=True)
class FuseConv(Pass):
    """{conv2d, conv_transpose2d, linear} + batch_norm + add + clip become one op, as one BPU command does them.

        %a = conv2d %x, %w
        %b = batch_norm %a, %m, %o          %y = conv2d %x, %w', %b', %r {clip = [0, inf]}
        %c = add %b, %r                 →
        %y = clip %c {low = 0}

    A batch norm goes into the weights' scales (their integers stay, but for the sign of negative factors) and into the
    bias; so does an add of constants. An add or clip is fused only where the result is then quantised at once: in
    between nothing is rounded (NUMERICS 5).
    """

    name: ClassVar[str] = "fuse-conv"
    changes_numerics: ClassVar[bool] = True  # the folded scale and bias round once more

    def run(self, module: Module, target: Target) -> int:
        graph, changes = module.graph, 0
        for op in list(graph.ops):
            if isinstance(op, ops.BatchNorm):
                changes += fuse_batch_norm(graph, op, target.semantics)
            elif isinstance(op, ops.Add):
                changes += fuse_bias(graph, op, target.semantics)
        for op in list(graph.ops):
            if isinstance(op, ops.Add):
                changes += fuse_add(graph, op, target.semantics)
        for op in list(graph.ops):
            if isinstance(op, ops.Clip):
                changes += fuse_clip(graph, op)
        return changes


def fuse_batch_norm(graph: Graph, op: ops.BatchNorm, sem: Semantics) -> int:
    """batch_norm(conv(x, w, b)) → conv(x, w·m, b·m + o)."""
    conv = op.x.op
    if not isinstance(conv, WEIGHTED) or not op.x.has_one_use:
        return 0
    multiplier, offset = const_value(op.multiplier), const_value(op.offset)
    if multiplier is None or offset is None or not is_default_clip(conv):
        return 0
    if isinstance(conv, ops.ConvTranspose2d) and conv.group != 1:
        return 0
    if getattr(conv, "addend", None) is not None or (isinstance(conv, ops.Linear) and op.x.type.rank != 2):
        return 0
    bias = real_constant(conv.bias, sem)
    if conv.bias is not None and bias is None:
        return 0
    rw = Rewriter(graph, op)
    axis = 1 if isinstance(conv, ops.ConvTranspose2d) else 0
    weight = _scaled_weight(rw, conv.weight, multiplier, axis)
    if weight is None:
        return 0
    total = (0.0 if bias is None else bias.astype(np.float64)) * multiplier.astype(np.float64) + offset
    new_bias = rw.op(ops.Const, value=np.asarray(total, np.float32)).out
    rw.replace(op, _copy(rw, conv, [conv.x, weight, new_bias], conv.attrs | {"clip": op.clip}), conv)
    return rw.changes


def _scaled_weight(rw: Rewriter, weight: Value, factor: np.ndarray, axis: int) -> Value | None:
    """`weight · factor` along `axis`: real weights are multiplied, quantised ones take it into their scales."""
    plain = const_value(weight)
    shape = [-1 if i == axis else 1 for i in range(weight.type.rank)]
    if plain is not None:
        scaled = plain.astype(np.float64) * factor.astype(np.float64).reshape(shape)
        return rw.op(ops.Const, value=scaled.astype(np.float32)).out
    ints = weight_behind(weight)
    if ints is None or ints.type.quant is None or ints.type.quant.axis not in {None, axis} or not np.all(factor != 0):
        return None
    q = ints.type.quant
    n = weight.type.shape[axis]
    scale = np.resize(np.asarray(q.scale, np.float64), n) * np.abs(factor.astype(np.float64))
    zero = np.resize(np.asarray(q.zero_point, np.int64), n)
    value, zero = _flipped(np.asarray(const_value(ints)), zero, factor < 0, shape)
    quant = Quant(tuple(float(s) for s in np.float32(scale)), tuple(int(z) for z in zero), axis)
    const = rw.op(ops.Const, value=value, type=TensorType(value.shape, DType.of(value.dtype), quant))
    return rw.op(ops.Dequantize, const.out).out


def _flipped(
    value: np.ndarray, zero: np.ndarray, negative: np.ndarray, shape: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Integers (and zero points) of channels with a negative factor, negated; wider where −128 would not fit."""
    if not negative.any():
        return value, zero
    centred = value.astype(np.int64) - zero.reshape(shape)
    wide = np.where(negative.reshape(shape), -centred, centred)
    fits = wide.min() >= -128 and wide.max() <= 127
    return wide.astype(np.int8 if fits else np.int16), np.zeros_like(zero)


def _copy(rw: Rewriter, op: Op, operands: list[Value | None], attrs: dict[str, Any]) -> Op:
    return rw.op(type(op), *operands, type=op.out.type, **attrs)


def fuse_bias(graph: Graph, op: ops.Add, sem: Semantics) -> int:
    """add(conv(x, w, b), constants per channel) → conv(x, w, b + constants): a bias in a node of its own."""
    for conv_value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        conv = conv_value.op
        if not isinstance(conv, WEIGHTED) or not conv_value.has_one_use or conv_value.type.shape != op.out.type.shape:
            continue
        if not is_default_clip(conv) or getattr(conv, "addend", None) is not None:
            continue
        rw = Rewriter(graph, op)
        bias = _joint_bias(rw, conv, other, sem)
        if bias is not None:
            rw.replace(op, _copy(rw, conv, [conv.x, conv.weight, bias], conv.attrs | {"clip": op.clip}), conv)
            return rw.changes
    return 0


def _joint_bias(rw: Rewriter, conv: Op, other: Value, sem: Semantics) -> Value | None:
    """The bias of `conv` with `other` in it; None where `other` is computed or differs inside a channel."""
    constants, old, t = real_constant(other, sem), conv.operands[2], conv.out.type
    axis = t.rank - 1 if isinstance(conv, ops.Linear) else 1
    channels = t.shape[axis]
    if constants is None or constants.ndim > t.rank or not np.all(np.isfinite(constants)):
        return None
    shape = tuple(channels if i == axis else 1 for i in range(t.rank))
    aligned = (1,) * (t.rank - constants.ndim) + constants.shape
    if any(a not in {1, s} for a, s in zip(aligned, shape, strict=True)):
        return None
    if old is None and other.type.shape == (channels,):
        return other  # integers in accumulator steps stay what they are
    before = np.zeros(channels) if old is None else real_constant(old, sem)
    if before is None:
        return None
    total = np.broadcast_to(constants.reshape(aligned), shape).reshape(channels) + before.astype(np.float64)
    return rw.op(ops.Const, value=total.astype(np.float32), loc=other.op.loc if other.op else None).out


def fuse_add(graph: Graph, op: ops.Add, sem: Semantics) -> int:
    """add(conv(x, w, b), dequantize r) → conv(x, w, b, r), where the sum goes to a quantize or through a clip to one.

    Constants that differ inside a channel become i16 of their own range first (decision 7).
    """
    if not _ends_quantized(op.out):
        return 0
    for conv_value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        conv = conv_value.op
        if not isinstance(conv, (ops.Conv2d, ops.Linear)) or not conv_value.has_one_use or conv.addend is not None:
            continue
        if not is_default_clip(conv) or conv_value.type.shape != op.out.type.shape or not _integral(conv):
            continue
        rw = Rewriter(graph, op)
        constant = real_constant(other, sem) if activation_behind(other) is None else None
        if constant is not None and _fits_accumulator(conv, constant):
            addend = _quantized_addend(rw, np.broadcast_to(constant, op.out.type.shape))
        elif activation_behind(other) is not None and other.type.shape == op.out.type.shape:
            addend = other
        else:
            continue
        operands = [conv.x, conv.weight, conv.bias, addend]
        rw.replace(op, _copy(rw, conv, operands, conv.attrs | {"clip": op.clip}), conv)
        return rw.changes
    return 0


def _fits_accumulator(conv: ops.Conv2d | ops.Linear, constant: np.ndarray) -> bool:
    """True where a step of i16 constants is no more than 2^15 steps of any channel's sum: D5 shifts left by 15 then."""
    x, weight = activation_behind(conv.x), weight_behind(conv.weight)
    if x is None or weight is None or x.type.quant is None or weight.type.quant is None:
        return False
    step = x.type.quant.scale[0] * min(weight.type.quant.scale)
    return bool(np.all(np.isfinite(constant))) and np.abs(constant).max(initial=0.0) / TOP <= step * 2**15


def _quantized_addend(rw: Rewriter, constant: np.ndarray) -> Value:
    """Constants as the reals of i16 integers of their own range."""
    ints, scale = sixteen_bits(constant)
    t = TensorType(ints.shape, DType.I16, Quant.per_tensor(scale))
    return rw.op(ops.Dequantize, rw.op(ops.Const, value=ints, type=t).out).out


def fuse_clip(graph: Graph, op: ops.Clip) -> int:
    """clip(f(x)) → f(x) {clip} for an f that has a clip of its own, where the result is then quantised."""
    maker = op.x.op
    if not isinstance(maker, CLIPPABLE) or not op.x.has_one_use or not feeds_only_quantize(op.out):
        return 0
    rw = Rewriter(graph, op)
    attrs = maker.attrs | {"clip": narrowed(maker.clip, op)}
    rw.replace(op, _copy(rw, maker, list(maker.operands), attrs), maker)
    return rw.changes


def _ends_quantized(value: Value) -> bool:
    if feeds_only_quantize(value):
        return True
    if value.is_output or len(value.users) != 1:
        return False
    reader = value.users[0]
    return isinstance(reader, ops.Clip) and feeds_only_quantize(reader.out)


def _integral(conv: ops.Conv2d | ops.Linear) -> bool:
    return activation_behind(conv.x) is not None and weight_behind(conv.weight) is not None
