"""What follows a moved product goes before the moves, and computes the same there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.ir.core import Value
from hbc.ir.ops import Add, BatchNorm, Clip, Conv2d, Reshape, Transpose
from hbc.passes.dce import Dce
from hbc.passes.hoist_elementwise import HoistElementwise, groups

from .graphs import Net, apply, random_inputs, run


class Moved(Net):
    """A 1×1 convolution of six channels, ready to be moved."""

    def conv(self) -> Value:
        w = np.random.default_rng(0).normal(0, 1, (6, 2, 1, 1)).astype(np.float32)
        return self.op(Conv2d, self.arg((2, 2, 3, 4)), self.const(w))


def hoisted(net: Net) -> list[str]:
    """Names of the ops after the pass, which kept every output; constants left out."""
    inputs = random_inputs(net.graph)
    before = run(net.graph, inputs)
    apply(HoistElementwise(), net)
    apply(Dce(), net)
    for a, b in zip(before, run(net.graph, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return [name for name in net.names if name != "const"]


def test_a_batch_norm_needs_its_channels_on_axis_1() -> None:
    for perm, keeps in (((0, 1, 3, 2), True), ((0, 2, 1, 3), False)):
        net = Moved()
        moved = net.op(Transpose, net.conv(), perm=perm)
        parameters = [net.const(np.full(moved.type.shape[1], v, np.float32)) for v in (2.0, 0.5)]
        net.output(net.op(BatchNorm, moved, *parameters))
        order = ["batch_norm", "transpose"] if keeps else ["transpose", "batch_norm"]
        assert hoisted(net) == ["conv2d", *order]


def test_a_value_that_somebody_else_reads_stays() -> None:
    net = Moved()
    moved = net.op(Reshape, net.conv(), shape=(2, 6, 12))
    net.output(net.op(Clip, moved, low=0.0), moved)
    assert hoisted(net) == ["conv2d", "reshape", "clip"]


@pytest.mark.parametrize(
    ("target", "constant", "moves"),
    [
        ((2, 18, 4), (4,), True),
        ((2, 6, 12), (6, 1), True),
        ((12, 12), (12, 1), True),
        ((2, 3, 2, 12), (1, 3, 1, 1), False),  # along a half of the channels
        ((6, 24), (24,), False),  # over the border between channels
    ],
)
def test_constants_that_a_reshape_tears_stay_behind_it(
    target: tuple[int, ...], constant: tuple[int, ...], moves: bool
) -> None:
    net = Moved()
    moved = net.op(Reshape, net.conv(), shape=target)
    net.output(net.op(Add, moved, net.const(np.random.default_rng(1).normal(0, 1, constant).astype(np.float32))))
    assert (hoisted(net)[-1] == "reshape") == moves


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[tuple[str, tuple[int, ...]]], tuple[int, ...]]:
    """Reshapes and transposes of [2,6,3,4], and the shape behind them."""
    shape: tuple[int, ...] = (2, 6, 3, 4)
    moves = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            perm = tuple(draw(st.permutations(range(len(shape)))))
            moves.append(("transpose", perm))
            shape = tuple(shape[p] for p in perm)
        else:
            shape = _regrouped(draw, shape)
            moves.append(("reshape", shape))
    return moves, shape


def _regrouped(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes joined, cut, or of size 1 put between."""
    new: list[int] = []
    for size in shape:
        kind = draw(st.sampled_from(["keep", "join", "cut", "one"]))
        if kind == "join" and new:
            new[-1] *= size
        elif kind == "cut" and size % 2 == 0:
            new += [size // 2, 2]
        else:
            new += [1, size] if kind == "one" else [size]
    return tuple(new) if len(new) <= 7 else shape


@settings(max_examples=60, deadline=None)
@given(chains(), st.data())
def test_any_chain_and_any_broadcast_constant(
    case: tuple[list[tuple[str, tuple[int, ...]]], tuple[int, ...]], data: st.DataObject
) -> None:
    moves, shape = case
    net = Moved()
    value = net.conv()
    for kind, attr in moves:
        value = net.op(Reshape, value, shape=attr) if kind == "reshape" else net.op(Transpose, value, perm=attr)
    constant_shape = tuple(data.draw(st.sampled_from([1, d])) for d in shape)[data.draw(st.integers(0, len(shape))) :]
    constant = np.random.default_rng(2).normal(0, 1, constant_shape).astype(np.float32)
    y = net.op(Add, net.const(constant), value)
    net.output(net.op(Clip, y, low=-0.5))
    names = hoisted(net)
    if math.prod(constant_shape) in {1, math.prod(shape)}:
        assert names[-1] in {"reshape", "transpose"}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=5), st.data())
def test_groups_cover_both_shapes_with_equal_products(before: list[int], data: st.DataObject) -> None:
    after = list(before)
    for _ in range(data.draw(st.integers(0, 3))):
        if len(after) > 1 and data.draw(st.booleans()):
            i = data.draw(st.integers(0, len(after) - 2))
            after[i : i + 2] = [after[i] * after[i + 1]]
        else:
            after.insert(data.draw(st.integers(0, len(after))), 1)
    found = groups(tuple(before), tuple(after))
    assert [i for old, _ in found for i in old] == list(range(len(before)))
    assert [i for _, new in found for i in new] == list(range(len(after)))
    assert all(math.prod(before[i] for i in old) == math.prod(after[i] for i in new) for old, new in found)
