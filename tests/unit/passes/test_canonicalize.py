from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir.core import Value
from hbc.ir.location import node_names
from hbc.ir.ops import (
    TABLE,
    Add,
    Cast,
    Clip,
    Concat,
    Dequantize,
    Div,
    Expand,
    FlipSign,
    Gather,
    Matmul,
    Mul,
    Pad,
    Quantize,
    Reinterpret,
    Requantize,
    Reshape,
    ResizeNearest,
    Slice,
    Sub,
    Transpose,
)
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.canonicalize import Canonicalize
from hbc.passes.dce import Dce
from hbc_runtime import isa

from .graphs import Net, apply, random_inputs, run

Q = Quant.per_tensor(0.5)
Q_OTHER = Quant.per_tensor(0.25, 3)
PER_CHANNEL = Quant((0.5, 0.25, 0.125), (0,), 1)


def canonical(net: Net) -> list[str]:
    """Names of the ops after the pass and dce: the same integers, the same types, and nothing left for a second run."""
    inputs = random_inputs(net.graph)
    before, types = run(net.graph, inputs), [o.value.type for o in net.graph.outputs]
    apply(Canonicalize(), net)
    apply(Dce(), net)
    assert [o.value.type for o in net.graph.outputs] == types
    assert all(np.array_equal(a, b) for a, b in zip(before, run(net.graph, inputs), strict=True))
    names = net.names
    assert apply(Canonicalize(), net) == 0
    assert net.names == names
    return names


IDENTITIES = [
    (Reshape, {"shape": (2, 3, 4, 4)}),
    (Transpose, {"perm": (0, 1, 2, 3)}),
    (Slice, {"starts": (0, 0, 0, 0), "sizes": (2, 3, 4, 4), "steps": (1, 1, 1, 1)}),
    (Pad, {"pads": (0,) * 8, "value": 3.0}),
    (Expand, {"shape": (2, 3, 4, 4)}),
    (Gather, {"axis": 1, "indices": (0, 1, 2)}),
    (ResizeNearest, {"rows": (0, 1, 2, 3), "columns": (0, 1, 2, 3)}),
    (Concat, {"axis": 1}),
    (Clip, {}),
    (Cast, {"to": DType.F32}),
]


@pytest.mark.parametrize(("cls", "attrs"), IDENTITIES, ids=[c.NAME for c, _ in IDENTITIES])
def test_an_op_that_does_nothing_goes(cls: type, attrs: dict[str, object]) -> None:
    net = Net()
    x = net.op(TABLE["neg"], net.arg((2, 3, 4, 4)))
    net.output(net.op(cls, x, **attrs))
    assert canonical(net) == ["neg"]
    assert node_names(net.graph.ops[0].loc) == ("node0", "node1")


@pytest.mark.parametrize("cls", [Requantize, Reinterpret])
def test_integers_to_their_own_type_stay_as_they_are(cls: type) -> None:
    net = Net()
    t = TensorType((2, 3), DType.I8, Q)
    net.output(net.op(cls, net.op(Quantize, net.arg((2, 3)), type=t), type=t))
    assert canonical(net) == ["quantize"]


def test_ops_that_do_something_stay() -> None:
    net = Net()
    x = net.arg((2, 3, 4, 4))
    q = net.arg((2, 3, 4, 4), DType.I8, Q)
    net.output(
        net.op(Transpose, x, perm=(0, 1, 3, 2)),
        net.op(Slice, x, starts=(0, 0, 3, 0), sizes=(2, 3, 4, 4), steps=(1, 1, -1, 1)),
        net.op(Pad, x, pads=(0, 0, 0, 0, 0, 0, 1, 0)),
        net.op(Gather, x, axis=1, indices=(0, 2, 1)),
        net.op(ResizeNearest, x, rows=(0, 1, 2, 3), columns=(0, 1, 2, 2)),
        net.op(Clip, x, low=0.0),
        net.op(Cast, x, to=DType.F16),
        net.op(Requantize, q, type=TensorType(q.type.shape, DType.I8, Q_OTHER)),
        net.op(Reinterpret, q, type=TensorType(q.type.shape, DType.I8, Q_OTHER)),
    )
    assert len(canonical(net)) == 9


