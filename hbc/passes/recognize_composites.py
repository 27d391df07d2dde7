"""Softmax and the normalisations that exporters spell out in reals become one op again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.ops.norm import fits_into, grouped
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType

from .base import Pass, Target
from .matching import const_value, is_default_clip, one_number, real_constant

EXP, LOG, SQRT, RECIPROCAL = (ops.PLAIN_UNARY[name] for name in ("exp", "log", "sqrt", "reciprocal"))
Attrs = dict[str, Any]
DEPTH = 4  # of two values that are computed twice in the same way


@dataclass(frozen=True)
class RecognizeComposites(Pass):
    """Means, squares and roots of reals → layer_norm, rms_norm, group_norm; exponentials and their sum → softmax.

        %m = reduce_mean %x
        %d = sub %x, %m
        %s = mul %d, %d
        %v = reduce_mean %s                       →    %y = layer_norm %x, %w, %b {epsilon = 1e-05}
        %r = sqrt (add %v, 1e-05)
        %n = div %d, %r
        %y = add (mul %n, %w), %b

    Only where no quantize or dequantize stands between the parts: those that the model brings are honoured. Not for
    `--arith onnx`, which computes what the model spells, rounding by rounding.
    """

    softmax: bool = True  # False: softmax spelled out stays spelled out

    name: ClassVar[str] = "recognize-composites"
    changes_numerics: ClassVar[bool] = True  # one rounding to float32 instead of one per part

    def run(self, module: Module, target: Target) -> int:
        if target.semantics.is_onnx:
            return 0
        changes = 0
        rules = RULES if self.softmax else NORMS
        for op in list(module.graph.ops):
            match = next(filter(None, (rule(op, target.semantics) for rule in rules)), None)
            if match is None or match.x.type.dtype is not DType.F32:
                continue
            rw = Rewriter(module.graph, match.root)
            operands = [match.x, *(_constant(rw, a) for a in match.affine)]
            rw.replace(match.root, rw.op(match.cls, *operands, **match.attrs), *match.parts)
            changes += rw.changes
        return changes


@dataclass(frozen=True)
class Match:
    """A composite found: what it is, of what, the op whose result it replaces, and the other ops that it stands for."""

    cls: type[ops.Composite]
    x: Value
    root: Op
    parts: tuple[Op, ...]
    attrs: Attrs
    affine: tuple[np.ndarray | None, ...] = ()


def _constant(rw: Rewriter, array: np.ndarray | None) -> Value | None:
    return None if array is None else rw.op(ops.Const, value=np.asarray(array, np.float32)).out


# ---- small questions


def _same(a: Value | None, b: Value | None, depth: int = DEPTH) -> bool:
    """True where two values are one, or are computed by equal ops from the same values."""
    if a is b:
        return True
    x, y = (None if v is None else v.op for v in (a, b))
    if x is None or y is None or type(x) is not type(y) or depth == 0 or isinstance(x, ops.Const):
        return False
    pairs = zip(x.operands, y.operands, strict=True)
    return x.attrs == y.attrs and all(_same(v, w, depth - 1) for v, w in pairs)


def _sides(op: Op) -> Iterator[tuple[Value, Value]]:
    """The operands of a sum or product, both ways round."""
    yield op.operands[0], op.operands[1]  # type: ignore[misc]
    yield op.operands[1], op.operands[0]  # type: ignore[misc]


def _reduced(value: Value | None, cls: type[ops.Reduce]) -> ops.Reduce | None:
    """The reduction with its axes kept that makes `value`."""
    op = None if value is None else value.defined_by(cls)
    return op if op is not None and op.keepdims else None


# ---- norms


def _norm(op: Op, sem: Semantics) -> Match | None:
    """d / √(mean d² + ε), where d is x − mean x or x itself; then · scale + bias."""
    for d, root, sign in _quotients(op):
        found = _variance(root, sign, sem)
        if found is None or not _same(_squared(found[0].x, sem), d):
            continue
        variance, epsilon, parts = found
        parts = (*parts, *([d.op] if d.op else []))
        centre = d.defined_by(ops.Sub)
        mean = None if centre is None else _reduced(centre.rhs, ops.ReduceMean)
        attrs: Attrs = {"axes": tuple(variance.axes), "epsilon": epsilon}
        if centre is not None and mean is not None and mean.axes == variance.axes and _same(mean.x, centre.lhs):
            return _with_affine(Match(ops.LayerNorm, centre.lhs, op, (*parts, mean), attrs), sem)
        return _with_affine(Match(ops.RmsNorm, d, op, parts, attrs), sem)
    return None


def _quotients(op: Op) -> Iterator[tuple[Value, Value, float]]:
    """(d, r, p) where the op is d · rᵖ: d / r and d · (1 / r) with p −1, d · r with p 1."""
    if isinstance(op, ops.Div) and is_default_clip(op):
        yield op.lhs, op.rhs, -1.0
    if isinstance(op, ops.Mul) and is_default_clip(op):
        for d, factor in _sides(op):
            inverted = _inverted(factor)
            yield (d, factor, 1.0) if inverted is None else (d, inverted, -1.0)


def _inverted(value: Value) -> Value | None:
    """r of 1 / r."""
    reciprocal, div = value.defined_by(RECIPROCAL), value.defined_by(ops.Div)
    if reciprocal is not None:
        return reciprocal.x
    one = None if div is None else const_value(div.lhs)
    return div.rhs if div is not None and one is not None and one.size == 1 and one.reshape(()) == 1 else None


def _variance(root: Value, sign: float, sem: Semantics) -> tuple[ops.Reduce, float, tuple[Op, ...]] | None:
    """(the mean of squares, ε, ops on the way) where rootˢⁱᵍⁿ is 1 / √(mean + ε), by a root or by a power."""
    op: Op | None = root.defined_by(SQRT) if sign < 0 else None
    power = root.defined_by(ops.Pow)
    if power is not None and one_number(power.rhs, sem) == -0.5 * sign:
        op = power
    inside = None if op is None else op.operands[0]
    total = None if inside is None else inside.defined_by(ops.Add)
    if op is None or total is None or not is_default_clip(total):
        return None
    for mean, number in _sides(total):
        reduced, epsilon = _reduced(mean, ops.ReduceMean), one_number(number, sem)
        if reduced is not None and epsilon is not None and epsilon >= 0:
            return reduced, epsilon, (reduced, total, op)
    return None


def _squared(value: Value, sem: Semantics) -> Value | None:
    """d of d · d or d²."""
    product, power = value.defined_by(ops.Mul), value.defined_by(ops.Pow)
    if product is not None and _same(product.lhs, product.rhs):
        return product.lhs
    return power.lhs if power is not None and one_number(power.rhs, sem) == 2.0 else None


def _with_affine(match: Match, sem: Semantics) -> Match:
    """The match with the constants that multiply and add to its result taken in."""
    shape, root, parts = match.x.type.shape, match.root, match.parts
    affine: list[np.ndarray | None] = []
    for cls in (ops.Mul, ops.Add):
        user, constant = _only_user(root, cls, shape, sem)
        affine.append(constant)
        if user is not None:
            root, parts = user, (*parts, root)
    return Match(match.cls, match.x, root, parts, match.attrs, tuple(affine))


def _only_user(op: Op, cls: type[Op], shape: tuple[int, ...], sem: Semantics) -> tuple[Op | None, np.ndarray | None]:
    """(the op of `cls` that alone reads `op`, the constant beside it)."""
    users = op.out.users if op.out.has_one_use else []  # the one use may be the graph's own: an output
    user = users[0] if users else None
    if user is None or not isinstance(user, cls) or not is_default_clip(user):
        return None, None
    for other, constant in _sides(user):
        array = real_constant(constant, sem)
        if other is op.out and array is not None and fits_into(array.shape, shape):
            return user, array
    return None, None


def _group_norm(op: Op, sem: Semantics) -> Match | None:
    """An instance norm of groups as channels, between two reshapes; then · scale + bias per channel."""
    inner = op.operands[0].defined_by(ops.InstanceNorm) if isinstance(op, ops.Reshape) and op.operands[0] else None
    before = None if inner is None else inner.x.defined_by(ops.Reshape)
    if inner is None or before is None or before.x.type.shape != op.out.type.shape or before.x.type.rank < 3:
        return None
    shape, groups = op.out.type.shape, inner.x.type.shape[1]
    if not groups or shape[1] % groups or inner.x.type.elements != np.prod(grouped(shape, groups)):
        return None
    same_rows = inner.x.type.shape[0] == shape[0]
    scale, bias = (None if v is None else real_constant(v, sem) for v in (inner.scale, inner.bias))
    plain = (scale is None or (scale == 1).all()) and (bias is None or (bias == 0).all())
    if not plain or not same_rows or not inner.out.has_one_use:
        return None
    attrs: Attrs = {"groups": groups, "epsilon": inner.epsilon}
    found = _with_affine(Match(ops.GroupNorm, before.x, op, (before, inner), attrs), sem)
    per_channel = [_per_channel(a, shape) for a in found.affine]
    if any(a is not None and c is None for a, c in zip(found.affine, per_channel, strict=True)):
        return Match(ops.GroupNorm, before.x, op, (before, inner), attrs)
    return Match(ops.GroupNorm, found.x, found.root, found.parts, attrs, tuple(per_channel))


def _per_channel(array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """A constant that varies along axis 1 alone, as one number per channel."""
    if array is None:
        return None
    full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    sizes: tuple[int, ...] = full.shape
    varies = any(d > 1 for i, d in enumerate(sizes) if i != 1)
    return None if varies else np.broadcast_to(full.reshape(-1), (shape[1],))


# ---- softmax


def _softmax(op: Op, sem: Semantics) -> Match | None:
    """e / Σe of e = eˣ or of the differences from the largest."""
    for e, total, sign in _quotients(op):
        exp, sums = e.defined_by(EXP), _reduced(total, ops.ReduceSum)
        if sign > 0 or exp is None or sums is None or len(sums.axes) != 1 or not _same(sums.x, e):
            continue
        x, parts = _undiminished(exp.x, tuple(sums.axes))
        return Match(ops.Softmax, x, op, (*parts, exp, sums), {"axis": sums.axes[0]})
    return None


def _log_softmax(op: Op, sem: Semantics) -> Match | None:
    """d − log Σ eᵈ, where d is x or its difference from the largest; or log(softmax x)."""
    if isinstance(op, LOG):
        softmax = op.x.defined_by(ops.Softmax)
        return None if softmax is None else Match(ops.LogSoftmax, softmax.x, op, (softmax,), {"axis": softmax.axis})
    log = op.rhs.defined_by(LOG) if isinstance(op, ops.Sub) and is_default_clip(op) else None
    sums = None if log is None else _reduced(log.x, ops.ReduceSum)
    exp = None if sums is None else sums.x.defined_by(EXP)
    if log is None or sums is None or exp is None or len(sums.axes) != 1 or not _same(exp.x, op.operands[0]):
        return None
    x, parts = _undiminished(exp.x, tuple(sums.axes))
    return Match(ops.LogSoftmax, x, op, (*parts, exp, sums, log), {"axis": sums.axes[0]})


def _undiminished(d: Value, axes: tuple[int, ...]) -> tuple[Value, tuple[Op, ...]]:
    """(x, the ops in between) of d = x − max x, or d itself."""
    difference = d.defined_by(ops.Sub)
    largest = None if difference is None else _reduced(difference.rhs, ops.ReduceMax)
    if difference is None or largest is None or tuple(largest.axes) != axes or not _same(largest.x, difference.lhs):
        return d, ()
    return difference.lhs, (largest, difference)


NORMS = (_norm, _group_norm)
RULES = (*NORMS, _softmax, _log_softmax)
