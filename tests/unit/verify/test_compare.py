"""Stages of small models: their tensors are those of a run, and an error is blamed on the op that makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import hbc
from hbc.diagnostics import OptionError
from hbc.ir import fixed_point
from hbc.options import CompileOptions
from hbc.samples import draw, ranges_of
from hbc.verify import TensorRow, Tolerance, Verdict, verify_model
from hbc.verify.compare import compare
from hbc.verify.facts import Facts, facts_of
from hbc.verify.float_ir import without_quantisation
from hbc.verify.ir_stage import module_after
from hbc.verify.program_stage import JitStage, reference_stage
from hbc.verify.stage import StageError, Step
from hbc.verify.stages import Bench
from hbc_runtime import Session
from hbc_runtime.program import BpuSegment, Constants, Program
from tests.e2e.tiny import Graph, program_twin, qdq_model

pytestmark = pytest.mark.ort
X = {"x": np.random.default_rng(3).normal(0, 0.3, (1, 3, 8, 8)).astype(np.float32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """conv → relu → conv, quantised; a sigmoid in floats behind."""
    path = tmp_path_factory.mktemp("verify") / "m.onnx"
    onnx.save(qdq_model(tail="Softplus"), path)
    return path


@pytest.fixture(scope="module")
def program(model: Path) -> Program:
    """The compiled model."""
    return hbc.compile(model).program


def broken(program: Program, nth: int = 1) -> Program:
    """The program with the `nth` convolution's weights changed."""
    main = program.models[0]
    convs = [i for s in main.segments if isinstance(s, BpuSegment) for i in s.instructions if i.opcode.name == "CONV2D"]
    weight = main.tensors[convs[nth].inputs[1]]
    data = bytearray(main.constants.data)
    data[weight.offset : weight.offset + 8] = bytes(b ^ 0x40 for b in data[weight.offset : weight.offset + 8])
    changed = dataclasses.replace(main, constants=Constants(memoryview(bytes(data))))
    return dataclasses.replace(program, models=(changed,))


def by_node(rows: tuple[TensorRow, ...], node: str) -> TensorRow:
    return next(r for r in rows if node in r.nodes)


# ---- stages are what they say


def test_the_jit_stepwise_has_the_tensors_of_a_run(program: Program) -> None:
    stage = JitStage(program, "")
    names = [p.name for p in stage.places]
    found = stage.fetch(X, names)
    walked = {s.place.name: s.total for s in stage.walk(X, lambda *_: None)}
    with Session(program, engine="reference") as session:
        wanted = session.intermediates(X)
    with Session(program) as session:
        outputs = session.run(X)
    stage.close()
    assert {"x_quantized", "r1_quantized", "y"} <= set(names)
    for name in names:
        np.testing.assert_array_equal(found[name], walked[name])
        np.testing.assert_array_equal(found[name], outputs[name] if name in outputs else wanted[name])


def test_a_fetch_ends_with_the_last_tensor_that_is_asked_for(program: Program) -> None:
    stage = reference_stage(program, "")
    ran = []
    units = tuple(dataclasses.replace(u, run=lambda a, u=u: ran.append(u) or u.run(a)) for u in stage.units)
    dataclasses.replace(stage, units=units).fetch(X, {"x_quantized"})
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("source", "to"),
    [("ir:quantize", "ir:lower"), ("ir:lower", "reference"), ("reference", "jit"), ("ir:schedule", "jit")],
)
def test_lowering_and_both_engines_keep_every_integer(tmp_path: Path, source: str, to: str) -> None:
    onnx.save(qdq_model(), tmp_path / "m.onnx")
    result = verify_model(tmp_path / "m.onnx", source=source, to=to, samples=[X])
    assert len(result.rows) >= 3
    assert {r.total.verdict for r in result.rows} == {Verdict.EQUAL}
    assert {r.own.verdict for r in result.rows if r.own} == {Verdict.EQUAL}
    assert result.starts == ()


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
@pytest.mark.parametrize("affine", [False, True])
def test_every_op_is_within_a_quantum_of_onnx_runtime(tmp_path: Path, arith: str, *, affine: bool) -> None:
    onnx.save(qdq_model(affine=affine), tmp_path / "m.onnx")
    result = verify_model(tmp_path / "m.onnx", CompileOptions(arith=arith), samples=[X])
    assert result.passed
    assert all(r.own is not None for r in result.rows)
    assert by_node(result.rows, "Conv_c1").dtype == "i8"


