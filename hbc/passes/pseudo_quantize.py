"""A float model quantised with made-up scales: what an estimate of time needs, before anybody calibrates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Value
from hbc.ir.location import FileLoc, Loc
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import DType, Quant, TensorType

from .base import Pass, Target
from .matching import const_value

STEP = 1 / 16  # of every activation: one scale, so that joins and moves need no rescaling
UNIT_STEP = 1 / 128  # of what a softmax gives: its form in integers asks for a scale that fits [0, 1]
WEIGHT_STEP = 1 / 1024
WEIGHTED = (ops.Conv2d, ops.ConvTranspose2d, ops.Linear)
ELEMENTWISE = (ops.Unary, ops.Binary)
BORDER = (ops.Quantize, ops.Dequantize)


@dataclass(frozen=True)
class PseudoQuantize(Pass):
    """Every real tensor gets a quantize and a dequantize with a scale out of the air, every weight random integers.

                                            %k = const dense<…> : tensor<…xi8, q<axis=0, …>>
        %y = conv2d %x, %w              →   %y = conv2d %x, dequantize(%k)
                                            %z = dequantize(quantize(%y) : i8, q<0.0625>)

    Shapes and ops are those of the model that a calibration would give; numbers mean nothing. Left alone are tensors
    that are quantised already, results that a fused op keeps to itself (a convolution before its relu or its addition),
    steps inside of a function of one tensor (which becomes a table), and convolutions that are outputs (32 bits wide).
    """

    name: ClassVar[str] = "pseudo-quantize"
    changes_numerics: ClassVar[bool] = True

    def run(self, module: Module, target: Target) -> int:
        graph = module.graph
        changes = sum(_split_length(graph, op) for op in graph.walk(ops.Call))
        changes += sum(_split_division(graph, op) for op in graph.walk(ops.Div))
        inside = _inside(graph)
        body: list[Op] = []
        for arg in graph.args:
            changes += _quantized(graph, arg, FileLoc(arg.name or "input"), body, inside)
        for op in graph.ops:
            changes += _quantize_weight(op, body, changes)
            body.append(op)
            for value in op.results:
                changes += _quantized(graph, value, op.loc, body, inside)
        graph.ops = body
        return changes


def _split_division(graph: Graph, op: ops.Div) -> int:
    """a / b of two computed tensors → a · (1/b): the table and the product that a division becomes (NUMERICS 5).

    Here and not in `lower-to-mul`, which asks scales whether b may be 0, and these scales know nothing of that.
    """
    if _is_number(op.rhs) or _is_number(op.lhs):
        return 0
    rw = Rewriter(graph, op)
    inverse = rw.op(ops.PLAIN_UNARY["reciprocal"], op.rhs)
    rw.replace(op, rw.op(ops.Mul, op.lhs, inverse.out, type=op.out.type, clip=op.clip))
    graph.erase([op])
    return rw.changes


def _split_length(graph: Graph, op: ops.Call) -> int:
    """ReduceL2 → √Σx²: the product, the sum and the table that the manuals of the BPU name for it."""
    if op.op_type != "ReduceL2" or len(op.results) != 1:
        return 0
    x, shape = op.xs[0], op.out.type.shape
    if len(shape) != x.type.rank:
        return 0
    axes = tuple(i for i, (a, b) in enumerate(zip(x.type.shape, shape, strict=True)) if a != b)
    rw = Rewriter(graph, op)
    squares = rw.op(ops.Mul, x, x)
    rw.replace(op, rw.op(ops.PLAIN_UNARY["sqrt"], rw.op(ops.ReduceSum, squares.out, axes=axes).out))
    graph.erase([op])
    return rw.changes


def _quantize_weight(op: Op, body: list[Op], seed: int) -> int:
    """Integers of `seed` in place of a constant real weight; 1 where there was one.

    Each weight is drawn anew: equal ones would be merged, and an estimate of their bytes too small.
    """
    weight = op.operands[1] if isinstance(op, (*WEIGHTED, ops.Matmul)) else None
    reals = const_value(weight)
    if weight is None or weight.op is None or reals is None or reals.dtype != np.float32 or reals.ndim < 2:
        return 0
    axis = _weight_axis(op, reals.ndim)
    channels = reals.shape[axis]
    ints = np.random.default_rng(seed).integers(-127, 128, reals.shape, np.int8)
    t = TensorType(ints.shape, DType.I8, Quant((WEIGHT_STEP,) * channels, (0,) * channels, axis))
    const = make_op(ops.Const, [], {"value": ints}, weight.op.loc, [t], [weight.name])
    real = make_op(ops.Dequantize, [const.out], {}, weight.op.loc)
    body += [const, real]
    op.set_operand(1, real.out)
    return 1


def _weight_axis(op: Op, rank: int) -> int:
    """The axis of a weight's output channels."""
    if isinstance(op, ops.Matmul):
        return rank - 1
    return 1 if isinstance(op, ops.ConvTranspose2d) and op.group == 1 else 0


