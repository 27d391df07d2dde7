"""A march that refuses an op still compiles the model: the op runs in reals, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.backend.bpu.target import Target
from hbc.ir import ops
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module, Value
from hbc.ir.location import NodeLoc
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.manager import PassManager
from hbc_runtime import Session
from hbc_runtime.program import CpuSegment

pytest.importorskip("onnxruntime", reason="what a march refuses runs in ONNX Runtime")
LOC = NodeLoc("node")


def i16(*shape: int, scale: float = 0.001) -> TensorType:
    return TensorType(shape, DType.I16, Quant.per_tensor(scale))


def real_net() -> Module:
    """A net of many kinds of op between i16 quantisations."""
    graph = Graph()
    build = Builder(graph)

    def requantised(value: Value, scale: float = 0.001) -> Value:
        t = TensorType(value.type.shape, DType.I16, Quant.per_tensor(scale))
        return build.op(ops.Dequantize, build.op(ops.Quantize, value, loc=LOC, type=t).out, loc=LOC).out

    x = requantised(graph.add_arg("x", TensorType((1, 4, 6, 6), DType.F32)))
    kernel = np.random.default_rng(0).integers(-127, 128, (4, 4, 3, 3)).astype(np.int8)
    q = TensorType(kernel.shape, DType.I8, Quant((0.01, 0.02, 0.01, 0.03), axis=0))
    w = build.op(ops.Dequantize, build.op(ops.Const, loc=LOC, value=kernel, type=q).out, loc=LOC).out
    y = requantised(build.op(ops.Conv2d, x, w, loc=LOC, pads=(1, 1, 1, 1)).out)
    y = requantised(build.op(ops.PLAIN_UNARY["sigmoid"], y, loc=LOC).out)
    y = requantised(build.op(ops.Clip, y, loc=LOC, low=0.25).out, 0.002)
    y = requantised(build.op(ops.Add, y, x, loc=LOC).out)
    y = requantised(build.op(ops.MaxPool, y, loc=LOC, kernel=(2, 2), strides=(2, 2)).out, 0.003)
    y = requantised(build.op(ops.Concat, y, y, loc=LOC, axis=1).out)
    y = build.op(ops.ResizeNearest, y, loc=LOC, rows=(0, 0, 1, 2), columns=(0, 1, 1, 2)).out
    y = build.op(ops.Pad, y, loc=LOC, pads=(0, 0, 1, 1, 0, 0, 1, 1)).out
    graph.add_output("y", requantised(y))
    return Module(graph)


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
def test_a_march_without_i16_computes_in_reals(arith: str) -> None:
    module = real_net()
    module.march, module.arith = "bernoulli2", arith
    target = Target("bernoulli2", arith)
    PassManager(target).run_all(target.pipeline, module)
    program = target.emit(module)
    refused = [r for s in program.models[0].segments if isinstance(s, CpuSegment) for r in s.reasons]
    assert any("are i8" in r for r in refused), refused
    x = np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype(np.float32)
    wide = real_net()
    wide.arith = "onnx"
    nash = Target("nash-e", "onnx")
    PassManager(nash).run_all(nash.pipeline, wide)
    expected = Session(nash.emit(wide)).run({"x": x})["y"]
    for engine in ("jit", "reference"):
        y = Session(program, engine=engine).run({"x": x})["y"]
        assert np.abs(y - expected).max() <= 0.003 * 1.001  # 1 step of the coarsest scale on the way


def test_a_pool_with_an_absurd_dilation_runs_on_the_cpu() -> None:
    graph = Graph()
    build = Builder(graph)
    t = TensorType((1, 2, 4, 4), DType.I8, Quant.per_tensor(0.1))
    x = build.op(ops.Quantize, graph.add_arg("x", TensorType(t.shape, DType.F32)), loc=LOC, type=t).out
    pool = build.op(ops.MaxPool, build.op(ops.Dequantize, x, loc=LOC).out, loc=LOC, kernel=(1, 1), dilations=(70000, 1))
    y = build.op(ops.Quantize, pool.out, loc=LOC, type=t).out
    graph.add_output("y", build.op(ops.Dequantize, y, loc=LOC).out)
    target = Target("nash-e", "bpu")
    module = Module(graph)
    PassManager(target).run_all(target.pipeline, module)
    segments = target.emit(module).models[0].segments
    assert any("A pool's dilation" in r for s in segments if isinstance(s, CpuSegment) for r in s.reasons)
