from __future__ import annotations

from hbc.ir.location import NodeLoc
from hbc.ir.ops import TABLE, Add, Clip
from hbc.passes.dce import Dce

from .graphs import Net, apply


def test_an_unread_op_and_what_only_it_read_are_removed() -> None:
    net = Net()
    x = net.arg((2, 3))
    dead = net.op(Clip, x, low=0.0)
    net.op(Add, dead, net.op(Clip, dead, high=1.0))
    net.output(net.op(TABLE["neg"], x))
    assert apply(Dce(), net) == 3
    assert net.names == ["neg"]
    assert [u.op for u in x.uses] == net.graph.ops


def test_an_op_that_is_returned_or_read_stays() -> None:
    net = Net()
    a = net.op(Clip, net.arg((2,)), low=0.0)
    net.output(a, net.op(TABLE["neg"], a))
    assert apply(Dce(), net) == 0
    assert net.names == ["clip", "neg"]


def test_an_op_stays_for_one_of_several_results() -> None:
    net = Net()
    x = net.arg((4,))
    call = net.builder.op(
        TABLE["call"], x, loc=NodeLoc("topk"), types=[x.type, x.type], op_type="TopK", opset=11, node_proto=""
    )
    net.output(call.results[1])
    assert apply(Dce(), net) == 0


def test_unused_arguments_stay() -> None:
    net = Net()
    net.arg((1,))
    net.output(net.arg((2,)))
    assert apply(Dce(), net) == 0
    assert len(net.graph.args) == 2
