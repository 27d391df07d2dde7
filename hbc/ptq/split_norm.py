"""A batch norm behind a concat goes into the products that the concat joins, one slice of channels each.

    concat(conv(x), y) → bn → relu        =        concat(relu(conv'(x)), relu(bn'(y)))

A product rounds once, with the norm in its weights; what no product makes keeps an affine of its own channels.
"""

from __future__ import annotations

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import fuse
from hbc.ir.rewriter import Rewriter
from hbc.passes.matching import const_value, is_default_clip

WEIGHTED = (ops.Conv2d, ops.ConvTranspose2d, ops.Linear)


def split_norms(module: Module) -> int:
    """Split every batch norm behind a concat of which a part is a product; returns how many there were."""
    return sum(_split(module, op) for op in module.graph.walk(ops.BatchNorm))


def _split(module: Module, op: ops.BatchNorm) -> bool:
    concat = op.x.op
    if not isinstance(concat, ops.Concat) or not op.x.has_one_use or concat.axis != 1 or not is_default_clip(op):
        return False
    multiplier, offset = const_value(op.multiplier), const_value(op.offset)
    if multiplier is None or offset is None or not any(_folds(x) for x in concat.xs):
        return False
    clip = _clip_behind(op)
    rw = Rewriter(module.graph, op)
    parts, start = [], 0
    for x in concat.xs:
        channels = slice(start, start + x.type.shape[1])
        start = channels.stop
        y = _part(rw, op, x, multiplier[channels], offset[channels])
        parts.append(y if clip is None else rw.op(ops.Clip, y, loc=clip.loc, **clip.attrs).out)
    last = clip or op
    rw.replace(last, rw.op(ops.Concat, *parts, loc=concat.loc, axis=1))
    return True


def _folds(x: Value) -> bool:
    """True for a product that nothing else reads, whose weights a factor per channel goes into."""
    maker = x.op
    if not isinstance(maker, WEIGHTED) or not x.has_one_use or x.is_output or not is_default_clip(maker):
        return False
    if isinstance(maker, ops.Linear) or (isinstance(maker, ops.ConvTranspose2d) and maker.group != 1):
        return False
    if any(v is not None for v in maker.operands[3:]):
        return False
    return all(const_value(v) is not None for v in maker.operands[1:3] if v is not None)


def _part(rw: Rewriter, op: Op, x: Value, multiplier: np.ndarray, offset: np.ndarray) -> Value:
    maker = x.op
    if not _folds(x) or maker is None:
        constants = (rw.op(ops.Const, value=a).out for a in (multiplier, offset))
        return rw.op(ops.BatchNorm, x, *constants).out
    weight, bias = (None if v is None else const_value(v) for v in maker.operands[1:3])
    assert weight is not None, maker
    axis = 1 if isinstance(maker, ops.ConvTranspose2d) else 0
    factor = multiplier.astype(np.float64)
    scaled = weight * factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    total = offset + factor * (0.0 if bias is None else bias)
    constants = (rw.op(ops.Const, value=np.asarray(a, np.float32)).out for a in (scaled, total))
    return rw.op(type(maker), maker.operands[0], *constants, loc=fuse([maker.loc, op.loc]), **maker.attrs).out


def _clip_behind(op: ops.BatchNorm) -> ops.Clip | None:
    """The clip that alone reads the batch norm."""
    users = op.out.users
    if len(users) != 1 or op.out.is_output or not isinstance(users[0], ops.Clip):
        return None
    return users[0]
