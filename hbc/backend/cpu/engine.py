"""One op by ONNX Runtime: what the interpreter asks for where only the CPU has the op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hbc.diagnostics import EmitError, RuntimeRefused, error
from hbc.ir.core import Op
from hbc_runtime.errors import MissingDependency

from .export import export_segment
from .sessions import open_session


def evaluate(op: Op, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The results of `op` for `arrays`, one per operand (None for a missing one), by ONNX Runtime, unoptimised.

    MissingDependency where ONNX Runtime isn't installed; EmitError where it has no kernel for the op.
    """
    given = {v: a for v, a in zip(op.operands, arrays, strict=True) if v is not None}
    session = _session(export_segment([op], list(given), op.results, None, op.NAME), op.node)
    feeds = {f"t{i}": np.asarray(a, v.type.dtype.numpy) for i, (v, a) in enumerate(given.items()) if a is not None}
    return [np.asarray(y) for y in session.run(None, feeds)]


@lru_cache(maxsize=64)
def _session(model: bytes, node: str) -> Any:
    try:
        import onnxruntime
    except ImportError as cause:
        msg = f"node {node!r} runs on the CPU, which needs ONNX Runtime: pip install hbc[cpu]"
        raise MissingDependency(msg) from cause
    try:
        return open_session(onnxruntime, model)
    except Exception as cause:  # ONNX Runtime raises classes of its own, without a common base
        raise error(EmitError, f"ONNX Runtime refuses node {node!r}", why=str(cause), kind=RuntimeRefused) from cause
