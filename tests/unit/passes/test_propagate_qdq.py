from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir.core import Value
from hbc.ir.ops import (
    TABLE,
    Add,
    Clip,
    Concat,
    Dequantize,
    Expand,
    Gather,
    MaxPool,
    Pad,
    Quantize,
    ReduceMax,
    ReduceMin,
    Reshape,
    ResizeNearest,
    Slice,
    Transpose,
)
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.propagate_qdq import PropagateQdq

from .graphs import Net, apply, random_inputs, run

Q = Quant.per_tensor(0.5)
Q_OTHER = Quant.per_tensor(0.25, 3)
PER_CHANNEL = Quant((0.5, 0.25, 0.125), (0, 0, 0), 1)


class Qdq(Net):
    def ints(self, *shape: int, quant: Quant = Q, dtype: DType = DType.I8) -> Value:
        return self.op(Dequantize, self.arg(shape, dtype, quant))

    def quantize(self, x: Value, quant: Quant = Q, dtype: DType = DType.I8, *, narrow: bool = False) -> Value:
        return self.op(Quantize, x, type=TensorType(x.type.shape, dtype, quant), narrow=narrow)


def propagated(net: Net) -> list[str]:
    """Names of the ops after the pass, which kept every output (its steps that are exact)."""
    inputs = random_inputs(net.graph)
    before = run(net.graph, inputs)
    apply(PropagateQdq(), net)
    assert all(np.array_equal(a, b) for a, b in zip(before, run(net.graph, inputs), strict=True))
    return net.names


MOVES = {
    "reshape": (Reshape, {"shape": (1, 3, 16)}),
    "transpose": (Transpose, {"perm": (0, 2, 3, 1)}),
    "slice": (Slice, {"starts": (0, 0, 1, 3), "sizes": (1, 3, 2, 2), "steps": (1, 1, 1, -2)}),
    "pad": (Pad, {"pads": (0, 0, 1, 1, 0, 0, 2, 0)}),
    "expand": (Expand, {"shape": (2, 3, 4, 4)}),
    "gather": (Gather, {"axis": 2, "indices": (3, 0)}),
    "resize_nearest": (ResizeNearest, {"rows": (0, 0, 1, 1), "columns": (3, 2)}),
    "max_pool": (MaxPool, {"kernel": (2, 2), "strides": (2, 2)}),
}


@pytest.mark.parametrize("quant", [Q, Q_OTHER, PER_CHANNEL], ids=["symmetric", "affine", "per channel"])
@pytest.mark.parametrize("name", MOVES)
def test_a_dequantize_moves_down(name: str, quant: Quant) -> None:
    cls, attrs = MOVES[name]
    net = Qdq()
    net.output(net.op(cls, net.ints(1, 3, 4, 4, quant=quant), **attrs))
    assert propagated(net) == [name, "dequantize"]
    moved = net.graph.ops[0].out.type.quant
    assert moved is not None
    assert moved.axis == (None if quant.axis is None else 3 if name == "transpose" else 1)


@pytest.mark.parametrize(("dtype", "quant"), [(DType.I8, Q), (DType.U8, Q_OTHER), (DType.I16, Q_OTHER)])
@pytest.mark.parametrize("cls", [ReduceMax, ReduceMin])
def test_a_dequantize_moves_down_past_the_largest_of_an_axis(
    cls: type[ReduceMax | ReduceMin], dtype: DType, quant: Quant
) -> None:
    net = Qdq()
    net.output(net.op(cls, net.ints(1, 3, 4, 4, quant=quant, dtype=dtype), axes=(2, 3)))
    assert propagated(net) == [cls.NAME, "dequantize"]
    assert net.graph.ops[0].out.type == TensorType((1, 3, 1, 1), dtype, quant)


def test_the_largest_of_an_axis_of_several_scales_stays_among_reals() -> None:
    net = Qdq()
    net.output(net.op(ReduceMax, net.ints(1, 3, 4, 4, quant=PER_CHANNEL), axes=(1,)))
    assert propagated(net) == ["dequantize", "reduce_max"]


@pytest.mark.parametrize("quant", [Q, Q_OTHER], ids=["symmetric", "affine"])
@pytest.mark.parametrize("name", MOVES)
def test_a_quantize_moves_up(name: str, quant: Quant) -> None:
    cls, attrs = MOVES[name]
    net = Qdq()
    net.output(net.quantize(net.op(cls, net.op(TABLE["tanh"], net.arg((1, 3, 4, 4))), **attrs), quant))
    assert propagated(net) == ["tanh", "quantize", name]
    assert net.graph.outputs[0].value.type.quant == quant


def test_a_dequantize_falls_through_a_chain_and_vanishes_at_an_equal_quantize() -> None:
    net = Qdq()
    x = net.op(Transpose, net.op(Reshape, net.ints(2, 12), shape=(2, 3, 4)), perm=(0, 2, 1))
    net.output(net.quantize(x))
    assert propagated(net) == ["reshape", "transpose"]


