"""Ops that move elements: attribute and operand forms, negative numbers, and shapes that are computed from shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from tests.ort_age import needs_young_onnxruntime

from .net import Array, Net, agrees, floats, integers, names_of

X = (1, 8, 4, 6)
FAR = 2**63 - 1


def i64(*values: int) -> Array:
    return np.asarray(values, np.int64)


def moved(op_type: str, *operands: Array, shape: tuple[int, ...] = X, opset: int = 18, **attrs: Any) -> list[str]:
    """One op on x, checked on reals and on integers; the names of what it became."""
    found = []
    for dtype in (np.float32, np.uint8):
        net = Net(opset)
        net.op(op_type, net.input("x", shape, dtype), *(net.const(o) for o in operands), out="y", **attrs)
        net.output("y", dtype=dtype)
        x = floats(0, *shape) if dtype is np.float32 else integers(0, np.uint8, *shape)
        found.append(names_of(agrees(net.model(), {"x": x}, atol=0)))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("target", [(8, 24), (0, -1), (-1, 6, 0), (1, 8, 4, 6), (2, -1, 3)])
def test_reshape(target: tuple[int, ...]) -> None:
    assert moved("Reshape", i64(*target)) == ([] if target == X else ["reshape"])


def test_reshape_takes_zeros_literally_where_it_says_so() -> None:
    net = Net(18)
    net.op("Reshape", net.input("x", [2, 3]), net.const(i64(3, -1)), out="y", allowzero=1)
    net.output("y")
    agrees(net.model(), {"x": floats(0, 2, 3)}, atol=0)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, 4])
def test_flatten(axis: int) -> None:
    assert moved("Flatten", axis=axis) == ["reshape"]


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_and_unsqueeze(opset: int) -> None:
    shape = (1, 3, 1, 4)
    if opset < 13:
        assert moved("Squeeze", shape=shape, opset=opset, axes=[0, -2]) == ["reshape"]
        assert moved("Unsqueeze", shape=shape, opset=opset, axes=[0, 3]) == ["reshape"]
    else:
        assert moved("Squeeze", i64(0, -2), shape=shape, opset=opset) == ["reshape"]
        assert moved("Unsqueeze", i64(0, -1), shape=shape, opset=opset) == ["reshape"]
        assert moved("Squeeze", shape=shape, opset=opset) == ["reshape"]


def test_transpose() -> None:
    assert moved("Transpose") == ["transpose"]
    assert moved("Transpose", perm=[0, 2, 3, 1]) == ["transpose"]
    assert moved("Transpose", perm=[0, 1, 2, 3]) == []


def test_expand_and_tile() -> None:
    assert moved("Expand", i64(2, 1, 3, 1, 1), shape=(3, 4, 1)) == ["expand"]
    assert moved("Expand", i64(1), shape=(3, 4, 1)) == []
    assert moved("Tile", i64(2, 1, 3), shape=(2, 3, 4)) == ["reshape", "expand", "reshape"] * 2
    assert moved("Tile", i64(1, 1, 3), shape=(2, 3, 4)) == ["reshape", "expand", "reshape"]


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    assert moved("DepthToSpace", blocksize=2, mode=mode) == ["reshape", "transpose", "reshape"]


def test_space_to_depth() -> None:
    needs_young_onnxruntime("has no SpaceToDepth of i8")
    assert moved("SpaceToDepth", blocksize=2) == ["reshape", "transpose", "reshape"]


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1, 0), (3, 100), (1, 3), None),
        ((-1, 1), (-FAR, FAR), (3, 2), (-2, 1)),
        ((-3,), (-1,), (-3,), None),
        ((5,), (0,), (1,), (-1,)),
        ((0, 0, 1, 0), (1, 8, 4, 6), None, (1, 3, 2, 5)),
        ((-1,), (-FAR - 1,), (0,), (-1,)),
    ],
)
def test_slice(starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...] | None, steps: Any) -> None:
    operands = [i64(*starts), i64(*ends), i64(*(axes or range(len(starts))))]
    operands += [i64(*steps)] if steps else []
    assert moved("Slice", *operands) == (["slice"] if starts != (-1,) else [])


def test_slice_by_attributes() -> None:
    assert moved("Slice", opset=9, starts=[1, -3], ends=[100, -1], axes=[1, 3]) == ["slice"]


def test_slice_of_nothing_left_out_is_nothing() -> None:
    assert moved("Slice", i64(0), i64(FAR), i64(1)) == []


@pytest.mark.parametrize(
    ("attrs", "operands", "count"),
    [
        ({"axis": 1}, [i64(1, 5, 2)], 3),
        ({"axis": -1, "num_outputs": 4}, [], 3),
        ({"axis": 3, "num_outputs": 2}, [], 2),
    ],
)
def test_split(attrs: dict[str, Any], operands: list[Array], count: int) -> None:
    """6 in 4 parts is 2, 2, 2 and nothing: ONNX Runtime refuses the empty part, so only three outputs are asked for."""
    attrs = {**attrs, "num_outputs": count} if "num_outputs" in attrs else attrs
    net = Net(18)
    outs = [f"y{i}" for i in range(count)]
    net.op("Split", net.input("x", X), *(net.const(o) for o in operands), out=outs, **attrs)
    net.output(*outs)
    assert names_of(agrees(net.model(), {"x": floats(1, *X)}, atol=0)) == ["slice"] * count


def test_split_of_an_uneven_axis_has_a_smaller_last_part() -> None:
    net = Net(18)
    net.op("Split", net.input("x", [7, 2]), out=["a", "b", "c"], num_outputs=3)
    net.output("a", "b", "c")
    module = agrees(net.model(), {"x": floats(2, 7, 2)}, atol=0)
    assert [o.value.type.shape for o in module.graph.outputs] == [(3, 2), (3, 2), (1, 2)]


def test_split_by_attribute() -> None:
    net = Net(11)
    net.op("Split", net.input("x", X), out=["a", "b"], axis=3, split=[1, 5])
    net.output("a", "b")
    agrees(net.model(), {"x": floats(3, *X)}, atol=0)


@pytest.mark.parametrize(
    ("indices", "axis", "names"),
    [
        (i64(-1, 0, 3), 1, ["gather"]),
        (np.asarray(2, np.int64), 2, ["slice", "reshape"]),
        (np.asarray([[0, 1], [5, -2]], np.int32), 3, ["gather", "reshape"]),
        (i64(4), -1, ["slice"]),
    ],
)
def test_gather_of_known_indices(indices: Array, axis: int, names: list[str]) -> None:
    assert moved("Gather", indices, axis=axis) == names


def test_gather_of_computed_indices_stays_on_the_cpu() -> None:
    net = Net(13)
    net.op("Gather", net.const(floats(4, 10, 3)), net.input("i", [2, 2], np.int64), out="y")
    net.output("y")
    assert names_of(agrees(net.model(), {"i": np.int64([[1, 2], [9, 0]])}, atol=0)) == ["call Gather"]


@pytest.mark.parametrize("opset", [10, 13, 18])
def test_pad(opset: int) -> None:
    pads = [0, 0, 1, 2, 0, 0, 3, 0]
    net = Net(opset)
    x = net.input("x", X)
    if opset < 11:
        net.op("Pad", x, out="y", pads=pads, value=0.5)
    else:
        net.op("Pad", x, net.const(i64(*pads)), net.const(np.float32(0.5)), out="y")
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(5, *X)}, atol=0)) == ["pad"]


def test_pad_of_named_axes_and_negative_pads() -> None:
    net = Net(18)
    x = net.input("x", X)
    net.op("Pad", x, net.const(i64(1, 2)), "", net.const(i64(-2)), out="y")
    net.op("Pad", x, net.const(i64(0, -1, 1, 0, 0, -2, 0, -1)), out="z")
    net.output("y", "z")
    assert names_of(agrees(net.model(), {"x": floats(6, *X)}, atol=0)) == ["pad", "slice", "pad"]


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_mirrored_and_repeated_borders_are_gathered(mode: str) -> None:
    net = Net(19)
    x = net.input("x", X)
    net.op("Pad", x, net.const(i64(0, 0, 1, 1, 0, 0, 1, 1)), out="y", mode=mode)
    net.op("Pad", x, net.const(i64(0, -1, 1, 0, 0, 0, 2, 0)), out="z", mode=mode)
    net.output("y", "z")
    assert names_of(agrees(net.model(), {"x": floats(7, *X)}, atol=0)) == ["gather", "gather", "slice", "gather"]


def test_a_border_of_quantised_integers_is_a_code() -> None:
    """Pad of integers adds integers: 0 by default, which is not the real 0 where there is a zero point."""
    net = Net(13)
    q = net.q(net.input("x", [1, 1, 2, 2]), 0.25, np.uint8(100))
    net.dq(net.op("Pad", q, net.const(i64(0, 0, 1, 1, 0, 0, 1, 1))), 0.25, np.uint8(100), out="y")
    net.output("y")
    agrees(net.model(), {"x": floats(8, 1, 1, 2, 2)}, exported=False)


def test_concat_of_parts_with_different_meanings_joins_plain_integers() -> None:
    net = Net(13)
    a, b = (net.q(net.input(n, [1, 3]), s, np.int8(0)) for n, s in (("a", 0.5), ("b", 0.25)))
    net.op("Concat", a, b, out="y", axis=-1)
    net.output("y", dtype=np.int8)
    module = agrees(net.model(), {"a": floats(9, 1, 3), "b": floats(10, 1, 3)})
    assert names_of(module) == ["quantize", "quantize", "reinterpret", "reinterpret", "concat"]


def test_shape_arithmetic_is_folded() -> None:
    net = Net(13)
    x = net.input("x", ["N", 2, 4, 4])
    n = net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), net.const(np.asarray(0, np.int64))), net.const(i64(0)))
    half = net.op("Div", net.op("Slice", net.op("Shape", x), net.const(i64(1)), net.const(i64(2))), net.const(i64(2)))
    t = net.op("Reshape", x, net.op("Concat", n, half, net.const(i64(-1)), axis=0))
    filled = net.op("ConstantOfShape", net.op("Shape", t))
    net.op("Add", t, filled, out="y")
    net.output("y")
    module = agrees(net.model(), {"x": floats(11, 3, 2, 4, 4)}, x=(3, 2, 4, 4))
    assert names_of(module) == ["reshape", "add"]
    assert module.graph.outputs[0].value.type.shape == (3, 1, 32)


def test_shape_with_a_window() -> None:
    net = Net(15)
    net.op("Identity", net.op("Shape", net.input("x", X), start=1, end=-1), out="y")
    net.op("Size", "x", out="z")
    net.output("y", "z", dtype=np.int64)
    agrees(net.model(), {"x": floats(12, *X)})


def test_identity_and_dropout_are_nothing() -> None:
    net = Net(13)
    net.op("Dropout", net.op("Identity", net.op("Relu", net.input("x", [3]))), out=["y", "mask"])
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(13, 3)})) == ["clip"]


@pytest.mark.parametrize("to", [np.int32, np.float16, np.float64, np.bool_, np.uint8])
def test_cast(to: Any) -> None:
    net = Net(13)
    elem_type = net.input("probe", [1], to) and net.inputs.pop().type.tensor_type.elem_type
    net.op("Cast", net.input("x", [20]), out="y", to=elem_type)
    net.output("y", dtype=to)
    agrees(net.model(), {"x": np.abs(floats(14, 20)) * 9})


def test_a_branch_that_is_known_becomes_part_of_the_graph() -> None:
    net = Net(13)
    x = net.input("x", [1, 4])
    rank = net.op("Equal", net.op("Size", net.op("Shape", x)), net.const(np.asarray(2, np.int64)))
    then, other = Net(), Net()
    then.op("Relu", x, out="a")
    then.output("a")
    other.op("Neg", x, out="b")
    other.output("b")
    net.op("If", rank, out="y", then_branch=then.model().graph, else_branch=other.model().graph)
    net.output("y")
    assert names_of(agrees(net.model(), {"x": floats(15, 1, 4)})) == ["clip"]


@pytest.mark.parametrize(
    ("op_type", "operands", "attrs", "says"),
    [
        ("Reshape", [i64(7, 7)], {}, "can't reshape"),
        ("Reshape", [i64(-1, -1)], {}, "can't reshape"),
        ("Reshape", [i64(8, 4, 6, 1, 0)], {}, "a 0 stands"),
        ("Transpose", [], {"perm": [0, 1, 1, 2]}, "no permutation"),
        ("Squeeze", [i64(1)], {}, "can't squeeze"),
        ("Gather", [i64(99)], {}, "out of range"),
        ("Split", [i64(1, 1)], {"axis": 1}, "make up"),
        ("Concat", [floats(0, 3)], {"axis": 0}, "can't be taken in"),
        ("DepthToSpace", [], {"blocksize": 3}, "blocks of 3"),
        ("Slice", [i64(0), i64(1), i64(9)], {}, "can't slice"),
        ("Expand", [i64(5, 5)], {}, "can't be taken in"),
        ("Pad", [i64(1, 1)], {}, "don't fit"),
        ("Flatten", [], {"axis": 9}, "axis 9"),
    ],
)
def test_what_does_not_fit_is_refused_at_its_node(
    op_type: str, operands: list[Array], attrs: dict[str, Any], says: str
) -> None:
    net = Net(13)
    outs = ["y", "z"] if op_type == "Split" else ["y"]
    net.op(op_type, net.input("x", X), *(net.const(o) for o in operands), out=outs, **attrs)
    net.output("y")
    with pytest.raises(FrontendError, match=says) as raised:
        load(net.model())
    assert f"node '{op_type}_0' ({op_type}, opset 13)" in str(raised.value)
