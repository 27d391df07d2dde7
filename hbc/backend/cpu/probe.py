"""A model run whole by ONNX Runtime, with a look at the tensors inside: what check and verify compare with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import CannotProbe, HbcError, error

from .sessions import open_session

Array = npt.NDArray[Any]
TOO_LARGE = (1 << 31) - 1  # bytes: where protobuf ends, so that the model can only be run from its own file


class ProbeError(HbcError):
    """ONNX Runtime is missing, or does not run this model."""

    FAMILY = CannotProbe


class Probe:
    """ONNX Runtime on one model: with its optimiser or without, as it is or with inner tensors as further outputs.

    Raises ProbeError where ONNX Runtime is not installed or does not take the model.
    """

    def __init__(self, model: Path, *, optimised: bool, threads: int = 1, expose: Iterable[str] = ()) -> None:
        names = list(expose)
        source: str | bytes = exposing(model, names) if names else str(model)
        self.model = model
        self.session = make_session(model, source, optimised=optimised, threads=threads)
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name; the exposed tensors are among them. Raises ProbeError where ONNX Runtime fails."""
        try:
            results = self.session.run(None, dict(inputs))
        except Exception as err:  # as above
            raise _refused("ONNX Runtime could not run this model", self.model, err) from err
        return {n: y for n, y in zip(self.outputs, results, strict=True) if isinstance(y, np.ndarray)}


def make_session(
    model: Path, source: str | bytes, *, optimised: bool, threads: int = 1, save: Path | None = None
) -> Any:
    """A session on `source`, which is `model` or made from it; `save`: where to leave the optimised graph.

    Raises ProbeError where ONNX Runtime is not installed or does not take it.
    """
    runtime = _onnxruntime()
    try:
        return open_session(runtime, source, optimised=optimised, threads=threads, save=save)
    except Exception as err:  # ONNX Runtime's exceptions have no common base of their own
        raise _refused("ONNX Runtime does not take this model", model, err) from err


def load_proto(model: Path) -> Any:
    """The file as a ModelProto, weights in other files too. Raises ProbeError where it holds none, OSError."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return onnx.load(str(model))
    except (DecodeError, ValueError, onnx.checker.ValidationError) as err:
        hint = "stages float, ort and ort-optimized need an ONNX file"
        why = " ".join(str(err).split())[:200]
        raise error(ProbeError, "this is no sound ONNX model", where=str(model), why=why, hint=hint) from err


def inner_tensors(model: Path) -> list[str]:
    """The names of everything that the model's nodes compute, outputs among them, in order."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return [o for node in graph.node for o in node.output if o]


def exposing(model: Path, names: Iterable[str]) -> bytes:
    """The model's bytes with `names` as further outputs; ProbeError where it is too large to be changed in memory."""
    import onnx

    proto = load_proto(model)
    if proto.ByteSize() > TOO_LARGE:
        why = f"a protobuf message ends at {TOO_LARGE} bytes"
        raise error(
            ProbeError,
            "the model is too large to look inside",
            where=str(model),
            why=why,
            hint="hbc check --no-tensors",
        )
    have = {o.name for o in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    return proto.SerializeToString()


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as err:
        raise error(
            ProbeError,
            "ONNX Runtime is not installed",
            why="hbc check and hbc verify compare with it",
            hint="pip install hbc[cpu]",
        ) from err
    return onnxruntime


def _refused(what: str, model: Path, err: Exception) -> ProbeError:
    why = " ".join(str(err).split())[:400]
    hint = "comparing with ONNX Runtime needs a model that it runs; compile and run don't"
    return error(ProbeError, what, where=str(model), why=why, hint=hint)
