"""Computes at compile time what depends on constants alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir.builder import make_op
from hbc.ir.core import Module, Op
from hbc.ir.interpreter import evaluate
from hbc.ir.location import fuse
from hbc.ir.ops import CALLS, Const, Dequantize

from .base import Pass, Target
from .matching import const_value


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate ops whose operands are all constants, by their references under the target's arithmetic.

        %w = const f32                          %q = const i8, q<0.1:0>
        %q = quantize %w : i8, q<0.1:0>    →    %d = dequantize %q
        %d = dequantize %q

    A `dequantize` of a constant stays, so that its integers reach the quantised op that it feeds; a `call` is ONNX
    Runtime's. A result of more than `max_bytes` bytes is left to be computed at run time.
    """

    name: ClassVar[str] = "fold-constants"
    absorbs: ClassVar[str] = "its operands are constants, and so is its result"
    max_bytes: int = 64 << 20

    def run(self, module: Module, target: Target) -> int:
        graph = module.graph
        body: list[Op] = []
        folded = 0
        for op in graph.ops:
            if not self.folds(op):
                body.append(op)
                continue
            arrays = [const_value(v) for v in op.operands]
            constants = [_constant(op, array, i) for i, array in enumerate(evaluate(op, target.semantics, arrays))]
            for old, new in zip(op.results, constants, strict=True):
                graph.replace_uses(old, new.out)
            op.drop_operands()
            body.extend(constants)
            folded += 1
        graph.ops = body
        return folded

    def folds(self, op: Op) -> bool:
        """True for an op of constants that may be computed here."""
        if isinstance(op, (Const, *CALLS, Dequantize)) or not op.operands:
            return False
        if not all(v is None or isinstance(v.owner, Const) for v in op.operands):
            return False
        return sum(r.type.nbytes for r in op.results) <= self.max_bytes


def _constant(op: Op, array: np.ndarray, index: int) -> Const:
    """Result `index` of `op` as a constant, located at the op and what made its operands."""
    old = op.results[index]
    sources = [v.op.loc for v in op.operands if v is not None and v.op is not None]
    new = make_op(Const, [], {"value": np.asarray(array, order="C")}, fuse([*sources, op.loc]), [old.type], [old.name])
    new.placement = op.placement
    return new
