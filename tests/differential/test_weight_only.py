"""Weights in blocks and weights without DequantizeLinear, against ONNX Runtime with its optimiser off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import hbc
from hbc.frontend import load
from hbc.ir.ops import Dequantize, Linear
from tests.differential.built import Built, closed, compare, opened, packed, scales
from tests.unit.frontend.net import RNG, Array, Net, floats, integers

MS = "com.microsoft"
F32, I8, U8, I32 = np.float32, np.int8, np.uint8, np.int32
CASES: dict[str, Callable[[], Built]] = {}


def case(build: Callable[[], Built]) -> Callable[[], Built]:
    CASES[build.__name__] = build
    return build


@case
def blocks_along_the_rows() -> Built:
    net, x, feeds = opened(21, 2, 64)
    w = packed(net, "w", RNG(1).integers(-8, 8, (64, 5)), TensorProto.INT4)
    w = net.op("DequantizeLinear", w, net.const(4 * scales(2, 4, 5)), axis=0, block_size=16)
    return closed(net, net.op("MatMul", x, w), feeds)


@case
def blocks_behind_a_transpose() -> Built:
    net, x, feeds = opened(21, 2, 60)
    w, z = net.const(integers(1, U8, 5, 60)), net.const(integers(2, U8, 5, 4))
    w = net.op("DequantizeLinear", w, net.const(scales(2, 5, 4)), z, axis=1, block_size=16)
    return closed(net, net.op("MatMul", x, net.op("Transpose", w, perm=[1, 0])), feeds, 0.5)


@case
def one_block_is_a_scale_per_channel() -> Built:
    net, x, feeds = opened(21, 2, 64)
    w = net.const(integers(1, I8, 5, 64))
    w = net.op("DequantizeLinear", w, net.const(scales(2, 5, 1)), axis=1, block_size=64)
    return closed(net, net.op("Gemm", x, w, transB=1), feeds, 0.4)


@case
def blocks_beside_real_activations() -> Built:
    net = Net(21)
    w = packed(net, "w", RNG(1).integers(-8, 8, (64, 5)), TensorProto.INT4)
    w = net.op("DequantizeLinear", w, net.const(scales(2, 4, 5)), axis=0, block_size=16)
    net.op("MatMul", net.input("x", [2, 64]), w, out="y")
    net.output("y")
    return Built(net, {"x": floats(0, 2, 64)}, 1e-5, cpu={"linear"})


@case
def weights_by_cast_and_mul() -> Built:
    net, x, feeds = opened(13, 4, 6)
    w = net.op("Mul", net.op("Cast", net.const(integers(1, I8, 6, 5)), to=1), net.const(scales(2, 5)))
    return closed(net, net.op("MatMul", x, w), feeds)


@case
def weights_by_cast_sub_and_mul() -> Built:
    net, x, feeds = opened(13, 4, 6)
    zero = net.op("Cast", net.const(np.full((5, 1), 130, U8)), to=1)
    w = net.op("Sub", net.op("Cast", net.const(integers(1, U8, 5, 6)), to=1), zero)
    w = net.op("Mul", net.const(scales(2, 5, 1)), w)
    return closed(net, net.op("MatMul", x, net.op("Transpose", w, perm=[1, 0])), feeds)


@case
def weights_centred_in_integers() -> Built:
    net, x, feeds = opened(13, 4, 6)
    w = net.op("Sub", net.op("Cast", net.const(integers(1, U8, 6, 5)), to=6), net.const(np.full((1, 5), 131, I32)))
    w = net.op("Mul", net.op("Cast", w, to=1), net.const(scales(2, 1, 5)))
    return closed(net, net.op("MatMul", x, w), feeds)


@case
def weights_in_blocks_by_cast_and_mul() -> Built:
    net, x, feeds = opened(21, 4, 32)
    w = net.op("Cast", packed(net, "w", RNG(1).integers(0, 16, (5, 2, 16)), TensorProto.UINT4), to=1)
    w = net.op("Sub", w, net.const(np.full((5, 2, 1), 8, F32)))
    w = net.op("Mul", w, net.const(4 * scales(2, 5, 2, 1)))
    w = net.op("Reshape", w, net.const(np.int64([5, 32])))
    return closed(net, net.op("Gemm", x, w, transB=1), feeds)


@case
def weights_by_cast_and_mul_beside_real_activations() -> Built:
    net = Net(13)
    w = net.op("Mul", net.op("Cast", net.const(integers(1, I8, 4, 3, 3, 3)), to=1), net.const(scales(2, 4, 1, 1, 1)))
    net.op("Conv", net.input("x", [1, 3, 5, 5]), w, out="y")
    net.output("y")
    return Built(net, {"x": floats(0, 1, 3, 5, 5)}, 1e-5, cpu={"conv2d"})


def n_bits(bits: int, zero: bool, quantised: bool) -> Built:
    net, x, feeds = opened(21, 2, 60, com_microsoft=1)
    blocks, each = 2, 8 // bits

    def pack(values: Array) -> str:
        return net.const(sum((values[..., i::each] << (bits * i)) for i in range(each)).astype(U8))

    w = RNG(1).integers(0, 1 << bits, (8, blocks, 32)).astype(U8)
    operands = [pack(w), net.const(4 * scales(2, 8 * blocks))]
    if zero:
        operands.append(pack(RNG(3).integers(0, 1 << bits, (8, -(-blocks // each) * each)).astype(U8)))
    attrs = {"K": 60, "N": 8, "bits": bits, "block_size": 32}
    y = net.op("MatMulNBits", x if quantised else "x", *operands, domain=MS, **attrs)
    if quantised:
        return closed(net, y, feeds, 0.5)
    net.op("Identity", y, out="y")
    net.output("y")
    # ONNX Runtime may round the activations inside this op: it is compared to 1/1000 of its range
    return Built(net, feeds, 0.02, cpu={"linear"})


for _bits in (4, 8):
    for _zero in (False, True):
        for _quantised in (False, True):
            _name = f"matmul_of_{_bits}_bits{'_zero_points' * _zero}{'' if _quantised else '_reals'}"
            CASES[_name] = lambda b=_bits, z=_zero, q=_quantised: n_bits(b, z, q)  # type: ignore[misc]


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_weights(name: str, arith: str) -> None:
    compare(CASES[name](), arith)


def test_requantised_blocks_are_noted() -> None:
    compiled = hbc.compile(CASES["blocks_along_the_rows"]().net.model(), march="nash")
    assert "rounded to 16 bits" in compiled.module.metadata["notes"]
    exact = hbc.compile(CASES["one_block_is_a_scale_per_channel"]().net.model(), march="nash")
    assert "notes" not in exact.module.metadata


@pytest.mark.parametrize(("power", "dtype"), [(2, np.int8), (6, np.int16)])
def test_blocks_of_one_step_keep_their_reals(power: int, dtype: Any) -> None:
    """Scales that are multiples of the smallest: integers of that one, exactly, and nothing to note."""
    net, x, feeds = opened(21, 2, 64)
    ints = RNG(1).integers(-8, 8, (5, 64))
    w = packed(net, "w", ints, TensorProto.INT4)
    steps = F32(2.0) ** -RNG(2).integers(8 - power, 9, (5, 4)).astype(F32)
    w = net.op("DequantizeLinear", w, net.const(steps), axis=1, block_size=16)
    built = closed(net, net.op("Gemm", x, w, transB=1), feeds)
    compare(built, "onnx", share=0.99)
    module = load(net.model())
    (linear,) = module.graph.walk(Linear)
    const = linear.weight.defined_by(Dequantize).x
    assert const.op.value.dtype == dtype
    reals = const.op.value * np.asarray(const.type.quant.scale)[:, None]
    np.testing.assert_array_equal(reals, ints * steps.repeat(16, axis=1))
    assert "notes" not in module.metadata


def test_weight_only_integers_are_the_model_s_own() -> None:
    built = CASES["weights_by_cast_and_mul"]()
    module = hbc.compile(built.net.model(), march="nash").module
    weights = [op.value for op in module.graph.ops if op.NAME == "const" and op.value.dtype == I8]
    want = integers(1, I8, 6, 5)
    assert any(w.size == want.size and sorted(w.ravel()) == sorted(want.ravel()) for w in weights)
