"""The engines: each makes, from a network and a number of threads, a function that runs it once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Run = Callable[[], Any]


class Net(Protocol):
    """What an engine has to know of a network."""

    @property
    def files(self) -> Mapping[str, Path]:
        """By form: fp32, u8s8, hbm_s8s8 …"""

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each input."""

    def feeds(self) -> dict[str, np.ndarray]:
        """Something to run it on."""


def hbc_s8s8(net: Net, threads: int) -> Run:
    """hbc on symmetric s8 activations (where the network has that form, else u8), arithmetic `bpu`."""
    return _hbc(net, "s8s8" if "s8s8" in net.files else "u8s8", threads)


def hbc_u8s8(net: Net, threads: int) -> Run:
    """hbc on the very file that the others run."""
    return _hbc(net, "u8s8", threads)


def hbc_avx2(net: Net, threads: int) -> Run:
    """hbc as on a CPU whose best instruction set is AVX2."""
    os.environ["HBC_ISA"] = "avx2"
    return hbc_s8s8(net, threads)


def _hbc(net: Net, form: str, threads: int) -> Run:
    from hbc_runtime import Session

    session, feeds = Session(net.files[f"hbm_{form}"], threads=threads), net.feeds()
    return lambda: session.run(feeds)


def ort_u8s8(net: Net, threads: int) -> Run:
    """ONNX Runtime on its fast path (its s8 activations are two to three times slower)."""
    return _onnxruntime(net, "u8s8", threads)


def ort_fp32(net: Net, threads: int) -> Run:
    """ONNX Runtime on the float model."""
    return _onnxruntime(net, "fp32", threads)


def _onnxruntime(net: Net, form: str, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(str(net.files[form]), options, providers=["CPUExecutionProvider"])
    feeds = net.feeds()
    return lambda: session.run(None, feeds)


def openvino_u8s8(net: Net, threads: int) -> Run:
    """OpenVINO on the quantised model."""
    return _openvino(net, "u8s8", threads)


def openvino_avx2(net: Net, threads: int) -> Run:
    """OpenVINO on the quantised model, its kernels limited to AVX2 (oneDNN reads the variable when it is loaded)."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
    return _openvino(net, "u8s8", threads)


def openvino_fp32(net: Net, threads: int) -> Run:
    """OpenVINO on the float model, kept from computing in bfloat16."""
    return _openvino(net, "fp32", threads)


def _openvino(net: Net, form: str, threads: int) -> Run:
    import openvino as ov

    core = ov.Core()
    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = core.read_model(str(net.files[form]))
    model.reshape(dict(net.inputs))
    compiled = core.compile_model(model, "CPU", hints)
    request, feeds = compiled.create_infer_request(), net.feeds()
    return lambda: request.infer(feeds)


CONTENDERS: dict[str, Callable[[Net, int], Run]] = {
    f.__name__: f for f in (hbc_s8s8, hbc_u8s8, ort_u8s8, openvino_u8s8, ort_fp32, openvino_fp32)
}
LIMITED: dict[str, dict[str, Callable[[Net, int], Run]]] = {  # by instruction set, hbc first
    "avx2": {f.__name__: f for f in (hbc_avx2, openvino_avx2)},
}
NEEDS = {"hbc_s8s8": "u8s8", "hbc_u8s8": "u8s8", "ort_u8s8": "u8s8", "openvino_u8s8": "u8s8", "ort_fp32": "fp32",
         "openvino_fp32": "fp32", "hbc_avx2": "u8s8", "openvino_avx2": "u8s8"}  # fmt: skip
