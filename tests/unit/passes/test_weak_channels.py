"""Channels with next to no weights keep their bias."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.backend.bpu.target import Target
from hbc.ir import ops
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module
from hbc.ir.interpreter import interpret
from hbc.ir.location import NodeLoc
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.fold_qdq import FoldQdq
from hbc.passes.widen_outputs import WidenOutputs

from .graphs import Net

BIAS = np.float32([0.5, -0.25, 3.0, 0.0])
SCALES = (0.01, 1e-20, 1e-11, 1e-30)


def linear(*, quantised: bool) -> Module:
    """y = x · wᵀ + BIAS, x of scale 0.05; the scales of w are SCALES; with or without a quantised result."""
    graph = Graph()
    build, loc = Builder(graph), NodeLoc("fc")
    x = graph.add_arg("x", TensorType((3, 4), DType.I8, Quant.per_tensor(0.05)))
    ints = np.random.default_rng(0).integers(-127, 128, (4, 4)).astype(np.int8)
    scales = tuple(map(float, np.float32(SCALES)))
    w = build.op(ops.Const, loc=loc, value=ints, type=TensorType((4, 4), DType.I8, Quant(scales, axis=0)))
    b = build.op(ops.Const, loc=loc, value=BIAS)
    y = build.op(ops.Linear, *(build.op(ops.Dequantize, v, loc=loc).out for v in (x, w.out)), b.out, loc=loc).out
    if quantised:
        t = TensorType((3, 4), DType.I8, Quant.per_tensor(0.1))
        y = build.op(ops.Dequantize, build.op(ops.Quantize, y, loc=loc, type=t).out, loc=loc).out
    graph.add_output("y", y)
    return Module(graph)


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
@pytest.mark.parametrize("quantised", [True, False])
def test_a_dead_channel_keeps_its_bias(quantised: bool, arith: str) -> None:
    real, folded = linear(quantised=quantised), linear(quantised=quantised)
    folded.arith = arith
    x = np.random.default_rng(1).integers(-128, 128, (3, 4)).astype(np.int8)
    assert (FoldQdq() if quantised else WidenOutputs()).run(folded, Target("nash-e", arith)) == 1
    apart = np.abs(interpret(folded, {"x": x})["y"] - interpret(real, {"x": x})["y"])
    step = 0.1 if quantised else 0.05 * 0.01  # one step of the result, or of the widest accumulator
    assert apart.max() <= step * 1.001


def test_a_bias_that_fits_leaves_the_weights_alone() -> None:
    module = linear(quantised=True)
    bias = next(op for op in module.graph.walk(ops.Const) if op.value.dtype == np.float32)
    bias.attrs["value"] = np.float32([0.5, 1e-20, 1e-10, 0.0])
    FoldQdq().run(module, Target())
    kept = next(op for op in reversed(list(module.graph.walk(ops.Linear))) if op.weight.type.quant is not None)
    assert kept.weight.type.quant.scale == tuple(map(float, np.float32(SCALES)))


def test_a_batch_norm_channel_without_multiplier_and_offset_is_zero() -> None:
    net = Net()
    t = TensorType((1, 2, 1, 1), DType.I8, Quant.per_tensor(0.1))
    x = net.arg(t.shape, t.dtype, t.quant)
    multiplier, offset = (net.const(np.float32([0, 1])) for _ in range(2))
    net.output(net.op(ops.BatchNorm, x, multiplier, offset, type=t))
    got = interpret(Module(net.graph), {"in0": np.full(t.shape, 7, np.int8)})["out0"]
    assert got.reshape(-1).tolist() == [0, 17]
