"""One small net as every common generator writes it: each file compiles whole and gives the generator's outputs.

Expected are ONNX Runtime's outputs without its optimiser, or the framework's own where ONNX Runtime has no kernel for
the dialect (QONNX). A difference is counted in steps of the output: its quantisation step where it has 8 or 16 bits,
else (accumulators, reals) 1/255 of its own range, an 8 bit step.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import hbc
from hbc.analysis import behind_moves
from hbc.options import CompileOptions
from hbc.opwise import check_ops
from hbc.verify.measure import cosine
from hbc_runtime import Session
from hbc_runtime.program import Model, TensorInfo
from hbc_runtime.types import DType
from tests.shared_data import SHARED, shared
from tests.unit.frontend.test_qonnx import Published, Quant

pytest.importorskip("onnxruntime", reason="CPU segments of these models need ONNX Runtime")

ZOO = SHARED / "onnx_zoo"
FILES = sorted(p.stem for p in ZOO.glob("*.onnx"))
NOT_RUN_BY_ORT = {"brevitas_qonnx_s8_pc", "brevitas_qonnx_w4", "torch_ts_hbcop_s8_s16"}  # README.csv, column ort_runs

# Steps, and a cosine, by arithmetic. `onnx`: single elements fall to the other side of a rounding where a bias or a
# batch norm is real: it is rounded to accumulator steps. Measured: 1 step of a quantised output, 1.33 of an accumulator
# that reads such an element. `bpu`: the vendor's
# requantisation and its own rounding of every input element; 3.7 is the net of power-of-two scales, where every second
# result lies on a tie.
TOLERANCES = {"onnx": (1.5, 1 - 1e-5), "bpu": (4.0, 1 - 3e-4)}
# Thirty quantised layers amplify single roundings: every op alone is within 1 quantum (below). ONNX Runtime itself is
# as far from the framework (README.csv: 0.222 of `hm`, which is 4 steps).
DEEP = (13.0, 1 - 3e-3)


@pytest.mark.parametrize("name", FILES or ["(none)"])
@pytest.mark.parametrize("arith", ["onnx", "bpu"])
def test_outputs_are_the_generator_s(name: str, arith: str) -> None:
    shared("onnx_zoo", f"{name}.onnx")
    deep = name.startswith("laneaf") and "float" not in name
    most, least = DEEP if deep else TOLERANCES[arith]
    program = hbc.compile(ZOO / f"{name}.onnx", march="nash", arith=arith).program
    expected = expected_outputs(name)
    with Session(program) as session:
        got = session.run(dict(zip([i.name for i in session.model.inputs], inputs_of(name), strict=True)))
        assert len(got) == len(expected)
        for (output, ours), want, info in zip(got.items(), expected, session.model.outputs, strict=True):
            assert (ours.shape, ours.dtype) == (want.shape, want.dtype), output
            steps = float(np.abs(ours - want).max()) / step_of(session.model, info, want)
            assert steps <= most, f"{output}: {steps:.2f} steps"
            assert cosine(ours, want) >= least, output


@pytest.mark.parametrize("name", [f for f in FILES if f not in NOT_RUN_BY_ORT] or ["(none)"])
def test_every_op_is_within_a_quantum_of_onnx_runtime(name: str) -> None:
    """Each op on ONNX Runtime's own integers, so that no error is inherited."""
    path = shared("onnx_zoo", f"{name}.onnx")
    program = hbc.compile(path, march="nash", arith="onnx").program
    sample = dict(zip([i.name for i in program.models[0].inputs], inputs_of(name), strict=True))
    rows = check_ops(path, CompileOptions(march="nash", arith="onnx"), sample)
    assert [r for r in rows if r.quanta > 1] == []
    # a real bias is rounded to accumulator steps, which are coarse beside a step of 16 bits
    least = 0.4 if "_s16" in name else 0.98
    assert [r for r in rows if r.equal < least] == []


def inputs_of(name: str) -> list[np.ndarray]:
    """The sample's inputs, in order: the npz names them as the framework does, not always as the file."""
    return [array for key, array in _sample(name).items() if key.startswith("in_")]


def expected_outputs(name: str) -> list[np.ndarray]:
    """ONNX Runtime's outputs, else the framework's, in the order of the file."""
    data = _sample(name)
    keys = [k for k in data if k.startswith("out_")] or [k for k in data if k.startswith("ref_")]
    return [data[k] for k in sorted(keys, key=lambda k: int(k.split("_")[1]))]


@lru_cache(maxsize=4)
def _sample(name: str) -> dict[str, np.ndarray]:
    path = ZOO / f"{name}.npz"
    if not path.exists():  # ONNX Runtime doesn't load it (INT16 below opset 21); its twin of opset 21 is the same net
        path = ZOO / f"{name}_op21.npz"
    with np.load(path) as data:
        return {k: data[k] for k in data.files}


def step_of(model: Model, info: TensorInfo, want: np.ndarray) -> float:
    """One step of an output."""
    tensor = behind_moves(model, info.tensor)
    if tensor.quant is not None and tensor.dtype is not DType.I32:
        return float(max(tensor.quant.scale))
    return float(np.ptp(want)) / 255


class BatchNormalization(Published):
    """Inference form: the reference evaluator takes that of opset 9 for training."""

    op_domain = ""

    def _run(self, *operands: np.ndarray, **_: Any) -> tuple[np.ndarray]:
        x, scale, bias, mean, variance = operands
        factor = scale / np.sqrt(variance + self.attribute("epsilon", 1e-5))
        shape = (1, -1, 1, 1)
        return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)


@pytest.mark.parametrize("arith", ["onnx", "bpu"])
def test_a_real_network_of_quant_nodes(arith: str) -> None:
    """espcn, 4 bit weights and activations inside, against the published formulas: whole on the BPU."""
    model = onnx.load(shared("models", "espcn_nn_resize", "espcn_nn_resize_quant.onnx"))
    kernel = type("Quant", (Quant,), {"op_domain": "onnx.brevitas"})
    shape = (1, 3, 128, 128)
    x = np.random.default_rng(0).uniform(-0.2, 1, shape).astype(np.float32)
    (want,) = ReferenceEvaluator(model, new_ops=[kernel, BatchNormalization]).run(None, {"onnx::Relu_0": x})
    compiled = hbc.compile(model, march="nash", arith=arith)
    assert {op.placement.device for op in compiled.module.graph.ops if op.placement} <= {"bpu", "host"}
    with Session(compiled.program) as session:
        (got,) = session.run({"onnx::Relu_0": x}).values()
    assert cosine(got, want) > 0.9999
    steps = np.abs(got - want) * 255
    assert steps.max() <= 8.01  # an inner 4 bit activation on the other side of a rounding is worth several 8 bit steps
    assert np.mean(steps < 0.5) > {"onnx": 0.75, "bpu": 0.5}[arith]  # 576 such activations meet in one output


def test_the_whole_zoo_is_here() -> None:
    """A file without a sample would be passed over silently."""
    shared("onnx_zoo")
    without = [f for f in FILES if not (ZOO / f"{f}.npz").exists()]
    assert without == ["torch_ts_hbcop_s8_s16"]
    assert len(FILES) == len(list(Path(ZOO).glob("*.onnx"))) > 40
