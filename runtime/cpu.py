"""CPU segments: embedded ONNX models, run by ONNX Runtime, an optional package that loads when a program needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import HbmFormatError, MissingDependency, SegmentFailed
from .program import CpuSegment, Model

Array = npt.NDArray[Any]
LISTED = 8  # reasons that a message names before it counts the rest
DISABLED = ["Pad_Fusion"]  # it loses the pad's operand where somebody else reads that too


class CpuRunner:
    """One CPU segment, ready to run. `run` is thread-safe and releases the GIL.

    Raises MissingDependency where ONNX Runtime is not installed, HbmFormatError where it does not take the model.
    """

    def __init__(self, model: Model, segment: CpuSegment, threads: int) -> None:
        self.where = f"segment {segment.name!r} of model {model.name!r}"
        self.outputs = [model.tensors[i] for i in segment.outputs]
        runtime = _onnxruntime(self.where, segment)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only: the rest would land on the user's stderr
        options.add_session_config_entry("session.x64quantprecision", "1")  # no saturated sums on CPUs without VNNI
        try:
            self.session = runtime.InferenceSession(
                segment.onnx, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED
            )
        except Exception as err:  # ONNX Runtime's exceptions have no common base of their own
            msg = f"{self.where}: ONNX Runtime {runtime.__version__} refuses the embedded model: {_line(err)}{_TRY}"
            raise HbmFormatError(msg) from err
        self.input_names = [i.name for i in self.session.get_inputs()]
        has = (len(self.input_names), len(self.session.get_outputs()))
        wants = (len(segment.inputs), len(segment.outputs))
        if has != wants:
            msg = f"{self.where}: numbers of inputs and outputs are {has} in the embedded model, {wants} outside{_TRY}"
            raise HbmFormatError(msg)

    def run(self, ins: Sequence[Array]) -> list[Array]:
        """The segment's results, of its tensors' dtypes, ranks and static sizes. HbmError where others come out."""
        try:
            results = self.session.run(None, dict(zip(self.input_names, ins, strict=True)))
        except Exception as err:  # as above
            msg = f"{self.where}: ONNX Runtime failed: {_line(err)}"
            raise SegmentFailed(msg) from err
        for tensor, y in zip(self.outputs, results, strict=True):
            if not isinstance(y, np.ndarray) or not tensor.holds(y):
                got = f"{y.dtype} {y.shape}" if isinstance(y, np.ndarray) else type(y).__name__
                msg = f"{self.where}: {tensor.name!r} came out as {got}, not {tensor.dtype.numpy} {tensor.shape}{_TRY}"
                raise HbmFormatError(msg)
        return [np.ascontiguousarray(y).reshape(y.shape) for y in results]


_TRY = "\n  try: compile the model again"


def _onnxruntime(where: str, segment: CpuSegment) -> Any:
    try:
        import onnxruntime
    except ImportError as err:
        reasons = segment.reasons or (f"nodes {', '.join(segment.loc) or 'without names'}",)
        rest = [f"and {len(reasons) - LISTED} more"] if len(reasons) > LISTED else []
        why = "".join(f"\n  why: {r}" for r in [*reasons[:LISTED], *rest])
        msg = f"{where} needs ONNX Runtime, which is not installed{why}\n  try: pip install hbc[cpu]"
        raise MissingDependency(msg) from err
    return onnxruntime


def _line(err: Exception) -> str:
    return " ".join(str(err).split())[:400]
