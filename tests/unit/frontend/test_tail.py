"""Results whose size depends on the data: which nodes become one `call_graph`, of which types, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import onnx
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir import parse_module, print_module
from hbc.ir.core import Module
from hbc.ir.ops import CallGraph
from hbc.ir.types import DYNAMIC, DType
from hbc.ir.verifier import verify

from .net import Net, agrees, floats, names_of

F32 = np.float32
I64 = np.int64
X = {"x": F32([[0, 3, 0, -1], [2, 0, 5, 4]])}


def sizes(module: Module) -> dict[str, tuple[int, ...]]:
    return {o.name: o.value.type.shape for o in module.graph.outputs}


def nodes_of(op: CallGraph) -> list[str]:
    return [n.op_type for n in onnx.GraphProto.FromString(base64.b64decode(op.graph_proto)).node]


def found(net: Net, x: str) -> str:
    """The elements of `x` that are not 0, one after the other."""
    return net.op("GatherND", x, net.op("Transpose", net.op("NonZero", x)))


def ends(net: Net, *floats: str, **others: Any) -> onnx.ModelProto:
    """The model; of its outputs (float32, and others by dtype) no size is stated."""
    for name, dtype in {**dict.fromkeys(floats, F32), **others}.items():
        net.output(name, dtype=dtype)
    return net.model()


def test_a_result_of_unknown_size_is_an_output_with_an_open_size() -> None:
    net = Net(13)
    net.op("NonZero", net.input("x", [2, 4]), out="y")
    net.output("y", dtype=I64)
    module = agrees(net.model(), X)
    assert names_of(module) == ["call_graph"]
    assert sizes(module) == {"y": (2, DYNAMIC)}
    assert "tensor<2x?xi64>" in print_module(module)


def test_all_that_reads_it_is_one_op_and_the_rest_is_imported_as_ever() -> None:
    net = Net(13)
    x = net.op("Mul", net.input("x", [2, 4]), net.const(F32(2)))
    net.op("Sqrt", net.op("Abs", found(net, x)), out="y")
    net.op("Neg", x, out="z")
    module = agrees(ends(net, "y", "z"), X)
    (op,) = module.graph.walk(CallGraph)
    assert sorted(names_of(module)) == ["call_graph", "mul", "neg"]
    assert nodes_of(op) == ["NonZero", "Transpose", "GatherND", "Abs", "Sqrt"]
    assert [p.node for p in op.loc.parts] == ["NonZero_1", "Transpose_2", "GatherND_3", "Abs_4", "Sqrt_5"]
    assert "NonZero_1" in op.reason
    assert sizes(module) == {"y": (DYNAMIC,), "z": (2, 4)}


def test_a_top_k_of_them_has_a_known_size_again() -> None:
    net = Net(13)
    net.op("TopK", found(net, net.input("x", [2, 4])), net.const(I64([3])), out=["top", "i"])
    net.op("Mul", "top", net.const(F32(2)), out="y")
    module = agrees(ends(net, "y", i=I64), X)
    assert names_of(module) == ["call_graph", "mul"]
    assert sizes(module) == {"y": (3,), "i": (3,)}


def test_a_size_that_the_file_states_is_known() -> None:
    net = Net(13)
    net.op("Reshape", found(net, net.input("x", [2, 4])), net.const(I64([-1, 5])), out="r")
    net.op("Neg", "r", out="y")
    net.output("y")
    model = net.model()
    assert sizes(agrees(model, X)) == {"y": (DYNAMIC, 5)}
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("r", 1, [1, 5]))
    module = agrees(model, X)
    assert names_of(module) == ["call_graph", "neg"]
    assert sizes(module) == {"y": (1, 5)}


def test_sizes_that_the_file_states_say_nothing_once_inputs_are_bound() -> None:
    net = Net(13)
    net.op("NonZero", net.input("x", ["n", 4]), out="y")
    net.outputs.append(onnx.helper.make_tensor_value_info("y", 7, [2, 5]))
    module = agrees(net.model(), {"x": np.ones((3, 4), F32)}, x=[3, 4])
    assert sizes(module) == {"y": (2, DYNAMIC)}


def test_what_leaves_the_part_and_comes_back_belongs_to_it() -> None:
    """`top` has a size, so `twice` could be an op; but what reads it also reads tensors of the part."""
    net = Net(13)
    some = found(net, net.input("x", [2, 4]))
    net.op("TopK", some, net.const(I64([1])), out=["top", "i"])
    net.op("Mul", "top", net.const(F32(2)), out="twice")
    net.op("Add", some, "twice", out="y")
    net.op("Neg", "twice", out="z")
    module = agrees(ends(net, "y", "z"), X)
    (op,) = module.graph.walk(CallGraph)
    assert names_of(module) == ["call_graph", "neg"]
    assert nodes_of(op) == ["NonZero", "Transpose", "GatherND", "TopK", "Mul", "Add"]


def test_a_second_part_may_follow_known_sizes() -> None:
    net = Net(13)
    net.op("TopK", found(net, net.input("x", [2, 4])), net.const(I64([3])), out=["top", "i"])
    y = net.op("Relu", net.op("Sub", "top", net.const(F32(3))))
    net.op("NonZero", y, out="y")
    module = agrees(ends(net, y=I64), X)
    assert sizes(module) == {"y": (1, DYNAMIC)}
    assert len(list(module.graph.walk(CallGraph))) == 1, "the part is convex: what lies between belongs to it"


def test_parts_that_do_not_meet_are_one_op() -> None:
    net = Net(13)
    x = net.input("x", [2, 4])
    net.op("NonZero", x, out="a")
    net.op("NonZero", net.op("Relu", x), out="b")
    module = agrees(ends(net, a=I64, b=I64), X)
    assert names_of(module) == ["clip", "call_graph"]


@pytest.mark.parametrize("opset", [13, 18])
def test_shapes_computed_from_data(opset: int) -> None:
    """Range, Slice, Expand, ConstantOfShape and Reshape by a number that only a run knows."""
    net = Net(opset)
    x = net.input("x", [2, 4])
    count = net.op("Cast", net.op("ReduceMax", x, keepdims=0), to=7)
    one = net.op("Unsqueeze", count, net.const(I64([0])))
    net.op("Range", net.const(I64(0)), count, net.const(I64(1)), out="range")
    net.op("Slice", net.op("Flatten", x, axis=0), net.const(I64([0])), one, net.const(I64([1])), out="slice")
    net.op("Expand", net.const(F32(7)), one, out="expand")
    net.op("ConstantOfShape", one, out="zeros")
    net.op("Reshape", "range", net.op("Concat", one, net.const(I64([1])), axis=0), out="reshape")
    module = agrees(ends(net, "slice", "expand", "zeros", range=I64, reshape=I64), X)
    assert {name: len(shape) for name, shape in sizes(module).items()} == {
        "slice": 2, "expand": 1, "zeros": 1, "range": 1, "reshape": 2
    }  # fmt: skip
    assert all(d == DYNAMIC for shape in sizes(module).values() for d in shape)


def test_a_branch_that_is_known_to_be_taken_may_have_unknown_sizes() -> None:
    inner = Net(13)
    inner.op("NonZero", "x", out="b")
    inner.output("b", dtype=I64)
    branch = inner.model().graph
    net = Net(13)
    net.input("x", [2, 4])
    net.op("If", net.const(np.array(True)), out="y", then_branch=branch, else_branch=branch)
    module = agrees(ends(net, y=I64), X)
    (op,) = module.graph.walk(CallGraph)
    assert nodes_of(op) == ["If"]
    assert sizes(module) == {"y": (2, DYNAMIC)}


def test_subgraphs_read_tensors_of_the_part_under_their_new_names() -> None:
    """Inner names that are those of outer tensors elsewhere must not be confused with them."""
    net = Net(13)
    x = net.input("x", [2, 4])
    some = found(net, x)
    branches = []
    for op_type in ("Add", "Mul"):
        inner = Net(13)
        inner.op(op_type, some, net.const(F32(3), "three") if op_type == "Add" else "three", out="inner:0")
        inner.op("Neg", "inner:0", out="b")
        inner.output("b")
        branches.append(inner.model().graph)
    condition = net.op("Greater", net.op("ReduceSum", x, keepdims=0), net.const(F32(0)))
    net.op("If", condition, out="y", then_branch=branches[0], else_branch=branches[1])
    model = ends(net, "y")
    for sign in (1, -1):
        module = agrees(model, {"x": X["x"] * F32(sign)})
    assert sizes(module) == {"y": (DYNAMIC,)}


def test_sequences_pass_inside() -> None:
    net = Net(13)
    parts = net.op("SplitToSequence", net.input("x", [2, 4]), axis=0)
    net.op("SequenceAt", parts, net.const(I64(1)), out="y")
    net.outputs.append(onnx.helper.make_tensor_value_info("y", 1, [1, 4]))
    module = agrees(net.model(), X)
    (op,) = module.graph.walk(CallGraph)
    assert nodes_of(op) == ["SplitToSequence", "SequenceAt"]
    assert sizes(module) == {"y": (1, 4)}


def test_float16_and_float64_keep_their_types() -> None:
    net = Net(13)
    half = net.input("h", [4], np.float16)
    double = net.op("Cast", half, to=11)
    positive = net.op("Greater", double, net.const(np.float64(0)))
    net.op("TopK", net.op("Compress", double, positive), net.const(I64([2])), out=["top", "i"])
    net.op("Neg", "top", out="d")
    net.op("Compress", half, net.op("Greater", half, net.const(np.float16(0))), out="c")
    net.output("d", dtype=np.float64)
    net.output("c", dtype=np.float16)
    module = agrees(net.model(), {"h": np.float16([0.5, 0, -2, 1.25])}, exported=False)
    assert [o.value.type.dtype for o in module.graph.outputs] == [DType.F64, DType.F16]


def test_quantised_operands_are_plain_numbers() -> None:
    net = Net(13)
    q = net.q(net.input("x", [2, 4]), 0.5, np.uint8(3))
    net.op("Compress", q, net.const(np.array([True, False] * 4)), out="k")
    net.op("Compress", q, net.op("Greater", net.op("Flatten", "x", axis=0), net.const(F32(0))), out="y")
    net.dq("y", 0.5, np.uint8(3), out="z")
    module = agrees(ends(net, "z", y=np.uint8), X)
    assert [o.value.type.dtype for o in module.graph.outputs] == [DType.F32, DType.U8]


def test_the_text_keeps_everything() -> None:
    net = Net(13)
    net.op("NonZero", net.input("x", [2, 4]), out="y")
    module = load(ends(net, y=I64))
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text


@pytest.mark.parametrize("domain", ["horizon", "com.microsoft"])
def test_an_unknown_rank_is_refused_unless_the_file_states_it(domain: str) -> None:
    net = Net(13, **{domain.replace(".", "_"): 1})
    x = net.op("Compress", net.input("x", [2, 4]), net.op("Greater", net.input("c", [8]), net.const(F32(0))))
    if domain == "horizon":
        net.op("HzLut", x, out="y", domain=domain)
        expected = r"node 'HzLut_2' \(horizon\.HzLut\) can't run where sizes depend on the data"
    else:
        net.op("Inverse", x, out="y", domain=domain)
        expected = "the rank of a result isn't known before running"
    with pytest.raises(FrontendError, match=expected) as raised:
        load(ends(net, "y"))
    assert "from node 'Compress_1' (Compress) on" in str(raised.value)
    if domain == "com.microsoft":
        model = net.model()
        model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, ["n", "n"]))
        assert sizes(load(model)) == {"y": (DYNAMIC, DYNAMIC)}


def test_a_result_that_is_no_tensor_is_refused() -> None:
    net = Net(13)
    net.op("SplitToSequence", net.input("x", [2, 4]), out="y", axis=0)
    net.outputs.append(onnx.helper.make_tensor_sequence_value_info("y", 1, None))
    with pytest.raises(FrontendError, match="rank of a result") as raised:
        load(net.model())
    assert "'y'" in str(raised.value)
    assert "no tensor" in str(raised.value)


def test_nodes_that_contradict_their_operator_are_refused() -> None:
    net = Net(13)
    some = net.op("NonZero", net.input("x", [2, 4]))
    net.op("Transpose", some, out="y", perm=[0, 1, 2])
    with pytest.raises(FrontendError, match="nodes whose sizes depend on the data can't be taken in") as raised:
        load(ends(net, "y"))
    assert "from node 'NonZero_0' (NonZero) on" in str(raised.value)


def test_a_boundary_that_nobody_needs_is_not_exported() -> None:
    """Of Unique's four results two are read."""
    net = Net(13)
    net.op("Unique", net.input("x", [2, 4]), out=["y", "first", "inverse", "counts"])
    net.op("Add", "counts", net.const(I64(1)), out="n")
    module = agrees(ends(net, "y", n=I64), X)
    (op,) = module.graph.walk(CallGraph)
    assert [r.name for r in op.results] == ["y", "n"]


def test_every_run_may_bring_other_sizes() -> None:
    net = Net(13)
    net.op("NonZero", net.input("x", [64]), out="y")
    model = ends(net, y=I64)
    for seed in range(4):
        x = floats(seed, 64)
        agrees(model, {"x": np.where(x > seed - 1, x, 0).astype(F32)})
