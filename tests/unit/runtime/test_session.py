"""`Session`: both engines give the same integers, runs do not disturb one another, and life cycles end cleanly."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hbc_runtime
from hbc_runtime import HbmError, HbmFormatError, Program, Session, hbm, isa
from hbc_runtime.isa import Scheme
from hbc_runtime.program import Constants, Model, Storage
from hbc_runtime.types import DType, Layout, Quant
from tests.sketch import Sketch, program_of
from tests.strategies import RULES, arrays_for, models

ROOT = Path(__file__).parents[3]
ENGINES = ("jit", "reference")
SEEDS = sorted((ROOT / "tests/fuzz/seeds").glob("sound_*.bin"))


def double(name: str = "main") -> Model:
    """y = sat(2 · x) of i8[2, 3] by way of an arena tensor, and s = the constant [1, 2, 3] + x."""
    m = Sketch(name)
    x = m.input((2, 3), DType.I8, name="x", quant=Quant.per_tensor(0.5, 2))
    c = m.constant([[1, 2, 3]], DType.I8)
    one = {"scheme": Scheme.FORM_B, "lhs_multiplier": 1 << 14, "rhs_multiplier": 1 << 14, "shift": 14}
    wide = {"clamp_min": -128, "clamp_max": 127}
    t = m.emit(isa.Clamp, [x], (2, 3), DType.I8, name="t", **wide)
    m.emit(isa.Add, [t, t], (2, 3), DType.I8, name="y", **one, **wide)
    m.emit(isa.Add, [c, t], (2, 3), DType.I8, name="s", **one, **wide)
    return m.finish()


X = np.arange(6, dtype=np.int8).reshape(2, 3)
Y = np.array([[0, 2, 4], [6, 8, 10]], np.int8)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name, x in a.items():
        assert x.dtype == b[name].dtype
        assert np.array_equal(x, b[name], equal_nan=x.dtype.kind == "f"), name


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_runs_under_its_own_names(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "m.hbm"
    path.write_bytes(hbm.write(program_of(double())))
    for source in (path, str(path), path.read_bytes(), hbm.read(path), program_of(double())):
        session = Session(source, engine=engine)
        assert [i.name for i in session.inputs] == ["x"]
        assert [o.name for o in session.outputs] == ["y", "s"]
        (x,) = session.inputs
        assert (x.shape, x.dtype, x.layout, x.axis) == ((2, 3), DType.I8, Layout.ANY, None)
        assert x.scale is not None
        assert x.zero_point is not None
        assert (x.scale.tolist(), x.zero_point.tolist()) == ([0.5], [2])
        same(session.run({"x": X}), {"y": Y, "s": X + np.array([1, 2, 3], np.int8)})
        assert session.program == program_of(double())


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(models(max_size=3), st.integers(0, 1000), st.sampled_from([1, 2]))
def test_the_engines_agree(model: Model, seed: int, threads: int) -> None:
    arrays = arrays_for(model, seed)
    expected = Session(program_of(model), engine="reference").run(arrays)
    with Session(program_of(model), threads=threads) as session:
        same(session.run(arrays), expected)
        same(session.run(arrays), expected)  # over an arena that holds the last run's bytes


@settings(deadline=None, max_examples=1, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_engines_agree_on_every_instruction(data: st.DataObject) -> None:
    for kind in RULES:
        model = data.draw(models([kind], max_size=1))
        arrays = arrays_for(model)
        same(Session(program_of(model)).run(arrays), Session(program_of(model), engine="reference").run(arrays))


@pytest.mark.parametrize("path", [p for p in SEEDS if "cpu" not in p.stem], ids=lambda p: p.stem)
def test_the_engines_agree_on_the_fuzzers_seeds(path: Path) -> None:
    """Among them a model whose names hold NUL and newline: they once cut the JIT's module short."""
    program = hbm.read(path)
    for seed in range(3):
        arrays = arrays_for(program.models[0], seed)
        same(Session(program).run(arrays), Session(program, engine="reference").run(arrays))


