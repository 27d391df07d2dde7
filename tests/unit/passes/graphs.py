"""Small graphs for pass tests: a target that asks nothing, makers, and a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module, Op, Placement, Value
from hbc.ir.interpreter import interpret
from hbc.ir.location import NodeLoc
from hbc.ir.ops import BPU_OPS, Const
from hbc.ir.rewriter import Rewriter
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc.ir.verifier import verify
from hbc.passes.base import Pass
from hbc_runtime import isa

BPU = Placement("bpu")
NASH = Semantics()


@dataclass(frozen=True)
class PlainTarget:
    """Everything is legal, nothing is lowered."""

    semantics: Semantics

    def legal(self, op: Op) -> Rejection | None:
        return None

    def lower(self, op: Op, rw: Rewriter) -> bool:
        return False


class Net:
    """A graph under construction; every op is named after its position."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.builder = Builder(self.graph)

    def arg(self, shape: tuple[int, ...], dtype: DType = DType.F32, quant: Quant | None = None) -> Value:
        return self.graph.add_arg(f"in{len(self.graph.args)}", TensorType(shape, dtype, quant))

    def const(self, value: Any, quant: Quant | None = None) -> Value:
        array = np.asarray(value)
        return self.op(Const, type=TensorType(array.shape, DType.of(array.dtype), quant), value=array)

    def op(self, cls: type[Op], *operands: Value | None, type: TensorType | None = None, **attrs: object) -> Value:  # noqa: A002
        loc = NodeLoc(f"node{len(self.graph.ops)}", cls.NAME)
        return self.builder.op(cls, *operands, loc=loc, type=type, **attrs).results[0]

    def bpu(
        self,
        instruction: type[isa.Instruction],
        *operands: Value | None,
        type: TensorType,  # noqa: A002 - the word of the IR
        **attrs: object,
    ) -> Value:
        out = self.op(BPU_OPS[instruction], *operands, type=type, **attrs)
        assert out.op is not None
        out.op.placement = BPU
        return out

    def output(self, *values: Value) -> None:
        for value in values:
            self.graph.add_output(f"out{len(self.graph.outputs)}", value)

    @property
    def names(self) -> list[str]:
        return [op.NAME for op in self.graph.ops]


def apply(pass_: Pass, net: Net, semantics: Semantics = NASH) -> int:
    """Run a pass, then verify."""
    module = Module(net.graph, march=semantics.march, arith=semantics.arith)
    changes = pass_.run(module, PlainTarget(semantics))
    verify(module)
    return changes


def run(graph: Graph, inputs: list[np.ndarray], semantics: Semantics = NASH) -> list[np.ndarray]:
    """The outputs by the interpreter."""
    module = Module(graph, march=semantics.march, arith=semantics.arith)
    outputs = interpret(module, {str(a.name): x for a, x in zip(graph.args, inputs, strict=True)})
    return [outputs[o.name] for o in graph.outputs]


def random_inputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Values over the whole range of every argument's dtype (floats: normal)."""
    rng = np.random.default_rng(seed)
    return [random_array(rng, a.type) for a in graph.args]


def random_array(rng: np.random.Generator, t: TensorType) -> np.ndarray:
    if t.dtype.is_integer:
        lo, hi = t.dtype.limits
        return rng.integers(lo, hi, t.shape, t.dtype.numpy, endpoint=True)
    return rng.normal(size=t.shape).astype(t.dtype.numpy)
