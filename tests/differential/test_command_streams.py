"""Whole nets from ONNX to command streams: what the emulator makes of the bytes is what the reference computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import hbc
from hbc.backend.bpu.tiling import LEVELS, TilingOptions, tile_program
from hbc_runtime import Session, hbm, isa
from hbc_runtime.program import BpuSegment, Program
from hbc_runtime.stream import check_streams, run_commands
from tests.strategies import arrays_for
from tests.unit.frontend.net import RNG, Array, Net, floats

Body = Callable[[Net, str], str]
SMALL = 48 << 10  # bytes on chip: several tiles for most layers


def weight(net: Net, *shape: int) -> str:
    return net.const((RNG(sum(shape)).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def conv(net: Net, x: str, channels: int, inputs: int, kernel: int = 3, **attrs: object) -> str:
    attrs = {"pads": [kernel // 2] * 4, **attrs}
    bias = net.const(floats(channels, channels) / 4)
    return net.op("Conv", x, weight(net, channels, inputs, kernel, kernel), bias, **attrs)


def chain(net: Net, x: str) -> str:
    return net.op("Relu", conv(net, net.op("Sigmoid", conv(net, x, 12, 8)), 16, 12, strides=[2, 2]))


def residual(net: Net, x: str) -> str:
    y = net.op("Relu", conv(net, x, 8, 8))
    return net.op("Add", conv(net, y, 8, 8), x)


def depthwise(net: Net, x: str) -> str:
    return conv(net, net.op("Clip", conv(net, x, 8, 1, group=8), *limits(net, 0, 6)), 20, 8, kernel=1)


def grouped(net: Net, x: str) -> str:
    return conv(net, x, 12, 2, group=4, dilations=[2, 2], pads=[2, 2, 2, 2])


def deconv(net: Net, x: str) -> str:
    return net.op("ConvTranspose", x, weight(net, 8, 6, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1])


def pools(net: Net, x: str) -> str:
    small = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return net.op("AveragePool", small, kernel_shape=[2, 2], strides=[2, 2])


def global_pool(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", conv(net, net.op("GlobalAveragePool", x), 8, 8, kernel=1)))


def resized(net: Net, x: str) -> str:
    scales = net.const(np.float32([1, 1, 2, 2]))
    near = net.op(
        "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    return conv(net, near, 8, 8)


def bilinear(net: Net, x: str) -> str:
    return net.op("Resize", conv(net, x, 8, 8), "", net.const(np.float32([1, 1, 2, 2])), mode="linear")


def csp(net: Net, x: str) -> str:
    """YOLO's favourite: a part of the channels changed, and all of it side by side."""
    net.op("Split", conv(net, x, 16, 8), net.const(np.int64([8, 8])), out=["low", "high"], axis=1)
    once = net.op("Add", conv(net, "high", 8, 8), "high")
    return conv(net, net.op("Concat", "low", "high", once, axis=1), 8, 24, kernel=1)


def tables(net: Net, x: str) -> str:
    return net.op("Tanh", net.op("Mul", x, net.op("Sigmoid", x)))


