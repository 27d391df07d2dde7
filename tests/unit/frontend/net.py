"""Small ONNX models for the front end's tests, and the one question asked of them: does the imported module agree with
ONNX Runtime (unoptimised), and does what the CPU back end writes of it agree too?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hbc.backend.cpu.engine import evaluate
from hbc.backend.cpu.export import export_segment
from hbc.backend.cpu.sessions import open_session
from hbc.frontend import load
from hbc.ir.core import Module
from hbc.ir.interpreter import interpret
from hbc.ir.printer import print_module
from hbc.ir.verifier import verify

Array = npt.NDArray[Any]
RNG = np.random.default_rng


class Net:
    """A model under construction: every method returns the name of the tensor it makes."""

    def __init__(self, opset: int = 17, **domains: int) -> None:
        self.opsets = {"": opset, **{k.replace("_", "."): v for k, v in domains.items()}}
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def input(self, name: str, shape: Sequence[int | str | None], dtype: Any = np.float32) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, _elem_type(dtype), shape))
        return name

    def output(self, *names: str, dtype: Any = np.float32) -> None:
        for name in names:
            self.outputs.append(helper.make_tensor_value_info(name, _elem_type(dtype), None))

    def const(self, value: Any, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, op_type: str, *inputs: str, out: str | Sequence[str] = "", domain: str = "", **attrs: Any) -> str:
        outs = [out or f"{op_type.lower()}{len(self.nodes)}"] if isinstance(out, str) else list(out)
        node = helper.make_node(op_type, list(inputs), outs, f"{op_type}_{len(self.nodes)}", domain=domain, **attrs)
        self.nodes.append(node)
        return outs[0]

    def q(self, x: str, scale: Any, zero: Any = None, out: str = "", **attrs: Any) -> str:
        more = [] if zero is None else [self.const(zero)]
        return self.op("QuantizeLinear", x, self.const(np.float32(scale)), *more, out=out, **attrs)

    def dq(self, x: str, scale: Any, zero: Any = None, out: str = "", **attrs: Any) -> str:
        more = [] if zero is None else [self.const(zero)]
        return self.op("DequantizeLinear", x, self.const(np.float32(scale)), *more, out=out, **attrs)

    def qdq(self, x: str, scale: Any, zero: Any) -> str:
        return self.dq(self.q(x, scale, zero), scale, zero)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid(k, v) for k, v in self.opsets.items()]
        version = 11 if self.opsets[""] > 22 else 10
        return helper.make_model(graph, opset_imports=opsets, producer_name="tests", ir_version=version)


def _elem_type(dtype: Any) -> int:
    return dtype if isinstance(dtype, int) else int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def floats(seed: int, *shape: int) -> Array:
    """Normal float32 numbers."""
    return RNG(seed).standard_normal(shape).astype(np.float32)


def integers(seed: int, dtype: Any, *shape: int) -> Array:
    """Integers over the dtype's whole range (8 and 16 bits)."""
    info = np.iinfo(dtype)
    return RNG(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def onnxruntime_outputs(model: onnx.ModelProto | bytes, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """ONNX Runtime's outputs, without its optimiser."""
    ort = pytest.importorskip("onnxruntime", reason="the comparison needs ONNX Runtime")
    session = open_session(ort, model if isinstance(model, bytes) else model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def run_module(module: Module, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The interpreter's outputs under ONNX's own rounding; calls go to ONNX Runtime."""
    module.arith = "onnx"
    return interpret(module, dict(feeds), cpu=evaluate)


def assert_close(got: Array, want: Array, what: str, *, atol: float) -> None:
    """Equal shapes and dtypes; floats within `atol` (relative above 1), everything else equal."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=atol, atol=atol, equal_nan=True, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


def agrees(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    *,
    atol: float = 2e-6,
    exported: bool = True,
    **shapes: Sequence[int],
) -> Module:
    """The imported module, after it was shown to compute what ONNX Runtime computes of `model`.

    Integers must be equal, floats within `atol` (both sides sum in another order). With `exported`, the ops written
    back as ONNX by the CPU back end must agree too. The text of the module must be writable.
    """
    module = load(model, shapes)
    verify(module)
    assert print_module(module)
    want = onnxruntime_outputs(model, feeds)
    got = run_module(module, feeds)
    assert list(got) == list(want)
    for name, array in want.items():
        assert_close(got[name], array, f"interpreter, output {name}", atol=atol)
    if exported:
        opset = {"": next(o.version for o in model.opset_import if o.domain == "")}
        outputs = [o.value for o in module.graph.outputs]
        data = export_segment(module.graph.ops, module.graph.args, outputs, opset, "whole")
        written = onnxruntime_outputs(data, {f"t{i}": feeds[str(a.name)] for i, a in enumerate(module.graph.args)})
        for array, (name, expected) in zip(written.values(), want.items(), strict=True):
            assert_close(array, expected, f"exported, output {name}", atol=atol)
    return module


def names_of(module: Module) -> list[str]:
    """The ops' names in order, constants left out; a call shows what it calls."""
    ops = [op for op in module.graph.ops if op.NAME != "const"]
    return [f"call {op.attrs['op_type']}" if op.NAME == "call" else op.NAME for op in ops]


UNDEFINED = TensorProto.UNDEFINED
