"""Control flow: branches known at import, also inside functions; loops whose results keep their sizes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbc.frontend import load
from hbc.ir.ops import Call

from .net import Net, agrees, floats, names_of

F32, I64 = np.float32, np.int64


def info(name: str, elem_type: int, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def body(*nodes: onnx.NodeProto, outputs: tuple[str, ...], keeps: str = "c") -> onnx.GraphProto:
    """A loop body of one carried value `v`; `keeps` is what becomes of the condition."""
    inputs = [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("v", 1, None)]
    first = [] if keeps == "given" else [helper.make_node("Identity", [keeps], ["c2"], "go on")]
    outs = [info("c" if keeps == "given" else "c2", TensorProto.BOOL, []), *(info(o, 1, None) for o in outputs)]
    return helper.make_graph([*first, *nodes], "body", inputs, outs)


def loop(graph: onnx.GraphProto, results: tuple[str, ...], *, trips: int | None = 3, opset: int = 17) -> Net:
    net = Net(opset)
    x = net.input("x", [2, 3])
    net.op("Relu", net.input("s", [2, 3]), out="step")
    count = net.input("n", [], I64) if trips is None else net.const(I64(trips))
    net.op("Loop", count, "", x, out=results, body=graph)
    net.output(*results)
    return net


ADD = helper.make_node("Add", ["v", "step"], ["v2"], "add")
ROW = helper.make_node("ReduceSum", ["v"], ["row"], "row", keepdims=0)
FEEDS = {"x": floats(0, 2, 3), "s": floats(1, 2, 3)}


@pytest.mark.parametrize("keeps", ["c", "given"])
def test_a_loop_keeps_the_shape_of_what_it_carries_and_stacks_rows(keeps: str) -> None:
    net = loop(body(ADD, ROW, outputs=("v2", "row", "v2"), keeps=keeps), ("y", "rows", "all"))
    module = agrees(net.model(), FEEDS, atol=1e-5)
    (call,) = module.graph.walk(Call)
    assert [r.type.shape for r in call.results] == [(2, 3), (3,), (3, 2, 3)]


def test_a_loop_of_unknown_length_keeps_the_shape_of_what_it_carries() -> None:
    net = loop(body(ADD, outputs=("v2",)), ("y",), trips=None)
    module = agrees(net.model(), {**FEEDS, "n": np.asarray(4, I64)}, atol=1e-5)
    (call,) = module.graph.walk(Call)
    assert call.results[0].type.shape == (2, 3)


def test_a_loop_that_may_end_early_has_no_known_number_of_rows() -> None:
    less = helper.make_node("Less", ["row", "limit"], ["on"], "less")
    limit = helper.make_node("Constant", [], ["limit"], "limit", value_float=1e9)
    graph = body(ADD, ROW, outputs=("v2", "row"), keeps="on")
    nodes = [ADD, ROW, limit, less, *[n for n in graph.node if n.name == "go on"]]
    del graph.node[:]
    graph.node.extend(nodes)
    net = loop(graph, ("y", "rows"))
    net.outputs[:] = [info("y", 1, [2, 3]), info("rows", 1, ["n"])]  # type: ignore[list-item]
    assert names_of(load(net.model()))[-1] == "call_graph"


def test_a_value_that_grows_has_no_known_shape() -> None:
    grow = helper.make_node("Concat", ["v", "v"], ["v2"], "grow", axis=0)
    net = loop(body(grow, outputs=("v2",)), ("y",))
    net.outputs[0].CopyFrom(info("y", 1, ["n", 3]))  # type: ignore[list-item]
    net.op("Identity", "step", out="z")
    net.output("z")
    assert "call Loop" not in names_of(load(net.model()))


def test_what_follows_a_loop_is_imported_as_ever() -> None:
    net = loop(body(ADD, outputs=("v2",)), ("t",))
    net.outputs.clear()
    net.op("MatMul", "t", net.const(floats(2, 3, 4)), out="y")
    net.output("y")
    assert names_of(agrees(net.model(), FEEDS, atol=1e-5)) == ["clip", "call Loop", "linear"]


def test_a_scan_runs_as_a_call() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s2"]), helper.make_node("Identity", ["s2"], ["o"])],
        "body", [info("s", 1, [3]), info("e", 1, [3])], [info("s2", 1, [3]), info("o", 1, [3])],
    )  # fmt: skip
    net = Net(17)
    net.op("Scan", net.input("i", [3]), net.input("x", [4, 3]), out=["f", "y"], body=graph, num_scan_inputs=1)
    net.output("f", "y")
    module = agrees(net.model(), {"i": floats(0, 3), "x": floats(1, 4, 3)}, atol=1e-5)
    assert names_of(module) == ["call Scan"]


def branch(op_type: str, name: str, operand: str = "a") -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op_type, [operand], [name])], name, [], [info(name, 1, None)])


def test_a_branch_of_a_function_is_known_by_the_shape_of_its_operand() -> None:
    """Shape → Gather → Equal → If, all inside a function: what torch writes for `if x.shape[0] == 2`."""
    nodes = [
        helper.make_node("Shape", ["a"], ["shape"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Constant", [], ["two"], value_int=2),
        helper.make_node("Gather", ["shape", "zero"], ["first"], axis=0),
        helper.make_node("Equal", ["first", "two"], ["is two"]),
        helper.make_node("If", ["is two"], ["b"], then_branch=branch("Neg", "t"), else_branch=branch("Abs", "e")),
    ]
    net = Net(17, my_domain=1)
    net.op("Either", net.input("x", [2, 3]), out="y", domain="my.domain")
    net.op("Either", net.input("z", [3, 3]), out="w", domain="my.domain")
    net.output("y", "w")
    model = net.model()
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("my.domain", "Either", ["a"], ["b"], nodes, opsets))
    assert names_of(agrees(model, {"x": floats(0, 2, 3), "z": floats(1, 3, 3)})) == ["neg", "abs"]


def test_chains_of_constants_fold() -> None:
    """Range, NonZero, ConstantOfShape, Size and Where of known values leave nothing but what they index."""
    net = Net(17)
    x = net.input("x", [4, 5])
    size = net.op("Size", x)
    steps = net.op("Range", net.const(I64(0)), net.op("Div", size, net.const(I64(5))), net.const(I64(2)))  # 0, 2
    mask = net.op("ConstantOfShape", net.op("Shape", steps), value=onnx.numpy_helper.from_array(I64([1])))
    picked = net.op("Squeeze", net.op("NonZero", mask), net.const(I64([0])))  # 0, 1
    index = net.op("Where", net.op("Equal", steps, net.const(I64(0))), net.const(I64(3)), picked)  # 3, 1
    net.op("Gather", x, index, out="y", axis=0)
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(0, 4, 5)})) == ["slice"]


def test_what_is_made_of_a_growing_value_has_no_known_shape() -> None:
    """After the first turn `b` has the shape that it started with; after the second one it has the grown one."""
    nodes = [
        helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Concat", ["v", "v"], ["v2"], axis=0),
        helper.make_node("Mul", ["v", "v"], ["b2"]),
    ]  # fmt: skip
    flag, count = info("c", TensorProto.BOOL, []), info("i", TensorProto.INT64, [])
    reals = [info(name, 1, None) for name in ("v", "b", "v2", "b2")]
    inner = helper.make_graph(nodes, "body", [count, flag, *reals[:2]], [info("c2", TensorProto.BOOL, []), *reals[2:]])
    net = Net(17)
    x, y = net.input("x", [2]), net.input("y", [2])
    net.op("Loop", net.const(I64(3)), "", x, y, out=("grown", "b"), body=inner)
    net.output("grown", "b")
    model = net.model()
    model.graph.value_info.extend([info("grown", 1, [16]), info("b", 1, [8])])
    (call,) = agrees(model, {"x": floats(0, 2), "y": floats(1, 2)}, atol=1e-5).graph.walk(Call)
    assert [r.type.shape for r in call.results] == [(16,), (8,)]


@pytest.mark.parametrize("unread", ["", "unread"])
def test_a_loop_whose_first_result_nobody_reads_runs(unread: str) -> None:
    """ONNX Runtime crashes on a Loop whose first result has no name: the segment gives it one.

    In a process of its own, since the crash would take this one along.
    """
    inputs = [info(n, t, s) for n, t, s in (("i", 7, []), ("c", 9, []), ("a", 1, None), ("b", 1, [2]))]
    nodes = [
        helper.make_node("Identity", ["c"], ["c2"]),
        helper.make_node("Concat", ["a", "x"], ["a2"], axis=0),
        helper.make_node("Add", ["b", "x"], ["b2"]),
    ]
    outputs = [info("c2", 9, []), info("a2", 1, None), info("b2", 1, [2])]
    net = Net(17)
    x = net.input("x", [2])
    net.op("Loop", net.const(I64(3)), "", x, x, out=(unread, "y"), body=helper.make_graph(nodes, "b", inputs, outputs))
    net.output("y")
    code = (
        "import sys, hbc, numpy as np; from hbc_runtime import Session; "
        "s = Session(hbc.compile(sys.stdin.buffer.read()).program); print(s.run({'x': np.float32([1, 2])})['y'])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=net.model().SerializeToString(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"[4. 8.]\n"), done.stderr