def attention(net: Net, x: str) -> str:
    rows = net.op("Reshape", net.op("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]), net.const(np.int64([1, 8, -1])))
    score = net.op("MatMul", net.op("Transpose", rows, perm=[0, 2, 1]), rows)
    return net.op("MatMul", rows, net.op("Softmax", score, axis=-1))


def sampled(net: Net, x: str) -> str:
    grid = net.const(RNG(3).uniform(-1.1, 1.1, (1, 6, 9, 2)).astype(np.float32))
    return net.op("GridSample", conv(net, x, 8, 8), grid, mode="bilinear", align_corners=1)


def shuffled(net: Net, x: str) -> str:
    """Channels in another order, by reshape and transpose; then borders of zeros, and a cut."""
    parts = net.op("Reshape", x, net.const(np.int64([1, 2, 4, 20, 24])))
    y = net.op("Reshape", net.op("Transpose", parts, perm=[0, 2, 1, 3, 4]), net.const(np.int64([1, 8, 20, 24])))
    wide = net.op("Pad", y, net.const(np.int64([0, 0, 1, 2, 0, 0, 3, 0])))
    return net.op("Slice", wide, *(net.const(np.int64(v)) for v in ([0, 2], [24, 22], [2, 3], [2, 1])))


def classifier(net: Net, x: str) -> str:
    flat = net.op("Flatten", net.op("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]))
    return net.op("Gemm", flat, weight(net, 10, 240), net.const(floats(1, 10)), transB=1)


def limits(net: Net, low: float, high: float) -> tuple[str, str]:
    return net.const(np.float32(low)), net.const(np.float32(high))


BODIES: tuple[Body, ...] = (
    chain, residual, depthwise, grouped, deconv, pools, global_pool, resized, bilinear, csp, tables, attention, sampled,
    shuffled, classifier,
)  # fmt: skip


@cache
def program_of(body: Body) -> Program:
    net = Net()
    net.op("Identity", body(net, net.input("x", [1, 8, 20, 24])), out="y")
    net.output("y")
    return hbc.compile(net.model(), march="nash", fast_perf=True).program


@cache
def wide_program() -> Program:
    """A convolution and a sum of i16, as QDQ says it."""
    net = Net(21)
    x = net.qdq(net.input("x", [1, 8, 20, 24]), 0.0002, np.int16(0))
    w = net.dq(net.const(RNG(1).integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)), 0.004, np.int8(0))
    y = net.qdq(net.op("Conv", x, w, pads=[1, 1, 1, 1]), 0.0005, np.int16(0))
    net.dq(net.q(net.op("Add", y, x), 0.0006, np.int16(0)), 0.0006, np.int16(0), out="y")
    net.output("y")
    return hbc.compile(net.model(), march="nash").program


def hold(program: Program, level: str, on_chip: int | None) -> None:
    """The streams of `level` are sound and compute the reference's integers, written to a file and read again."""
    made = hbm.read(hbm.write(tile_program(program, TilingOptions(level, on_chip_bytes=on_chip))))
    check_streams(made, on_chip)
    arrays: dict[str, Array] = arrays_for(program.models[0])
    with Session(program, engine="reference") as session:
        want = session.run(arrays)
    got = run_commands(made, arrays)
    assert got.keys() == want.keys()
    for name, y in want.items():
        assert np.array_equal(got[name], y, equal_nan=True), name


@pytest.mark.parametrize("on_chip", [SMALL, None], ids=["small", "whole"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_nets(body: Body, level: str, on_chip: int | None) -> None:
    hold(program_of(body), level, on_chip)


@pytest.mark.parametrize("level", LEVELS)
def test_i16(level: str) -> None:
    hold(wide_program(), level, SMALL)


def test_every_engine_and_the_ops_in_question_are_met() -> None:
    programs = [*map(program_of, BODIES), wide_program()]
    segments = [s for p in programs for s in p.models[0].segments if isinstance(s, BpuSegment)]
    kinds = {type(op) for s in segments for op in s.instructions}
    wanted = {
        isa.Conv2d, isa.ConvTranspose2d, isa.MaxPool, isa.AvgPool, isa.ResizeNearest, isa.ResizeBilinear, isa.Lut,
        isa.GridSample, isa.Matmul, isa.Add, isa.Mul, isa.Transpose, isa.Concat, isa.Slice, isa.Pad, isa.ReduceSum,
    }  # fmt: skip
    assert wanted - kinds == set()
    engines = {c.engine for s in segments if s.commands is not None for c in s.commands.commands}
    assert {e.name for e in engines} >= {"LOAD", "STORE", "TENSOR", "VECTOR", "POOL", "LUT", "MOVE", "HOST"}