def test_unequal_quantisations_meet_in_a_requantize() -> None:
    net = Qdq()
    net.output(net.quantize(net.op(Reshape, net.ints(2, 6), shape=(12,)), Q_OTHER))
    apply(PropagateQdq(), net)
    assert net.names == ["reshape", "requantize"]
    assert net.graph.outputs[0].value.type == TensorType((12,), DType.I8, Q_OTHER)


def test_the_other_signedness_of_the_same_reals_is_a_flip() -> None:
    net = Qdq()
    net.output(net.quantize(net.ints(4, quant=Quant.per_tensor(0.5, 128), dtype=DType.U8)))
    assert propagated(net) == ["flip_sign"]


def test_a_quantize_of_dequantized_constants_is_a_constant() -> None:
    net = Qdq()
    w = net.op(Dequantize, net.const(np.int8([1, 2, 100]), PER_CHANNEL_ROW))
    net.output(net.quantize(w, Q_OTHER))
    assert propagated(net) == ["const"]


PER_CHANNEL_ROW = Quant((0.5, 0.25, 0.125), (0, 0, 0), 0)


def test_a_narrow_quantize_leaves_out_its_lowest_integer_so_it_stays() -> None:
    net = Qdq()
    net.output(net.quantize(net.ints(300), narrow=True))
    assert propagated(net) == ["dequantize", "quantize"]


def test_dequantized_constants_become_other_constants() -> None:
    net = Qdq()
    w = net.op(Dequantize, net.const(np.arange(6, dtype=np.int8).reshape(3, 2), PER_CHANNEL_ROW))
    w = net.op(Reshape, net.op(Transpose, w, perm=(1, 0)), shape=(2, 3, 1, 1))
    net.output(net.op(Add, net.arg((2, 3, 1, 1)), w))
    assert propagated(net) == ["const", "dequantize", "add"]
    assert net.graph.ops[0].out.type == TensorType((2, 3, 1, 1), DType.I8, PER_CHANNEL)


def test_an_op_that_tears_the_channels_apart_keeps_its_place() -> None:
    net = Qdq()
    x = net.ints(2, 3, 4, quant=PER_CHANNEL)
    net.output(
        net.op(Reshape, x, shape=(6, 4)),
        net.op(Slice, x, starts=(0, 1, 0), sizes=(2, 2, 4), steps=(1, 1, 1)),
        net.op(Gather, x, axis=1, indices=(2, 1, 0)),
    )
    assert propagated(net) == ["dequantize", "reshape", "slice", "gather"]


def test_an_axis_of_one_scale_that_is_expanded_keeps_its_place() -> None:
    net = Qdq()
    net.output(net.op(Expand, net.ints(2, 1, quant=Quant((0.5,), (0,), 1)), shape=(2, 5)))
    assert propagated(net) == ["dequantize", "expand"]


@pytest.mark.parametrize(
    ("value", "quant", "moves"),
    [
        (1.5, Q, True),
        (0.25, Q, False),
        (1000.0, Q, False),
        (float("-inf"), Q, False),
        (0.0, Q_OTHER, True),
        (0.0, PER_CHANNEL, True),
        (0.5, PER_CHANNEL, False),
        (0.0, Quant((0.5, 0.25, 0.125), (0, 1, 0), 1), False),
    ],
)
def test_a_pad_moves_where_its_border_is_an_integer(value: float, quant: Quant, moves: bool) -> None:
    net = Qdq()
    pads = (0, 0, 1, 0, 0, 1)
    net.output(net.op(Pad, net.ints(2, 3, 4, quant=quant), pads=pads, value=value))
    assert propagated(net) == (["pad", "dequantize"] if moves else ["dequantize", "pad"])
    if quant.is_per_tensor:
        net = Qdq()
        net.output(net.quantize(net.op(Pad, net.arg((2, 3, 4)), pads=pads, value=value), quant))
        assert propagated(net) == (["quantize", "pad"] if moves else ["pad", "quantize"])


def test_a_narrow_quantize_does_not_pass_a_pad_of_the_lowest_integer() -> None:
    net = Qdq()
    net.output(net.quantize(net.op(Pad, net.arg((3,)), pads=(1, 1), value=-64.0), narrow=True))
    assert propagated(net) == ["pad", "quantize"]


def test_a_dequantize_moves_for_one_reader_and_stays_for_another() -> None:
    net = Qdq()
    x = net.ints(2, 3)
    net.output(net.op(Reshape, x, shape=(6,)), net.op(Clip, x, low=0.0))
    assert propagated(net) == ["dequantize", "reshape", "dequantize", "clip"]


def test_a_move_that_somebody_else_reads_stays_above_the_quantize() -> None:
    net = Qdq()
    moved = net.op(Reshape, net.arg((2, 3)), shape=(6,))
    net.output(net.quantize(moved), moved)
    assert propagated(net) == ["reshape", "quantize"]


def test_per_channel_quantizes_and_wide_max_pools_stay() -> None:
    net = Qdq()
    net.output(net.quantize(net.op(Transpose, net.arg((3, 2)), perm=(1, 0)), Quant((0.5, 0.25, 0.125), (0,), 1)))
    net.output(net.op(MaxPool, net.ints(1, 1, 4, 4, dtype=DType.I32), kernel=(2, 2)))
    assert propagated(net) == ["transpose", "quantize", "dequantize", "max_pool"]