# ---- neutral constants


@pytest.mark.parametrize(("cls", "neutral", "left"), [(Add, 0, True), (Sub, 0, False), (Mul, 1, True), (Div, 1, False)])
def test_neutral_constants_go(cls: type, neutral: float, left: bool) -> None:
    net = Net()
    x = net.op(TABLE["exp"], net.arg((2, 3)))
    c, row = net.const(np.float32(neutral)), net.const(np.full((1, 3), neutral, np.float32))
    net.output(net.op(cls, x, c), net.op(cls, x, row), *([net.op(cls, c, x)] if left else []))
    assert canonical(net) == ["exp"]


def test_a_neutral_constant_that_broadcasts_or_stands_on_the_wrong_side_stays() -> None:
    net = Net()
    x = net.arg((1, 3))
    net.output(
        net.op(Add, x, net.const(np.zeros((2, 3), np.float32))),
        net.op(Sub, net.const(np.float32(0)), x),
        net.op(Div, net.const(np.float32(1)), x),
        net.op(Add, x, net.const(np.float32([0, 0, 1]))),
    )
    assert [n for n in canonical(net) if n != "const"] == ["add", "sub", "div", "add"]


def test_the_clip_of_a_neutral_op_stays_a_clip() -> None:
    net = Net()
    net.output(net.op(Add, net.arg((2,)), net.const(np.float32(0)), clip=(0.0, 6.0)))
    assert canonical(net) == ["clip"]
    assert (net.graph.ops[0].attrs["low"], net.graph.ops[0].attrs["high"]) == (0.0, 6.0)


# ---- chains


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)).map(sorted), min_size=2, max_size=4))
@settings(max_examples=40, deadline=None)
def test_clips_merge_into_one(limits: list[list[int]]) -> None:
    net = Net()
    x = y = net.arg((50,))
    for low, high in limits:
        y = net.op(Clip, y, low=low - 0.5, high=high + 0.5)
    net.output(net.op(Mul, x, y))
    assert canonical(net) == ["clip", "mul"]


def test_clips_of_different_integers_stay_apart() -> None:
    net = Net()
    x = net.arg((4,), DType.I8, Q)
    other = net.op(Reinterpret, net.op(Clip, x, low=0.0), type=TensorType((4,), DType.I8, Q_OTHER))
    net.output(net.op(Clip, other, high=1.0))
    assert canonical(net) == ["clip", "reinterpret", "clip"]


def test_reshapes_and_reinterprets_merge() -> None:
    net = Net()
    x = net.arg((2, 6), DType.I8, Q)
    y = net.op(Reshape, net.op(Reshape, x, shape=(12,)), shape=(3, 4))
    y = net.op(Reinterpret, y, type=TensorType((3, 4), DType.I8, Q_OTHER))
    net.output(net.op(Reinterpret, y, type=TensorType((3, 4), DType.I8)))
    assert canonical(net) == ["reshape", "reinterpret"]


def test_a_reshape_there_and_back_goes() -> None:
    net = Net()
    x = net.op(TABLE["neg"], net.arg((2, 6)))
    net.output(net.op(Reshape, net.op(Reshape, x, shape=(12,)), shape=(2, 6)))
    assert canonical(net) == ["neg"]


def test_slices_merge() -> None:
    net = Net()
    x = net.op(Slice, net.arg((10, 8)), starts=(9, 1), sizes=(5, 7), steps=(-2, 1))
    net.output(net.op(Slice, x, starts=(1, 6), sizes=(2, 3), steps=(2, -3)))
    assert canonical(net) == ["slice"]
    assert net.graph.ops[0].attrs == {"starts": (7, 7), "sizes": (2, 3), "steps": (-4, -3)}


def test_expands_and_sign_flips_merge() -> None:
    net = Net()
    x = net.arg((1, 3), DType.U8, Quant.per_tensor(0.5, 128))
    y = net.op(FlipSign, net.op(FlipSign, x))
    net.output(net.op(Expand, net.op(Expand, y, shape=(2, 3)), shape=(4, 2, 3)))
    assert canonical(net) == ["expand"]


