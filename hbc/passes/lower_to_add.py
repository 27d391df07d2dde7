"""Sums of sums become additions of integers, with i16 between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import fuse
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType

from .base import Pass, Target
from .composites.parts import Parts, sum_error
from .matching import activation_behind, is_default_clip, one_number, real_constant
from .quanta import LIMITS, ROUNDED, TOP, is_activation, scale_of
from .ranges import integer_range

APART = 8  # how much coarser a scale may be than the other's, before it costs more than a requantize
SUMS = (ops.Add, ops.Sub)
SMALLEST, LARGEST = (float(v) for v in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))  # scales


@dataclass(frozen=True)
class LowerToAdd(Pass):
    """quantize(a + b + c) → additions of integers, of which only the last one makes the result's.

        %s = add %a, %b                            %s = add %x, %y : i16
        %t = add %s, %c                        →   %q = add %s, %z
        %q = quantize %t         (of %x, %y, %z)

    Inner sums are i16 of a scale that just holds them (D9), and i8 beside them is requantised to i16, so that they lose
    next to nothing. Where their roundings might move the result by more than 2 quanta (256 of an i16 one), and for
    `--arith onnx`, the sum stays in reals. A product of the whole by one positive constant, as a mean has it, goes into
    the last one's scale.
    """

    name: ClassVar[str] = "lower-to-add"
    changes_numerics: ClassVar[bool] = True  # a rounding after every addition

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        if target.semantics.is_onnx:
            return 0
        for op in module.graph.walk(ops.Quantize):
            parts = _sums(op, target) if op.out.uses else None
            if parts is None:
                continue
            rw = Rewriter(module.graph, op)
            for part in parts.ops:
                rw.insert(part)
            rw.replace(op, parts.ops[-1], *([op.x.op] if op.x.op is not None else []))
            changes += rw.changes
        return changes


@dataclass(frozen=True)
class _Term:
    """Integers, the largest magnitude of their reals, and how far those may be off."""

    value: Value
    reach: float
    error: float


def _sums(quantize: ops.Quantize, target: Target) -> Parts | None:
    """The parts that stand for `quantize` of a sum of sums, the last of them making its result; or None."""
    t = quantize.out.type
    if t.quant is None or not is_activation(t) or quantize.narrow:
        return None
    root, factor = _scaled(quantize.x.op, target.semantics)
    if not isinstance(root, SUMS) or not any(isinstance(v.op, SUMS) for v in (root.lhs, root.rhs)):
        return None
    if factor != 1 and not is_default_clip(root):
        return None
    scale = t.quant.scale[0] / factor
    if not SMALLEST <= scale <= LARGEST:
        return None
    last = TensorType(t.shape, t.dtype, Quant.per_tensor(scale, t.quant.zero_point[0]))
    parts = Parts(fuse(op.loc for op in (*_tree(root), quantize)))
    total = _sum(parts, root, last, target.semantics)
    if total is not None and factor != 1:
        parts.make(ops.Reinterpret, total.value, type=t)
    if total is None or total.error / scale_of(last) + ROUNDED > LIMITS[t.dtype] or parts.rejection(target) is not None:
        parts.drop()
        return None
    return parts


def _scaled(op: Op | None, sem: Semantics) -> tuple[Op | None, float]:
    """(x, k) of x · k, for a positive constant k; else the op itself and 1."""
    if not isinstance(op, ops.Mul) or not is_default_clip(op):
        return op, 1.0
    for x, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        factor = one_number(other, sem)
        if factor is not None and 0 < factor < np.inf and x.type.shape == op.out.type.shape and x.has_one_use:
            return x.op, factor
    return op, 1.0


def _sum(parts: Parts, op: Op, t: TensorType | None, sem: Semantics) -> _Term | None:
    """`op` on integers: of type `t`, or in i16 of a scale that holds it."""
    assert isinstance(op, SUMS)
    terms = [_term(parts, v, sem) for v in (op.lhs, op.rhs)]
    if terms[0] is None or terms[1] is None:
        return None
    a, b = _level(parts, terms[0], terms[1]), _level(parts, terms[1], terms[0])
    reach, error = a.reach + b.reach, a.error + b.error
    scales = [(round(x.reach / scale_of(x.value.type)), scale_of(x.value.type)) for x in (a, b)]
    error += sum_error(*scales)
    if t is not None:
        return _Term(parts.make(type(op), a.value, b.value, type=t, clip=op.clip), reach, error)
    scale = reach / TOP or 1.0
    return _Term(parts.binary(type(op), a.value, b.value, scale), reach, error + scale * ROUNDED)


def _level(parts: Parts, term: _Term, other: _Term) -> _Term:
    """i8 integers beside much finer i16 ones become i16, too: D6 has 15 bits for both scales together."""
    coarse, fine = scale_of(term.value.type), scale_of(other.value.type)
    if term.value.type.dtype is not DType.I8 or coarse < APART * fine:
        return term
    scale = max(fine, term.reach / TOP)
    t = TensorType(term.value.type.shape, DType.I16, Quant.per_tensor(scale))
    return _Term(parts.make(ops.Requantize, term.value, type=t), term.reach, term.error + scale * ROUNDED)


def _term(parts: Parts, value: Value, sem: Semantics) -> _Term | None:
    ints = activation_behind(value)
    if ints is not None:
        quant = ints.type.quant
        assert quant is not None
        reach = max(abs(q - quant.zero_point[0]) for q in integer_range(ints)) * quant.scale[0]
        return _Term(ints, reach, 0.0)
    constant = real_constant(value, sem)
    if constant is not None:
        if not constant.size or not np.all(np.isfinite(constant)):
            return None
        const = parts.constant(constant)
        return _Term(const, float(np.abs(constant).max()), scale_of(const.type) / 2)
    inner = _inner(value)
    return None if inner is None else _sum(parts, inner, None, sem)


def _inner(value: Value) -> Op | None:
    """The sum that makes an operand, where nobody else reads it."""
    op = value.op
    return op if isinstance(op, SUMS) and value.has_one_use and is_default_clip(op) else None


def _tree(op: Op) -> list[Op]:
    """The inner sums of a sum, operands first, and the sum itself."""
    inner = [_inner(v) for v in op.operands if v is not None]
    return [*(o for i in inner if i is not None for o in _tree(i)), op]
