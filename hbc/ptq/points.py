"""Where a float graph is quantised: which tensors get a quantize and a dequantize, and which of them share a scale.

The rules are those of the BPU, read off what the compiler fuses (docs/passes.md):

- activations that an op on integers reads, and what such an op makes, unless one of the following holds;
- a convolution, linear or matmul whose result no op on integers reads returns its 32-bit accumulator: no quantize;
- nothing is rounded inside a fused op (convolution + addition + clip) or inside a function of one tensor (a table);
- an op that moves data has the scale of what it moves. The operands of a concat share its scale where nothing else
  reads them; a bilinear resize, a grid sample, a maximum and a minimum along axes keep their operand's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hbc.ir import ops
from hbc.ir.core import Graph, Op, Value
from hbc.ir.types import DType

from .expressions import expressions
from .split_norm import WEIGHTED

PRODUCTS = (*WEIGHTED, ops.Matmul)
SAME_SCALE = (ops.ReduceMax, ops.ReduceMin, ops.ResizeLinear, ops.GridSample)
EIGHT_BITS = (ops.ResizeLinear, ops.GridSample)  # the BPU blends i8 only
CARRIED = (ops.Move, ops.MaxPool)  # a quantize goes through them
INTEGER = (
    *PRODUCTS, *CARRIED, *SAME_SCALE, ops.Concat, ops.BatchNorm, ops.Unary, ops.Binary, ops.Composite, ops.AvgPool,
    ops.ReduceMean, ops.ReduceSum, ops.Where,
)  # fmt: skip
READERS = (ops.Comparison, ops.ArgExtremum)  # read integers, make truth values and positions


@dataclass(frozen=True)
class Plan:
    """The tensors to quantise.

    `activations`: in running order. `weights`: constants of products, by the op that reads them. `joined`: for each
    activation the first one that it shares its scale with (itself, where it stands alone). `root`: for every value that
    carries somebody's integers, whose. `tail`: activations behind the last product: nothing multiplies them again.
    `inside`: for each result of a function of one tensor, that tensor. `integer`: the ops that are to run on integers.
    """

    activations: tuple[Value, ...]
    weights: dict[Op, Value]
    joined: dict[Value, Value]
    root: dict[Value, Value]
    tail: frozenset[Value]
    inside: dict[Value, Value] = field(default_factory=dict)
    integer: frozenset[Op] = frozenset()

    def group(self, value: Value) -> tuple[Value, ...]:
        """All that share the scale of `value`."""
        first = self.joined[value]
        return tuple(v for v in self.activations if self.joined[v] is first)


def plan(graph: Graph, floats: Collection[Op] = (), unfused: Collection[Op] = ()) -> Plan:
    """What to quantise, ops `floats` staying in reals and additions `unfused` out of the convolutions before them."""
    return _Planner(graph, floats, unfused).plan()


class _Planner:
    """Walks the graph against its order: what an operand must be follows from its readers."""

    def __init__(self, graph: Graph, floats: Collection[Op], unfused: Collection[Op]) -> None:
        self.graph, self.unfused = graph, unfused
        self.integer = {op for op in graph.ops if op not in floats and on_integers(op)}
        self.leaf_of, self.clips = expressions(graph, {op for op in graph.ops if op not in self.integer})
        self.order = {op: i for i, op in enumerate(graph.ops)}
        self.wanted: set[Value] = set()
        self.points: list[Value] = []
        self.added = {a.operands[i] for a in self.integer if (i := self._fused_operand(a)) is not None}

    def plan(self) -> Plan:
        for op in reversed(self.graph.ops):
            self._visit(op)
        self.points += [a for a in self.graph.args if a in self.wanted]
        consts = [c.out for c in self.graph.walk(ops.Const) if c.out in self.wanted]
        activations = (*consts, *reversed(self.points))
        weighted = (op for op in self.graph.ops if op in self.integer and isinstance(op, WEIGHTED))
        known: dict[Op, Value] = {op: op.weight for op in weighted}
        root = self._roots(activations)
        joined, tail = self._joined(activations, root), self._tail(activations)
        return Plan(activations, known, joined, root, tail, self.leaf_of, frozenset(self.integer))

    def _visit(self, op: Op) -> None:
        if isinstance(op, ops.Const):
            return
        if op not in self.integer:
            if isinstance(op, READERS):
                self._want(v for v in op.operands if v is not None and v.type.dtype is DType.F32)
            self.points += [r for r in reversed(op.results) if r in self.wanted]
            return
        result = op.out
        if isinstance(op, CARRIED):
            if result in self.wanted:
                self._want([op.operands[0]])
            return
        if isinstance(op, ops.Concat):
            if result in self.wanted:
                self.points.append(result)
                self._want(op.operands)
            return
        if self._rounds(op):
            self.points.append(result)
        self._want(self._read(op))

    def _rounds(self, op: Op) -> bool:
        """True where the op's result is rounded to integers."""
        result = op.out
        uses = [u.op for u in result.uses]
        if result in self.leaf_of:  # a function of one tensor is rounded at its end
            leaf = self.leaf_of[result]
            return not all(u is not None and u in self.integer and self.leaf_of.get(u.out) is leaf for u in uses)
        if len(uses) == 1 and uses[0] is not None and (uses[0] in self.clips or result in self.added):
            return False
        return result in self.wanted or not isinstance(op, PRODUCTS)

    def _read(self, op: Op) -> list[Value | None]:
        """The activations that the op reads as integers."""
        if op in self.clips:
            return []
        if op.out in self.leaf_of:
            leaf = self.leaf_of[op.out]
            computed = [v for v in op.operands if v is not None and not isinstance(v.op, ops.Const)]
            return [v for v in computed if self.leaf_of.get(v) is not leaf]
        if isinstance(op, (*WEIGHTED, ops.BatchNorm, ops.Composite, ops.GridSample)):
            return [op.operands[0]]
        operands = op.operands[1:] if isinstance(op, ops.Where) else op.operands
        if isinstance(op, ops.Binary):
            return [v for v in operands if v is not None and not isinstance(v.op, ops.Const) and v not in self.added]
        return list(operands)

    def _want(self, values: Iterable[Value | None]) -> None:
        self.wanted.update(v for v in values if v is not None and v.type.dtype is DType.F32)

    def _fused_operand(self, op: Op) -> int | None:
        """The operand of an addition that is the product it goes into: the later of two, as the other must be there."""
        if not isinstance(op, ops.Add) or op in self.unfused or op.out in self.leaf_of or op.lhs is op.rhs:
            return None
        fitting = []
        for index, value in enumerate((op.lhs, op.rhs)):
            maker, other = value.op, op.operands[1 - index]
            fits = isinstance(maker, ops.Conv2d | ops.Linear) and maker in self.integer and value.has_one_use
            same = other is not None and value.type.shape == op.out.type.shape == other.type.shape
            if fits and same and other is not None and not isinstance(other.op, ops.Const) and maker is not None:
                fitting.append((self.order[maker], index))
        return max(fitting)[1] if fitting else None

    # ---- who shares a scale

    def _roots(self, activations: Collection[Value]) -> dict[Value, Value]:
        """For every value that carries integers, the activation that rounded them."""
        root = {v: v for v in activations}
        for op in self.graph.ops:
            if op in self.integer and isinstance(op, CARRIED) and (x := op.operands[0]) in root and x is not None:
                root.setdefault(op.out, root[x])
        return root

    def _joined(self, activations: Collection[Value], root: dict[Value, Value]) -> dict[Value, Value]:
        parent = {v: v for v in activations}

        def first(v: Value) -> Value:
            while parent[v] is not v:
                v = parent[v]
            return v

        def join(a: Value, b: Value) -> None:
            x, y = sorted((first(a), first(b)), key=list(activations).index)
            parent[y] = x

        for op in self.graph.ops:
            if op not in self.integer or op.out not in parent:
                continue
            if isinstance(op, ops.Concat):
                for x in op.operands:
                    if x is not None and x in root and self._read_by_one(root[x], op):
                        join(root[x], op.out)
            elif isinstance(op, SAME_SCALE) and (x := op.operands[0]) is not None and x in root:
                join(root[x], op.out)
            elif isinstance(op, ops.Where):
                for x in op.operands[1:]:
                    if x is not None and x in root:
                        join(root[x], op.out)
        return {v: first(v) for v in activations}

    def _read_by_one(self, value: Value, reader: Op) -> bool:
        """True where nothing but `reader` reads the value's integers, moved or not."""
        reached = [value]
        for v in reached:
            if v.is_output:
                return False
            for user in v.users:
                if user is reader:
                    continue
                if user not in self.integer or not isinstance(user, CARRIED):
                    return False
                reached.append(user.out)
        return value.op is None or not isinstance(value.op, ops.Const)

    def _tail(self, activations: Collection[Value]) -> frozenset[Value]:
        """The activations that come from a product on integers and go to none."""
        feeds: set[Value] = set()
        for op in reversed(self.graph.ops):
            if self._multiplies(op) or any(r in feeds for r in op.results):
                feeds.update(v for v in op.operands if v is not None)
        behind: set[Value] = set()
        for op in self.graph.ops:
            if self._multiplies(op) or any(v in behind for v in op.operands):
                behind.update(op.results)
        return frozenset(v for v in activations if v in behind and v not in feeds)

    def _multiplies(self, op: Op) -> bool:
        return op in self.integer and isinstance(op, PRODUCTS)


def on_integers(op: Op) -> bool:
    """True where the op, by what it is, may run on integers: its march may still refuse it."""
    if not isinstance(op, INTEGER) or op.out.type.dtype is not DType.F32:
        return False
    operands = [v for v in op.operands if v is not None]
    if isinstance(op, WEIGHTED):
        return all(isinstance(v.op, ops.Const) for v in operands[1:3]) and operands[0].type.dtype is DType.F32
    if isinstance(op, ops.Pow):
        return any(isinstance(v.op, ops.Const) for v in operands)
    if isinstance(op, ops.Move | ops.Concat | ops.Pool | ops.Reduce | ops.Unary | ops.Binary | ops.Matmul):
        computed = any(not isinstance(v.op, ops.Const) for v in operands)
        return computed and all(v.type.dtype is DType.F32 for v in operands)
    return operands[0].type.dtype is DType.F32 or isinstance(op, ops.Where)
