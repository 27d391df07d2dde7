"""CPU segments are shown to ONNX Runtime when they are compiled, so that what it refuses is told then, by node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hbc.diagnostics import EmitError, RuntimeRefused, error
from hbc.diagnostics.several import together
from hbc.ir.core import Op
from hbc.ir.ops import CALLS, Const

from .export import export_segment
from .sessions import open_session

SHOWN = 300  # characters of ONNX Runtime's message

# What to try instead of operators that ONNX Runtime lacks.
_HINTS = {
    "ImageDecoder": "decode the image before the model, and give it the pixels",
    "BitCast": "leave the bits in the type that they are wanted in",
    "Attention": "export it as MatMul and Softmax: with an older opset, or with the attention implementation 'eager'",
}
_HINT = "replace it by operators that ONNX Runtime runs, export with an older opset, or cut the model before it"


def require_accepted(data: bytes, ops: Sequence[Op], name: str) -> None:
    """EmitError where ONNX Runtime does not take the segment `data` that `ops` became: one that lists the nodes.

    Where ONNX Runtime isn't installed nothing is known, and nothing is raised.
    """
    why = refusal(data)
    if why is None:
        return
    calls = [op for op in ops if isinstance(op, CALLS)]
    others = [op for op in ops if not isinstance(op, (*CALLS, Const))]
    refused = _refused(calls) or _refused(others)
    if not refused:
        raise error(EmitError, f"ONNX Runtime refuses segment {name!r}", why=why, hint=_HINT, kind=RuntimeRefused)
    raise refused_together(refused)


def refused_together(errors: Sequence[EmitError]) -> EmitError:
    """One error for all nodes that can't become part of a program."""
    kind = type(errors[0].diagnostic)
    return together(errors, "{} nodes can run neither on the BPU nor on the CPU", where="", kind=kind)


def refusal(data: bytes) -> str | None:
    """Why ONNX Runtime does not load a model; None where it does, or isn't installed."""
    runtime = _onnxruntime()
    if runtime is None:
        return None
    try:
        open_session(runtime, data)
    except Exception as err:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base of their own
        return f"ONNX Runtime {runtime.__version__}: {_sentence(err)}"
    return None


def _alone(op: Op) -> bytes:
    operands = list(dict.fromkeys(v for v in op.operands if v is not None and not v.defined_by(Const)))
    return export_segment([op], operands, op.results, None, op.NAME)


def _refused(ops: Sequence[Op]) -> list[EmitError]:
    """What ONNX Runtime says of each op alone, where it refuses it."""
    found = []
    for op in ops:
        why = refusal(_alone(op))
        if why is not None:
            op_type = str(op.attrs.get("op_type", op.NAME))
            what, hint = f"ONNX Runtime refuses node {op.node!r} ({op_type})", _HINTS.get(op_type, _HINT)
            found.append(error(EmitError, what, why=why, hint=hint, kind=RuntimeRefused))
    return found


def _sentence(err: Exception) -> str:
    """ONNX Runtime's message without its code and the place in its source."""
    text = " ".join(str(err).split())
    return text.rsplit(" : ", 1)[-1].rsplit(" was false. ", 1)[-1][:SHOWN]


@lru_cache(maxsize=1)
def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        return None
    return onnxruntime
