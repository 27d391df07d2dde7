"""Sums of sums: constants of every shape and size, and the nodes that the additions stand for."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.ir import ops
from hbc.ir.core import Module
from hbc.ir.interpreter import interpret
from hbc.ir.location import node_names
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.dce import Dce
from hbc.passes.fold_qdq import FoldQdq
from hbc.passes.lower_to_add import LowerToAdd

from .graphs import Net, apply

TENTH = Quant.per_tensor(0.1)
I8 = TensorType((4,), DType.I8, TENTH)
Q = np.array([1, 2, 3, -128], np.int8)


def net_of(*constants: object, factor: float | None = None) -> Net:
    """quantize((x + y + constant …) · factor) of two i8 tensors."""
    net = Net()
    reals = [net.op(ops.Dequantize, net.arg((4,), DType.I8, TENTH)) for _ in range(2)]
    total = net.op(ops.Add, *reals)
    for constant in constants:
        total = net.op(ops.Add, total, net.const(np.asarray(constant, np.float32)))
    if factor is not None:
        total = net.op(ops.Mul, total, net.const(np.asarray(factor, np.float32)))
    net.output(net.op(ops.Quantize, total, type=I8))
    return net


def run(net: Net) -> np.ndarray:
    return interpret(Module(net.graph), {"in0": Q, "in1": Q[::-1].copy()})["out0"]


@pytest.mark.parametrize("constant", [0.5, [0.5], [0.5, 0.0, 0.0, -0.5], [1e-42, 0.0, 0.0, 0.0]])
def test_a_constant_of_any_shape_and_size_is_added(constant: object) -> None:
    net = net_of(constant)
    want = run(net_of(constant))
    apply(LowerToAdd(), net)
    apply(Dce(), net)
    assert np.abs(run(net).astype(int) - want).max() <= 1


@pytest.mark.parametrize("op", [ops.Add, ops.Mul])
def test_a_constant_too_small_to_have_a_scale_is_nothing(op: type[ops.Binary]) -> None:
    net = Net()
    x = net.op(ops.Dequantize, net.arg((4,), DType.I8, TENTH))
    y = net.op(op, x, net.const(np.array([1e-42, 0, 1e-45, 0], np.float32)))
    net.output(net.op(ops.Quantize, y, type=I8))
    apply(FoldQdq(), net)
    apply(Dce(), net)
    assert "dequantize" not in net.names
    got = interpret(Module(net.graph), {"in0": Q})["out0"]
    assert np.array_equal(got, Q if op is ops.Add else np.zeros(4, np.int8))


def test_a_factor_that_leaves_float32_no_scale_stays_in_reals() -> None:
    net = net_of(0.5, factor=1e-42)
    assert apply(LowerToAdd(), net) == 0


def test_additions_carry_the_nodes_of_every_sum_that_they_stand_for() -> None:
    net = net_of(0.5, factor=0.5)
    sources = {op.node for op in net.graph.ops if isinstance(op, (ops.Add, ops.Mul, ops.Quantize))}
    apply(LowerToAdd(), net)
    apply(Dce(), net)
    assert {name for op in net.graph.ops if not isinstance(op, ops.Const) for name in node_names(op.loc)} == sources
