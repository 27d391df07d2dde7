"""The one door through which passes change a graph: uses stay right, locations fuse."""

from __future__ import annotations

from typing import TypeVar

from .builder import make_op
from .core import Graph, Op, Remark, Value
from .location import Loc, fuse, node_names
from .types import TensorType

OpT = TypeVar("OpT", bound=Op)


class Rewriter:
    """Inserts new ops before `anchor` and replaces values. `changes` counts replacements.

    Dead ops are left for `dce` unless erased here. Create one per rewrite site: `Rewriter(graph, op)`.
    """

    def __init__(self, graph: Graph, anchor: Op) -> None:
        self.graph = graph
        self.anchor = anchor
        self.changes = 0

    def op(
        self,
        cls: type[OpT],
        *operands: Value | None,
        type: TensorType | None = None,  # noqa: A002
        loc: Loc | None = None,
        name: str | None = None,
        **attrs: object,
    ) -> OpT:
        """A new op before the anchor; its location is the anchor's unless given."""
        op = make_op(cls, operands, attrs, loc or self.anchor.loc, None if type is None else [type], (name,))
        self.insert(op)
        return op

    def insert(self, op: Op) -> None:
        """Put a finished op before the anchor."""
        self.graph.ops.insert(self.graph.ops.index(self.anchor), op)

    def remark(self, kind: str, detail: str, *sources: Op) -> None:
        """Tell the report what the graph won't show, at the nodes of the anchor and of `sources`."""
        nodes = node_names(fuse([self.anchor.loc, *(s.loc for s in sources)]))
        self.graph.remarks.append(Remark(kind, nodes, detail))

    def replace(self, old: Op | Value, new: Op | Value, *sources: Op) -> None:
        """Readers of `old` read `new`; `new`'s op takes the fused location of itself, `old` and `sources`.

        A new value without a name inherits the old one's.
        """
        before = old.out if isinstance(old, Op) else old
        after = new.out if isinstance(new, Op) else new
        maker = after.op
        if maker is not None:
            olds = [before.op] if before.op is not None else []
            maker.loc = fuse([s.loc for s in sources] + [maker.loc] + [o.loc for o in olds])
        if after.name is None:
            after.name = before.name
        self.graph.replace_uses(before, after)
        self.changes += 1
