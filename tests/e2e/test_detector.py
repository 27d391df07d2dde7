"""A quantised detector to the end: convolutions on the BPU, then NonMaxSuppression and what picks the boxes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

import hbc as api
from hbc.backend.cpu.sessions import open_session
from hbc.check import check_program
from hbc_runtime import Session, load
from hbc_runtime.types import DYNAMIC
from tests.e2e.command import hbc
from tests.e2e.tiny import Graph

ort = pytest.importorskip("onnxruntime", reason="nodes of open size run by ONNX Runtime (pip install hbc[cpu])")

Array = npt.NDArray[Any]
CLASSES = 3
ENGINES = ("jit", "reference")
OUTPUTS: dict[str, tuple[int, list[int | str]]] = {
    "boxes": (TensorProto.FLOAT, ["n", 4]),
    "classes": (TensorProto.INT64, ["n"]),
    "best": (TensorProto.FLOAT, ["k"]),
    "all_scores": (TensorProto.FLOAT, [1, CLASSES, 64]),
}


def head(g: Graph) -> tuple[str, str]:
    """x f32[1,3,16,16] → boxes f32[1,64,4], scores f32[1,CLASSES,64]; every scale is a power of two."""
    rng = np.random.default_rng(11)
    x = g.qdq("x", 2**-6, np.int8(0))
    w1 = g.weight("w1", rng.integers(-40, 41, (8, 3, 3, 3)).astype(np.int8), np.full(8, 2**-7, np.float32), 0)
    g.node("Conv", [x, w1], "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    g.node("Relu", ["c1"], "r1")
    r1 = g.qdq("r1", 2**-5, np.int8(0))
    shape = (4 + CLASSES, 8, 1, 1)
    w2 = g.weight("w2", rng.integers(-60, 61, shape).astype(np.int8), np.full(shape[0], 2**-7, np.float32), 0)
    g.node("Conv", [r1, w2], "c2", kernel_shape=[1, 1])
    c2 = g.qdq("c2", 2**-5, np.int8(0))
    g.node("Reshape", [c2, g.const("flat", np.int64([1, 4 + CLASSES, 64]))], "rows")
    g.nodes.append(
        helper.make_node("Split", ["rows", g.const("parts", np.int64([4, CLASSES]))], ["box", "logit"], "Split", axis=1)
    )
    boxes = g.node("Transpose", ["box"], "all_boxes", perm=[0, 2, 1])
    g.node("Sigmoid", ["logit"], "sigmoid")
    return boxes, g.node("Identity", [g.qdq("sigmoid", 2**-7, np.int8(0))], "all_scores")


def detector() -> onnx.ModelProto:
    """The head, and behind it boxes and classes of what NonMaxSuppression keeps, and the best five scores or fewer."""
    g = Graph()
    boxes, scores = head(g)
    limits = [g.const("most", np.int64([9])), g.const("iou", np.float32([0.1])), g.const("low", np.float32([0.8]))]
    kept = g.node("NonMaxSuppression", [boxes, scores, *limits], "kept")
    zero, one, two, three = (g.const(f"n{i}", np.int64([i])) for i in range(4))
    g.node("Slice", [kept, two, three, one], "kept_box")  # the last column: which box
    g.node("Slice", [kept, one, two, one], "kept_class")
    g.node("Squeeze", ["kept_box", one], "index")
    g.node("Squeeze", ["kept_class", one], "classes")
    g.node("Squeeze", [boxes, zero], "list")
    g.node("Gather", ["list", "index"], "boxes")
    g.node("GatherND", [scores, "kept"], "kept_scores")
    g.node("Shape", ["kept_scores"], "count")
    g.node("Min", ["count", g.const("five", np.int64([5]))], "k")
    g.nodes.append(helper.make_node("TopK", ["kept_scores", "k"], ["best", "best_index"], "TopK"))
    graph = helper.make_graph(
        g.nodes, "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in OUTPUTS.items()],
        g.initialisers,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def images() -> list[Array]:
    """One of a single colour, and noise; they keep different numbers of boxes, some none."""
    rng = np.random.default_rng(3)
    return [np.full((1, 3, 16, 16), -2, np.float32)] + [
        rng.uniform(-2, 2, (1, 3, 16, 16)).astype(np.float32) for _ in range(4)
    ]


def onnxruntime_outputs(model: onnx.ModelProto, x: Array) -> Mapping[str, Array]:
    session = open_session(ort, model.SerializeToString())
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"x": x}), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_detector_gives_what_onnx_runtime_gives(engine: str) -> None:
    """Scales are powers of two, so both sides round the same numbers: every output is equal in every bit."""
    model = detector()
    compiled = api.compile(model, arith="onnx")
    counts = []
    with Session(compiled.to_bytes(), engine=engine) as session:
        assert {o.name: o.shape for o in session.outputs} == {
            "boxes": (DYNAMIC, 4), "classes": (DYNAMIC,), "best": (DYNAMIC,), "all_scores": (1, CLASSES, 64)
        }  # fmt: skip
        for x in images():
            got, want = session.run({"x": x}), onnxruntime_outputs(model, x)
            counts.append(len(want["boxes"]))
            for name in OUTPUTS:
                assert got[name].dtype == want[name].dtype
                assert np.array_equal(got[name], want[name]), name
    assert len(set(counts)) >= 3, "the images are meant to keep different numbers of boxes"


def test_only_the_tail_is_on_the_cpu() -> None:
    compiled = api.compile(detector())
    segments = {s.name: s for s in compiled.report.segments}
    (tail,) = (s for s in segments.values() if s.device == "cpu")
    kinds = sorted(r.split()[0] for r in tail.reasons)
    assert kinds == sorted(
        ["NonMaxSuppression", "Slice", "Slice", "Squeeze", "Squeeze", "Gather", "GatherND", "Shape", "Min", "TopK"]
    )
    assert all("sizes depend on the data" in r and "'NonMaxSuppression_kept'" in r for r in tail.reasons)
    assert compiled.report.instructions["conv2d"] == 2
    assert {o.name: o.shape for o in compiled.report.outputs}["boxes"] == (DYNAMIC, 4)


def test_both_engines_give_the_same_by_the_bpus_rules() -> None:
    data = api.compile(detector()).to_bytes()
    with Session(data, engine="jit", threads=2) as jit, Session(data, engine="reference") as reference:
        for x in images():
            a, b = jit.run({"x": x}), reference.run({"x": x})
            assert all(np.array_equal(a[name], b[name]) for name in OUTPUTS)


def test_the_same_model_gives_the_same_bytes() -> None:
    assert api.compile(detector()).to_bytes() == api.compile(detector()).to_bytes()


def test_the_command_line_shows_open_sizes(tmp_path: Path) -> None:
    onnx.save(detector(), tmp_path / "d.onnx")
    done = hbc("compile", "d.onnx", "--arith", "onnx", cwd=tmp_path)
    assert done.status == 0, done.err
    assert load(tmp_path / "d.hbm").models[0].outputs[0].shape == (DYNAMIC, 4)
    shown = hbc("inspect", "d.hbm", cwd=tmp_path)
    assert (shown.status, "?x4" in shown.out, "-1x4" in shown.out) == (0, True, False)
    ran = hbc("run", "d.hbm", "--random", "1", "--json", cwd=tmp_path)
    assert ran.status == 0, ran.err
    shapes = {o["name"]: o["shape"] for o in json.loads(ran.out)["outputs"]}
    assert shapes["boxes"][1:] == [4]
    assert shapes["boxes"][0] == shapes["classes"][0] >= 1
    text = hbc("compile", "d.onnx", "--emit", "hbir", "--stop-after", "place", cwd=tmp_path)
    assert "tensor<?x4xf32>" in text.out


def test_an_output_of_another_number_of_boxes_does_not_pass(tmp_path: Path) -> None:
    """The program is of a model that keeps one box of a class; ONNX Runtime runs the one that keeps nine."""
    model = detector()
    onnx.save(model, tmp_path / "nine.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == "most":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.int64([1]), "most"))
    program = api.compile(model, arith="onnx").program
    noise = np.random.default_rng(3).uniform(-2, 2, (1, 3, 16, 16)).astype(np.float32)
    result = check_program(program, tmp_path / "nine.onnx", [{"x": noise}], look_inside=False)
    boxes = {o.name: o for o in result.outputs}["boxes"]
    assert len(onnxruntime_outputs(model, noise)["boxes"]) == 1
    assert (boxes.passed, boxes.difference.equal, boxes.difference.cosine) == (False, 0, 0)
    assert boxes.difference.max_abs == float("inf")
    assert {o.name: o.passed for o in result.outputs}["all_scores"]


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
def test_check_compares_what_has_the_same_size(arith: str, tmp_path: Path) -> None:
    onnx.save(detector(), tmp_path / "d.onnx")
    done = hbc("check", "d.onnx", "--arith", arith, "--json", cwd=tmp_path)
    outputs = {o["name"]: o for o in json.loads(done.out)["outputs"]}
    assert outputs.keys() == OUTPUTS.keys()
    if arith == "onnx":
        assert done.status == 0, done.err
        assert all(o["passed"] and o["difference"]["equal"] == 1 for o in outputs.values())
    else:
        assert outputs["all_scores"]["passed"]