def test_transposes_compose() -> None:
    net = Net()
    x = net.arg((2, 3, 4), DType.I8, PER_CHANNEL)
    net.output(net.op(Transpose, net.op(Transpose, x, perm=(2, 0, 1)), perm=(1, 0, 2)))
    assert canonical(net) == ["transpose"]
    assert net.graph.ops[0].attrs["perm"] == (0, 2, 1)


def test_a_transpose_that_only_moves_axes_of_size_one_is_a_reshape() -> None:
    net = Net()
    net.output(net.op(Transpose, net.arg((1, 3, 1, 4)), perm=(1, 2, 3, 0)))
    assert canonical(net) == ["reshape"]


def test_channels_flattened_and_brought_last_are_one_transpose() -> None:
    net = Net()
    x = net.op(Transpose, net.arg((2, 4, 5, 3)), perm=(0, 3, 1, 2))
    net.output(net.op(Transpose, net.op(Reshape, x, shape=(2, 3, 20)), perm=(0, 2, 1)))
    assert canonical(net) == ["reshape"]


def test_a_pixel_shuffle_between_layouts_is_one_transpose() -> None:
    net = Net()
    x = net.op(Transpose, net.arg((1, 2, 3, 16)), perm=(0, 3, 1, 2))
    x = net.op(Transpose, net.op(Reshape, x, shape=(1, 4, 2, 2, 2, 3)), perm=(0, 1, 4, 2, 5, 3))
    net.output(net.op(Transpose, net.op(Reshape, x, shape=(1, 4, 4, 6)), perm=(0, 2, 3, 1)))
    assert canonical(net) == ["reshape", "transpose", "reshape"]


def test_transposes_around_a_reshape_that_mixes_axes_stay() -> None:
    net = Net()
    x = net.op(Transpose, net.arg((4, 6)), perm=(1, 0))
    net.output(net.op(Transpose, net.op(Reshape, x, shape=(8, 3)), perm=(1, 0)))
    assert canonical(net) == ["transpose", "reshape", "transpose"]


def test_per_channel_integers_are_not_torn_apart_on_the_way() -> None:
    net = Net()
    x = net.op(Transpose, net.arg((1, 3, 4, 5), DType.I8, PER_CHANNEL), perm=(2, 3, 1, 0))
    t = TensorType((20, 3), DType.I8, Quant(PER_CHANNEL.scale, (0,), 1))
    net.output(net.op(Transpose, net.op(Reshape, x, type=t, shape=(20, 3)), perm=(1, 0)))
    assert canonical(net) == ["reshape"]
    assert net.graph.outputs[0].value.type.quant == Quant(PER_CHANNEL.scale, (0,), 0)


@st.composite
def rearrangements(draw: st.DrawFn) -> Net:
    """A chain of transposes and reshapes; some intermediate values are returned too."""
    net = Net()
    values = [net.arg(draw(st.sampled_from([(2, 3, 4), (1, 6, 4), (24,), (2, 2, 2, 3), (12, 1, 2)])), DType.I8, Q)]
    for _ in range(draw(st.integers(1, 7))):
        x = values[-1]
        if draw(st.booleans()):
            values.append(net.op(Transpose, x, perm=tuple(draw(st.permutations(range(x.type.rank))))))
        else:
            shape = draw(st.sampled_from([(2, 3, 4), (6, 4), (24,), (2, 12), (4, 6), (3, 1, 8), (2, 2, 2, 3), (1, 24)]))
            values.append(net.op(Reshape, x, shape=shape))
    net.output(values[-1], *draw(st.lists(st.sampled_from(values), max_size=1)))
    return net


@given(rearrangements())
@settings(max_examples=150, deadline=None)
def test_rearrangements_keep_their_meaning_and_gain_no_transpose(net: Net) -> None:
    before = net.names.count("transpose")
    assert canonical(net).count("transpose") <= before


