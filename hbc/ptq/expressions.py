"""Which elementwise ops are functions of one tensor: the compiler makes one table of each, so nothing inside rounds."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Graph, Op, Value
from hbc.ir.types import DType
from hbc.passes.fuse_conv import CLIPPABLE
from hbc.passes.lower_to_lut import LONGEST
from hbc.passes.matching import const_value


def goes_into_maker(inside: dict[Value, Value], op: Op) -> bool:
    """True where `op` is a clip that goes into the op that makes its operand."""
    if not isinstance(op, ops.Clip):
        return False
    maker = op.x.op
    return isinstance(maker, CLIPPABLE) and op.x.has_one_use and op.x not in inside


def expressions(graph: Graph, floats: Collection[Op]) -> tuple[dict[Value, Value], set[Op]]:
    """For each result of a function of one tensor, that tensor; and the clips that go into another op instead.

    `floats`: ops that stay in reals; what they make is a tensor like any other.
    """
    leaf_of: dict[Value, Value] = {}
    size: dict[Value, int] = {}
    clips: set[Op] = set()
    for op in graph.ops:
        if op in floats or not isinstance(op, ops.Unary | ops.Binary) or op.out.type.dtype is not DType.F32:
            continue
        if goes_into_maker(leaf_of, op) and op.operands[0] is not None and op.operands[0].op not in floats:
            clips.add(op)
            continue
        computed = [v for v in op.operands if v is not None and not _is_scalar(v)]
        leaves = {leaf_of.get(v, v) for v in computed}
        steps = 1 + sum(size.get(v, 0) for v in set(computed))
        leaf = leaves.pop() if len(leaves) == 1 else None
        if leaf is None or const_value(leaf) is not None or steps > LONGEST or leaf.type.shape != op.out.type.shape:
            continue
        leaf_of[op.out], size[op.out] = leaf, steps
    return leaf_of, clips


def _is_scalar(value: Value) -> bool:
    """True for a constant that holds one number, however often."""
    constant = const_value(value)
    return constant is not None and constant.size > 0 and bool(np.all(constant == constant.reshape(-1)[0]))
