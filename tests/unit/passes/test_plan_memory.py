from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbc.diagnostics import PassError
from hbc.ir.core import Graph, Module, Op, Placement, Value
from hbc.ir.ops import BPU_OPS, Call
from hbc.ir.types import DType, TensorType
from hbc.passes.check_plan import plan_is_sound
from hbc.passes.plan_memory import PlanMemory, storage_root
from hbc_runtime import isa

from .graphs import Net, apply

CPU_OP = {"op_type": "Softmax", "opset": 13, "node_proto": ""}


def i8(*shape: int) -> TensorType:
    return TensorType(shape, DType.I8)


def clamp(net: Net, x: Value, *others: Value) -> Value:
    """A step that reads `x` (and, through a concat, `others`)."""
    if others:
        size = sum(v.type.elements for v in (x, *others))
        return net.bpu(isa.Concat, x, *others, type=i8(size), axis=0)
    return net.bpu(isa.Clamp, x, type=x.type, clamp_min=-1, clamp_max=1)


def reshape(net: Net, x: Value, *shape: int) -> Value:
    return net.bpu(isa.Reshape, x, type=i8(*shape))


def on_cpu(net: Net, segment: int, *xs: Value, type: TensorType) -> Value:  # noqa: A002 - the word of the IR
    out = net.op(Call, *xs, type=type, **CPU_OP)
    assert out.op is not None
    out.op.placement = Placement("cpu", segment=segment)
    return out


def plan(net: Net) -> Graph:
    apply(PlanMemory(), net)
    plan_is_sound(Module(net.graph))
    return net.graph


def test_a_chain_takes_turns_in_two_buffers() -> None:
    net = Net()
    x = net.arg((1000,), DType.I8)
    chain = [x]
    for _ in range(6):
        chain.append(clamp(net, chain[-1]))
    net.output(chain[-1])
    assert plan(net).arena_size == 2 * 1024
    assert [v.offset for v in chain[1:-1]] == [0, 1024, 0, 1024, 0]


def test_arguments_constants_and_outputs_have_no_place() -> None:
    net = Net()
    x = net.arg((64,), DType.I8)
    a = clamp(net, x, net.const(np.int8([1, 2])))
    out = clamp(net, a)
    net.output(out, clamp(net, out))
    plan(net)
    assert x.offset is out.offset is None
    assert a.offset == 0
    assert net.graph.arena_size == 128  # 66 bytes of it are used


def test_a_returned_value_may_be_read_on() -> None:
    net = Net()
    out = clamp(net, net.arg((64,), DType.I8))
    again = clamp(net, out)
    net.output(out, clamp(net, again))
    plan(net)
    assert (out.offset, again.offset, net.graph.arena_size) == (None, 0, 64)


def test_what_a_step_reads_and_writes_is_apart() -> None:
    net = Net()
    a = clamp(net, net.arg((64,), DType.I8))
    b = clamp(net, a)
    net.output(clamp(net, b))
    plan(net)
    assert {a.offset, b.offset} == {0, 64}


def test_a_reshape_shares_its_operand_and_prolongs_its_life() -> None:
    net = Net()
    a = clamp(net, net.arg((64,), DType.I8))
    r = reshape(net, a, 8, 8)
    s = reshape(net, r, 4, 16)
    between = clamp(net, clamp(net, net.arg((64,), DType.I8)))
    net.output(clamp(net, reshape(net, s, 64), between))
    plan(net)
    assert a.offset == r.offset == s.offset
    assert storage_root(s) is a
    assert between.offset != a.offset


def test_a_reshape_of_an_argument_has_no_place_of_its_own() -> None:
    net = Net()
    x = net.arg((64,), DType.I8)
    r = reshape(net, x, 8, 8)
    net.output(clamp(net, r))
    plan(net)
    assert storage_root(r) is x
    assert r.offset is None
    assert net.graph.arena_size == 0


def test_a_reshape_of_a_constant_copies_it() -> None:
    net = Net()
    r = reshape(net, net.const(np.zeros(64, np.int8)), 8, 8)
    net.output(clamp(net, r))
    plan(net)
    assert (r.offset, net.graph.arena_size) == (0, 64)
    r.offset = None
    with pytest.raises(PassError, match="no place"):
        plan_is_sound(Module(net.graph))


def test_a_returned_reshape_copies_and_a_reshape_of_it_reads_the_copy() -> None:
    net = Net()
    a = clamp(net, net.arg((64,), DType.I8))
    out = reshape(net, a, 8, 8)
    again = reshape(net, out, 16, 4)
    net.output(out, clamp(net, again))
    plan(net)
    assert a.offset == 0
    assert storage_root(out) is out
    assert storage_root(again) is out
    assert out.offset is again.offset is None


def test_inside_a_cpu_segment_nothing_needs_a_place() -> None:
    net = Net()
    a = clamp(net, net.arg((64,), DType.I8))
    inner = on_cpu(net, 1, a, type=i8(64))
    net.const([1, 2])
    crossing = on_cpu(net, 1, inner, type=i8(64))
    unread = on_cpu(net, 1, inner, type=i8(64))
    net.output(clamp(net, crossing))
    plan(net)
    assert inner.offset is unread.offset is None
    assert {a.offset, crossing.offset} == {0, 64}  # the segment reads one and writes the other in one step


