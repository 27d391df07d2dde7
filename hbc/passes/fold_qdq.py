"""Fold dequantize → op → quantize into the op on integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType

from .base import Pass, Target
from .matching import MAX_RANK, activation_behind, const_value, integers_behind, limits_of, real_constant, weight_behind
from .quanta import TOP
from .real_constants import has_integers, quantized, with_integers
from .weak_channels import strengthen

Operands = list[Value | None]


@dataclass(frozen=True)
class FoldQdq(Pass):
    """Quantised types take the place of the quantize and dequantize nodes around arithmetic.

        %a = dequantize %x
        %w = dequantize %k                        %y = conv2d %x, %k, %b : tensor<…xi8, q<0.05>>
        %c = conv2d %a, %w, %b                →
        %y = quantize %c

    The real-valued op stays where somebody else reads it; `dce` drops it otherwise. A bias stays what it is (real
    values, or i32 with its scale); constants of elementwise ops that are not quantised become i16 of the range that the
    result's range leaves them, or, beside a maximum or minimum, integers of the result's scale.
    """

    name: ClassVar[str] = "fold-qdq"
    changes_numerics: ClassVar[bool] = True  # from reals to integers: this is where the arithmetic begins

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Quantize):
            rw = Rewriter(module.graph, op)
            folded = fold(rw, op, target.semantics)
            if folded is not None:
                rw.replace(op, folded, *([op.x.op] if op.x.op else []))
                changes += rw.changes
        return changes


def fold(rw: Rewriter, quantize: ops.Quantize, sem: Semantics) -> Op | None:
    """The integer op that gives `quantize`'s result, or None where its operands are not all quantised."""
    op, t = quantize.x.op, quantize.out.type
    if op is None or t.quant is None or not t.quant.is_per_tensor:
        return None
    rule = next((r for cls, r in RULES if isinstance(op, cls)), None)
    if isinstance(op, (ops.ResizeLinear, ops.GridSample)) and sem.is_onnx:
        return None  # D10 rounds half up with 8-bit weights; ONNX's own float interpolation runs on the CPU
    wide = t.dtype is DType.I32 and isinstance(op, WEIGHTED)
    if rule is None or not (t.dtype in {DType.I8, DType.I16} or wide):
        return None
    operands = rule(rw, op, sem)
    if operands is None:
        return None
    attrs = dict(op.attrs)
    if "clip" in attrs:
        attrs["clip"] = limits_of(quantize, attrs["clip"])
    elif quantize.narrow:
        return None
    if isinstance(op, ops.Pad):
        operands = [_requantized(rw, operands[0], t)]  # first: the operand's own scale may not hold the border
    elif isinstance(op, ops.Concat):
        operands = [_joinable(rw, v, t, sem) for v in operands]
    elif isinstance(op, ops.Binary):
        operands = with_integers(rw, op, operands, t, sem) or []
        if not operands:
            return None
    elif isinstance(op, SAME_SCALE):
        return _in_operand_scale(rw, op, operands, attrs, t)
    return rw.op(type(op), *operands, type=t, **attrs)


def _in_operand_scale(rw: Rewriter, op: Op, operands: Operands, attrs: dict[str, Any], t: TensorType) -> Op:
    """An op without arithmetic keeps its operand's scale; a requantize behind it makes the result's."""
    x = operands[0]
    assert x is not None
    moved = rw.op(type(op), *operands, type=TensorType(t.shape, x.type.dtype, x.type.quant), **attrs)
    return moved if moved.out.type == t else rw.op(ops.Requantize, moved.out, type=t)


def _requantized(rw: Rewriter, value: Value | None, t: TensorType) -> Value:
    """`value` in dtype and scale of `t`."""
    assert value is not None
    want = TensorType(value.type.shape, t.dtype, t.quant)
    return value if value.type == want else rw.op(ops.Requantize, value, type=want).out


def _joinable(rw: Rewriter, value: Value | None, t: TensorType, sem: Semantics) -> Value:
    """An operand of a concat in the dtype of `t`; constants of reals in its scale at once."""
    assert value is not None
    reals = const_value(value) if value.type.quant is None else None
    if reals is None:
        return value if value.type.dtype is t.dtype else _requantized(rw, value, t)
    return rw.op(ops.Const, value=quantized(reals, t, sem), type=TensorType(reals.shape, t.dtype, t.quant)).out


