"""Brings quantize and dequantize to the arithmetic that they belong to, past ops that only move elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.location import fuse
from hbc.ir.ops import (
    Concat,
    Const,
    Dequantize,
    FlipSign,
    MaxPool,
    Move,
    Pad,
    Quantize,
    ReduceMax,
    ReduceMin,
    Requantize,
)
from hbc.ir.ops.quant import FLIPPED, flip_type
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, TensorType

from .base import Pass, Target
from .constant_parts import part_of_constants
from .dce import remove_dead
from .matching import NARROW, const_value

MOVING = (Move, MaxPool)  # the largest of a window is one of its elements, and quantisation keeps the order
EXTREMA = (ReduceMax, ReduceMin)  # so it is of an axis; a dequantize of one scale sinks through them


@dataclass(frozen=True)
class PropagateQdq(Pass):
    """Move dequantizes down and quantizes up through moves and max pools; where the two meet they are one op or none.

        %a = dequantize %x                       %a = reshape %x : i8
        %b = reshape %a                      →   %b = dequantize %a
        %c = linear %b, %w                       %c = linear %b, %w

        %a = conv2d %x, %w                       %a = conv2d %x, %w
        %b = max_pool %a                     →   %b = quantize %a : i8
        %c = quantize %b : i8                    %c = max_pool %b : i8

    A dequantize of constants takes the moved constants, per-channel scales follow their axis, and an op that tears the
    axis apart keeps its place; constants may be cut and joined along it. A pad moves only where its border is exactly
    one of the integers. The largest or smallest of an axis is one of its integers, too: a dequantize of one scale moves
    down. A concat of one quantisation moves where no quantize follows it (else it is `fold-qdq`'s). A
    quantize that meets a dequantize is nothing (equal types), a flip_sign, or a requantize. `cse` behind it merges what
    several readers got.
    """

    name: ClassVar[str] = "propagate-qdq"
    absorbs: ClassVar[str] = "it quantises what is quantised so already"
    changes_numerics: ClassVar[bool] = True  # a requantize rounds once, where dequantize and quantize rounded twice

    def run(self, module: Module, target: Target) -> int:
        graph = module.graph
        changes = sink_dequantizes(graph, target.semantics, concats=False)
        changes += hoist_quantizes(graph)
        changes += sink_dequantizes(graph, target.semantics, concats=True)
        changes += join(graph, target.semantics)
        remove_dead(graph)
        return changes


# ---- down


def sink_dequantizes(graph: Graph, sem: Semantics, *, concats: bool) -> int:
    """One walk in order, so that a dequantize falls through a whole chain; returns the number of moves."""
    body: list[Op] = []
    changes = 0
    for op in graph.ops:
        below = _below(op, sem, concats=concats)
        if below is None:
            body.append(op)
            continue
        body.extend(below)
        below[-1].out.name = op.out.name
        graph.replace_uses(op.out, below[-1].out)
        op.drop_operands()
        changes += 1
    graph.ops = body
    remove_dead(graph)  # the dequantizes above; else what they read would seem to have one reader more
    return changes


def _below(op: Op, sem: Semantics, *, concats: bool) -> list[Op] | None:
    """What `op` of dequantized operands becomes: the op on integers, then a dequantize."""
    if not isinstance(op, (*MOVING, *EXTREMA, Concat)) or (isinstance(op, Concat) and not concats):
        return None
    makers = [None if v is None else v.defined_by(Dequantize) for v in op.operands]
    dequantizes = [d for d in makers if d is not None]
    if len(dequantizes) < len(makers):
        return None
    constants = [c for d in dequantizes if (c := d.x.defined_by(Const)) is not None]
    part = part_of_constants(op, constants) if len(constants) == len(dequantizes) else None
    if part is not None:
        return [part, make_op(Dequantize, [part.out], {}, dequantizes[0].loc)]
    t = _concat_type(op, dequantizes) if isinstance(op, Concat) else _moved_type(op, dequantizes[0].x.type)
    if t is None:
        return None
    moved: Op = make_op(type(op), [d.x for d in dequantizes], op.attrs, op.loc, [t])
    constant = dequantizes[0].x.defined_by(Const)
    if isinstance(op, Move) and constant is not None:
        (value,) = moved.reference(sem, constant.value)
        moved.drop_operands()
        moved = make_op(Const, [], {"value": np.asarray(value)}, fuse([constant.loc, op.loc]), [t], [constant.out.name])
    return [moved, make_op(Dequantize, [moved.out], {}, dequantizes[0].loc)]


def _moved_type(op: Op, t: TensorType) -> TensorType | None:
    """The type of a move or max pool of integers of type `t`; None where it has to stay among reals."""
    assert t.quant is not None
    quant, shape = t.quant, op.out.type.shape
    if isinstance(op, Move):
        try:
            quant = op.quant_image(t.quant) or quant
        except ValueError:
            return None
        if quant.axis is not None and shape[quant.axis] != len(quant.scale):
            return None
    if isinstance(op, MaxPool) and not keeps_order(t):
        return None
    if isinstance(op, EXTREMA) and not (keeps_order(t) and quant.is_per_tensor):
        return None
    if isinstance(op, Pad) and not border_is_exact(op, t):
        return None
    return TensorType(shape, t.dtype, quant)


def _concat_type(op: Concat, dequantizes: list[Dequantize]) -> TensorType | None:
    kinds = {(d.x.type.dtype, d.x.type.quant) for d in dequantizes}
    followed = any(isinstance(user, Quantize) for user in op.out.users)
    if len(kinds) > 1 or followed:
        return None
    ((dtype, quant),) = kinds
    return None if quant is None or quant.axis == op.axis else TensorType(op.out.type.shape, dtype, quant)


def keeps_order(t: TensorType) -> bool:
    """True for narrow integers that are ordered as their reals, channel by channel: a maximum is one in both."""
    return t.dtype in NARROW and t.quant is not None and t.quant.axis in {None, 0, 1} and min(t.quant.scale) > 0


def border_is_exact(pad: Pad, t: TensorType, *, narrow: bool = False) -> bool:
    """True where the border's real number is exactly one integer of type `t`, the same in every channel."""
    quant = t.quant
    assert quant is not None
    lo, hi = t.dtype.limits
    zero = quant.zero_point[0]
    if not quant.is_per_tensor:
        return pad.value == 0 and len(set(quant.zero_point)) == 1
    if not math.isfinite(pad.value):
        return False
    steps = round(pad.value / quant.scale[0])
    inside = lo + int(narrow) <= steps + zero <= hi
    return inside and np.float32(steps) * np.float32(quant.scale[0]) == np.float32(pad.value)


# ---- up


def hoist_quantizes(graph: Graph) -> int:
    """Every per-tensor quantize climbs the moves above it that only it reads; returns the number of moves.

    Equal quantizes that arrive at one value (behind a split) become one, which may climb on: hence the rounds.
    """
    changes = 0
    while hoisted := _hoist_round(graph):
        changes += hoisted
    return changes


def _hoist_round(graph: Graph) -> int:
    hoist = _Hoist(graph)
    for quantize in reversed(list(graph.walk(Quantize))):
        chain = _chain_above(quantize)
        if chain:
            hoist.climb(quantize, chain)
    return hoist.finish()


def _chain_above(quantize: Quantize) -> list[Op]:
    """The moves that `quantize` can pass, nearest first."""
    chain: list[Op] = []
    value = quantize.x
    t = quantize.out.type
    while isinstance(value.owner, MOVING) and value.has_one_use and t.quant is not None and t.quant.is_per_tensor:
        op = value.owner
        source: Value = op.x
        if isinstance(source.owner, (Dequantize, Const)) or (isinstance(op, MaxPool) and not keeps_order(t)):
            break
        if isinstance(op, Pad) and not border_is_exact(op, t, narrow=quantize.narrow):
            break
        takes_part = isinstance(op, Move) and op.out.type.elements < source.type.elements
        if takes_part and not source.has_one_use and not _siblings_agree(source, quantize):
            break  # the whole would be quantised for the sake of a part
        chain.append(op)
        value = source
    return chain


def _siblings_agree(source: Value, quantize: Quantize) -> bool:
    """True where every reader of `source` leads to an equal quantize, as behind a split."""
    return not source.is_output and all(_kind(_quantize_below(user)) == _kind(quantize) for user in source.users)


def _quantize_below(op: Op) -> Op | None:
    """The first op at the end of a chain of moves that nobody else reads."""
    while isinstance(op, MOVING) and op.out.has_one_use and op.out.users:
        (op,) = op.out.users
    return op


def _kind(op: Op | None) -> object:
    return (op.out.type.dtype, op.out.type.quant, op.narrow) if isinstance(op, Quantize) else None


class _Hoist:
    """One round: what stands where at its end."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.instead: dict[Op, list[Op]] = {}
        self.after: dict[Op | None, list[Op]] = {}  # None: before the first op
        self.made: dict[object, Op] = {}
        self.changes = 0

    def climb(self, quantize: Quantize, chain: list[Op]) -> None:
        """Quantize what the top of `chain` reads, and re-create the chain on integers."""
        dtype, quant = quantize.out.type.dtype, quantize.out.type.quant
        new = self.quantized(chain[-1].operands[0], quantize)
        for op in reversed(chain):
            new = make_op(type(op), [new.out], op.attrs, op.loc, [TensorType(op.out.type.shape, dtype, quant)])
            self.instead[op] = [new]
        new.out.name = quantize.out.name
        self.graph.replace_uses(quantize.out, new.out)
        self.instead[quantize] = []
        for op in (quantize, *chain):
            op.drop_operands()
        self.changes += len(chain)

    def quantized(self, value: Value | None, like: Quantize) -> Op:
        """`value` quantised as `like` does, right behind the op that makes it."""
        assert value is not None
        key = value, _kind(like)
        if key not in self.made:
            t = TensorType(value.type.shape, like.out.type.dtype, like.out.type.quant)
            self.made[key] = make_op(Quantize, [value], like.attrs, like.loc, [t])
            self.after.setdefault(value.op, []).append(self.made[key])
        else:
            self.made[key].loc = fuse([self.made[key].loc, like.loc])
        return self.made[key]

    def finish(self) -> int:
        body = list(self.after.get(None, []))
        for op in self.graph.ops:
            body += self.instead.get(op, [op])
            body += self.after.get(op, [])
        self.graph.ops = body
        return self.changes


# ---- where they meet


def join(graph: Graph, sem: Semantics) -> int:
    """quantize(dequantize(x)) → x, flip_sign(x), requantize(x), or a constant; returns how many."""
    body: list[Op] = []
    changes = 0
    for op in graph.ops:
        source = op.x.defined_by(Dequantize) if isinstance(op, Quantize) else None
        joined = None if source is None or not isinstance(op, Quantize) else joint(op, source, sem)
        if joined is None:
            body.append(op)
            continue
        if isinstance(joined, Op):
            body.append(joined)
        Rewriter(graph, op).replace(op, joined)
        op.drop_operands()
        changes += 1
    graph.ops = body
    return changes


def joint(op: Quantize, source: Dequantize, sem: Semantics) -> Value | Op | None:
    """What `op` of the reals of `source` is in integers; None where no op says it."""
    x, t = source.x, op.out.type
    if op.narrow:
        return None
    if x.type == t and t.dtype in NARROW:  # wider integers may not survive float32
        return x
    value = const_value(x)
    if value is not None:
        folded = np.asarray(op.reference(sem, source.reference(sem, value)[0])[0])
        return make_op(Const, [], {"value": folded}, op.loc, [t], [op.out.name])
    if x.type.dtype in FLIPPED and flip_type(x.type) == t:
        return make_op(FlipSign, [x], {}, source.loc, [t])
    if any(q is None or q.axis is not None for q in (x.type.quant, t.quant)):
        return None
    if x.type.dtype not in {*NARROW, DType.I32} or t.dtype not in NARROW:
        return None
    return make_op(Requantize, [x], {}, source.loc, [t])