def test_every_rearrangement_of_whole_axes_is_at_most_one_transpose() -> None:
    net = Net()
    x = net.arg((2, 3, 4, 5))
    for perm in ((1, 0, 3, 2), (3, 1, 2, 0), (0, 2, 1, 3)):
        x = net.op(Reshape, x, shape=(x.type.shape[0], math.prod(x.type.shape[1:])))
        x = net.op(Reshape, x, shape=net.graph.ops[-1].operands[0].type.shape)  # type: ignore[union-attr]
        x = net.op(Transpose, x, perm=perm)
    net.output(x)
    assert canonical(net).count("transpose") == 1


# ---- one spelling


def matmul(net: Net, rhs: Value, **attrs: object) -> Value:
    return net.op(Matmul, net.arg((2, 5, 3)), rhs, **attrs)


def test_a_matmul_by_a_constant_is_a_linear() -> None:
    net = Net()
    w = net.const(np.arange(12, dtype=np.float32).reshape(3, 4))
    net.output(matmul(net, w, clip=(0.0, math.inf)))
    assert canonical(net) == ["const", "linear"]
    assert net.graph.ops[0].out.type.shape == (4, 3)
    assert net.graph.ops[1].attrs["clip"] == (0.0, math.inf)


@pytest.mark.parametrize(("axis", "scales"), [(None, 1), (0, 3), (1, 4)])
def test_quantised_weights_stay_quantised_with_their_scales_on_the_same_channels(axis: int | None, scales: int) -> None:
    net = Net()
    quant = Quant(tuple(0.5**i for i in range(scales)), tuple(range(scales)), axis)
    w = net.op(Dequantize, net.const(np.arange(12, dtype=np.int8).reshape(3, 4), quant))
    net.output(matmul(net, w))
    assert canonical(net) == ["const", "dequantize", "linear"]
    moved = net.graph.ops[0].out.type.quant
    assert moved == Quant(quant.scale, quant.zero_point, None if axis is None else 1 - axis)


def test_leading_axes_of_size_one_of_weights_go() -> None:
    net = Net()
    w = net.const(np.arange(12, dtype=np.int8).reshape(1, 3, 4), Quant((0.5, 1, 2, 4), (0,), 2))
    net.output(matmul(net, net.op(Dequantize, w)))
    assert canonical(net) == ["const", "dequantize", "linear"]


def test_a_matmul_of_computed_batched_or_quantised_operands_stays() -> None:
    net = Net()
    t = TensorType((2, 2), DType.I8, Q)
    weights = net.const(np.int8([[1, 2], [3, 4]]), Q)
    net.output(
        matmul(net, net.op(TABLE["neg"], net.arg((3, 4)))),
        matmul(net, net.const(np.ones((2, 3, 4), np.float32))),
        net.op(Matmul, net.arg((2, 2), DType.I8, Q), weights, type=t),
        net.op(Matmul, net.const(np.ones((2, 3), np.float32)), net.const(np.ones((3, 2), np.float32))),
    )
    assert canonical(net).count("matmul") == 4


def test_a_quantize_of_integers_of_its_own_type_goes() -> None:
    net = Net()
    x = net.arg((4,), DType.I8, Q)
    net.output(net.op(Quantize, net.op(Dequantize, x), type=x.type))
    assert canonical(net) == []


def test_a_quantize_of_the_other_signedness_is_a_flip() -> None:
    net = Net()
    x = net.arg((4,), DType.U8, Quant.per_tensor(0.5, 128))
    net.output(net.op(Quantize, net.op(Dequantize, x), type=TensorType((4,), DType.I8, Q)))
    assert canonical(net) == ["flip_sign"]


def test_quantize_and_dequantize_that_change_integers_stay() -> None:
    net = Net()
    x, wide = net.arg((4,), DType.I8, Q), net.arg((4,), DType.I32, Q)
    t = TensorType((4,), DType.I8, Q_OTHER)
    net.output(
        net.op(Quantize, net.op(Dequantize, x), type=t),
        net.op(Quantize, net.op(Dequantize, x), type=x.type, narrow=True),
        net.op(Quantize, net.op(Dequantize, wide), type=wide.type),
        net.op(Dequantize, net.op(Quantize, net.arg((4,)), type=t)),
    )
    names = canonical(net)
    assert (names.count("quantize"), names.count("dequantize")) == (4, 4)


