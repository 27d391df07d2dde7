"""Gathers and scatters by index tensors, borders of one side: moves where the indices are known, calls where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from tests.unit.frontend.net import Array, Net, agrees, floats, integers, names_of

X = [2, 4, 5]


def i64(values: Any) -> Array:
    return np.array(values, np.int64)


def names(net: Net, x: Array) -> list[str]:
    net.output("y", dtype=x.dtype)
    return names_of(agrees(net.model(), {"x": x}, atol=0))


def one(op: str, *operands: Array, opset: int = 18, **attrs: Any) -> Net:
    net = Net(opset)
    net.op(op, net.input("x", X), *map(net.const, operands), out="y", **attrs)
    return net


@pytest.mark.parametrize(
    ("indices", "axis", "want"),
    [
        (integers(0, np.int8, 2, 3, 5).astype(np.int64) % 4, 1, ["reshape", "gather", "reshape"]),
        (np.broadcast_to(i64([3, -4, 0])[:, None], (2, 3, 5)), 1, ["gather"]),
        (np.broadcast_to(i64([1, 2, 3])[:, None], (2, 3, 5)), 1, ["slice"]),
        (i64([[[-1]]]), -1, ["reshape", "slice", "reshape"]),
    ],
)
def test_gather_elements(indices: Array, axis: int, want: list[str]) -> None:
    assert names(one("GatherElements", np.ascontiguousarray(indices), axis=axis), floats(1, *X)) == want


@pytest.mark.parametrize(
    ("indices", "batch"),
    [
        (i64([[0, 1, 2], [1, -1, -5]]), 0),
        (i64([[[1], [0]], [[-1], [1]]]), 0),
        (i64([[[0], [3]], [[-1], [2]]]), 1),
        (i64([[[0, 4]], [[-1, 2]]]), 1),
    ],
)
def test_gather_nd(indices: Array, batch: int) -> None:
    found = names(one("GatherND", indices, batch_dims=batch), floats(1, *X))
    assert set(found) <= {"reshape", "gather", "slice"}


def test_scatters_write_what_their_indices_say() -> None:
    updates = floats(2, 2, 1, 5)
    found = names(
        one("ScatterElements", i64([[[0, 1, 2, 3, 0]], [[3, -1, 0, 0, 1]]]).reshape(2, 1, 5), updates, axis=1),
        floats(1, *X),
    )
    assert found == ["reshape", "concat", "gather", "reshape"]
    assert names(one("ScatterND", i64([[0, 1], [1, -2]]), floats(3, 2, 5)), floats(1, *X))[-2:] == ["gather", "reshape"]


@pytest.mark.parametrize("reduction", ["add", "mul", "max"])
def test_a_scatter_that_combines_stays_on_the_cpu(reduction: str) -> None:
    net = one("ScatterElements", i64([[[0] * 5]]), floats(2, 1, 1, 5), axis=1, reduction=reduction)
    assert names(net, floats(1, *X)) == ["call ScatterElements"]


@pytest.mark.parametrize("op", ["GatherElements", "GatherND"])
def test_computed_indices_stay_on_the_cpu(op: str) -> None:
    net = Net(18)
    net.op(op, net.const(floats(1, *X)), net.input("i", [2, 4, 1], np.int64), out="y")
    net.output("y")
    indices = np.zeros((2, 4, 1), np.int64)
    assert names_of(agrees(net.model(), {"i": indices}, atol=0)) == [f"call {op}"]


def test_compress_and_trilu() -> None:
    keep = np.array([True, False, True])
    assert names(one("Compress", keep, axis=2), floats(1, *X)) == ["slice"]
    assert names(one("Compress", np.array([True, True, False, True])), floats(1, *X)) == ["reshape", "gather"]
    assert names(one("Trilu", np.int64(1), upper=0), floats(1, *X)) == ["call Trilu"]
    net = Net(18)
    net.op("Trilu", net.input("x", X, np.int64), net.const(np.int64(-1)), out="y")
    assert "gather" in names(net, np.arange(40, dtype=np.int64).reshape(X))


@pytest.mark.parametrize("dtype", [None, 6, 11])
def test_eye_like_asks_for_the_shape_only(dtype: int | None) -> None:
    net = Net(18)
    net.op("EyeLike", net.input("x", [3, 4]), out="y", k=1, **({} if dtype is None else {"dtype": dtype}))
    net.output("y", dtype={None: np.float32, 6: np.int32, 11: np.float64}[dtype])
    assert "call EyeLike" not in names_of(agrees(net.model(), {"x": floats(0, 3, 4)}, atol=0, exported=False))


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "says"),
    [
        ("GatherElements", [i64([[[4]]])], {"axis": 1}, "out of range"),
        ("GatherElements", [i64([1, 2])], {"axis": 1}, "don't fit"),
        ("GatherND", [i64([[0, 0, 0, 0]])], {}, "don't fit"),
        ("GatherND", [i64([[2]])], {}, "out of range"),
        ("GatherND", [i64([[0]])], {"batch_dims": 7}, "don't fit"),
        ("ScatterND", [i64([[5]]), floats(0, 1, 4, 5)], {}, "out of range"),
        ("ScatterND", [i64([[0]]), floats(0, 4, 5)], {}, "updates don't fit"),
        ("ScatterElements", [i64([[[9]]]), floats(0, 1, 1, 1)], {"axis": 1}, "out of range"),
        ("ScatterElements", [i64([[[0]]]), floats(0, 1, 1, 3)], {"axis": 1}, "updates don't fit"),
        ("ScatterElements", [i64([[[0]]]), np.zeros((1, 1, 1), np.int8)], {"axis": 1}, "differ in type"),
        ("Compress", [np.ones(9, bool)], {"axis": 1}, "longer than the input"),
        ("Pad", [i64([-3, 0, 0, 0, 0, 0])], {"mode": "edge"}, "leave nothing"),
        ("Pad", [i64([1, 0, 0, 0, 0, 0])], {"mode": "mirror"}, "'mode'"),
    ],
)  # fmt: skip
def test_indices_that_do_not_fit_are_refused(op: str, operands: list[Array], attrs: dict[str, Any], says: str) -> None:
    net = one(op, *operands, **attrs)
    net.output("y")
    with pytest.raises(FrontendError, match=says) as raised:
        load(net.model())
    assert f"{op}_0" in str(raised.value)
