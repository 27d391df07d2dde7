"""CPU segments: embedded ONNX models between BPU segments, what is said where ONNX Runtime is missing or refuses."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hbc_runtime import HbmError, HbmFormatError, MissingDependency, Program, Session, hbm, isa
from hbc_runtime.types import DType
from tests.sketch import Sketch
from tests.strategies import arrays_for

onnx = pytest.importorskip("onnx", reason="onnx makes the embedded models of these tests (pip install hbc[dev])")
needs_ort = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None,
    reason="ONNX Runtime runs CPU segments (pip install hbc[cpu])",
)


def embedded(op: str = "Softmax", shape: tuple[Any, ...] = (2, 3), outputs: int = 1) -> bytes:
    """An ONNX model of one float node, x → y0 …"""
    helper, f32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node(op, ["x"], [f"y{i}"], f"{op}_{i}") for i in range(outputs)]
    graph = helper.make_graph(
        nodes,
        "cpu",
        [helper.make_tensor_value_info("x", f32, shape)],
        [helper.make_tensor_value_info(f"y{i}", f32, shape) for i in range(outputs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def mixed(data: bytes, result: tuple[int, ...] = (2, 3), dtype: DType = DType.F32) -> Program:
    """i8 x → Dequantize → softmax on the CPU → Transpose → y, so that arena, input and output all take part."""
    m = Sketch()
    x = m.input((2, 3), DType.I8, name="x")
    params = [m.constant([0.5], DType.F32), m.constant([3], DType.I32)]
    real = m.emit(isa.Dequantize, [x, *params], (2, 3), DType.F32, name="real")
    (soft,) = m.cpu([real], [(result, dtype)], data)
    m.emit(isa.Transpose, [soft], result[::-1], dtype, name="y", perm=(1, 0))
    return m.program()


@needs_ort
@pytest.mark.parametrize("engine", ["jit", "reference"])
def test_segments_take_turns(engine: str) -> None:
    program = hbm.read(hbm.write(mixed(embedded())))
    x = np.array([[1, 2, 3], [-4, 5, 60]], np.int8)
    real = (x.astype(np.float32) - 3) * np.float32(0.5)
    e = np.exp(real - real.max(axis=1, keepdims=True))
    session = Session(program, engine=engine)
    y = session.run({"x": x})["y"]
    assert y.shape == (3, 2)
    assert np.allclose(y.T, e / e.sum(axis=1, keepdims=True), atol=1e-6)  # ONNX Runtime's own exp
    assert np.array_equal(session.run({"x": x})["y"], y)


@needs_ort
def test_the_engines_agree_and_threads_share_the_segment() -> None:
    program = mixed(embedded())
    arrays = [arrays_for(program.models[0], seed) for seed in range(8)]
    expected = [Session(program, engine="reference").run(a)["y"] for a in arrays]
    session = Session(program, threads=2)
    with ThreadPoolExecutor(4) as pool:
        for got, want in zip(pool.map(lambda a: session.run(a)["y"], arrays), expected, strict=True):
            assert np.array_equal(got, want)


@needs_ort
def test_a_cpu_segment_may_read_the_input_and_write_the_output() -> None:
    m = Sketch()
    m.cpu([m.input((2, 3), DType.F32, name="x")], [((2, 3), DType.F32)] * 2, embedded("Abs", outputs=2))
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    for engine in ("jit", "reference"):
        out = Session(m.program(), engine=engine).run({"x": x})
        assert all(np.array_equal(y, np.abs(x)) for y in out.values())
        assert len(out) == 2


def test_without_onnx_runtime_the_error_says_what_to_install_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependency) as caught:
        Session(mixed(embedded()))
    text = str(caught.value)
    assert "segment 'cpu' of model 'main' needs ONNX Runtime, which is not installed" in text
    assert "Softmax 'Softmax_3': no BPU rule" in text
    assert "pip install hbc[cpu]" in text


@needs_ort
def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(HbmFormatError, match=r"segment 'cpu' .* ONNX Runtime .* refuses the embedded model"):
        Session(mixed(b"no model"))


@needs_ort
def test_another_number_of_outputs_is_refused() -> None:
    with pytest.raises(HbmFormatError, match=r"are \(1, 2\) in the embedded model, \(1, 1\) outside"):
        Session(mixed(embedded(outputs=2)))


@needs_ort
@pytest.mark.parametrize("engine", ["jit", "reference"])
def test_a_result_of_another_shape_or_dtype_never_reaches_the_arena(engine: str) -> None:
    x = {"x": np.zeros((2, 3), np.int8)}
    with pytest.raises(HbmFormatError, match=r"came out as float32 \(2, 3\), not float32 \(3, 2\)"):
        Session(mixed(embedded(), (3, 2)), engine=engine).run(x)
    with pytest.raises(HbmFormatError, match=r"came out as float32 \(2, 3\), not int32 \(2, 3\)"):
        Session(mixed(embedded(), dtype=DType.I32), engine=engine).run(x)


@needs_ort
def test_a_model_that_does_not_take_the_tensor_is_an_hbm_error() -> None:
    with pytest.raises(HbmError, match="segment 'cpu' of model 'main': ONNX Runtime failed"):
        Session(mixed(embedded(shape=(2, 4)))).run({"x": np.zeros((2, 3), np.int8)})
