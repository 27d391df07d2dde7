"""Values, ops, graphs, modules: typed SSA with use lists.

Ops change only through `Op.set_operand`, `Graph` and `Rewriter`, which keep the uses right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hbc.diagnostics import VerifyError

from .location import Loc, NodeLoc, node_names
from .types import TensorType

if TYPE_CHECKING:
    import numpy as np

    from .define import AttrSpec, OperandSpec
    from .semantics import Semantics

OpT = TypeVar("OpT", bound="Op")


class Value:
    """One SSA value: the result of an op, or an argument of a graph.

    `name` is a hint for the text and reports (the user's tensor name where there is one). `offset` is the value's
    place in the arena once memory is planned.
    """

    __slots__ = ("index", "name", "offset", "owner", "type", "uses")

    def __init__(self, type_: TensorType, owner: Op | Graph, index: int, name: str | None = None) -> None:
        self.type = type_
        self.owner = owner
        self.index = index
        self.name = name
        self.offset: int | None = None
        self.uses: list[Use] = []

    @property
    def op(self) -> Op | None:
        """The op that makes this value, or None for a graph argument."""
        return self.owner if isinstance(self.owner, Op) else None

    def defined_by(self, cls: type[OpT]) -> OpT | None:
        """The defining op where it is a `cls`, else None."""
        return self.owner if isinstance(self.owner, cls) else None

    @property
    def users(self) -> list[Op]:
        """The ops that read this value, each once, in order of use; graph outputs are not among them."""
        return list(dict.fromkeys(u.op for u in self.uses if u.op is not None))

    @property
    def is_output(self) -> bool:
        """True where the graph returns this value."""
        return any(u.op is None for u in self.uses)

    @property
    def has_one_use(self) -> bool:
        """True where exactly one operand (or graph output) reads this value."""
        return len(self.uses) == 1

    def __repr__(self) -> str:
        return f"<Value {self.name or self.index} : {self.type}>"


@dataclass(frozen=True)
class Use:
    """One reading of a value: operand `index` of `op`, or output `index` of the graph where `op` is None."""

    op: Op | None
    index: int


@dataclass(frozen=True)
class Placement:
    """Where an op runs, and why.

    `device` is `bpu`, `host` (quantise, dequantise and moves at the border) or `cpu` (ONNX Runtime).
    """

    device: str
    reason: str = ""
    segment: int = 0


@dataclass(frozen=True)
class Remark:
    """What a pass did that the graph doesn't show, for the report: of which kind, and at which of the user's nodes."""

    kind: str
    nodes: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class Gone:
    """What became of a node of the user's model of which no op is left: who took it away (a pass, or `import`)."""

    by: str
    why: str


class Op:
    """Base of all ops.

    Subclasses are declared with `@define_op` (define.py); what one does with an op is a rule elsewhere.
    """

    NAME: ClassVar[str] = ""
    OPERANDS: ClassVar[tuple[OperandSpec, ...]] = ()
    ATTRS: ClassVar[tuple[AttrSpec, ...]] = ()

    def __init__(
        self,
        operands: Sequence[Value | None],
        attrs: dict[str, Any],
        loc: Loc,
    ) -> None:
        self.operands: list[Value | None] = [None] * len(operands)
        self.attrs = attrs
        self.results: list[Value] = []
        self.loc = loc
        self.placement: Placement | None = None
        for i, v in enumerate(operands):
            self.set_operand(i, v)

    # -- structure

    @property
    def out(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, self
        return self.results[0]

    @property
    def node(self) -> str:
        """The user's name for this op, for messages: its first source node."""
        return node_names(self.loc)[0]

    def set_operand(self, index: int, value: Value | None) -> None:
        """Read `value` as operand `index`, keeping both values' uses right."""
        use = Use(self, index)
        old = self.operands[index]
        if old is not None:
            old.uses.remove(use)
        self.operands[index] = value
        if value is not None:
            value.uses.append(use)

    def drop_operands(self) -> None:
        """Stop reading every operand (before the op is erased)."""
        for i in range(len(self.operands)):
            self.set_operand(i, None)

    def require(self, ok: bool, code: str, message: str) -> None:  # noqa: FBT001
        """VerifyError on this op, quoting the constraint's number, unless `ok`."""
        if not ok:
            raise VerifyError(op=self.NAME, node=self.node, constraint=code, message=message)

    # -- interpretation: overridden by op classes

    def infer(self) -> Sequence[TensorType]:
        """The result types that operands and attributes imply.

        The quantisation of a result may be anything a rewrite sets.
        """
        raise AssertionError(self.NAME)

    def verify(self) -> None:
        """Raise VerifyError (through `require`) where a numbered constraint of the class docstring is broken."""

    def reference(self, sem: Semantics, *operands: np.ndarray | None) -> Sequence[np.ndarray]:
        """Exact NumPy evaluation: floats in float32 (float64 inside), integers by NUMERICS under `sem`."""
        raise AssertionError(self.NAME)

    def __repr__(self) -> str:
        return f"<{self.NAME} {self.node!r}>"


@dataclass
class Output:
    """One result of a graph, under the user's name."""

    name: str
    value: Value


class Graph:
    """Arguments, ops in an order in which every operand is defined before it is used, and named outputs."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.args: list[Value] = []
        self.ops: list[Op] = []
        self.outputs: list[Output] = []
        self.arena_size: int | None = None
        self.remarks: list[Remark] = []

    def add_arg(self, name: str, type_: TensorType) -> Value:
        """A new argument; its name is the user's input name."""
        value = Value(type_, self, len(self.args), name)
        self.args.append(value)
        return value

    def add_output(self, name: str, value: Value) -> None:
        """Return `value` under the user's name."""
        value.uses.append(Use(None, len(self.outputs)))
        self.outputs.append(Output(name, value))

    def set_output(self, index: int, value: Value) -> None:
        """Return `value` as output `index` instead of what is returned there now."""
        use = Use(None, index)
        self.outputs[index].value.uses.remove(use)
        self.outputs[index].value = value
        value.uses.append(use)

    def replace_uses(self, old: Value, new: Value, *, keep: Op | None = None) -> None:
        """Let every reader of `old` (operands and outputs, but not `keep`) read `new`."""
        for use in list(old.uses):
            if use.op is None:
                self.set_output(use.index, new)
            elif use.op is not keep:
                use.op.set_operand(use.index, new)

    def walk(self, cls: type[OpT]) -> Iterator[OpT]:
        """The ops of class `cls`, in order, over a copy of the list (so that the body may rewrite)."""
        return (op for op in list(self.ops) if isinstance(op, cls))

    def erase(self, dead: Iterable[Op]) -> int:
        """Remove ops whose results nobody reads; returns how many. AssertionError where one is still read."""
        gone = set(dead)
        for op in gone:
            op.drop_operands()
        assert not any(r.uses for op in gone for r in op.results), "erasing an op that is still read"
        self.ops = [op for op in self.ops if op not in gone]
        return len(gone)


@dataclass
class Module:
    """A graph with the march and arithmetic it is compiled for."""

    graph: Graph
    name: str = "model"
    march: str = "nash-e"
    arith: str = "bpu"
    metadata: dict[str, str] = field(default_factory=dict)
    sources: tuple[NodeLoc, ...] = ()  # every node of the user's model, in order; a module read as text names none
    gone: dict[NodeLoc, Gone] = field(default_factory=dict)  # those of `sources` of which no op is left
