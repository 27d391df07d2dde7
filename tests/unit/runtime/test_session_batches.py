"""Several batches in one run: the outputs of as many runs, one behind the other, for every engine and thread count."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hbc_runtime import InputMismatch, Program, Session, isa
from hbc_runtime.isa import Scheme
from hbc_runtime.jit import engine as jit_engine
from hbc_runtime.types import DYNAMIC, DType, Quant
from tests.sketch import Sketch

ENGINES = [("reference", 1), ("jit", 1), ("jit", 2), ("jit", 3)]


@pytest.fixture(autouse=True)
def enough_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as a test asks for, on machines that have fewer CPUs, too."""
    monkeypatch.setattr(jit_engine, "available_cpus", lambda: 8)


def network(batch: int = 1) -> Program:
    """Two inputs, one of them quantised, through convolutions that threads share; two outputs."""
    m, rng = Sketch(), np.random.default_rng(0)
    x = m.input((batch, 12, 12, 8), DType.I8, name="x", quant=Quant.per_tensor(0.5, 2))
    z = m.input((batch, 12, 12, 8), DType.I8, name="z")
    half = {"scheme": Scheme.FORM_B, "lhs_multiplier": 1 << 13, "rhs_multiplier": 1 << 13, "shift": 14}
    wide = {"clamp_min": -128, "clamp_max": 127}
    y = m.emit(isa.Add, [x, z], (batch, 12, 12, 8), DType.I8, **half, **wide)
    for _ in range(3):
        y = m.convolution(y, rng)
    m.emit(isa.ReduceMax, [y], (batch, 1, 1, 8), DType.I8, name="peak", axes=(1, 2))
    m.emit(isa.MaxPool, [y], (batch, 6, 6, 8), DType.I8, name="small", kernel=(2, 2), strides=(2, 2))
    return m.program()


