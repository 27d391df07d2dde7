from __future__ import annotations

import numpy as np

from hbc.ir.location import node_names
from hbc.ir.ops import Add, Call, Concat, Const, Dequantize, Expand, Mul, Quantize, Requantize, Reshape, Transpose
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant, TensorType
from hbc.passes.dce import Dce
from hbc.passes.fold_constants import FoldConstants

from .graphs import NASH, Net, apply, run

Q = Quant.per_tensor(0.5)


def folded(net: Net, semantics: Semantics = NASH) -> np.ndarray:
    """The only output, folded to a constant equal to what the graph computed."""
    before = run(net.graph, [], semantics)
    apply(FoldConstants(), net, semantics)
    apply(Dce(), net)
    (const,) = net.graph.ops
    assert isinstance(const, Const)
    assert np.array_equal(before[0], const.value)
    return const.value


def test_a_chain_of_constants_becomes_one() -> None:
    net = Net()
    a, b = net.const(np.float32([[1, 2], [3, 4]])), net.const(np.float32([10, 20]))
    net.output(net.op(Transpose, net.op(Reshape, net.op(Add, a, b), shape=(1, 4)), perm=(1, 0)))
    assert folded(net).tolist() == [[11], [22], [13], [24]]
    assert node_names(net.graph.ops[0].loc) == ("node0", "node1", "node2", "node3", "node4")


def test_integer_shapes_fold() -> None:
    net = Net()
    net.output(net.op(Concat, net.const([1, 2]), net.op(Mul, net.const([3]), net.const([5])), axis=0))
    assert folded(net).tolist() == [1, 2, 15]


def test_quantize_folds_by_the_rounding_of_the_march() -> None:
    def net() -> Net:
        n = Net()
        n.output(n.op(Quantize, n.const(np.float32([0.25, 0.75])), type=TensorType((2,), DType.I8, Q)))
        return n

    assert folded(net(), Semantics("nash-e")).tolist() == [0, 2]
    assert folded(net(), Semantics("bayes")).tolist() == [1, 2]


def test_dequantize_of_constants_stays_and_quantize_into_it_folds() -> None:
    net = Net()
    q = net.op(Quantize, net.const(np.float32([1, 2])), type=TensorType((2,), DType.I8, Q))
    net.output(net.op(Add, net.arg((2,)), net.op(Dequantize, q)))
    assert apply(FoldConstants(), net) == 1
    apply(Dce(), net)
    assert net.names == ["const", "dequantize", "add"]
    assert net.graph.ops[0].out.type == TensorType((2,), DType.I8, Q)


def test_moves_of_quantised_constants_keep_their_type() -> None:
    net = Net()
    w = net.const(np.arange(6, dtype=np.int8).reshape(2, 3), Quant((0.5, 0.25), (0,), 0))
    net.output(net.op(Transpose, w, perm=(1, 0)))
    folded(net)
    assert net.graph.ops[0].out.type == TensorType((3, 2), DType.I8, Quant((0.5, 0.25), (0,), 1))


def test_quantised_arithmetic_folds_in_integers() -> None:
    net = Net()
    x = net.const(np.int8([-3, 2, 100]), Q)
    net.output(net.op(Requantize, x, type=TensorType((3,), DType.I8, Quant.per_tensor(0.25, 1))))
    apply(FoldConstants(), net)
    apply(Dce(), net)
    (const,) = net.graph.ops
    assert isinstance(const, Const)
    assert const.value.tolist() == [-5, 5, 127]


def test_calls_computed_values_and_large_results_stay() -> None:
    net = Net()
    c = net.const(np.float32([1]))
    call = net.op(Call, c, type=c.type, op_type="Softmax", opset=13, node_proto="")
    large = net.op(Expand, c, shape=(1000,))
    net.output(call, large, net.op(Add, net.arg((1,)), c))
    assert apply(FoldConstants(max_bytes=3999), net) == 0
    assert apply(FoldConstants(max_bytes=4000), net) == 1


def test_a_returned_constant_keeps_its_name() -> None:
    net = Net()
    out = net.op(Reshape, net.const(np.float32([1, 2])), shape=(2, 1))
    out.name = "table"
    net.output(out)
    apply(FoldConstants(), net)
    assert net.graph.outputs[0].value.name == "table"