# ---- bpu.* moves


def i8(*shape: int, quant: Quant | None = None) -> TensorType:
    return TensorType(shape, DType.I8, quant)


def clamp(net: Net, x: Value, low: int = -5) -> Value:
    return net.bpu(isa.Clamp, x, type=x.type, clamp_min=low, clamp_max=127)


def test_instructions_that_move_nothing_go() -> None:
    net = Net()
    x = clamp(net, net.arg((2, 3), DType.I8))
    x = net.bpu(isa.Reshape, x, type=x.type)
    x = net.bpu(isa.Transpose, x, type=x.type, perm=(0, 1))
    x = net.bpu(isa.Slice, x, type=x.type, starts=(0, 0), steps=(1, 1))
    x = net.bpu(isa.Pad, x, type=x.type, pads=(0, 0, 0, 0))
    x = net.bpu(isa.Expand, x, type=x.type)
    x = net.bpu(isa.Concat, x, type=x.type, axis=0)
    net.output(clamp(net, x, low=-128))
    assert canonical(net) == ["bpu.clamp"]


def test_moves_of_instructions_compose() -> None:
    net = Net()
    x = net.bpu(isa.Transpose, net.arg((1, 2, 3, 4), DType.I8), type=i8(1, 4, 2, 3), perm=(0, 3, 1, 2))
    x = net.bpu(isa.Reshape, net.bpu(isa.Reshape, x, type=i8(8, 3)), type=i8(1, 4, 6))
    x = net.bpu(isa.Transpose, x, type=i8(1, 6, 4), perm=(0, 2, 1))
    x = net.bpu(isa.Slice, x, type=i8(1, 4, 4), starts=(0, 2, 0), steps=(1, 1, 1))
    net.output(clamp(net, net.bpu(isa.Slice, x, type=i8(1, 2, 4), starts=(0, 0, 0), steps=(1, 2, 1))))
    assert canonical(net) == ["bpu.reshape", "bpu.slice", "bpu.clamp"]
    assert all(op.placement is not None for op in net.graph.ops)


def test_a_returned_transpose_of_single_pixels_is_a_reshape() -> None:
    net = Net()
    x = clamp(net, net.arg((1, 1, 1, 8), DType.I8))
    net.output(net.bpu(isa.Transpose, x, type=i8(1, 8, 1, 1), perm=(0, 3, 1, 2)))
    assert canonical(net) == ["bpu.clamp", "bpu.reshape"]


def test_a_copy_into_a_returned_array_stays() -> None:
    net = Net()
    x = net.arg((4,), DType.I8)
    y = clamp(net, x)
    net.output(net.bpu(isa.Reshape, x, type=x.type), y, net.bpu(isa.Reshape, y, type=y.type))
    net.output(net.bpu(isa.Transpose, net.bpu(isa.Reshape, x, type=i8(1, 4)), type=i8(4, 1), perm=(1, 0)))
    assert canonical(net).count("bpu.reshape") == 3


def test_scales_between_instructions_do_not_keep_a_reshape_but_at_the_border_they_do() -> None:
    net = Net()
    x = clamp(net, net.arg((4,), DType.I8))
    inner = net.bpu(isa.Reshape, x, type=i8(4, quant=Q))
    net.output(clamp(net, inner), net.bpu(isa.Reshape, x, type=i8(4, quant=Q)))
    assert canonical(net) == ["bpu.clamp", "bpu.clamp", "bpu.reshape"]


def test_three_thousand_ops_take_well_under_a_second() -> None:
    net = Net()
    x = net.arg((2, 3, 4))
    for i in range(750):
        x = net.op(Transpose, net.op(Reshape, net.op(Clip, x, low=0.0), shape=(2, 3, 4)), perm=(0, 1, 2))
        x = net.op(TABLE["neg" if i % 2 else "tanh"], x)
    net.output(x)
    start = time.perf_counter()
    apply(Canonicalize(), net)
    assert time.perf_counter() - start < 2  # under 0.1 s on an idle core; the machine is shared