def arrays(samples: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (samples, 12, 12, 8)
    return {"x": rng.normal(0, 30, shape).astype(np.float32), "z": rng.integers(-128, 128, shape).astype(np.int8)}


def one_by_one(session: Session, inputs: dict[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """The outputs of one run per batch, joined."""
    count = len(inputs["x"]) // batch
    runs = [session.run({k: v[n * batch : (n + 1) * batch] for k, v in inputs.items()}) for n in range(count)]
    return {name: np.concatenate([r[name] for r in runs]) for name in runs[0]}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name, x in a.items():
        assert (x.dtype, x.shape) == (b[name].dtype, b[name].shape)
        assert np.array_equal(x, b[name]), name


@pytest.mark.parametrize(("engine", "threads"), ENGINES)
@pytest.mark.parametrize("batch", [1, 2])
def test_outputs_are_those_of_as_many_runs(engine: str, threads: int, batch: int) -> None:
    program = network(batch)
    with Session(program, engine="reference") as plain, Session(program, threads=threads, engine=engine) as session:
        for count in (1, 2, 3, 4, 7):
            inputs = arrays(count * batch, seed=count)
            same(session.run(inputs), one_by_one(plain, inputs, batch))


def test_long_batches_take_several_calls_of_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hbc_runtime.engines.AT_ONCE", 2)
    program = network()
    inputs = arrays(11)
    with Session(program, threads=2) as session, Session(program, engine="reference") as plain:
        same(session.run(inputs), one_by_one(plain, inputs, 1))


def test_batches_of_many_python_threads() -> None:
    program = network()
    jobs = [arrays(n % 5 + 1, seed=n) for n in range(10)]
    with Session(program, engine="reference") as plain:
        expected = [one_by_one(plain, inputs, 1) for inputs in jobs]
    with Session(program, threads=2) as session, ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for got, want in zip(pool.map(session.run, jobs, timeout=60), expected, strict=True):
                same(got, want)


def test_results_of_batches_are_new_arrays() -> None:
    m = Sketch()
    x = m.input((1, 4), DType.I8, name="x")
    m.emit(isa.Reshape, [x], (1, 2, 2), DType.I8, name="y", alias=True)
    a = np.arange(8, dtype=np.int8).reshape(2, 4)
    for engine in ("jit", "reference"):
        y = Session(m.program(), engine=engine).run({"x": a})["y"]
        assert not np.shares_memory(y, a)
        assert np.array_equal(y, a.reshape(2, 2, 2))


def test_segments_of_the_cpu_take_batches_in_turns() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime runs CPU segments (pip install hbc[cpu])")
    import onnx.helper as h
    from onnx import TensorProto

    m = Sketch()
    x = m.input((1, 6), DType.F32, name="x")
    value = [h.make_tensor_value_info(n, TensorProto.FLOAT, [1, 6]) for n in ("a", "b")]
    graph = h.make_graph([h.make_node("Neg", ["a"], ["b"])], "g", value[:1], value[1:])
    onnx = h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8).SerializeToString()
    (negative,) = m.cpu([x], [((1, 6), DType.F32)], onnx)
    m.emit(isa.Concat, [negative, x], (1, 12), DType.F32, name="y", axis=1)
    a = np.arange(30, dtype=np.float32).reshape(5, 6)
    for engine in ("jit", "reference"):
        with Session(m.program(), engine=engine) as session:
            assert np.array_equal(session.run({"x": a})["y"], np.concatenate([-a, a], axis=1))


# ---- refusals


def refused(program: Program, inputs: dict[str, Any], *texts: str) -> None:
    with Session(program, engine="reference") as session, pytest.raises(InputMismatch) as caught:
        session.run(inputs)
    for text in texts:
        assert text in str(caught.value)


def test_inputs_hold_as_many_batches_each() -> None:
    inputs = arrays(4) | {"z": arrays(2)["z"]}
    refused(network(), inputs, "different numbers of batches: 'x' 4, 'z' 2", "try: as many in each")


def test_parts_of_a_batch_are_refused() -> None:
    refused(network(2), arrays(3), "it has shape (3, 12, 12, 8)", "the batch is 2: pass a multiple of it")


def test_a_model_without_a_common_first_axis_takes_one_batch() -> None:
    m = Sketch()
    x = m.input((2, 3), DType.I8, name="x")
    m.emit(isa.ReduceMax, [x], (1, 3), DType.I8, name="y", axes=(0,))
    why = "the inputs hold 2 batches, and this model takes one at a time: 'x' (2, 3) and 'y' (1, 3) have no first axis"
    refused(m.program(), {"x": np.zeros((4, 3), np.int8)}, why, "try: run the model once per batch")


def test_scales_along_the_first_axis_are_of_one_batch() -> None:
    m = Sketch()
    x = m.input((2, 3), DType.I8, name="x", quant=Quant((0.5, 0.25), (0, 0), 0))
    m.emit(isa.Clamp, [x], (2, 3), DType.I8, name="y", clamp_min=-9, clamp_max=9)
    refused(m.program(), {"x": np.zeros((4, 3), np.int8)}, "the scales of 'x' run along its first axis")


def test_outputs_of_open_size_are_of_one_batch() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime runs CPU segments (pip install hbc[cpu])")
    from tests.unit.runtime.test_dynamic_outputs import non_zero

    m = Sketch()
    x = m.input((6,), DType.F32, name="x")
    found, _ = m.cpu([x], [((1, DYNAMIC), DType.I64), ((6,), DType.F32)], non_zero())
    name = m.tensors[found].name
    refused(m.program(), {"x": np.zeros(12, np.float32)}, f"the size of output {name!r} depends on the data")


def test_values_of_all_tensors_are_of_one_batch() -> None:
    with (
        Session(network(), engine="reference") as session,
        pytest.raises(InputMismatch, match="pass one batch at a time"),
    ):
        session.intermediates(arrays(2))
