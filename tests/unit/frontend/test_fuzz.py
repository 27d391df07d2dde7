"""Damaged models: whatever the bytes, a module or a FrontendError, in bounded time and memory."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from hbc.diagnostics import FrontendError
from hbc.frontend import load
from hbc.ir.core import Module
from hbc.ir.verifier import verify
from tests.fuzz.mutations import MUTATIONS

from .net import Net, floats, integers

ROUNDS = 400
SECONDS, BYTES = 5.0, 1 << 28  # for one damaged file of a few kilobytes


def every_family() -> bytes:
    """A small model with an op of every rule family, so that damage reaches their attributes."""
    net = Net(13, com_microsoft=1)
    x = net.qdq(net.input("x", [1, 2, 6, 6]), 0.1, np.uint8(7))
    w = net.dq(net.const(integers(0, np.int8, 4, 2, 3, 3)), np.float32([0.1, 0.2, 0.3, 0.4]), np.int8([0] * 4), axis=0)
    y = net.op("Conv", x, w, net.const(floats(1, 4)), pads=[1] * 4, strides=[1, 1], group=1)
    y = net.op(
        "MaxPool",
        net.op("Clip", y, net.const(np.float32(0)), net.const(np.float32(6))),
        kernel_shape=[2, 2],
        ceil_mode=1,
    )
    y = net.op("Resize", y, "", net.const(np.float32([1, 1, 2, 2])), mode="nearest", nearest_mode="floor")
    y = net.op("ConvTranspose", y, net.const(floats(2, 4, 2, 2, 2)), strides=[2, 2], output_padding=[1, 0])
    y = net.op("Pad", y, net.const(np.int64([0, 0, 1, 0, 0, 0, 0, 1])), mode="constant")
    a, b = "a", "b"
    net.op("Split", y, net.const(np.int64([1, 1])), out=[a, b], axis=1)
    y = net.op(
        "Concat", net.op("Slice", a, *(net.const(np.int64([v])) for v in (0, 5, 2, 2))), net.op("Add", a, b), axis=2
    )
    shape = net.op(
        "Concat", net.op("Gather", net.op("Shape", y), net.const(np.int64([0]))), net.const(np.int64([-1])), axis=0
    )
    y = net.op("Softmax", net.op("Reshape", net.op("LeakyRelu", y, alpha=0.1), shape), axis=-1)
    q = net.q(y, 0.01, np.uint8(0))
    zero, scale = net.const(np.uint8(0)), net.const(np.float32(0.01))
    q = net.op("QLinearAdd", q, scale, zero, q, scale, zero, scale, zero, domain="com.microsoft")
    net.dq(net.op("Transpose", q, perm=[1, 0]), 0.01, np.uint8(0), out="y")
    net.op("ReduceMean", "y", out="m", axes=[0], keepdims=0)
    net.output("y", "m")
    return net.model().SerializeToString()


SEED = every_family()


def attempt(make: Callable[[], Module]) -> None:
    start = time.perf_counter()
    tracemalloc.start()
    try:
        verify(make())
    except FrontendError:
        pass  # the other thing that may come out
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.perf_counter() - start < SECONDS
    assert peak < BYTES


def test_the_model_itself_is_sound() -> None:
    verify(load(SEED))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes(seed: int) -> None:
    r = random.Random(seed)
    for _ in range(ROUNDS // 4):
        data = bytearray(SEED)
        for _ in range(r.randint(1, 3)):
            if data:
                r.choice(MUTATIONS)(r, data)
        attempt(lambda data=bytes(data): load(data))


def damaged_graph(r: random.Random) -> onnx.ModelProto:
    """The model with one or two sound protobuf fields changed: what a broken exporter writes."""
    model = onnx.ModelProto.FromString(SEED)
    for _ in range(r.choice((1, 1, 2))):
        r.choice((_attribute, _operand, _result, _tensor, _operator, _remove, _input))(r, model)
    return model


NUMBERS = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 5, 64, 2**20, 2**31, 2**40, 2**63 - 1)


def _attribute(r: random.Random, model: onnx.ModelProto) -> None:
    a = r.choice([a for n in model.graph.node for a in n.attribute])
    if a.ints and r.random() < 0.5:
        a.ints[r.randrange(len(a.ints))] = r.choice(NUMBERS)
    elif a.ints:
        del a.ints[r.randrange(len(a.ints))]
    else:
        a.i, a.f, a.s = (
            r.choice(NUMBERS),
            r.choice((0.0, -1.0, float("nan"), 1e38)),
            r.choice((b"", b"linear", b"\xff")),
        )


def _operand(r: random.Random, model: onnx.ModelProto) -> None:
    n = r.choice([n for n in model.graph.node if n.input])
    names = [
        *(t.name for t in model.graph.initializer),
        *(o for m in model.graph.node for o in m.output),
        "",
        "x",
        "nowhere",
    ]
    n.input[r.randrange(len(n.input))] = r.choice(names)


def _result(r: random.Random, model: onnx.ModelProto) -> None:
    n = r.choice([n for n in model.graph.node if n.input])
    n.output[r.randrange(len(n.output))] = r.choice(("", "y", "other", n.input[0]))


def _tensor(r: random.Random, model: onnx.ModelProto) -> None:
    t = r.choice(model.graph.initializer)
    what = r.randrange(4)
    if what == 0:
        t.data_type = r.randrange(25)
    elif what == 1 and t.dims:
        t.dims[r.randrange(len(t.dims))] = r.choice(NUMBERS)
    elif what == 2:
        raw = bytearray(t.raw_data)
        raw[r.randrange(len(raw))] = r.choice((0, 1, 127, 128, 255))
        t.raw_data = bytes(raw)
    else:
        t.CopyFrom(onnx.numpy_helper.from_array(np.int64([r.choice(NUMBERS)] * r.randrange(4)), t.name))


def _operator(r: random.Random, model: onnx.ModelProto) -> None:
    r.choice(model.graph.node).op_type = r.choice(model.graph.node).op_type


def _remove(r: random.Random, model: onnx.ModelProto) -> None:
    n = r.choice(model.graph.node)
    if n.input:
        del n.input[r.randrange(len(n.input))]


def _input(r: random.Random, model: onnx.ModelProto) -> None:
    t = model.graph.input[0].type.tensor_type
    if r.random() < 0.5:
        t.shape.dim[r.randrange(len(t.shape.dim))].dim_value = r.choice(NUMBERS)
    else:
        t.elem_type = r.randrange(20)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_graphs(seed: int) -> None:
    r = random.Random(100 + seed)
    for _ in range(ROUNDS // 4):
        model = damaged_graph(r)
        attempt(lambda model=model: load(model))