def _quantized(graph: Graph, value: Value, loc: Loc, body: list[Op], inside: set[Value]) -> int:
    """Readers of a real `value` read dequantize(quantize(value)); 1 where that was wanted."""
    wanted = value.type.dtype is DType.F32 and not value.type.is_dynamic and value not in inside and bool(value.uses)
    if not wanted or isinstance(value.op, (ops.Const, *BORDER)) or all(isinstance(u.op, BORDER) for u in value.uses):
        return 0
    step = UNIT_STEP if isinstance(value.op, ops.Softmax) else STEP
    t = TensorType(value.type.shape, DType.I8, Quant.per_tensor(step))
    quantize = make_op(ops.Quantize, [value], {}, loc, [t])
    real = make_op(ops.Dequantize, [quantize.out], {}, loc)
    graph.replace_uses(value, real.out, keep=quantize)
    body += [quantize, real]
    return 1


def _inside(graph: Graph) -> set[Value]:
    """Values that no buffer would hold: an op's fused with its reader, or a step of a table; and wide outputs."""
    inside: set[Value] = set()
    roots: dict[Value, Value] = {}
    for op in graph.ops:
        if isinstance(op, ELEMENTWISE):
            roots[op.out] = _root(op, roots)
        if isinstance(op, (*WEIGHTED, ops.Matmul)) and op.out.is_output:
            inside.add(op.out)
    for value, root in roots.items():
        if root is not value and not value.is_output and all(roots.get(u.out) is root for u in value.users):
            inside.add(value)
    for op in graph.ops:
        if isinstance(op, (*WEIGHTED, ops.BatchNorm, ops.Add, ops.Sub, ops.Mul)) and _fused_with_reader(op, inside):
            inside.add(op.out)
    return inside


def _root(op: Op, roots: dict[Value, Value]) -> Value:
    """The tensor that `op` is a function of, element by element; its own result where there are several."""
    real = [v for v in op.operands if v is not None and not _is_number(v)]
    found = {roots.get(v, v) for v in real}
    same = len(found) == 1 and all(v.type.shape == op.out.type.shape for v in real)
    return found.pop() if same else op.out


def _is_number(value: Value) -> bool:
    array = const_value(value)
    return array is not None and math.prod(array.shape) == 1


def _fused_with_reader(op: Op, inside: set[Value]) -> bool:
    """True where one relu, clip or (behind a convolution) addition reads the result and takes it over."""
    if not op.out.has_one_use or op.out.is_output:
        return False
    (reader,) = op.out.users
    if isinstance(reader, (ops.Clip, ops.BatchNorm)):
        return True
    if not isinstance(reader, ops.Add) or not isinstance(op, (*WEIGHTED, ops.BatchNorm)):
        return False
    other = reader.rhs if reader.lhs is op.out else reader.lhs
    return other is not op.out and other.type.shape == op.out.type.shape and other not in inside
