"""Small nets with what real exports have at their edges, end to end against ONNX Runtime: within a quantum per op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the reference of these tests is ONNX Runtime")

import hbc
from hbc.ir.semantics import MARCHES
from hbc_runtime import Session
from hbc_runtime.program import BpuSegment
from tests.unit.frontend.net import Array, Net, floats, integers, onnxruntime_outputs

Case = tuple[Net, dict[str, Array], float, bool]  # the net, its inputs, the tolerance in reals, all of it on the BPU


def pad_outside_the_operands_range() -> Case:
    """The border is no integer of the operand's scale, but one of the result's."""
    net = Net()
    x = net.qdq(net.input("x", [2, 5]), 0.004, np.int8(0))
    y = net.op("Pad", x, net.const(np.int64([0, 1, 0, 2])), net.const(np.float32(1.5)))
    net.output(net.dq(net.q(y, 0.02, np.int8(5)), 0.02, np.int8(5), out="y"))
    return net, {"x": 0.2 * floats(0, 2, 5)}, 0.021, True


def concat_of_two_widths() -> Case:
    net = Net(21)
    a = net.qdq(net.input("a", [2, 3]), 0.03, np.int8(4))
    b = net.qdq(net.input("b", [2, 3]), 0.0002, np.int16(-300))
    y = net.op("Concat", a, b, a, axis=1)
    net.output(net.dq(net.q(y, 0.0004, np.int16(90)), 0.0004, np.int16(90), out="y"))
    return net, {"a": floats(0, 2, 3), "b": floats(1, 2, 3)}, 0.00041, True


def batch_norm_of_a_dead_channel() -> Case:
    """A factor of 0 leaves the offset, which has to reach the far end of an affine range."""
    net = Net()
    x = net.qdq(net.input("x", [1, 3, 4, 4]), 0.02, np.int8(-3))
    parameters = [net.const(np.float32(v)) for v in ([0, 1, 0], [1.1, 0.2, 0.4], [0.1, 0, 0], [1, 1, 1])]
    y = net.op("BatchNormalization", x, *parameters)
    net.output(net.dq(net.q(y, 0.0045, np.int8(-128)), 0.0045, np.int8(-128), out="y"))
    return net, {"x": floats(0, 1, 3, 4, 4)}, 0.0046, True


def addend_of_a_dead_channel(bias: bool = False) -> Case:
    """A channel of zeros keeps a tiny scale, in whose steps the addend passes 2^31."""
    net = Net()
    x = net.qdq(net.input("x", [1, 4]), 0.02, np.int8(0))
    a = net.qdq(net.input("a", [1, 3]), 0.01, np.uint8(128))
    w = integers(0, np.int8, 4, 3)
    w[:, 0] = 0
    scale = np.float32([1e-9, 0.01, 0.02])
    y = net.op("MatMul", x, net.dq(net.const(w), scale, np.zeros(3, np.int8), axis=1))
    if bias:
        y = net.op("Add", y, net.dq(net.const(np.int32([10**8, 50, -900])), np.float32(0.02) * scale, axis=0))
    y = net.op("Add", y, a)
    net.output(net.dq(net.q(y, 0.05, np.int8(1)), 0.05, np.int8(1), out="y"))
    return net, {"x": floats(0, 1, 4), "a": floats(1, 1, 3)}, 0.051, True


def bias_of_a_dead_channel() -> Case:
    """Zeros quantised with scale 1: their bias is far smaller than a step of the accumulator."""
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 4, 4]), 0.05, np.uint8(128))
    w = integers(0, np.int8, 3, 2, 1, 1)
    w[[0, 2]] = 0
    weight = net.dq(net.const(w), np.float32([1, 0.003, 1e-20]), np.zeros(3, np.int8), axis=0)
    y = net.op("Conv", x, weight, net.const(np.float32([0.012, 0.1, -0.5])))
    net.output(net.dq(net.q(y, 0.004, np.int8(3)), 0.004, np.int8(3), out="y"))
    return net, {"x": floats(0, 1, 2, 4, 4)}, 0.0041, True


def bias_that_always_saturates() -> Case:
    """A mask's −1e30 is far beyond what any scale has to hold."""
    net = Net()
    x = net.qdq(net.input("x", [2, 4]), 0.02, np.int8(0))
    w = net.dq(net.const(integers(0, np.int8, 4, 3)), np.float32(0.01), np.int8(0))
    y = net.op("Add", net.op("MatMul", x, w), net.const(np.float32([1e30, -1e30, 0.5])))
    net.output(net.dq(net.q(y, 0.05, np.int8(0)), 0.05, np.int8(0), out="y"))
    return net, {"x": floats(0, 2, 4)}, 0.051, True


def scalar_constant_quantised_twice() -> Case:
    """A constant of no axes stays an array."""
    net = Net()
    x = net.qdq(net.input("x", [3]), 0.02, np.int8(0))
    k = net.qdq(net.qdq(net.const(np.float32(0.7)), 0.01, np.int8(0)), 0.03, np.uint8(3))
    net.output(net.dq(net.q(net.op("Mul", x, k), 0.02, np.int8(0)), 0.02, np.int8(0), out="y"))
    return net, {"x": floats(0, 3)}, 0.021, True