def fold_concat(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """Activations and constants of reals, not constants alone."""
    folded: Operands = []
    for value in op.operands:
        q = activation_behind(value)
        folded.append(value if q is None and value is not None and const_value(value) is not None else q)
    computed = [v for v in folded if v is not None and v.type.quant is not None]
    return folded if computed and None not in folded else None


def fold_weighted(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """x and addend of one scale each, constant weights with scales along the output channels, a constant bias."""
    assert isinstance(op, WEIGHTED)
    x, weight = activation_behind(op.x), weight_behind(op.weight)
    if x is None or weight is None or not weight_axis_fits(op, weight):
        return None
    bias = fold_bias(rw, op.bias, sem)
    if op.bias is not None and bias is None:
        return None
    addend = getattr(op, "addend", None)
    if addend is None:
        return [x, strengthen(rw, op, x, weight, bias), bias]
    folded = activation_behind(addend)
    return None if folded is None else [x, strengthen(rw, op, x, weight, bias, folded), bias, folded]


def weight_axis_fits(op: Op, weight: Value) -> bool:
    """True where per-channel weight scales run along the output channels, so that an accumulator has one scale."""
    assert weight.type.quant is not None
    axis = weight.type.quant.axis
    if axis is None:
        return True
    if isinstance(op, ops.ConvTranspose2d):
        return axis == 1
    return axis == 0


def fold_bias(rw: Rewriter, bias: Value | None, sem: Semantics) -> Value | None:
    """A bias as the integer op takes it: i32 constants with their scale, or real constants."""
    if bias is None:
        return None
    ints = integers_behind(bias)
    if ints is not None and ints.type.dtype is DType.I32 and const_value(ints) is not None:
        return ints
    reals = real_constant(bias, sem)
    return None if reals is None else rw.op(ops.Const, value=np.asarray(reals, np.float32)).out


def fold_operands(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """Every operand an activation of one scale."""
    folded = [activation_behind(v) for v in op.operands]
    return None if any(v is None for v in folded) else list(folded)


def fold_matmul(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """Two activations, or an activation by constants that have a scale per column."""
    assert isinstance(op, ops.Matmul)
    x, weight = activation_behind(op.lhs), weight_behind(op.rhs)
    quant = None if weight is None else weight.type.quant
    if x is None or weight is None or quant is None or quant.axis != weight.type.rank - 1:
        return fold_operands(rw, op, sem)
    return [x, weight] if len(set(quant.zero_point)) == 1 else None


def fold_elementwise(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """Activations of up to 6 axes; one may be a constant of reals, which `with_integers` makes integers."""
    folded: Operands = []
    for value in op.operands:
        q, reals = activation_behind(value), real_constant(value, sem)
        if q is None and (reals is None or not has_integers(reals, op)):
            return None
        folded.append(value if q is None else q)
    computed = [v for v in folded if v is not None and v.type.quant is not None and v.defined_by(ops.Const) is None]
    return folded if computed and max(v.type.rank for v in folded if v) <= MAX_RANK else None


def fold_batch_norm(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """An activation of rank 4 with constant multiplier and offset."""
    assert isinstance(op, ops.BatchNorm)
    x = activation_behind(op.x)
    constant = const_value(op.multiplier) is not None and const_value(op.offset) is not None
    return [x, op.multiplier, op.offset] if x is not None and constant and x.type.rank == 4 else None


def fold_grid_sample(rw: Rewriter, op: Op, sem: Semantics) -> Operands | None:
    """x an activation; a grid of reals becomes i16 of the range that matters: farther out lies the same as there."""
    assert isinstance(op, ops.GridSample)
    x, grid = activation_behind(op.x), activation_behind(op.grid)
    if x is None or grid is not None:
        return None if x is None else [x, grid]
    if x.type.dtype not in {DType.I8, DType.U8} and not op.nearest:
        return None  # no march blends 16 bits, and the CPU may as well have the grid itself
    sizes = op.x.type.shape[2:]
    reach = max(sizes) + 1.0 if op.pixels else 1 + 4 / min(sizes)  # two pixels beyond the edge
    t = TensorType(op.grid.type.shape, DType.I16, Quant.per_tensor(float(np.float32(reach / TOP))))
    reals = real_constant(op.grid, sem)
    if reals is None:
        return [x, rw.op(ops.Quantize, op.grid, type=t).out]
    return [x, rw.op(ops.Const, value=quantized(reals, t, sem), type=t).out]


WEIGHTED = (ops.Conv2d, ops.ConvTranspose2d, ops.Linear)
SAME_SCALE = (ops.MaxPool, ops.ReduceMax, ops.ReduceMin, ops.ResizeLinear, ops.GridSample, ops.Move)
Rule = Callable[[Rewriter, Op, Semantics], "Operands | None"]
RULES: tuple[tuple[type[Op] | tuple[type[Op], ...], Rule], ...] = (
    (WEIGHTED, fold_weighted),
    (ops.BatchNorm, fold_batch_norm),
    (ops.GridSample, fold_grid_sample),
    (ops.Concat, fold_concat),
    (ops.Matmul, fold_matmul),
    ((ops.Add, ops.Sub, ops.Mul, ops.Maximum, ops.Minimum), fold_elementwise),
    ((ops.AvgPool, ops.ReduceMean, ops.ReduceSum, *SAME_SCALE), fold_operands),
)
