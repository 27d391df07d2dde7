"""A small float model, and what `--fast-perf` makes of it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hbc.driver import compile_model
from hbc.options import CompileOptions
from hbc_runtime.program import Program


def net(width: int = 8, tail: str | None = None) -> bytes:
    """images [1,3,16,16] → Conv 3×3 → Sigmoid·x → Conv 1×1 → [tail], in reals."""
    rng = np.random.default_rng(0)
    weights = {"w0": rng.normal(size=(width, 3, 3, 3)), "w1": rng.normal(size=(4, width, 1, 1))}
    nodes = [
        helper.make_node("Conv", ["images", "w0"], ["c0"], "conv<0>", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c0"], ["s0"], "sigmoid"),
        helper.make_node("Mul", ["c0", "s0"], ["a0"], "mul"),
        helper.make_node("Conv", ["a0", "w1"], ["c1"], "head"),
    ]
    if tail is not None:
        nodes.append(helper.make_node(tail, ["c1"], ["y"], "tail", axis=1))
    out = "c1" if tail is None else "y"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, [1, 4, 16, 16])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def fast(data: bytes, march: str = "bayes-e") -> Program:
    return compile_model(data, CompileOptions(march=march, fast_perf=True)).program
