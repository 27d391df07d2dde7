"""Making ops. A builder appends to a graph, or inserts before a given op; every op gets a location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from .core import Graph, Op, Value
from .define import bind_attrs, bind_operands
from .location import Loc
from .types import TensorType

OpT = TypeVar("OpT", bound=Op)


def make_op(
    cls: type[OpT],
    operands: Sequence[Value | None],
    attrs: Mapping[str, object],
    loc: Loc,
    types: Sequence[TensorType] | None = None,
    names: Sequence[str | None] = (),
) -> OpT:
    """An op with its results, in no graph yet. Types come from `infer` where they are not given."""
    op = cls(bind_operands(cls, tuple(operands)), bind_attrs(cls, attrs), loc)
    for i, t in enumerate(op.infer() if types is None else types):
        op.results.append(Value(t, op, i, names[i] if i < len(names) else None))
    return op


class Builder:
    """Appends ops to `graph`, or inserts them at `position` (an index that moves along)."""

    def __init__(self, graph: Graph, position: int | None = None) -> None:
        self.graph = graph
        self.position = position

    def insert(self, op: OpT) -> OpT:
        """Put a finished op in place."""
        if self.position is None:
            self.graph.ops.append(op)
        else:
            self.graph.ops.insert(self.position, op)
            self.position += 1
        return op

    def op(
        self,
        cls: type[OpT],
        *operands: Value | None,
        loc: Loc,
        type: TensorType | None = None,  # noqa: A002 - the word of the IR
        types: Sequence[TensorType] | None = None,
        name: str | None = None,
        **attrs: object,
    ) -> OpT:
        """Make and insert an op: positional operands, keyword attributes; result type(s) given or inferred."""
        given = [type] if type is not None else types
        return self.insert(make_op(cls, operands, attrs, loc, given, (name,)))
