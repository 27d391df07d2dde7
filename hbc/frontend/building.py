"""What every import rule builds with, whatever the format of the model: a growing graph, and a place in the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from hbc.diagnostics import BadNode, Diagnostic, FrontendError
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Op, Value
from hbc.ir.location import Loc, NodeLoc
from hbc.ir.ops import CallGraph, Const, Reinterpret
from hbc.ir.types import DType, Quant, TensorType

from .problem import problem

OpT = TypeVar("OpT", bound=Op)
LARGEST = 1 << 31  # bytes of one tensor: a whole BPU model with all its weights stays far below


class GraphScope:
    """The graph under construction, and its constants."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.graph = Graph()
        self.build = Builder(self.graph)
        self._typed: dict[tuple[str, Quant | None], Value] = {}

    def const(self, array: np.ndarray, loc: Loc, name: str | None = None, quant: Quant | None = None) -> Value:
        """A new constant of the graph; float16 and float64 become float32."""
        if array.dtype in (np.float16, np.float64):
            with np.errstate(over="ignore"):
                array = array.astype(np.float32)
        type_ = TensorType(array.shape, DType.of(array.dtype), quant)
        return self.op(Const, loc=loc, type=type_, name=name, value=array).out

    def array(self, name: str) -> np.ndarray | None:
        """The values of tensor `name` where they are known at import."""
        raise AssertionError(name)

    def typed_const(self, name: str, quant: Quant | None, array: np.ndarray | None = None) -> Value:
        """The known tensor `name` as a constant read by `quant`: one op per pair, however many nodes read it."""
        key = (name, quant)
        if key not in self._typed:
            values = self.array(name) if array is None else array
            assert values is not None, name
            loc = NodeLoc(name, "Initializer", self.file)
            self._typed[key] = self.const(values, loc, name, quant)
        return self._typed[key]

    def stripped(self, value: Value, loc: Loc) -> Value:
        """`value` as plain numbers: integers lose what they stand for."""
        if value.type.quant is None:
            return value
        return self.op(Reinterpret, value, loc=loc, type=TensorType(value.type.shape, value.type.dtype)).out

    def op(
        self,
        cls: type[OpT],
        *operands: Value | None,
        loc: Loc,
        type: TensorType | None = None,  # noqa: A002 - the word of the IR
        types: Sequence[TensorType] | None = None,
        name: str | None = None,
        **attrs: Any,
    ) -> OpT:
        """A new op at the end. VerifyError where it breaks a constraint, ValueError where a result is too large."""
        op = self.build.op(cls, *operands, loc=loc, type=type, types=types, name=name, **attrs)
        op.verify()
        for result in op.results:
            if isinstance(op, CallGraph) and result.type.is_dynamic:
                continue
            if min(result.type.shape, default=0) < 0 or result.type.nbytes > LARGEST:
                msg = f"a result of shape {list(result.type.shape)} ({result.type.nbytes} bytes) is beyond 2 GiB"
                raise ValueError(msg)
        return op


class Building:
    """One node during the walk. Rules build ops through it, so that every op has the node's location."""

    scope: GraphScope
    loc: NodeLoc

    @property
    def where(self) -> str:
        """The node as messages name it."""
        raise AssertionError(self.loc)

    def fail(self, what: str, why: str = "", hint: str = "", kind: type[Diagnostic] = BadNode) -> FrontendError:
        """A FrontendError at this node; `kind` gives the code."""
        return problem(what, where=self.where, why=why, hint=hint, kind=kind)

    def op(self, cls: type[Op], *operands: Value | None, type: TensorType | None = None, **attrs: Any) -> Value:  # noqa: A002
        """A new op with this node's location; returns its only result."""
        return self.scope.op(cls, *operands, loc=self.loc, type=type, **attrs).out

    def const(self, array: np.ndarray) -> Value:
        """A new constant that this node implies."""
        return self.scope.const(np.asarray(array), self.loc)

    def stripped(self, value: Value) -> Value:
        """`value` as plain numbers."""
        return self.scope.stripped(value, self.loc)
