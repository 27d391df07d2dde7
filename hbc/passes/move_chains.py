"""Chains of transposes and reshapes as one rearrangement of the source's bytes.

Split every axis of the source into the atoms that no reshape of the chain cuts; then the whole chain is one order of
the atoms. In source order it moves nothing and is a reshape; else it is one transpose between two reshapes (free ones).

    %a = transpose %x {perm = [0, 3, 1, 2]}  : 1x8x4x4     (%x: 1x4x4x8, atoms 4 · 4 · 8)
    %b = reshape %a                          : 1x8x16   →   %c = reshape %x : 1x16x8
    %c = transpose %b {perm = [0, 2, 1]}     : 1x16x8
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hbc.ir.core import Op, Value
from hbc.ir.ops import BpuOp, Const
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import TensorType

Attrs = dict[str, Any]

REACH = 6  # ops above a transpose that are looked at; what canonicalize leaves behind is shorter


class Atom:
    """A run of elements along one axis of the source that stays together; compared by identity."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class Order:
    """The axes of a value of a chain, each as its atoms, outermost first; axes of size 1 have none."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.axes = [[] if d == 1 else [Atom(d)] for d in shape]
        self.source = [a for axis in self.axes for a in axis]

    def transpose(self, perm: Sequence[int]) -> None:
        self.axes = [self.axes[p] for p in perm]

    def reshape(self, shape: Sequence[int]) -> bool:
        """Regroup the atoms, cutting those that straddle; False where a cut is not whole."""
        left = [a for axis in self.axes for a in axis]
        axes: list[list[Atom]] = []
        for size in shape:
            axis: list[Atom] = []
            while size > 1:
                atom = left.pop(0)
                if atom.size > size:
                    rest = self._cut(atom, size)
                    if rest is None:
                        return False
                    left.insert(0, rest)
                if size % atom.size:
                    return False
                size //= atom.size  # noqa: PLW2901 - what of the axis is still to fill
                axis.append(atom)
            axes.append(axis)
        self.axes = axes
        return True

    def _cut(self, atom: Atom, size: int) -> Atom | None:
        """Leave the outer `size` in `atom`; returns the inner rest."""
        if atom.size % size:
            return None
        rest = Atom(atom.size // size)
        atom.size = size
        self.source.insert(self.source.index(atom) + 1, rest)
        return rest

    def blocks(self) -> list[list[int]]:
        """Source positions in the order of the result, neighbours that stayed neighbours together."""
        runs: list[list[int]] = []
        for atom in (a for axis in self.axes for a in axis):
            position = self.source.index(atom)
            if runs and runs[-1][-1] + 1 == position:
                runs[-1].append(position)
            else:
                runs.append([position])
        return runs


@dataclass(frozen=True)
class Family:
    """The transpose and reshape of one level of the IR."""

    transpose: type[Op]
    reshape: type[Op]

    def attrs(self, shape: tuple[int, ...]) -> Attrs:
        """Attributes of a reshape to `shape`; an instruction has it from its result alone."""
        return {"shape": shape} if self.reshape.ATTRS else {}


def straighten(op: Op, rw: Rewriter, family: Family) -> None:
    """Replace the transpose `op` and what is above it by a reshape, or two or more transposes by one."""
    chain = _chain(op, family)
    for start in range(len(chain)):  # the longest first
        links = chain[start:]
        source = links[0].operands[0]
        assert source is not None
        order = _order(links, source.type.shape, family)
        if order is None:
            continue
        transposes = [link for link in links if isinstance(link, family.transpose)]
        blocks = order.blocks()
        if len(blocks) <= 1:
            rw.replace(op, reshaped(rw, source, op, family), *links[:-1])
        elif len(transposes) == len(links) > 1:
            new = beside(rw, family.transpose, source, op.out.type, {"perm": _composed(links)})
            rw.replace(op, new, *links[:-1])
        elif len(transposes) > 1 and _keeps_quant(source, family):
            rw.replace(op, _rearranged(rw, source, order, blocks, op.out.type, family), *links[:-1])
        if rw.changes:
            return


def reshaped(rw: Rewriter, x: Value, op: Op, family: Family) -> Value:
    """`x` in the place of `op`: itself where its type fits and it may be read there."""
    if x.type == op.out.type and not must_copy(op, x):
        return x
    return beside(rw, family.reshape, x, op.out.type, family.attrs(op.out.type.shape))


def beside(rw: Rewriter, cls: type[Op], x: Value | None, t: TensorType, attrs: Attrs) -> Value:
    """A new op of one operand, placed where the anchor is."""
    op = rw.op(cls, x, type=t, **attrs)
    op.placement = rw.anchor.placement
    return op.out


def must_copy(op: Op, x: Value) -> bool:
    """True where an instruction fills a returned array from a constant or from another of the caller's arrays."""
    return isinstance(op, BpuOp) and op.out.is_output and (x.op is None or isinstance(x.op, Const) or x.is_output)


def _composed(links: Sequence[Op]) -> tuple[int, ...]:
    perm: Sequence[int] = range(len(links[0].attrs["perm"]))
    for link in links:
        perm = [perm[p] for p in link.attrs["perm"]]
    return tuple(perm)


def _chain(op: Op, family: Family) -> list[Op]:
    """`op` and the transposes and reshapes above it, in order."""
    chain = [op]
    while len(chain) <= REACH:
        operand = chain[0].operands[0]
        above = None if operand is None else operand.op
        if not isinstance(above, (family.transpose, family.reshape)):
            break
        chain.insert(0, above)
    return chain


def _order(links: Sequence[Op], shape: tuple[int, ...], family: Family) -> Order | None:
    if 0 in shape:
        return None
    order = Order(shape)
    for link in links:
        if isinstance(link, family.transpose):
            order.transpose(link.attrs["perm"])
        elif not order.reshape(link.out.type.shape):
            return None
    return order


def _keeps_quant(source: Value, family: Family) -> bool:
    """False for per-channel integers above the instructions: the steps between would tear their axis apart."""
    quant = source.type.quant
    return quant is None or quant.is_per_tensor or family.reshape.NAME.startswith("bpu.")


def _rearranged(
    rw: Rewriter, source: Value, order: Order, blocks: list[list[int]], t: TensorType, family: Family
) -> Value:
    """One transpose of the source's blocks, a reshape on either side where the shapes ask for it."""

    def step(cls: type[Op], x: Value, shape: tuple[int, ...], attrs: Attrs) -> Value:
        return beside(rw, cls, x, t if shape == t.shape else plain.with_shape(shape), attrs)

    plain = t if t.quant is None or t.quant.is_per_tensor else replace(t, quant=None)
    ranks = sorted(range(len(blocks)), key=lambda i: blocks[i][0])
    sizes = tuple(math.prod(order.source[p].size for p in block) for block in blocks)
    inner = tuple(sizes[i] for i in ranks)
    x = source if source.type.shape == inner else step(family.reshape, source, inner, family.attrs(inner))
    x = step(family.transpose, x, sizes, {"perm": tuple(ranks.index(i) for i in range(len(blocks)))})
    return x if sizes == t.shape else step(family.reshape, x, t.shape, family.attrs(t.shape))
