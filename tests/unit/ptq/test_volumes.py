"""3-D convolutions of a float model are quantised as 2-D ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime", reason="the float model is run by ONNX Runtime")

import hbc
from hbc.ir import ops
from hbc.options import CompileOptions
from hbc.ptq.prepare import prepare
from hbc.ptq.runner import Runner
from hbc_runtime import Session
from tests.unit.frontend.net import floats, onnxruntime_outputs
from tests.unit.ptq.float_nets import Maker

pytestmark = pytest.mark.ort
X = (1, 2, 5, 8, 6)


def volume() -> onnx.ModelProto:
    """conv3d + bn + relu, a strided one in groups, an average and a head."""
    n = Maker()
    y = n.op("Conv", n.input("x", list(X)), n.weights(4, 2, 3, 3, 3, gain=1.4), pads=[1] * 6)
    y = n.op("Relu", n.batch_norm(y, 4))
    y = n.op("Conv", y, n.weights(4, 2, 2, 3, 3, gain=1.4), n.weights(4), strides=[1, 2, 1], group=2)
    y = n.op("AveragePool", n.op("Relu", y), kernel_shape=[2, 1, 2], strides=[2, 1, 2])
    y = n.op("Flatten", y)
    return n.done(n.op("Gemm", y, n.weights(3, 4 * 2 * 3 * 2), n.weights(3), transB=1, out="y"))


def test_reals_stay_what_they_were() -> None:
    module = prepare(volume(), CompileOptions())
    assert list(module.graph.walk(ops.Call)) == []
    assert list(module.graph.walk(ops.BatchNorm)) == []
    assert all(isinstance(c.x.op, ops.Conv2d) for c in module.graph.walk(ops.Clip))
    sample = {"x": floats(1, *X)}
    want, got = onnxruntime_outputs(volume(), sample)["y"], Runner(module).results(sample)["y"]
    assert float(np.abs(got - want).max()) <= 1e-5 * float(np.abs(want).max())


@pytest.mark.parametrize("march", ["nash", "bayes"])
def test_all_of_it_is_integers(march: str) -> None:
    samples = [{"x": floats(i, *X)} for i in range(4)]
    result = hbc.quantize(volume(), samples, march, rank=False)
    compiled = hbc.compile(result.data, march)
    assert [n for n in compiled.report.nodes if n.device == "cpu"] == []
    with Session(compiled.program, engine="reference") as session:
        got = np.concatenate([session.run(s)["y"] for s in samples])
    want = np.concatenate([onnxruntime_outputs(volume(), s)["y"] for s in samples])
    noise, signal = float(np.square(got - want).sum()), float(np.square(want).sum())
    assert 10 * np.log10(signal / noise) > 25  # dB; 8 bits of a net of three layers


def test_a_march_without_gathers_leaves_slices_to_the_cpu() -> None:
    result = hbc.quantize(volume(), [{"x": floats(0, *X)}], "bernoulli2", rank=False)
    compiled = hbc.compile(result.data, "bernoulli2")
    assert any("does not gather" in n.reason for n in compiled.report.nodes if n.device == "cpu")
    with Session(compiled.program, engine="reference") as session:
        got = session.run({"x": floats(0, *X)})["y"]
    want = onnxruntime_outputs(volume(), {"x": floats(0, *X)})["y"]
    assert 10 * np.log10(np.square(want).sum() / np.square(got - want).sum()) > 25  # dB, as above
