"""Weights behind chains of casts: what a cast changes is not the weight any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from hbc.frontend import load
from hbc.ir.ops import Dequantize

from .net import Net, agrees, floats

F32, I16 = np.float32, np.int16


def product(weight: Any, *casts: int) -> Net:
    net = Net(17)
    w = net.const(weight)
    for to in casts:
        w = net.op("Cast", w, to=to)
    net.op("MatMul", net.input("x", [2, 2]), net.op("Mul", w, net.const(F32(0.5))), out="y")
    net.output("y")
    return net


@pytest.mark.parametrize(
    "casts",
    [
        (TensorProto.INT32, TensorProto.INT8, TensorProto.FLOAT),  # wraps
        (TensorProto.FLOAT16, TensorProto.FLOAT),  # rounds
        (TensorProto.FLOAT,),
    ],
)
def test_casts_that_change_the_integers_are_followed(casts: tuple[int, ...]) -> None:
    agrees(product(I16([[300, -30001], [2, 4099]]), *casts).model(), {"x": floats(0, 2, 2)}, atol=1e-6)


def test_integers_that_a_cast_keeps_stay_a_weight() -> None:
    module = load(product(I16([[300, -30001], [2, 4099]]), TensorProto.INT32, TensorProto.FLOAT).model())
    (weight,) = module.graph.walk(Dequantize)
    assert weight.x.type.dtype.text == "i16"
