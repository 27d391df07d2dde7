"""Rewrite rules: typed functions over one op, run until none of them has anything to do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.rewriter import Rewriter

OpT = TypeVar("OpT", bound=Op)
STEPS_PER_OP = 50  # of the default budget: far above what rules that end need


@dataclass(frozen=True)
class Rule(Generic[OpT]):
    """`apply(op, rw)` for ops of `op_class` and its subclasses; it returns where it has nothing to do."""

    op_class: type[OpT]
    apply: Callable[[OpT, Rewriter], None]

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.apply, "__name__", repr(self.apply))


def rewrite(op_class: type[OpT]) -> Callable[[Callable[[OpT, Rewriter], None]], Rule[OpT]]:
    """Make a rule of a function.

        @rewrite(Clip)
        def merge_clips(op: Clip, rw: Rewriter) -> None:
            before = op.x.defined_by(Clip)
            if before is None:
                return
            low, high = max(op.low, before.low), min(op.high, before.high)
            rw.replace(op, rw.op(Clip, before.x, low=low, high=high, type=op.out.type), before)

    A rule that changes something without `rw.replace` (an attribute, an operand) says so by `rw.changes += 1`.
    """
    return lambda apply: Rule(op_class, apply)


def apply_rules(module: Module, rules: Sequence[Rule[Op]], budget: int | None = None) -> int:
    """Apply `rules` to every op until nothing changes; returns the number of changes.

    Ops are visited in order, then again when an op beside them changed; the rules that fit an op in the order given.
    An op that a change leaves without readers is erased, and so are the ops that only it read.
    AssertionError after `budget` changes (50 for each op by default): the rules undo each other.
    """
    return _Driver(module.graph, rules, budget).run()


class _Tracker(Rewriter):
    """A rewriter that remembers which ops a rule made and whose readers it changed."""

    def __init__(self, graph: Graph, anchor: Op) -> None:
        super().__init__(graph, anchor)
        self.touched: list[Op] = []

    def insert(self, op: Op) -> None:
        super().insert(op)
        self.touched.append(op)

    def replace(self, old: Op | Value, new: Op | Value, *sources: Op) -> None:
        super().replace(old, new, *sources)
        value = new.out if isinstance(new, Op) else new
        self.touched += value.users
        if value.op is not None:
            self.touched.append(value.op)


class _Driver:
    def __init__(self, graph: Graph, rules: Sequence[Rule[Op]], budget: int | None) -> None:
        self.graph = graph
        self.rules = rules
        self.budget = STEPS_PER_OP * (len(graph.ops) + 20) if budget is None else budget
        self.fitting: dict[type[Op], list[Rule[Op]]] = {}
        self.waiting: deque[Op] = deque(graph.ops)
        self.queued = set(graph.ops)
        self.erased: set[Op] = set()
        self.fired: Counter[str] = Counter()

    def run(self) -> int:
        while self.waiting:
            op = self.waiting.popleft()
            self.queued.discard(op)
            if op not in self.erased and not _is_dead(op):
                self.visit(op)
        return self.fired.total()

    def visit(self, op: Op) -> None:
        for rule in self.rules_for(type(op)):
            makers = _makers(op)
            rw = _Tracker(self.graph, op)
            rule.apply(op, rw)
            if not rw.changes:
                continue
            self.count(rule, rw.changes)
            dying = [op, *makers, *rw.touched]
            self.enqueue([*rw.touched, *makers, *_makers(op), op, *(u for r in op.results for u in r.users)])
            self.erase_dead(dying)
            if op in self.erased:
                return

    def rules_for(self, cls: type[Op]) -> list[Rule[Op]]:
        if cls not in self.fitting:
            self.fitting[cls] = [r for r in self.rules if issubclass(cls, r.op_class)]
        return self.fitting[cls]

    def count(self, rule: Rule[Op], changes: int) -> None:
        self.fired[rule.name] += changes
        total = self.fired.total()
        assert total <= self.budget, f"rules do not come to an end: {self.fired.most_common(3)} after {total} changes"

    def enqueue(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if op not in self.queued and op not in self.erased:
                self.queued.add(op)
                self.waiting.append(op)

    def erase_dead(self, candidates: list[Op]) -> None:
        """Erase those of `candidates` that nobody reads, and what they alone read; visit the other readers again."""
        while candidates:
            op = candidates.pop()
            if op in self.erased or not _is_dead(op):
                continue
            makers = _makers(op)
            op.drop_operands()
            if op in self.graph.ops:  # the rule may have erased it itself
                self.graph.ops.remove(op)
            self.erased.add(op)
            candidates += makers
            self.enqueue([*makers, *(u for m in makers for r in m.results for u in r.users)])


def _is_dead(op: Op) -> bool:
    return not any(r.uses for r in op.results)


def _makers(op: Op) -> list[Op]:
    return [v.op for v in op.operands if v is not None and v.op is not None]