@pytest.mark.parametrize("engine", ENGINES)
def test_results_are_new_arrays(engine: str) -> None:
    m = Sketch()
    x = m.input((4,), DType.I8, name="x")
    m.emit(isa.Reshape, [x], (2, 2), DType.I8, name="y", alias=True)
    session = Session(m.program(), engine=engine)
    a = np.array([1, 2, 3, 4], np.int8)
    first = session.run({"x": a})["y"]
    assert not np.shares_memory(first, a)
    first[:] = 0
    assert a.tolist() == [1, 2, 3, 4]
    assert session.run({"x": a})["y"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_tensors_run(engine: str) -> None:
    m = Sketch()
    x = m.input((3,), DType.I8, name="x")
    nothing = m.emit(isa.Slice, [x], (0,), DType.I8, starts=(0,), steps=(1,))
    m.emit(isa.Concat, [nothing, x, nothing], (3,), DType.I8, name="y", axis=0)
    m.emit(isa.Slice, [x], (0,), DType.I8, name="z", starts=(0,), steps=(1,))
    out = Session(m.program(), engine=engine).run({"x": np.array([1, 2, 3], np.int8)})
    assert out["y"].tolist() == [1, 2, 3]
    assert out["z"].shape == (0,)


def conv_chain(depth: int = 6) -> Program:
    m = Sketch()
    rng = np.random.default_rng(0)
    x = m.input((1, 16, 16, 8), DType.I8, name="x")
    for _ in range(depth):
        x = m.convolution(x, rng)
    return m.program()


@pytest.mark.parametrize("threads", [1, 2])
def test_many_python_threads_share_a_session(threads: int) -> None:
    program = conv_chain()
    name = program.models[0].outputs[0].name
    arrays = [arrays_for(program.models[0], seed) for seed in range(8)]
    reference = Session(program, engine="reference")
    expected = [reference.run(a)[name] for a in arrays]
    with Session(program, threads=threads) as session, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            results = list(pool.map(lambda a: session.run(a)[name], arrays))
            for got, want in zip(results, expected, strict=True):
                assert np.array_equal(got, want)
        assert len(session._engine.runs.frames) <= 8


# ---- intermediates


@pytest.mark.parametrize("engine", ENGINES)
def test_intermediates_hold_every_tensor_but_the_constants(engine: str) -> None:
    values = Session(program_of(double()), engine=engine).intermediates({"x": X})
    assert list(values) == ["x", "t", "y", "s"]
    assert np.array_equal(values["t"], X)
    assert np.array_equal(values["y"], Y)


def test_intermediates_tell_apart_tensors_of_one_name() -> None:
    model = double()
    tensors = tuple(replace(t, name="x") if t.name == "t" else t for t in model.tensors)
    values = Session(program_of(replace(model, tensors=tensors)), engine="reference").intermediates({"x": X})
    assert list(values) == ["x", "x#2", "y", "s"]


# ---- choosing and closing


def test_a_model_is_chosen_by_name() -> None:
    program = program_of(double("first"), conv_chain(1).models[0])
    assert Session(program, model="first").run({"x": X})["y"].tolist() == Y.tolist()
    assert Session(program, model="main").inputs[0].shape == (1, 16, 16, 8)
    with pytest.raises(HbmError, match="several models; pass model= one of 'first', 'main'"):
        Session(program)
    with pytest.raises(HbmError, match="no model 'second'; pass model= one of 'first', 'main'"):
        Session(program, model="second")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"engine": "gpu"}, "known are jit, reference"),
        ({"threads": 0}, "takes 1 to 256"),
        ({"threads": 257}, "takes 1 to 256"),
    ],
)
def test_wrong_options_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Session(program_of(double()), **more)


def test_a_program_can_be_pickled_and_a_session_says_why_not() -> None:
    program = program_of(double())
    assert pickle.loads(pickle.dumps(program)) == program
    with Session(program) as session, pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(session)


def test_memory_that_is_not_there_is_an_hbm_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 9. GiB")

    with Session(program_of(double())) as session:
        monkeypatch.setattr(session._engine, "direct", fail)
        with pytest.raises(HbmError, match=r"more memory than this machine has \(Unable to allocate 9. GiB\)"):
            session.run({"x": X})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_closed_session_does_not_run(engine: str) -> None:
    with Session(program_of(double()), engine=engine) as session:
        session.run({"x": X})
    for use in (session.run, session.intermediates):
        with pytest.raises(HbmError, match="session is closed"):
            use({"x": X})
    session.close()  # a second time does no harm


def test_closing_lets_a_run_under_way_finish() -> None:
    session = Session(program_of(double()))
    inside, go, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        direct = None

        def run(self, inputs: list[np.ndarray], count: int) -> list[np.ndarray]:
            assert count == 1
            inside.set()
            assert go.wait(10)
            assert not closed.is_set()
            return [Y, X]

        def close(self) -> None:
            closed.set()

    session._engine = Slow()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, {"x": X})
        assert inside.wait(10)
        session.close()
        go.set()
        assert running.result(10)["y"] is Y
    assert closed.is_set()


def test_a_failing_run_does_not_keep_the_session_open() -> None:
    session = Session(program_of(double()), engine="reference")
    session._reference.model = replace(session.model, constants=Constants())  # its constants vanish
    with pytest.raises(ValueError):  # noqa: PT011 - numpy's own
        session.run({"x": X})
    assert session._running == []


def test_an_unsound_program_is_refused() -> None:
    model = double()
    tensors = tuple(replace(t, offset=1 << 20) if t.storage is Storage.CONSTANT else t for t in model.tensors)
    with pytest.raises(HbmFormatError, match="the program is not sound: model 'main', tensor 1"):
        Session(program_of(replace(model, tensors=tensors)))


def test_an_arena_beyond_the_machine_is_an_hbm_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import hbc_runtime.engines as module

    session = Session(program_of(double()))

    def none_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module.np, "empty", none_left)
    with pytest.raises(HbmError, match="which this machine does not have"):
        module.aligned(1 << 33)
    monkeypatch.undo()
    assert session.run({"x": X})["y"].tolist() == Y.tolist()


# ---- the package


def test_importing_the_runtime_is_light() -> None:
    code = (
        "import sys, hbc_runtime\n"
        "heavy = {'llvmlite', 'flatbuffers', 'onnxruntime', 'onnx', 'torch', 'hbc'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "hbc_runtime.Session(sys.stdin.buffer.read(), engine='reference')\n"
        "assert not {'llvmlite', 'onnxruntime', 'onnx', 'torch', 'hbc'} & set(sys.modules)\n"
    )
    data = hbm.write(program_of(double()))
    subprocess.run([sys.executable, "-c", code], input=data, cwd=ROOT, check=True)


def test_the_public_names_are_there() -> None:
    for name in hbc_runtime.__all__:
        assert getattr(hbc_runtime, name) is not None
    assert hbc_runtime.__version__ == "0.1.0"
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        hbc_runtime.Sesion  # noqa: B018