def test_relu_stays_where_it_is() -> None:
    net = Qdq()
    net.output(net.quantize(net.op(Clip, net.ints(4), low=0.0)))
    assert propagated(net) == ["dequantize", "clip", "quantize"]


def split(net: Qdq, y: Value, *quants: Quant) -> list[Value]:
    n = len(quants)
    parts = [net.op(Slice, y, starts=(0, 2 * i), sizes=(2, 2), steps=(1, 1)) for i in range(n)]
    return [net.quantize(part, quant) for part, quant in zip(parts, quants, strict=True)]


def test_equal_quantizes_behind_a_split_become_one_and_climb_on() -> None:
    net = Qdq()
    y = net.op(Reshape, net.op(TABLE["tanh"], net.arg((4, 3))), shape=(2, 6))
    net.output(*split(net, y, Q, Q, Q))
    assert propagated(net) == ["tanh", "quantize", "reshape", "slice", "slice", "slice"]


def test_unequal_quantizes_behind_a_split_stay_with_their_parts() -> None:
    net = Qdq()
    net.output(*split(net, net.op(TABLE["tanh"], net.arg((2, 6))), Q, Q, Q_OTHER))
    assert propagated(net) == ["tanh", "slice", "slice", "slice", "quantize", "quantize", "quantize"]


def test_a_concat_of_one_quantisation_moves_unless_a_quantize_follows() -> None:
    net = Qdq()
    a, b, other = net.ints(2, 3), net.ints(2, 3), net.ints(2, 3, quant=Q_OTHER)
    net.output(net.op(Reshape, net.op(Concat, a, b, axis=1), shape=(12,)))
    net.output(net.op(Concat, a, other, axis=1), net.quantize(net.op(Concat, b, a, axis=0)))
    assert propagated(net) == [
        "dequantize", "dequantize", "dequantize", "concat", "reshape", "dequantize", "concat", "concat", "quantize",
    ]  # fmt: skip


def test_a_concat_along_the_axis_of_the_scales_stays() -> None:
    net = Qdq()
    a, b = (net.ints(2, 3, quant=PER_CHANNEL) for _ in range(2))
    net.output(net.op(Concat, a, b, axis=1), net.op(Concat, a, b, axis=0))
    assert propagated(net) == ["dequantize", "dequantize", "concat", "concat", "dequantize"]


@st.composite
def nets(draw: st.DrawFn) -> Qdq:
    """Moves, dequantizes and quantizes, of scales that are powers of two."""
    net = Qdq()
    reals = [net.ints(2, 3, 4), net.arg((2, 3, 4))]
    for _ in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(reals))
        n = x.type.rank
        kind = draw(st.sampled_from(["reshape", "transpose", "pad", "gather", "qdq", "concat", "slice"]))
        if kind == "reshape":
            reals.append(net.op(Reshape, x, shape=(x.type.elements, 1)))
        elif kind == "transpose":
            reals.append(net.op(Transpose, x, perm=tuple(draw(st.permutations(range(n))))))
        elif kind == "pad":
            reals.append(net.op(Pad, x, pads=(1,) + (0,) * (2 * n - 1), value=draw(st.sampled_from([0.0, 0.25, 3.0]))))
        elif kind == "gather":
            reals.append(net.op(Gather, x, axis=0, indices=(0, 0)))
        elif kind == "slice":
            reals.append(net.op(Slice, x, starts=(0,) * n, sizes=(1, *x.type.shape[1:]), steps=(1,) * n))
        elif kind == "concat":
            reals.append(net.op(Concat, x, x, axis=n - 1))
        else:
            quant = draw(st.sampled_from([Q, Quant.per_tensor(0.25), Q_OTHER]))
            reals.append(net.op(Dequantize, net.quantize(x, quant)))
    net.output(*draw(st.lists(st.sampled_from(reals), min_size=1, max_size=2)))
    return net


@given(nets())
@settings(max_examples=150, deadline=None)
def test_the_integers_stay_and_a_second_run_changes_nothing(net: Qdq) -> None:
    sem = Semantics(arith="onnx")  # its requantize multiplies by a power of two, then rounds as a quantize does
    inputs = random_inputs(net.graph)
    before, types = run(net.graph, inputs, sem), [o.value.type for o in net.graph.outputs]
    apply(PropagateQdq(), net, sem)
    assert [o.value.type for o in net.graph.outputs] == types
    assert all(np.array_equal(a, b) for a, b in zip(before, run(net.graph, inputs, sem), strict=True))
    names = net.names
    assert apply(PropagateQdq(), net) == 0
    assert net.names == names


def test_three_thousand_ops_take_well_under_a_second() -> None:
    net = Qdq()
    x = net.ints(2, 3)
    for i in range(1000):
        x = net.op(Dequantize, net.quantize(net.op(Transpose, net.op(TABLE["tanh"], x) if i % 2 else x, perm=(1, 0))))
    net.output(x)
    start = time.perf_counter()
    apply(PropagateQdq(), net)
    assert time.perf_counter() - start < 2  # some 0.1 s on an idle core; the machine is shared
