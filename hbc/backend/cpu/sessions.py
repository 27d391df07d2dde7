"""How hbc opens ONNX Runtime's sessions, which are references: on the CPU, without the optimiser, and silent."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any


def open_session(
    runtime: ModuleType, source: str | bytes, *, optimised: bool = False, threads: int = 1, save: Path | None = None
) -> Any:
    """A session on a model's bytes or path; `save`: where to leave the optimised graph.

    Raises what ONNX Runtime raises: classes of its own, without a common base.
    """
    from .unsigned_weights import exact_source

    options = runtime.SessionOptions()
    level = runtime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what matters comes back as an exception
    options.add_session_config_entry("session.x64quantprecision", "1")  # the optimiser's products mustn't saturate
    if save is not None:
        options.optimized_model_filepath = str(save)
    return runtime.InferenceSession(exact_source(source), options, providers=["CPUExecutionProvider"])
