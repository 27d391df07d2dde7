"""What the report reads off a program."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

from hbc.analysis import affine_tensors, high_precision, macs, wide_accumulators
from hbc.cli.render import explain
from hbc.cli.report_file import FORMATS, as_html, write_report
from hbc.driver import compile_model
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module, Op, Placement
from hbc.ir.location import FusedLoc, NodeLoc
from hbc.ir.ops import Add, Const
from hbc.ir.types import f32
from hbc.options import CompileOptions
from hbc.report import FOLDED, Report, node_rows, source_nodes
from hbc.words import shorten
from hbc_runtime import isa
from hbc_runtime.isa import Scheme
from hbc_runtime.program import BpuSegment, Constants, CpuSegment, Model, Storage, Tensor, TensorInfo
from hbc_runtime.types import DType, Layout, Quant
from tests.e2e import tiny
from tests.e2e.tiny import program


def test_macs_of_a_convolution_are_outputs_times_taps() -> None:
    assert macs(program().models[0]) == 8 * 3


def test_an_accumulator_that_leaves_is_high_precision_with_its_scales() -> None:
    model = program().models[0]
    found = high_precision(model, model.outputs[0])
    assert found is not None
    assert found.scales == 2


def test_a_requantised_output_is_not_high_precision() -> None:
    model = program().models[0]
    info = dataclasses.replace(model.outputs[0], tensor=6)  # x_q
    assert high_precision(model, info) is None


def test_a_symmetric_program_has_no_affine_tensor() -> None:
    assert affine_tensors(program().models[0]) == []


def test_an_affine_tensor_is_named_once_with_its_node_and_zero_point() -> None:
    found = affine_tensors(program(zero_point=3).models[0])
    assert [(a.name, a.node, a.zero_point) for a in found] == [("x_q", "conv", 3)]


def test_report_counts_and_sizes() -> None:
    report = Report.of(Module(Graph()), program(zero_point=3))
    assert report.instructions == {"transpose": 2, "quantize": 1, "conv2d": 1, "dequantize": 1}
    assert (report.macs, report.arena_bytes, report.constant_bytes) == (24, 192, 320)
    assert [(o.name, o.high_precision, o.scales) for o in report.outputs] == [("y", True, 2)]
    assert report.outputs[0].reason == "the accumulator of conv2d of 'conv' + 'relu'"
    assert [t.detail for t in report.affine] == ["zero point 3"]
    assert report.file_bytes is None
    assert report.with_file_bytes(7).file_bytes == 7
    assert json.loads(json.dumps(report.as_dict()))["segments"] == [
        {
            "name": "bpu0",
            "device": "bpu",
            "steps": 5,
            "reasons": [],
            "macs": 24,
            "arena_bytes": 32 + 12 + 32,
            "constant_bytes": 6 + 4 + 4 + 8 + 8,
        }
    ]


def test_a_cpu_segment_is_reported_with_its_reasons() -> None:
    old = program()
    cpu = CpuSegment("cpu0", (7,), (9,), b"", ("Sin 'sin': no BPU rule",), ("sin",))
    model = dataclasses.replace(old.models[0], segments=(*old.models[0].segments, cpu))
    report = Report.of(Module(Graph()), dataclasses.replace(old, models=(model,)))
    assert report.segments[1].device == "cpu"
    assert report.segments[1].reasons == ("Sin 'sin': no BPU rule",)


def test_a_report_reads_as_text() -> None:
    text = str(Report.of(Module(Graph()), program(zero_point=3)))
    assert text.startswith("tiny on nash-e, arith bpu\n")
    assert "24 MACs, 5 instructions, 1 segment" in text
    assert "192 B arena, 320 B constants" in text
    assert "warning: 1 tensor with a zero point; a real BPU would refuse this model: 'x_q'" in text


# ---- rows per node


def chain() -> tuple[Graph, dict[str, Op]]:
    """relu (from 'relu' fused with 'q'), add, and a constant from 'c'."""
    graph = Graph()
    x = graph.add_arg("x", f32(4))
    build = Builder(graph)
    relu_at = FusedLoc((NodeLoc("relu", "Relu"), NodeLoc("add", "Add"), NodeLoc("q", "QuantizeLinear")))
    const = build.op(Const, loc=NodeLoc("c", "Constant"), value=np.ones(4, np.float32))
    relu = build.op(Add, x, const.out, loc=relu_at)
    sine = build.op(Add, relu.out, x, loc=NodeLoc("sin", "Sin"))
    graph.add_output("y", sine.out)
    relu.placement = Placement("bpu", "legal")
    sine.placement = Placement("cpu", "no BPU rule")
    return graph, {"relu": relu, "sin": sine}


def test_each_source_node_has_a_row_that_says_where_and_with_whom_it_runs() -> None:
    graph, _ = chain()
    rows = {r.node: r for r in node_rows(graph.ops, ())}
    assert list(rows) == ["relu", "add", "q", "sin"]  # a constant doesn't run
    assert (rows["relu"].device, rows["relu"].fused_with, rows["relu"].ops) == ("bpu", ("add",), ("add",))
    assert (rows["sin"].device, rows["sin"].reason) == ("cpu", "no BPU rule")


def test_a_node_of_which_nothing_is_left_is_folded() -> None:
    graph, _ = chain()
    rows = node_rows(graph.ops, [NodeLoc("identity", "Identity"), NodeLoc("relu", "Relu")])
    assert [(r.node, r.device) for r in rows][:2] == [("identity", FOLDED), ("relu", "bpu")]


def test_source_nodes_are_listed_once_in_order() -> None:
    graph, _ = chain()
    assert [n.node for n in source_nodes(Module(graph))] == ["c", "relu", "add", "q", "sin"]


def test_counts_leave_out_nodes_that_only_quantise() -> None:
    graph, _ = chain()
    report = Report.of(Module(graph), program())
    assert report.placed == {"bpu": 2, "cpu": 1}


def test_a_node_on_two_devices_counts_where_its_work_is() -> None:
    graph, ops = chain()
    ops["relu"].placement = Placement("host", "border")
    ops["sin"].loc = NodeLoc("relu", "Relu")
    ops["sin"].placement = Placement("bpu", "")
    assert next(r for r in node_rows(graph.ops, ()) if r.node == "relu").device == "bpu"


# ---- accumulators


def wide_model(weight: int, bias: int) -> Model:
    """matmul of i16[1,4] by constant i8[4,2], all of whose entries are `weight`."""
    rhs = np.full((4, 2), weight, np.int8).tobytes().ljust(64, b"\0")
    blob = rhs + np.full(2, bias, np.int32).tobytes().ljust(64, b"\0")
    q = Quant.per_tensor(1.0)
    tensors = (
        Tensor("x", (1, 4), DType.I16, Storage.INPUT, quant=q),
        Tensor("w", (4, 2), DType.I8, Storage.CONSTANT, 0, quant=q),
        Tensor("b", (2,), DType.I32, Storage.CONSTANT, 64),
        Tensor("y", (1, 2), DType.I32, Storage.OUTPUT, quant=q),
    )
    low, high = DType.I32.limits
    op = isa.Matmul(
        inputs=(0, 1, 2, -1, -1, -1), outputs=(3,), loc=("fc",), scheme=Scheme.NONE, clamp_min=low, clamp_max=high
    )
    info = [TensorInfo(t.name, t.shape, t.dtype, Layout.ANY, t.quant, i) for i, t in enumerate(tensors)]
    return Model("m", (info[0],), (info[3],), tensors, (BpuSegment("s", (op,)),), 0, Constants(memoryview(blob)))


@pytest.mark.parametrize(
    ("weight", "bias", "wide"), [(127, 0, False), (-128, 2**31 - 1 - 2**24, False), (-128, 2**31 - 1, True)]
)
def test_an_accumulator_is_wide_where_its_bound_passes_31_bits(weight: int, bias: int, wide: bool) -> None:
    found = wide_accumulators(wide_model(weight, bias))
    assert [(w.name, w.node, w.bits) for w in found] == ([("y", "fc", 32)] if wide else [])


def test_8_bit_operands_are_never_wide() -> None:
    assert wide_accumulators(program().models[0]) == []


# ---- of a whole model


def whole_model() -> bytes:
    """conv + batch norm + relu; joined with the input by a concat of another scale; × constants; two tails."""
    g = tiny.Graph()
    rng = np.random.default_rng(0)
    x = g.qdq("x", 0.05, np.int8(0))
    w = g.weight("w", rng.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8), np.full(4, 0.01, np.float32), 0)
    v = g.weight("v", rng.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8), np.full(4, 0.01, np.float32), 0)
    conv = g.node("Conv", [x, w], "conv")
    norm = [g.const(f"bn_{i}", np.full(4, v, np.float32)) for i, v in enumerate((2.0, 0.1, 0.0, 1.0))]
    bn = g.node("BatchNormalization", [conv, *norm], "bn")
    relu = g.qdq(g.node("Relu", [bn], "relu"), 0.1, np.int8(0))
    both = g.qdq(g.node("Concat", [relu, x], "both", axis=1), 0.1, np.int8(3))
    one = g.node("Reshape", [g.const("ones", np.ones(7, np.float32)), g.const("to", np.int64([1, 7, 1, 1]))], "one")
    scaled = g.qdq(
        g.node(
            "Mul",
            [both, g.node("Mul", [one, g.const("two", np.arange(7, dtype=np.float32).reshape(1, 7, 1, 1))], "k")],
            "mul",
        ),
        0.2,
        np.int8(0),
    )
    table = g.qdq(g.node("Sigmoid", [g.node("Identity", [scaled], "same")], "sig"), 1 / 128, np.int8(0))
    g.node("Sin", [table], "sine")
    g.node("Relu", [g.node("Conv", [x, v], "conv2")], "tail")
    shapes: dict[str, list[int | str]] = {"sine": [1, 7, 4, 4], "tail": [1, 4, 4, 4], "sig_dequantized": [1, 7, 4, 4]}
    return bytes(g.model({"x": [1, 3, 4, 4]}, shapes).SerializeToString())


@pytest.fixture(scope="module")
def whole() -> Report:
    return compile_model(whole_model(), CompileOptions()).report


def test_what_became_one_op_is_one_line_that_names_all_parts(whole: Report) -> None:
    groups = {g.nodes: g for g in whole.groups}
    fused = groups["Conv_conv", "BatchNormalization_bn", "Relu_relu"]
    assert (fused.device, fused.types, fused.macs) == ("bpu", "i8·i8 → i8", 4 * 16 * 3)
    assert "conv2d" in fused.ops
    assert groups["Conv_conv2",].types == "i8·i8 → i32"
    assert groups["Conv_conv2",].macs == 4 * 16 * 3
    assert sum(g.macs for g in whole.groups) == whole.macs
    assert ("Concat_both",) in groups


def test_every_node_of_the_file_has_a_row(whole: Report) -> None:
    model = onnx.load_from_string(whole_model())
    assert {n.name for n in model.graph.node} <= {r.node for r in whole.nodes}


def test_a_folded_node_names_what_folded_it_and_who_holds_its_value(whole: Report) -> None:
    rows = {r.node: r for r in whole.nodes}
    assert (rows["Reshape_one"].device, rows["Reshape_one"].by) == (FOLDED, "import")
    assert rows["Reshape_one"].reason == "its value is known when the model is read"
    assert rows["Identity_same"].device == FOLDED
    assert rows["Identity_same"].by
    assert rows["Identity_same"].reason != "its value is known, or nothing reads it"


def test_a_node_on_the_cpu_says_why_and_what_to_try(whole: Report) -> None:
    rows = {r.node: r for r in whole.nodes}
    assert rows["Relu_tail"].device == "cpu"
    assert rows["Relu_tail"].reason == "input 'conv2' (made by 'Conv_conv2' (Conv)) isn't quantised"
    assert rows["Relu_tail"].hint == (
        "put QuantizeLinear and DequantizeLinear between 'Conv_conv2' (Conv) and 'Relu_tail' (Relu)"
    )
    assert all(r.reason and r.hint for r in whole.nodes if r.device == "cpu")


def test_a_concat_of_two_scales_requantises_and_says_for_whom(whole: Report) -> None:
    rows = {(r.before, r.after): r.why for r in whole.requantized}
    assert rows["i8, scale 0.05", "i8, scale 0.1, zero point 3"] == (
        "the operands of 'Concat_both' have different scales, and it joins integers"
    )


def test_constants_that_change_say_from_what_to_what_and_why(whole: Report) -> None:
    rows = {(r.node, r.why) for r in whole.constants}
    assert ("Conv_conv", "its scales take in 'BatchNormalization_bn'") in rows
    assert ("Mul_mul", "the BPU multiplies integers, and the model has reals") in rows
    assert not [r for r in whole.constants if r.node == "Conv_conv2"]


def test_a_table_of_every_input_is_exact(whole: Report) -> None:
    assert [(t.nodes, t.kind, t.entries, t.worst) for t in whole.tables] == [(("Sigmoid_sig",), "every input", 256, 0)]


def test_an_interpolated_table_says_how_far_it_may_be_off() -> None:
    g = tiny.Graph()
    x = g.qdq("x", 0.001, np.int16(0))
    g.qdq(g.node("Sigmoid", [x], "sig"), 1 / 32768, np.int16(0))
    model = g.model({"x": [1, 8]}, {"sig_dequantized": [1, 8]})
    model.opset_import[0].version = 21
    (row,) = compile_model(model.SerializeToString(), CompileOptions()).report.tables
    assert row.kind == "64 segments"
    assert row.worst is not None
    assert 0 < row.worst <= 256


def test_outputs_say_whose_accumulator_they_are_or_why_none(whole: Report) -> None:
    rows = {o.name: o for o in whole.outputs}
    assert not rows["tail"].high_precision
    assert rows["tail"].reason == (
        "'Relu_tail' computes it in reals on the CPU: input 'conv2' (made by 'Conv_conv2' (Conv)) isn't quantised"
    )
    assert rows["sig_dequantized"].reason == (
        "lut of 'Sigmoid_sig' has no accumulator; conv, linear and matmul have one"
    )


def test_an_output_behind_a_quantize_names_it() -> None:
    g = tiny.Graph()
    w = g.weight("w", np.ones((4, 3, 1, 1), np.int8), np.full(4, 0.01, np.float32), 0)
    g.qdq(g.node("Conv", [g.qdq("x", 0.05, np.int8(0)), w], "conv"), 0.1, np.int8(0))
    model = g.model({"x": [1, 3, 4, 4]}, {"conv_dequantized": [1, 4, 4, 4]})
    (row,) = compile_model(model.SerializeToString(), CompileOptions()).report.outputs
    assert row.reason == (
        "'QuantizeLinear_conv_quantized' quantises the result of conv2d of 'Conv_conv'; without it the accumulator "
        "would be returned"
    )


def test_segments_say_what_they_need(whole: Report) -> None:
    bpu = [s for s in whole.segments if s.device == "bpu"]
    assert sum(s.macs for s in bpu) == whole.macs
    assert all(0 < s.arena_bytes <= whole.arena_bytes for s in bpu)
    assert all(0 < s.constant_bytes <= whole.constant_bytes for s in bpu)


def test_json_carries_everything(whole: Report) -> None:
    values = json.loads(json.dumps(whole.as_dict(), allow_nan=False))
    assert set(values) == {f.name for f in dataclasses.fields(whole)} | {"placed"}
    assert len(values["groups"]) == len(whole.groups)


# ---- as tables


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(whole: Report, width: int) -> None:
    console = Console(width=width, file=io.StringIO())
    for part in explain(whole, width):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert "Relu_relu" in text


def test_long_names_are_shortened_in_the_middle() -> None:
    assert shorten("a_name_that_is_much_too_long_to_show", 12) == "a_na…to_show"
    assert shorten("short", 12) == "short"


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_report_is_written_in_every_format(whole: Report, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"report{suffix}"
    write_report(whole, path)
    text = path.read_text(encoding="utf-8")
    assert "BatchNormalization_bn" in text
    assert "put QuantizeLinear and DequantizeLinear between" in text
    if suffix == ".json":
        assert json.loads(text)["model"] == whole.model


def test_html_escapes_names(whole: Report) -> None:
    odd = dataclasses.replace(whole, model="<script>alert(1)</script>")
    assert "<script>" not in as_html(odd)
