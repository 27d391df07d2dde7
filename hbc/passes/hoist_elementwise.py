"""Brings what a convolution can take in next to it, past reshapes and transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType

from .base import Pass, Target
from .fuse_conv import CLIPPABLE
from .matching import activation_behind, real_constant

Shape = tuple[int, ...]


@dataclass(frozen=True)
class HoistElementwise(Pass):
    """A clip, batch norm or addition behind a moved product stands before the moves, where `fuse-conv` finds it.

        %a = conv2d %x, %w                                  %a = conv2d %x, %w
        %b = reshape %a {shape = [1, 8, 20]}            →   %b = clip %a {low = 0}
        %c = clip %b {low = 0}                              %c = reshape %b {shape = [1, 8, 20]}

    1-D and 3-D convolutions are 2-D ones between moves; pixel shuffles move what a convolution made. The other operand
    of an addition (a constant, or a dequantized tensor) goes through the moves backwards. Only where nobody else reads
    what is between.
    """

    name: ClassVar[str] = "hoist-elementwise"

    def run(self, module: Module, target: Target) -> int:
        changes = 0
        for op in list(module.graph.ops):
            if isinstance(op, (ops.Clip, ops.BatchNorm)):
                changes += _hoist_unary(module.graph, op)
            elif isinstance(op, ops.Add):
                changes += _hoist_add(module.graph, op, target.semantics)
        return changes


def _chain(value: Value) -> list[Op]:
    """The reshapes and transposes between `value` and the product of reals that they move, nearest first; or none."""
    chain: list[Op] = []
    while isinstance(value.op, (ops.Reshape, ops.Transpose)) and value.has_one_use:
        chain.append(value.op)
        value = value.op.x
    movable = isinstance(value.op, CLIPPABLE) and value.has_one_use and value.type.dtype is DType.F32
    return chain if movable else []


def _hoist_unary(graph: Graph, op: ops.Clip | ops.BatchNorm) -> int:
    chain = _chain(op.x)
    if not chain:
        return 0
    source = chain[-1].operands[0]
    assert source is not None
    if isinstance(op, ops.BatchNorm) and not _keeps_channels(chain, op.x.type.shape):
        return 0
    rw = Rewriter(graph, op)
    return _moved_again(rw, op, rw.op(type(op), source, *op.operands[1:], type=source.type, **op.attrs), chain)


def _keeps_channels(chain: Sequence[Op], shape: Shape) -> bool:
    """True where axis 1 behind the moves is axis 1 before them."""
    before = image_before(chain, tuple(d if i == 1 else 1 for i, d in enumerate(shape)))
    source: Shape = chain[-1].operands[0].type.shape  # type: ignore[union-attr]
    return before == tuple(d if i == 1 else 1 for i, d in enumerate(source))


def _hoist_add(graph: Graph, op: ops.Add, sem: Semantics) -> int:
    for moved, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        chain = _chain(moved)
        if not chain or moved.type.shape != op.out.type.shape:
            continue
        if activation_behind(other) is None and real_constant(other, sem) is None:
            continue
        aligned = (1,) * (moved.type.rank - other.type.rank) + other.type.shape
        if image_before(chain, aligned) is None:
            continue
        source = chain[-1].operands[0]
        assert source is not None
        rw = Rewriter(graph, op)
        added = rw.op(ops.Add, source, _moved_back(rw, other, aligned, chain), type=source.type, **op.attrs)
        return _moved_again(rw, op, added, chain)
    return 0


def _moved_back(rw: Rewriter, other: Value, aligned: Shape, chain: Sequence[Op]) -> Value:
    """`other` through the moves backwards; its axes of size 1 stay of size 1."""
    value = other if other.type.shape == aligned else rw.op(ops.Reshape, other, shape=aligned).out
    for i, move in enumerate(chain):
        shape = image_before(chain[i : i + 1], value.type.shape)
        assert shape is not None
        if isinstance(move, ops.Transpose):
            value = rw.op(ops.Transpose, value, perm=tuple(int(p) for p in np.argsort(move.perm))).out
        elif shape != value.type.shape:
            value = rw.op(ops.Reshape, value, shape=shape).out
    return value


def _moved_again(rw: Rewriter, old: Op, new: Op, chain: Sequence[Op]) -> int:
    """The moves of `chain` behind `new`, in place of `old`."""
    value = new.out
    for move in reversed(chain):
        value = rw.op(type(move), value, loc=move.loc, **move.attrs).out
    value.name = old.out.name
    rw.graph.replace_uses(old.out, value)
    return 1


def image_before(chain: Sequence[Op], shape: Shape) -> Shape | None:
    """What a tensor of `shape`, each size the moved tensor's or 1, was before the moves; None where they tear it."""
    found: Shape | None = shape
    for move in chain:
        if found is None:
            return None
        if isinstance(move, ops.Transpose):
            found = tuple(found[list(move.perm).index(i)] for i in range(len(found)))
        else:
            before: Shape = move.operands[0].type.shape  # type: ignore[union-attr]
            found = _unreshaped(before, move.out.type.shape, found)
    return found


def _unreshaped(before: Shape, after: Shape, shape: Shape) -> Shape | None:
    """`shape` (of axes of `after`, or 1) before the reshape: groups of axes with equal products go together."""
    found: list[int] = []
    for old, new in groups(before, after):
        sizes = {shape[i] == after[i] for i in new if after[i] != 1}
        if len(sizes) > 1:
            return None
        found += [before[i] if sizes == {True} else 1 for i in old]
    return tuple(found)


def groups(before: Shape, after: Shape) -> list[tuple[range, range]]:
    """The finest split of both shapes into runs of axes of equal products; one run where a size is 0."""
    if math.prod(before) == 0:
        return [(range(len(before)), range(len(after)))]
    found: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        start, first, a, b = i, j, 1, 1
        while (i, j) == (start, first) or a != b:
            if i < len(before) and (a <= b or j == len(after)):
                a, i = a * before[i], i + 1
            else:
                b, j = b * after[j], j + 1
        found.append((range(start, i), range(first, j)))
    return found
