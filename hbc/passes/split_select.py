"""A quantize behind a choice goes to both sides of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, TensorType

from .base import Pass, Target
from .matching import activation_behind, const_value, feeds_only_quantize, is_default_clip
from .propagate_qdq import joint
from .quanta import is_activation

EXTREMA = (ops.Maximum, ops.Minimum)


@dataclass(frozen=True)
class SplitSelect(Pass):
    """quantize(where(c, a, b)) → where(c, quantize(a), quantize(b)), so that each side folds by itself. Exact.

        %m = mul %x, %s                            %m = mul %x, %s
        %w = where %c, %m, %x                  →   %q = quantize %m          %r = quantize %x
        %y = quantize %w                           %y = where %c, %q, %r

    Likewise maxima and minima of maxima and minima of dequantized tensors and constants: a quantize keeps the order. A
    quantize of truth values as numbers chooses between the integers of 1 and of 0.
    """

    name: ClassVar[str] = "split-select"
    changes_numerics: ClassVar[bool] = True  # a requantize rounds once, where dequantize and quantize rounded twice

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        waiting = list(module.graph.walk(ops.Quantize))
        while waiting:
            op = waiting.pop()
            rw = Rewriter(module.graph, op)
            made = _split(rw, op, target.semantics)
            if made is not None:
                maker = op.x.op
                assert maker is not None
                rw.replace(op, made, maker)
                rw.graph.erase([op])  # at once: what is behind must not seem to have a reader more
                if not maker.out.uses:
                    rw.graph.erase([maker])
                waiting += [v.op for v in made.operands if v is not None and isinstance(v.op, ops.Quantize)]
            changes += rw.changes
        return changes


def _split(rw: Rewriter, op: ops.Quantize, sem: Semantics) -> Op | None:
    maker, t = op.x.op, op.out.type
    if maker is None or not op.out.uses or not feeds_only_quantize(op.x):
        return None
    if not is_activation(t):
        return None
    if isinstance(maker, ops.Cast) and maker.x.type.dtype is DType.BOOL:
        one, zero = (rw.op(ops.Const, value=np.asarray(v, np.float32)).out for v in (1, 0))
        return rw.op(ops.Where, maker.x, *(_quantized(rw, op, v, sem) for v in (one, zero)), type=t)
    if isinstance(maker, ops.Where) and _worth_it(maker):
        sides = [_quantized(rw, op, v, sem) for v in (maker.lhs, maker.rhs)]
        return rw.op(ops.Where, maker.condition, *sides, type=t)
    if isinstance(maker, EXTREMA) and _is_tree(maker):
        return rw.op(type(maker), *(_quantized(rw, op, v, sem) for v in (maker.lhs, maker.rhs)), type=t)
    return None


def _worth_it(where: ops.Where) -> bool:
    """False where both sides come from ops that only the CPU has: then it chooses there, too."""
    return not all(isinstance(v.op, ops.CALLS) for v in (where.lhs, where.rhs))


def _is_tree(op: Op) -> bool:
    """True for an extremum of extrema, whose other operands are all known to fold."""
    sides = [v for v in op.operands if v is not None]
    inner = any(isinstance(v.op, EXTREMA) for v in sides)
    return inner and is_default_clip(op) and all(_folds(v) for v in sides)


def _folds(value: Value) -> bool:
    if activation_behind(value) is not None:
        return True
    constant = const_value(value)
    if constant is not None:
        return not bool(np.isnan(constant).any())
    op = value.op
    if not isinstance(op, EXTREMA) or not value.has_one_use or not is_default_clip(op):
        return False
    return _folds(op.lhs) and _folds(op.rhs)


def _quantized(rw: Rewriter, like: ops.Quantize, value: Value, sem: Semantics) -> Value:
    """`value` quantised as `like` does it: a constant at once, integers by a requantize."""
    t = TensorType(value.type.shape, like.out.type.dtype, like.out.type.quant)
    op = rw.op(ops.Quantize, value, type=t, narrow=like.narrow)
    constant = const_value(value)
    source = value.defined_by(ops.Dequantize)
    joined: Value | Op | None = None
    if constant is not None:
        joined = rw.op(ops.Const, value=np.asarray(op.reference(sem, constant)[0]), type=t, name=value.name)
    elif source is not None:
        joined = joint(op, source, sem)
    if joined is None:
        return op.out
    rw.graph.erase([op])
    if isinstance(joined, Op) and joined not in rw.graph.ops:
        rw.insert(joined)
    return joined.out if isinstance(joined, Op) else joined
