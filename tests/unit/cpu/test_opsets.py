"""In which opset a CPU segment is written: ONNX Runtime must have it, and every call must mean what it meant."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbc.backend.cpu import engine
from hbc.backend.cpu.export import export_segment
from hbc.backend.cpu.opsets import NEUTRAL, REWORDED, segment_opset
from hbc.ir import ops
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Value
from hbc.ir.location import NodeLoc
from hbc.ir.types import DType, TensorType

F32, I8, U8, I64, BOOL = DType.F32, DType.I8, DType.U8, DType.I64, DType.BOOL
Operand = tuple[DType, tuple[int, ...]]


def calling(
    graph: Graph, node: onnx.NodeProto, opset: int, operands: list[Operand], results: list[Operand], domain: str = ""
) -> list[Value]:
    """A call of `node` in `graph`, its operands new arguments of the graph; those of an If are captured but for one."""
    args = [graph.add_arg(f"a{len(graph.args)}", TensorType(shape, dtype)) for dtype, shape in operands]
    proto = onnx.NodeProto()
    proto.CopyFrom(node)
    del proto.input[:], proto.output[:]
    proto.input.extend(f"operand:{i}" for i in range(1 if proto.op_type == "If" else len(operands)))
    proto.output.extend(f"result:{i}" for i in range(len(results)))
    op = Builder(graph).op(
        ops.Call, *args, loc=NodeLoc(node.op_type), types=[TensorType(shape, dtype) for dtype, shape in results],
        op_type=node.op_type, domain=domain, opset=opset,
        node_proto=base64.b64encode(proto.SerializeToString()).decode(),
    )  # fmt: skip
    return list(op.results)


def node(op_type: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, ["x"], ["y"], **attrs)


IMAGE: Operand = (F32, (1, 2, 6, 6))
POOLED: Operand = (F32, (1, 2, 3, 3))
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
VECTOR: Operand = (F32, (4,))
ROIS: list[Operand] = [IMAGE, (F32, (3, 4)), (I64, (3,))]
CASES: dict[str, tuple[onnx.NodeProto, int, list[Operand], list[Operand], int]] = {
    "unchanged since 13": (node("Softmax"), 28, [VECTOR], [VECTOR], 19),
    "another meaning after 12": (node("Softmax"), 11, [(F32, (2, 4))], [(F32, (2, 4))], 12),
    "newer types only": (node("RoiAlign", output_height=2, output_width=2), 22, ROIS, [(F32, (3, 2, 2, 2))], 19),
    "newer types only, pool": (node("MaxPool", **POOL), 28, [IMAGE], [POOLED], 19),
    "newer types, one of which is used": (node("ReduceMax", keepdims=0), 22, [(BOOL, (4,))], [(BOOL, ())], 20),
    "new attribute left out": (node("Cast", to=TensorProto.INT64), 28, [VECTOR], [(I64, (4,))], 19),
    "new attribute at its default": (
        node("Cast", to=TensorProto.INT64, round_mode="up"), 28, [VECTOR], [(I64, (4,))], 19,
    ),
    "new attribute used": (
        node("Cast", to=TensorProto.INT64, round_mode="down"), 28, [VECTOR], [(I64, (4,))], 24,
    ),
    "blocks": (
        node("DequantizeLinear", block_size=2, axis=0), 28, [(I8, (4, 2)), (F32, (2, 2))], [(F32, (4, 2))], 21,
    ),
    "no blocks": (node("DequantizeLinear"), 28, [(I8, (4, 2)), (F32, ())], [(F32, (4, 2))], 19),
    "came later": (
        node("RMSNormalization"), 25, [(F32, (2, 4)), VECTOR], [(F32, (2, 4))], 23,
    ),
    "reworded": (node("Mod"), 28, [(I64, (4,)), (I64, (4,))], [(I64, (4,))], 28),
    "reworded later": (node("Mod"), 27, [(I64, (4,)), (I64, (4,))], [(I64, (4,))], 19),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_written_in_the_oldest_opset_that_means_the_same(case: str) -> None:
    proto, opset, operands, results, expected = CASES[case]
    graph = Graph()
    calling(graph, proto, opset, operands, results)
    assert segment_opset(graph.ops) == {"": expected}


def test_all_calls_must_agree() -> None:
    graph = Graph()
    calling(graph, node("RoiAlign", output_height=2, output_width=2), 23, ROIS, [(F32, (3, 2, 2, 2))])
    calling(graph, node("RMSNormalization"), 23, [(F32, (2, 4)), VECTOR], [(F32, (2, 4))])
    assert segment_opset(graph.ops) == {"": 23}


def test_nodes_of_subgraphs_count() -> None:
    inner = helper.make_graph(
        [helper.make_node("RMSNormalization", ["operand:1", "operand:2"], ["r"])],
        "branch", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )  # fmt: skip
    graph = Graph()
    proto = node("If", then_branch=inner, else_branch=inner)
    calling(graph, proto, 25, [(BOOL, ()), (F32, (2, 4)), VECTOR], [(F32, (2, 4))])
    assert segment_opset(graph.ops) == {"": 23}


def test_what_the_older_schema_does_not_know_is_left_out_of_the_node() -> None:
    graph = Graph()
    (y,) = calling(graph, node("Cast", to=TensorProto.INT64, round_mode="up"), 28, [VECTOR], [(I64, (4,))])
    model = onnx.ModelProto.FromString(export_segment(graph.ops, graph.args, [y], None, "s"))
    assert [a.name for a in model.graph.node[0].attribute] == ["to"]
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("name", ["newer types only", "newer types only, pool", "no blocks", "new attribute left out"])
def test_onnxruntime_runs_what_it_refuses_in_the_models_own_opset(name: str) -> None:
    pytest.importorskip("onnxruntime", reason="the segment is run by ONNX Runtime")
    proto, opset, operands, results, _ = CASES[name]
    graph = Graph()
    outs = calling(graph, proto, opset, operands, results)
    feeds = {f"t{i}": np.ones(shape, dtype.numpy) for i, (dtype, shape) in enumerate(operands)}
    if proto.op_type == "RoiAlign":
        feeds |= {"t1": np.float32([[0, 0, 4, 4]] * 3), "t2": np.zeros(3, np.int64)}
    data = export_segment(graph.ops, graph.args, outs, None, "s")
    (y,) = engine._session(data, "node").run(None, feeds)
    assert y.shape == results[0][1]
    np.testing.assert_array_equal(y, np.ones_like(y))


def test_the_tables_name_what_exists() -> None:
    for op_type, attribute in NEUTRAL:
        assert attribute in onnx.defs.get_schema(op_type, 28).attributes
        assert attribute not in onnx.defs.get_schema(op_type, 19).attributes if onnx.defs.has(op_type, 19) else True
    for op_type, version in REWORDED:
        assert onnx.defs.get_schema(op_type, version).since_version == version