@pytest.mark.parametrize("source", ["ort", "float", "ort-optimized", "jit", "ir:load", "reference"])
@pytest.mark.parametrize("to", ["ort", "float", "ort-optimized", "jit", "ir:quantize"])
def test_any_two_stages_compare(model: Path, source: str, to: str) -> None:
    result = verify_model(model, source=source, to=to, samples=[X, {"x": X["x"] / 2}], histograms=True)
    assert result.rows
    assert result.samples == 2
    (y,) = [r for r in result.rows if r.name == "y"]
    assert y.total.cosine > 0.99
    if source == to:
        assert {r.total.verdict for r in result.rows} == {Verdict.EQUAL}
    assert set(result.histograms) == {r.name for r in result.rows}
    for r in result.rows:
        h = result.histograms[r.name]
        assert sum(h.reference) == sum(h.judged) == sum(h.difference) == 2 * np.prod(r.shape)


# ---- blame


def test_a_broken_op_is_blamed_and_what_inherits_its_error_is_not(tmp_path: Path) -> None:
    onnx.save(qdq_model(tail="Softplus"), tmp_path / "m.onnx")
    program = broken(hbc.compile(tmp_path / "m.onnx").program, 0)
    result = verify_model(tmp_path / "m.onnx", samples=[X], hbm=program)
    assert not result.passed
    assert [r.nodes[0] for r in result.starts] == ["Conv_c1"]
    bad, after = by_node(result.rows, "Conv_c1"), by_node(result.rows, "Conv_c2")
    assert bad.own is not None
    assert bad.own.max_quanta is not None
    assert bad.own.max_quanta > 1
    assert after.own is not None
    assert after.total.verdict is Verdict.DIFFERENT
    assert after.own.verdict in {Verdict.EQUAL, Verdict.ONE_QUANTUM, Verdict.CLOSE}
    assert after.passed


def test_by_total_what_inherits_an_error_fails_too(tmp_path: Path) -> None:
    onnx.save(qdq_model(tail="Softplus"), tmp_path / "m.onnx")
    program = broken(hbc.compile(tmp_path / "m.onnx").program, 0)
    result = verify_model(tmp_path / "m.onnx", samples=[X], hbm=program, by="total")
    assert not by_node(result.rows, "Conv_c2").passed
    assert [r.nodes[0] for r in result.starts] == ["Conv_c1"]


