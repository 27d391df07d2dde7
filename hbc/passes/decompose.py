"""Softmax and the normalisations between quantised tensors become their parts, in integers (NUMERICS 8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.ops.norm import grouped
from hbc.ir.ops.shapes import along_channels
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, TensorType

from .base import Pass, Target
from .composites import norm, softmax
from .composites.parts import Parts
from .composites.sums import Form
from .matching import activation_behind, const_value, limits_of, real_constant
from .quanta import LIMITS, is_activation
from .wording import quantise

GOOD = {DType.I8: 0.75, DType.I16: 4.0}  # a cheaper form is taken where it stays below
Limits = tuple[float, float]
Build = Callable[[Parts], float]  # makes the parts; returns how far the result may be off, in its quanta


@dataclass(frozen=True)
class Decompose(Pass):
    """quantize(softmax(dequantize x)) → largest, difference, table, sum, table, product; norms likewise.

        %a = dequantize %x                     %m = reduce_max %x
        %b = softmax %a                        %d = sub %x, %m : i16
        %y = quantize %b                   →   %e = segment_lut %d (eˣ) : i16
                                               %s = reduce_sum %e : i16
                                               %r = segment_lut %s (1/x) : i16
                                               %y = mul %e, %r

    Inner tensors are i16 (D9); their scales follow from what is known when compiling: the range of `x` and the sizes.
    From the same facts follows how far the result may be off, and where that passes 2 quanta of an i8 result (256 of an
    i16 one) a dearer form is tried and, failing that, the op stays in reals, as it does for `--arith onnx` and on
    marches whose manuals keep it on the CPU. A batch norm of a rank other than 4 goes through a reshape.
    """

    name: ClassVar[str] = "decompose"
    changes_numerics: ClassVar[bool] = True  # a rounding after every part

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in module.graph.walk(ops.Quantize):
            source = op.x.op
            parts = decomposed(source, op, target) if isinstance(source, (ops.Composite, ops.BatchNorm)) else None
            if not isinstance(parts, Parts):
                continue
            rw = Rewriter(module.graph, op)
            for part in parts.ops:
                rw.insert(part)
            assert source is not None
            rw.replace(op, parts.ops[-1], source)
            changes += rw.changes
        return changes


def why_not(op: ops.Composite, target: Target) -> Rejection:
    """Why a composite stays in reals."""
    for user in op.out.users:
        if isinstance(user, ops.Quantize):
            found = decomposed(op, user, target)
            if isinstance(found, Rejection):
                return found
            found.drop()
            return Rejection("it has not been decomposed", "run decompose before partition")
    return Rejection("its result is not quantised", quantise(op, "behind it"))


def decomposed(op: Op, quantize: ops.Quantize, target: Target, kind: type[Parts] = Parts) -> Parts | Rejection:
    """The parts that stand for quantize(op), as a `kind`, the last of them making the result; or why there are none."""
    x, out = activation_behind(op.operands[0]), quantize.out.type
    if x is None:
        name = (op.operands[0].name if op.operands[0] is not None else None) or "its operand"
        return Rejection(f"operand {name!r} is not quantised", quantise(op, "on it"))
    if not is_activation(out):
        return Rejection("its result is not quantised to i8 or i16 with one scale", "quantise it per tensor")
    if isinstance(op, ops.BatchNorm):
        return _reshaped_batch_norm(op, x, out, limits_of(quantize, op.clip)) or Rejection(
            "its operands are not constant"
        )
    if target.semantics.is_onnx:
        return Rejection(f"{op.NAME} is computed in reals for --arith onnx", "compile with --arith bpu")
    found = target.legal(op)
    return found or _best(op, x, out, limits_of(quantize), target, kind)


def _best(op: Op, x: Value, out: TensorType, clip: Limits, target: Target, kind: type[Parts]) -> Parts | Rejection:
    """The first form that is good, else the best that is within the limit."""
    forms = _forms(op, x, out, clip, target.semantics)
    if isinstance(forms, Rejection):
        return forms
    bounds: dict[Build, float] = {}  # of forms that can't be good

    def hopeful() -> Iterator[Build]:
        for build in forms[:-1]:
            bound = kind.least_error(op.loc, build)
            if bound <= GOOD[out.dtype]:
                yield build
            else:
                bounds[build] = bound
        yield forms[-1]

    found = _least(op, hopeful(), out, target, kind)
    most = math.inf if isinstance(found, Rejection) else found.error
    if most > GOOD[out.dtype] and any(bound <= most for bound in bounds.values()):
        if isinstance(found, Parts):
            found.drop()
        rivals = [build for build in forms if bounds.get(build, 0.0) <= most]
        found = _least(op, rivals, out, target, kind)
    if isinstance(found, Rejection) or found.error <= LIMITS[out.dtype]:
        return found
    found.drop()
    return _too_far(op, out, found.error)


def _least(op: Op, forms: Iterable[Build], out: TensorType, target: Target, kind: type[Parts]) -> Parts | Rejection:
    """The first form that is good, else the best."""
    best: Parts | None = None
    refused = None
    for build in forms:
        parts = kind(op.loc)
        parts.error = build(parts)
        illegal = parts.rejection(target)
        if illegal is not None or (best is not None and parts.error >= best.error):
            refused = refused or illegal
            parts.drop()
            continue
        if best is not None:
            best.drop()
        best = parts
        if best.error <= GOOD[out.dtype]:
            break
    return best or refused or Rejection(f"{op.NAME} has no form in integers")


def _too_far(op: Op, out: TensorType, error: float) -> Rejection:
    limit = f"at most {LIMITS[out.dtype]:.0f} are allowed"
    reason = f"{op.NAME} in integers could be {error:.1f} quanta of its result off, {limit}"
    return Rejection(reason, "give the result a larger scale, or normalise over fewer elements")


def _forms(op: Op, x: Value, out: TensorType, clip: Limits, sem: Semantics) -> Sequence[Build] | Rejection:
    """The forms of a composite, from cheap to dear."""
    if isinstance(op, (ops.Softmax, ops.LogSoftmax)):
        axis: int = op.axis
        make = softmax.softmax if isinstance(op, ops.Softmax) else softmax.log_softmax
        found = softmax.forms(x.type.shape[axis])
        return [lambda parts, form=f: make(parts, x, axis, form, out, clip) for f in found]  # type: ignore[misc]
    described = _norm(op, x, sem)
    if isinstance(described, Rejection):
        return described
    rows, how = described
    return [lambda parts, form=f: _normalise(parts, x, rows, how, form, out, clip) for f in norm.forms(rows, how)]  # type: ignore[misc]


def _normalise(
    parts: Parts, x: Value, rows: TensorType, how: norm.Norm, form: Form, out: TensorType, clip: Limits
) -> float:
    if rows.shape != x.type.shape:
        x = parts.make(ops.Reshape, x, shape=rows.shape, type=rows)
    return norm.normalise(parts, x, how, form, out, clip)


def _norm(op: Op, x: Value, sem: Semantics) -> tuple[TensorType, norm.Norm] | Rejection:
    """(the type of the rows to be normalised, how); a Rejection where scale or bias are computed."""
    shape = x.type.shape
    affine = [None if v is None else real_constant(v, sem) for v in op.operands[1:]]
    if any(v is not None and a is None for v, a in zip(op.operands[1:], affine, strict=True)):
        return Rejection("its scale or bias is not constant", "make them initializers")
    if not x.type.elements:
        return Rejection("its operand is empty")
    scale, bias = affine
    bias = None if bias is None or not bias.any() else bias  # its scale would be 1, and z + 0 lose what that is coarser
    if isinstance(op, ops.norm.OverAxes):
        centred = isinstance(op, ops.LayerNorm)
        return x.type, norm.Norm(tuple(op.axes), op.epsilon, scale, bias, shape, centred=centred)
    assert isinstance(op, ops.norm.PerChannel)
    scale, bias = (None if a is None else along_channels(a, len(shape)) for a in (scale, bias))
    if isinstance(op, ops.InstanceNorm):
        return x.type, norm.Norm(tuple(range(2, len(shape))), op.epsilon, scale, bias, shape)
    assert isinstance(op, ops.GroupNorm)
    rows = x.type.with_shape(grouped(shape, op.groups))
    return rows, norm.Norm((2,), op.epsilon, scale, bias, shape)


def _reshaped_batch_norm(op: ops.BatchNorm, x: Value, out: TensorType, clip: Limits) -> Parts | None:
    """A batch norm on [N,C,1,everything else]; None where rank 4 needs none of it, or operands are computed."""
    constant = const_value(op.multiplier) is not None and const_value(op.offset) is not None
    shape = x.type.shape
    if len(shape) == 4 or not constant:
        return None
    parts = Parts(op.loc)
    square = (shape[0], shape[1], 1, math.prod(shape[2:]))
    image = parts.make(ops.Reshape, x, shape=square, type=x.type.with_shape(square))
    y = parts.make(ops.BatchNorm, image, op.multiplier, op.offset, type=out.with_shape(square), clip=clip)
    parts.make(ops.Reshape, y, shape=shape, type=out)
    return parts
