"""What the report reads off a program."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from hbc.analysis import affine_tensors, high_precision, macs, wide_accumulators
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Module, Op, Placement
from hbc.ir.location import FusedLoc, NodeLoc
from hbc.ir.ops import Add, Const
from hbc.ir.types import f32
from hbc.report import FOLDED, Report, node_rows, source_nodes
from hbc_runtime import isa
from hbc_runtime.isa import Scheme
from hbc_runtime.program import BpuSegment, Constants, CpuSegment, Model, Storage, Tensor, TensorInfo
from hbc_runtime.types import DType, Layout, Quant
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
    assert [t.detail for t in report.affine] == ["zero point 3"]
    assert report.file_bytes is None
    assert report.with_file_bytes(7).file_bytes == 7
    assert json.loads(json.dumps(report.as_dict()))["segments"] == [
        {"name": "bpu0", "device": "bpu", "steps": 5, "reasons": []}
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