def test_chunks_of_any_size_give_the_same_rows(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify_model(model, samples=[X])
    monkeypatch.setattr("hbc.verify.compare.CHUNK", 1)
    monkeypatch.setattr("hbc.verify.onnx_stage.CHUNK", 1)
    assert verify_model(model, samples=[X]).rows == whole.rows
    assert verify_model(model, source="jit", to="ort", samples=[X]).passed


def test_an_op_that_runs_not_alone_has_no_own_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hbc.backend.cpu.nodes import NodeRunner
    from hbc.backend.cpu.probe import ProbeError

    run = NodeRunner.run

    def refusing(self: NodeRunner, index: int, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.nodes[index].name == "Conv_c1":
            raise ProbeError("no")
        return run(self, index, values)

    monkeypatch.setattr(NodeRunner, "run", refusing)
    result = verify_model(model, source="float", to="ort", samples=[X])
    assert by_node(result.rows, "Conv_c1").own is None
    assert by_node(result.rows, "Relu_r1").own is not None


def test_tensors_without_a_counterpart_say_where_they_went(model: Path) -> None:
    result = verify_model(model, samples=[X])
    where = {a.name: (a.why, a.where) for a in result.absent}
    assert where["c1"] == ("inside", "conv2d 'r1_quantized'")
    assert where["x_dequantized"][0] == "copy"
    assert {r.name for r in result.rows}.isdisjoint(where)


def test_a_tensor_of_which_a_run_gives_no_array_is_told(program: Program) -> None:
    class Silent:
        name, about = "silent", ""
        places = reference_stage(program, "").places

        def fetch(self, *_: object) -> dict[str, np.ndarray]:
            return {}

        def walk(self, *_: object) -> Iterator[Step]:
            return iter(())

    found = compare(reference_stage(program, ""), Silent(), [X], Facts(), tolerance=Tolerance())
    assert found.rows == ()
    assert {a.name for a in found.absent} == {p.name for p in Silent.places}
    assert {str(a) for a in found.absent} == {"this stage gives no array for it"}


def test_a_program_of_another_model_is_refused(tmp_path: Path, model: Path) -> None:
    g = Graph()
    g.node("Identity", [g.qdq(g.node("Sigmoid", [g.qdq("x", 0.02, np.int8(0))], "s"), 0.01, np.int8(0))], "other")
    other = hbc.compile(g.model({"x": [1, 3, 8, 8]}, {"other": [1, 3, 8, 8]})).program
    with pytest.raises(StageError, match="the program is not of this model"):
        verify_model(model, hbm=other, samples=[X])  # though both have an x_quantized, and equal ones


# ---- the float model


def test_the_derived_float_model_is_the_real_function(tmp_path: Path) -> None:
    onnx.save(qdq_model(), tmp_path / "m.onnx")
    bench = Bench(tmp_path / "m.onnx", CompileOptions())
    y = bench.stage("float").fetch(X, {"y", "r1"})
    consts = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "m.onnx").graph.initializer}
    w1, w2 = (consts[f"{w}_quantized"] * consts[f"{w}_scale"].reshape(-1, 1, 1, 1) for w in ("w1", "w2"))
    padded = np.pad(X["x"][0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    r1 = np.maximum(np.einsum("chwij,ocij->ohw", windows, w1) + consts["b1"].reshape(-1, 1, 1), 0)
    np.testing.assert_allclose(y["r1"][0], r1, rtol=1e-5, atol=1e-5)  # float32 sums of 27 products
    np.testing.assert_allclose(y["y"][0], np.einsum("chw,oc->ohw", r1, w2[..., 0, 0]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("zero_point", "scale", "low", "high"), [(0, 0.1, 0, np.inf), (0, 6 / 255, 0, 6), (9, 0.1, -np.inf, np.inf)]
)
def test_a_range_that_begins_at_0_keeps_its_relu(zero_point: int, scale: float, low: float, high: float) -> None:
    g = Graph()
    x = g.qdq("x", 0.1, np.uint8(128))
    g.node("Mul", [x, g.const("k", np.float32(3))], "m")
    g.node("Identity", [g.qdq("m", scale, np.uint8(zero_point))], "y")
    module = hbc.frontend.load(g.model({"x": [1, 8]}, {"y": [1, 8]}))
    bare, _ = without_quantisation(module)
    assert not {"quantize", "dequantize"} & {op.NAME for op in bare.graph.ops}
    from hbc.backend.cpu import engine
    from hbc.ir.interpreter import interpret

    x_in = np.linspace(-5, 5, 8, dtype=np.float32)[None]
    (y,) = interpret(bare, {"x": x_in}, cpu=engine.evaluate).values()
    np.testing.assert_array_equal(y, np.clip(x_in * np.float32(3), low, high).astype(np.float32))


def test_a_float_file_is_compared_by_the_names_that_both_have(tmp_path: Path, model: Path) -> None:
    g = Graph()
    quantised = onnx.load(model)
    consts = {i.name: onnx.numpy_helper.to_array(i) for i in quantised.graph.initializer}
    for w in ("w1", "w2"):
        g.const(w, consts[f"{w}_quantized"] * consts[f"{w}_scale"].reshape(-1, 1, 1, 1))
    g.node("Conv", ["x", "w1", g.const("b1", consts["b1"])], "c1", pads=[1, 1, 1, 1])
    g.node("Relu", ["c1"], "r1")
    g.node("Conv", ["r1", "w2"], "c2")
    g.node("Softplus", ["c2"], "y")
    onnx.save(g.model({"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}), tmp_path / "f.onnx")
    given = verify_model(model, source="float", samples=[X], float_model=tmp_path / "f.onnx")
    derived = verify_model(model, source="float", samples=[X])
    assert [r.name for r in given.rows] == [r.name for r in derived.rows]
    assert [r.source for r in given.rows if r.name == "r1_quantized"] == ["r1"]
    for a, b in zip(given.rows, derived.rows, strict=True):
        assert a.total.max_abs == pytest.approx(b.total.max_abs, rel=1e-3, abs=1e-5)


def test_a_float_file_of_another_model_is_refused(tmp_path: Path, model: Path) -> None:
    onnx.save(program_twin(), tmp_path / "f.onnx")
    g = Graph()
    g.node("Relu", ["image"], "y")
    onnx.save(g.model({"image": [1]}, {"y": [1]}), tmp_path / "f.onnx")
    with pytest.raises(StageError, match=r"not this model's(.|\n)*its inputs are 'image', the quantised model's 'x'"):
        verify_model(model, source="float", samples=[X], float_model=tmp_path / "f.onnx")


# ---- names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("onnx", "Stages are float, torch, ort"),
        ("refernce", "did you mean 'reference'?"),
        ("ir:quantise", "did you mean 'quantize'?"),
        ("ir:quantize/fold-qqd", "did you mean 'fold-qdq'?"),
        ("ir:load/dce", "no stage with passes 'load'"),
        ("ir:normalize/canonicalize#7", "one of 1"),
    ],
)
def test_an_unknown_stage_is_answered_with_the_nearest(model: Path, name: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        verify_model(model, source=name, samples=[X])
    assert words in str(caught.value)


def test_a_module_after_a_pass_lies_between_its_stages(model: Path) -> None:
    options = CompileOptions()
    counts = [
        sum(op.NAME == "conv2d" and fixed_point.is_fixed(op) for op in module_after(model, options, where).graph.ops)
        for where in ("fuse", "quantize/signed-types", "quantize/fold-qdq", "quantize")
    ]
    assert counts[:2] == [0, 0]
    assert counts[2] >= 1
    assert counts[3] == 2


def test_facts_name_scales_and_copies(model: Path) -> None:
    facts = facts_of(module_after(model, CompileOptions(), "load"))
    assert facts.group("r1_dequantized") == facts.group("r1_quantized") == "r1"
    assert facts.step["r1"] == facts.step["r1_dequantized"] == pytest.approx(0.015)
    assert "c2" not in facts.step
    assert facts.quant["x_quantized"].scale == (np.float32(0.02),)
    assert Facts(elements={"a": 10, "b": 10, "c": 10}).fitting(["a", "b", "c"], 80) == 2
    assert Facts(elements={"a": 10}).fitting(["a"], 1) == 1


def test_random_samples_of_a_module_are_those_of_its_program(model: Path, program: Program) -> None:
    from hbc.samples import random_samples

    module = module_after(model, CompileOptions(), "load")
    one = random_samples(program.models[0], 2, 5)
    two = draw(program.models[0].inputs, ranges_of(module), 2, 5)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])


def test_progress_counts_every_tensor_of_every_sample(model: Path) -> None:
    told: list[tuple[int, int, str]] = []
    result = verify_model(model, samples=[X, X], on_tensor=lambda *t: told.append(t))
    assert [t[0] for t in told] == list(range(1, 2 * len(result.rows) + 1))
    assert {t[1] for t in told} == {len(told)}


def test_the_tolerance_decides(model: Path) -> None:
    strict = verify_model(model, CompileOptions(), source="float", samples=[X], tolerance=Tolerance(quanta=0))
    loose = verify_model(
        model, CompileOptions(), source="float", samples=[X], tolerance=Tolerance(quanta=5, cosine=0.9)
    )
    assert not strict.passed
    assert loose.passed