def steps_of_16_bits() -> Case:
    """No interpolation follows a step; a table would be off by half of it."""
    net = Net(21)
    x = net.qdq(net.input("x", [1000]), 0.0001, np.int16(0))
    net.output(net.dq(net.q(net.op("Ceil", x), 0.0002, np.int16(0)), 0.0002, np.int16(0), out="y"))
    return net, {"x": 2 * floats(0, 1000)}, 0.0, False


def long_expression(depth: int = 2000) -> Case:
    net = Net()
    x = net.qdq(net.input("x", [2, 8]), 0.02, np.int8(0))
    for i in range(depth):
        x = net.op("Abs" if i % 2 else "Neg", x)
    net.output(net.dq(net.q(x, 0.02, np.int8(0)), 0.02, np.int8(0), out="y"))
    return net, {"x": floats(0, 2, 8)}, 0.0, depth < 64


def expression_that_doubles() -> Case:
    """Forty ops, but 2^40 paths through them."""
    net = Net()
    x = net.qdq(net.input("x", [2, 8]), 0.02, np.int8(0))
    for _ in range(20):
        x = net.op("Mul", net.op("Add", x, x), net.const(np.float32(0.5)))
    net.output(net.dq(net.q(x, 0.02, np.int8(0)), 0.02, np.int8(0), out="y"))
    return net, {"x": floats(0, 2, 8)}, 0.0, True


def product_past_32_bits() -> Case:
    """Unsigned 16-bit factors: the product of two needs 34 bits, which the BPU has not."""
    net = Net(21)
    x = net.qdq(net.input("x", [64]), 0.0001, np.int16(-32768))
    y = net.op("Mul", x, x)
    net.output(net.dq(net.q(y, 0.001, np.int16(-32768)), 0.001, np.int16(-32768), out="y"))
    return net, {"x": np.linspace(0, 6, 64, dtype=np.float32)}, 0.0011, False


def tile_of_rank_5() -> Case:
    """Copies along five axes need no tensor of ten."""
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 3, 2, 2]), 0.02, np.int8(0))
    y = net.op("Tile", x, net.const(np.int64([2, 1, 2, 3, 2])))
    net.output(net.dq(net.q(y, 0.02, np.int8(0)), 0.02, np.int8(0), out="y"))
    return net, {"x": floats(0, 1, 2, 3, 2, 2)}, 0.0, True


def mean_to_a_scalar_of_the_models_own() -> Case:
    net = Net(21)
    x = net.qdq(net.input("x", [3, 5]), 0.0001, np.int16(0))
    y = net.op("ReduceMean", x, net.const(np.int64([0, 1])), keepdims=0)
    y = net.qdq(y, 0.00005, np.int16(0))
    net.output(net.op("Softmax", net.op("Reshape", y, net.const(np.int64([1]))), axis=0, out="y"))
    net.output(net.op("Gather", net.op("Reshape", y, net.const(np.int64([1]))), net.const(np.int64(0)), out="z"))
    return net, {"x": floats(0, 3, 5)}, 0.0001, False


def pool_beside_another_reader() -> Case:
    """ONNX Runtime loses a pad's operand when it fuses the pad into a pool and somebody else reads it."""
    net = Net()
    x = net.op("Mul", net.input("x", [1, 2, 5, 6]), net.const(np.float32(0.5)))
    net.output(net.dq(net.q(x, 0.02, np.int8(0)), 0.02, np.int8(0), out="z"))
    net.output(net.op("AveragePool", x, kernel_shape=[3, 2], pads=[0, 1, 2, 0], count_include_pad=1, out="y"))
    return net, {"x": floats(0, 1, 2, 5, 6)}, 1e-6, False


CASES: list[Callable[[], Case]] = [
    pad_outside_the_operands_range,
    concat_of_two_widths,
    batch_norm_of_a_dead_channel,
    addend_of_a_dead_channel,
    lambda: addend_of_a_dead_channel(bias=True),
    product_past_32_bits,
    tile_of_rank_5,
    mean_to_a_scalar_of_the_models_own,
    pool_beside_another_reader,
    bias_of_a_dead_channel,
    bias_that_always_saturates,
    scalar_constant_quantised_twice,
    steps_of_16_bits,
    long_expression,
    expression_that_doubles,
]


@pytest.mark.parametrize("arith", ["bpu", "onnx"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__.strip("<>"))
def test_net_agrees_with_onnx_runtime(case: Callable[[], Case], arith: str) -> None:
    net, feeds, tolerance, on_bpu = case()
    want = onnxruntime_outputs(net.model(), feeds)
    for march in MARCHES:
        program = hbc.compile(net.model(), march=march, arith=arith).program
        if on_bpu and march.startswith("nash"):
            assert all(isinstance(s, BpuSegment) for s in program.models[0].segments)
        runs = [Session(program, engine=e, threads=t).run(feeds) for e, t in (("reference", 1), ("jit", 1), ("jit", 2))]
        assert list(runs[0]) == list(want)
        for name, expected in want.items():
            for run in runs:
                np.testing.assert_array_equal(run[name], runs[0][name])
            np.testing.assert_allclose(runs[0][name], expected, rtol=0, atol=tolerance, err_msg=f"{march} {name}")


def test_a_tensor_of_nine_axes_is_named() -> None:
    net = Net()
    x = net.qdq(net.input("x", [1] * 9), 0.02, np.int8(0))
    net.output(net.op("Relu", x, out="y"))
    with pytest.raises(hbc.EmitError, match="9 axes") as caught:
        hbc.compile(net.model())
    assert "'x'" in str(caught.value)
