"""Small quantised nets with their inputs, and the comparison with ONNX Runtime that is asked of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper

import hbc
from hbc.driver import Compiled
from hbc_runtime import Session
from tests.unit.frontend.net import RNG, Array, Net, floats, onnxruntime_outputs

THREE, FIVE = np.int8(3), np.int8(5)  # usual zero points


@dataclass
class Built:
    """A net, what to feed it, and the quantum of its one output."""

    net: Net
    feeds: dict[str, Array]
    quantum: float
    cpu: set[str] = field(default_factory=set)  # ops that stay in reals
    cpu_onnx: set[str] = field(default_factory=set)  # and those that do for `--arith onnx` alone


def run(compiled: Compiled, feeds: dict[str, Array]) -> dict[str, Array]:
    with Session(compiled.program) as session:
        return session.run(feeds)


def packed(net: Net, name: str, values: Any, elem_type: int) -> str:
    """An initializer of fewer than 8 bits."""
    array = np.asarray(values)
    net.constants.append(helper.make_tensor(name, elem_type, array.shape, array.ravel().tolist()))
    return name


def scales(seed: int, *shape: int) -> Array:
    return RNG(seed).uniform(0.005, 0.02, shape).astype(np.float32)


def opened(opset: int = 13, *shape: int, zero: Any = FIVE, **domains: int) -> tuple[Net, str, dict[str, Array]]:
    """A net whose input of `shape` is quantised: (net, its dequantised tensor, feeds)."""
    net = Net(opset, **domains)
    net.input("x", shape)
    return net, net.qdq("x", 0.03, zero), {"x": floats(len(shape), *shape)}


def closed(net: Net, y: str, feeds: dict[str, Array], quantum: float = 0.1, zero: Any = THREE, **kw: Any) -> Built:
    """`y` quantised, dequantised and returned."""
    net.dq(net.q(y, quantum, zero), quantum, zero, out="y")
    net.output("y")
    return Built(net, feeds, quantum, **kw)


def compare(built: Built, arith: str, share: float = 0.85) -> None:
    """The compiled net within 1 quantum of ONNX Runtime, most elements equal, on the devices it names."""
    model = built.net.model()
    (want,) = onnxruntime_outputs(model, built.feeds).values()
    compiled = hbc.compile(model, march="nash", arith=arith)
    (got,) = run(compiled, built.feeds).values()
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
    assert apart.max() <= built.quantum * (1 + 1e-5)
    assert np.mean(apart < built.quantum / 2) > share
    on_cpu = {op.NAME for op in compiled.module.graph.ops if op.placement and op.placement.device == "cpu"}
    assert on_cpu == built.cpu | (built.cpu_onnx if arith == "onnx" else set())
