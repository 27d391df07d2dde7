"""A batch norm behind a concat goes into the products that the concat joins."""

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
from tests.unit.frontend.net import floats, onnxruntime_outputs
from tests.unit.ptq.float_nets import Maker

pytestmark = pytest.mark.ort


def joined(*, transposed: bool = False, read_twice: bool = False) -> onnx.ModelProto:
    """concat(convolution, max pool) → batch norm → relu, as down-sampling blocks have it."""
    n = Maker()
    x = n.input("x", [1, 3, 8, 8])
    if transposed:
        y = n.op("ConvTranspose", n.op("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]), n.weights(3, 5, 2, 2),
                 n.weights(5), strides=[2, 2])  # fmt: skip
    else:
        y = n.conv(x, 3, 5, stride=2)
    pooled = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    z = n.op("Relu", n.batch_norm(n.op("Concat", y, pooled, axis=1), 8))
    if read_twice:
        z = n.op("Concat", z, y, axis=1)
    return n.done(n.op("Identity", n.conv(z, 13 if read_twice else 8, 4), out="y"))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_takes_its_part_of_the_norm(transposed: bool) -> None:
    model = joined(transposed=transposed)
    module = prepare(model, CompileOptions())
    (norm,) = module.graph.walk(ops.BatchNorm)
    assert isinstance(norm.x.op, ops.MaxPool)
    assert norm.multiplier.type.shape == (3,)
    (concat,) = module.graph.walk(ops.Concat)
    assert all(isinstance(x.op, ops.Clip) for x in concat.xs)
    sample = {"x": floats(1, 1, 3, 8, 8)}
    want, got = onnxruntime_outputs(model, sample)["y"], Runner(module).results(sample)["y"]
    assert float(np.abs(got - want).max()) <= 1e-5 * float(np.abs(want).max())


def test_a_product_that_is_read_elsewhere_stays() -> None:
    module = prepare(joined(read_twice=True), CompileOptions())
    (norm,) = module.graph.walk(ops.BatchNorm)
    assert isinstance(norm.x.op, ops.Concat)


@pytest.mark.parametrize("march", ["nash", "bayes-e", "bernoulli2"])
def test_all_of_it_is_integers(march: str) -> None:
    result = hbc.quantize(joined(), [{"x": floats(i, 1, 3, 8, 8)} for i in range(4)], march, rank=False)
    report = hbc.compile(result.data, march).report
    assert [n for n in report.nodes if n.device == "cpu"] == []
    assert min(o.distance.sqnr for o in result.outputs) > 30
