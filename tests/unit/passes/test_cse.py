from __future__ import annotations

import numpy as np

from hbc.ir.core import Placement
from hbc.ir.location import FusedLoc, node_names
from hbc.ir.ops import TABLE, Add, Clip, Mul, Quantize
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.cse import Cse
from hbc_runtime import isa

from .graphs import Net, apply, random_inputs, run


def test_equal_ops_merge_and_their_locations_fuse() -> None:
    net = Net()
    x = net.arg((2, 3))
    net.output(net.op(Add, net.op(Clip, x, low=0.0), net.op(Clip, x, low=0.0)))
    before = run(net.graph, random_inputs(net.graph))
    assert apply(Cse(), net) == 1
    assert net.names == ["clip", "add"]
    assert isinstance(net.graph.ops[0].loc, FusedLoc)
    assert node_names(net.graph.ops[0].loc) == ("node0", "node1")
    assert np.array_equal(before, run(net.graph, random_inputs(net.graph)))


def test_a_chain_of_equal_ops_merges_in_one_run() -> None:
    net = Net()
    x = net.arg((2,))
    tails = [net.op(TABLE["neg"], net.op(Clip, x, low=0.0)) for _ in range(3)]
    net.output(*tails)
    assert apply(Cse(), net) == 4
    assert net.names == ["clip", "neg"]
    assert len({o.value for o in net.graph.outputs}) == 1
    assert [o.name for o in net.graph.outputs] == ["out0", "out1", "out2"]


def test_equal_constants_merge_by_content() -> None:
    net = Net()
    x = net.arg((3,))
    a, b, other = net.const(np.float32([1, 2, 3])), net.const(np.float32([1, 2, 3])), net.const(np.float32([1, 2, 4]))
    net.output(net.op(Mul, x, a), net.op(Mul, x, b), net.op(Mul, x, other))
    assert apply(Cse(), net) == 2
    assert net.names == ["const", "const", "mul", "mul"]


def test_constants_that_differ_in_bits_dtype_shape_or_scale_stay_apart() -> None:
    net = Net()
    q = Quant.per_tensor(0.5)
    values = [
        net.const(np.float32([0.0])), net.const(np.float32([-0.0])), net.const(np.int32([0])), net.const(np.int8([0])),
        net.const(np.float32([[0.0]])), net.const(np.float32(0.0)), net.const(np.zeros((0,), np.float32)),
        net.const(np.int8([0]), q), net.const(np.int8([0]), Quant.per_tensor(0.25)),
    ]  # fmt: skip
    net.output(*values)
    assert apply(Cse(), net) == 0


def test_nan_constants_merge() -> None:
    net = Net()
    net.output(net.const(np.float32([np.nan])), net.const(np.float32([np.nan])))
    assert apply(Cse(), net) == 1


def test_other_attributes_types_and_places_keep_ops_apart() -> None:
    net = Net()
    x = net.arg((2,))
    a, b = net.op(Clip, x, low=0.0), net.op(Clip, x, low=-0.0)
    quantised = [net.op(Quantize, x, type=TensorType((2,), DType.I8, Quant.per_tensor(s))) for s in (0.5, 0.25)]
    placed = [net.op(TABLE["neg"], x) for _ in range(2)]
    placed[0].op.placement, placed[1].op.placement = Placement("cpu", segment=1), Placement("cpu", segment=2)  # type: ignore[union-attr]
    net.output(a, b, *quantised, *placed)
    assert apply(Cse(), net) == 0


def test_placed_ops_that_fill_two_returned_arrays_stay_apart() -> None:
    net = Net()
    x = net.arg((4,), DType.I8)
    copies = [net.bpu(isa.Reshape, x, type=x.type) for _ in range(3)]
    net.output(*copies[:2], net.bpu(isa.Clamp, copies[2], type=x.type, clamp_min=0, clamp_max=1))
    assert apply(Cse(), net) == 1
    assert net.graph.outputs[0].value is not net.graph.outputs[1].value


def test_operand_order_counts() -> None:
    net = Net()
    x, y = net.arg((2,)), net.arg((2,))
    net.output(net.op(TABLE["sub"], x, y), net.op(TABLE["sub"], y, x))
    assert apply(Cse(), net) == 0