def test_two_cpu_segments_in_a_row_are_two_steps() -> None:
    net = Net()
    a = on_cpu(net, 1, net.arg((64,), DType.I8), type=i8(64))
    b = on_cpu(net, 2, a, type=i8(64))
    net.output(on_cpu(net, 3, b, type=i8(64)))
    plan(net)
    assert {a.offset, b.offset} == {0, 64}


def test_a_second_plan_forgets_the_first() -> None:
    net = Net()
    a = clamp(net, net.arg((64,), DType.I8))
    net.output(clamp(net, a))
    plan(net)
    net.output(a)
    plan(net)
    assert a.offset is None
    assert net.graph.arena_size == 0


def test_offsets_are_those_of_the_tightest_gaps() -> None:
    net = Net()
    big = clamp(net, net.arg((640,), DType.I8))
    small = clamp(net, net.arg((64,), DType.I8))
    middle = clamp(net, net.arg((320,), DType.I8))
    net.output(clamp(net, big, small, middle))
    plan(net)
    assert (big.offset, middle.offset, small.offset) == (0, 640, 960)


# ---- the checker by itself


def planned_pair() -> tuple[Net, Value, Value]:
    net = Net()
    a = clamp(net, net.arg((64,), DType.I8))
    b = clamp(net, a)
    net.output(clamp(net, b, a))
    plan(net)
    return net, a, b


def test_the_checker_wants_a_plan() -> None:
    net, *_ = planned_pair()
    net.graph.arena_size = None
    with pytest.raises(PassError, match="run plan-memory"):
        plan_is_sound(Module(net.graph))


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (None, "has no place"),
        (0, "share bytes"),
        (32, "not a multiple of 64"),
        (128, "of an arena of 128"),
        (-64, "takes bytes -64"),
    ],
)
def test_the_checker_names_what_is_wrong(offset: int | None, message: str) -> None:
    net, a, b = planned_pair()
    a.offset, b.offset = 0, offset
    with pytest.raises(PassError, match=message) as caught:
        plan_is_sound(Module(net.graph))
    assert "bpu.clamp" in str(caught.value)


def test_the_checker_refuses_a_place_for_a_returned_value() -> None:
    net, *_ = planned_pair()
    net.graph.outputs[0].value.offset = 0
    with pytest.raises(PassError, match="caller's array"):
        plan_is_sound(Module(net.graph))


def test_the_checker_refuses_a_reshape_that_half_covers_its_operand() -> None:
    net = Net()
    a = clamp(net, net.arg((128,), DType.I8))
    r = reshape(net, a, 2, 64)
    net.output(clamp(net, r))
    plan(net)
    net.graph.arena_size, r.offset = 256, 64
    with pytest.raises(PassError, match="share bytes"):
        plan_is_sound(Module(net.graph))


# ---- laws


@st.composite
def nets(draw: st.DrawFn) -> Net:
    net = Net()
    values = [net.arg((draw(st.integers(1, 300)),), DType.I8) for _ in range(draw(st.integers(1, 2)))]
    segment = 1
    for _ in range(draw(st.integers(1, 14))):
        pick = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        kind = draw(st.sampled_from(["clamp", "concat", "reshape", "cpu", "next segment"]))
        if kind == "next segment":
            segment += 1
        elif kind == "cpu":
            values.append(on_cpu(net, segment, *pick, type=i8(draw(st.integers(0, 300)))))
        elif kind == "reshape":
            values.append(reshape(net, pick[0], pick[0].type.elements))
        else:
            values.append(clamp(net, *(pick if kind == "concat" else pick[:1])))
    net.output(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return net


@given(nets())
@settings(max_examples=150, deadline=None)
def test_the_checker_accepts_what_the_planner_makes(net: Net) -> None:
    plan(net)


@given(nets(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_checker_rejects_a_result_laid_over_an_operand(net: Net, data: st.DataObject) -> None:
    graph = plan(net)
    pairs = [
        (op, x)
        for op in graph.ops
        for x in op.operands
        if x is not None and x.offset is not None and x.type.nbytes > 0 and _is_plain_arena_result(op)
    ]
    if not pairs:
        return
    op, x = data.draw(st.sampled_from(pairs))
    op.out.offset = x.offset
    with pytest.raises(PassError):
        plan_is_sound(Module(graph))


def _is_plain_arena_result(op: Op) -> bool:
    return not isinstance(op, BPU_OPS[isa.Reshape]) and op.out.offset is not None and op.out.type.nbytes > 0


@given(nets(), st.data())
@settings(max_examples=100, deadline=None)
def test_the_checker_rejects_offsets_outside_or_unaligned(net: Net, data: st.DataObject) -> None:
    graph = plan(net)
    placed = [r for op in graph.ops for r in op.results if r.offset is not None and r.type.nbytes > 0]
    if not placed:
        return
    value = data.draw(st.sampled_from(placed))
    assert graph.arena_size is not None
    value.offset = data.draw(st.sampled_from([value.offset + 1, graph.arena_size, -64, graph.arena_size + 64]))
    with pytest.raises(PassError):
        plan_is_sound(Module(graph))


def test_three_thousand_ops_are_planned_and_checked_within_a_second() -> None:
    net = Net()
    values = [net.arg((4096,), DType.I8)]
    for i in range(3000):
        old = values[max(0, i - 40)]
        values.append(clamp(net, values[-1]) if i % 3 else net.bpu(isa.Maximum, values[-1], old, type=i8(4096)))
    net.output(values[-1])
    start = time.perf_counter()
    plan(net)
    assert time.perf_counter() - start < 3  # a second on an idle core; the machine is shared
