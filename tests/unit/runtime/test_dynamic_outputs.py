"""Outputs whose size depends on the data: what a session brings, and that a file can't hide one anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hbc_runtime import HbmFormatError, Program, Session, hbm, isa
from hbc_runtime.hbm.writer import encode_program
from hbc_runtime.program import BpuSegment, Model, Storage, Tensor
from hbc_runtime.types import DYNAMIC, DType, Quant
from tests.sketch import Sketch, program_of

onnx = pytest.importorskip("onnx", reason="onnx makes the embedded models of these tests (pip install hbc[dev])")
ENGINES = ("jit", "reference")


def non_zero() -> bytes:
    """An ONNX model: x f32[6] → y i64[1, ?] where x is not 0, s f32[6]."""
    h, f32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [h.make_node("NonZero", ["x"], ["y"]), h.make_node("Abs", ["x"], ["s"])]
    outputs = [
        h.make_tensor_value_info("y", onnx.TensorProto.INT64, [1, None]),
        h.make_tensor_value_info("s", f32, [6]),
    ]
    graph = h.make_graph(nodes, "cpu", [h.make_tensor_value_info("x", f32, [6])], outputs)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def sketch(shape: tuple[int, ...] = (1, DYNAMIC), dtype: DType = DType.I64) -> Model:
    """i8 x → Dequantize → NonZero and Abs on the CPU → y and, behind a Transpose, s.

    Tensors: x 0, parameters 1 and 2, real 3 (arena), y 4 (output 0), t4 5 (arena), s 6 (output 1).
    """
    m = Sketch()
    x = m.input((6,), DType.I8, name="x")
    params = [m.constant([0.5], DType.F32), m.constant([3], DType.I32)]
    real = m.emit(isa.Dequantize, [x, *params], (6,), DType.F32, name="real")
    _, s = m.cpu([real], [(shape, dtype), ((6,), DType.F32)], non_zero())
    m.emit(isa.Transpose, [s], (6,), DType.F32, name="s", perm=(0,))
    return m.finish()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_brings_the_size_that_it_made(engine: str) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime runs CPU segments (pip install hbc[cpu])")
    program = program_of(sketch())
    data = hbm.write(program)
    assert hbm.read(data) == program
    session = Session(data, engine=engine)
    y, s = (o.name for o in session.outputs)
    assert [o.shape for o in session.outputs] == [(1, DYNAMIC), (6,)]
    runs = [np.int8([3, 3, 4, 3, 3, 0]), np.full(6, 3, np.int8), np.int8([1, 2, 4, 5, 6, 7])]
    got = [session.run({"x": x}) for x in runs]
    assert [g[y].tolist() for g in got] == [[[2, 5]], [[]], [[0, 1, 2, 3, 4, 5]]]
    assert [g[y].dtype for g in got] == [np.int64] * 3
    for x, g in zip(runs, got, strict=True):
        assert np.array_equal(g[s], np.abs(x.astype(np.float32) - 3) / 2)
    assert np.array_equal(session.intermediates({"x": runs[0]})[y], [[2, 5]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((DYNAMIC,), DType.I64, r"came out as int64 \(1, 2\), not int64 \(-1,\)"),
        ((2, DYNAMIC), DType.I64, r"came out as int64 \(1, 2\), not int64 \(2, -1\)"),
        ((1, DYNAMIC), DType.F32, r"came out as int64 \(1, 2\), not float32 \(1, -1\)"),
    ],
)
def test_what_the_embedded_model_brings_is_held_to_the_rest_of_the_type(
    engine: str, shape: tuple[int, ...], dtype: DType, why: str
) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime runs CPU segments (pip install hbc[cpu])")
    session = Session(program_of(sketch(shape, dtype)), engine=engine)
    with pytest.raises(HbmFormatError, match=why):
        session.run({"x": np.int8([3, 3, 4, 3, 3, 0])})


def test_such_a_tensor_has_no_bytes_to_ask_for() -> None:
    t = sketch().tensors[4]
    assert t.is_dynamic
    with pytest.raises(ValueError, match="known only once the model has run"):
        _ = t.nbytes


# ---- hostile files


def tensors(changes: dict[int, dict[str, Any]]) -> Callable[[Model], Model]:
    def change(m: Model) -> Model:
        return replace(m, tensors=tuple(replace(t, **changes.get(i, {})) for i, t in enumerate(m.tensors)))

    return change


def opened(tensor: int, kind: str) -> Callable[[Model], Model]:
    """The tensor and its border with an open size."""

    def change(m: Model) -> Model:
        infos = tuple(replace(i, shape=(DYNAMIC,)) if i.tensor == tensor else i for i in getattr(m, kind))
        return replace(tensors({tensor: {"shape": (DYNAMIC,)}})(m), **{kind: infos})

    return change


def appended(t: Tensor, **segment: tuple[int, ...]) -> Callable[[Model], Model]:
    """One more tensor (7), read or written by the CPU segment."""

    def change(m: Model) -> Model:
        cpu = replace(m.segments[1], **segment)
        return replace(m, tensors=(*m.tensors, t), segments=(m.segments[0], cpu, *m.segments[2:]))

    return change


def reads_it(m: Model) -> Model:
    (s,) = m.segments[2:]
    assert isinstance(s, BpuSegment)
    op = replace(s.instructions[0], inputs=(4,))
    return replace(m, segments=(*m.segments[:2], replace(s, instructions=(op,))))


def writes_it(m: Model) -> Model:
    (s,) = m.segments[2:]
    assert isinstance(s, BpuSegment)
    op = replace(s.instructions[0], outputs=(4,))
    return replace(m, segments=(*m.segments[:2], replace(s, instructions=(op,))))


def scaled(m: Model) -> Model:
    return replace(m, outputs=(replace(m.outputs[0], quant=Quant((0.5,))), *m.outputs[1:]))


Y = Tensor("again", (1, DYNAMIC), DType.I64, Storage.OUTPUT, index=0)
HOSTILE = {
    "arena": (tensors({3: {"shape": (DYNAMIC,)}}), "has a dynamic size, which only outputs may have"),
    "constant": (tensors({1: {"shape": (DYNAMIC,)}}), "has a dynamic size, which only outputs may have"),
    "input": (opened(0, "inputs"), "has a dynamic size, which only outputs may have"),
    "other negative sizes": (tensors({4: {"shape": (1, -2)}}), "has a negative size"),
    "two open sizes hide a huge one": (tensors({4: {"shape": (-1, -1, 1 << 40)}}), "at most 17179869184 are allowed"),
    "offset": (tensors({4: {"offset": 64}}), "offset 64 in an output array"),
    "border says otherwise": (tensors({4: {"shape": (1, 4)}}), r"shape \(1, -1\), its tensor 4 has \(1, 4\)"),
    "scales": (tensors({4: {"quant": Quant((0.5,))}}), "scales on a tensor of dynamic shape"),
    "scales of the border": (scaled, "scales on an output of dynamic shape"),
    "written by an instruction": (opened(6, "outputs"), "has a dynamic size, which only CPU segments make"),
    "read by an instruction": (reads_it, "has a dynamic size, which only CPU segments make"),
    "written twice": (writes_it, "has a dynamic size, which only CPU segments make"),
    "alias": (appended(Y), "it lies in the place of .*, and one of them has a dynamic size"),
    "empty alias": (appended(replace(Y, shape=(0,))), "it lies in the place of .*, and one of them has a dynamic size"),
    "alias of a static one": (appended(replace(Y, index=1)), "it lies in the place of 's', and one of them has"),
    "never written": (appended(replace(Y, shape=(6,), index=1, dtype=DType.F32), outputs=(7, 5)), "before anything"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_open_sizes_elsewhere_are_refused(name: str) -> None:
    change, why = HOSTILE[name]
    model = sketch()
    assert hbm.read(hbm.write(program_of(model))), "the case must be sound before it is broken"
    program: Program = program_of(change(model))
    with pytest.raises(ValueError, match=why):
        hbm.write(program)
    with pytest.raises(HbmFormatError, match=why):
        hbm.read(encode_program(program))
    with pytest.raises(HbmFormatError, match=why):
        Session(program, engine="reference")


def test_a_cpu_segment_does_not_read_one() -> None:
    m = sketch()
    cpu = replace(m.segments[1], name="second", inputs=(4,), outputs=(5,))
    broken = replace(m, segments=(m.segments[0], replace(m.segments[1], outputs=(4,)), cpu, m.segments[2]))
    with pytest.raises(HbmFormatError, match=r"segment 2 \('second'\): it reads 't4', which has a dynamic size"):
        hbm.read(encode_program(program_of(broken)))
