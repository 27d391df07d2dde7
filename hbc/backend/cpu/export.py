"""The ops of one CPU segment as an ONNX model that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from hbc.diagnostics import EmitError
from hbc.ir.core import Op, Value
from hbc.ir.ops import (
    Call,
    Clip,
    Concat,
    Const,
    Dequantize,
    FlipSign,
    Lut,
    MaxPool,
    Move,
    Quantize,
    ReduceMax,
    ReduceMin,
    Reinterpret,
    ResizeNearest,
)

DEFAULT_OPSET = 19  # where no call says which opset the model is written in; dilated average pools came with it
# Ops that mean the same for integers whatever those stand for, besides those between reals and integers.
_NUMBERS = (
    Move,
    Concat,
    Const,
    Call,
    MaxPool,
    ReduceMax,
    ReduceMin,
    ResizeNearest,
    Quantize,
    Dequantize,
    FlipSign,
    Reinterpret,
    Lut,
)


def segment_opset(ops: Sequence[Op]) -> dict[str, int]:
    """The opset of each domain that the segment's calls need; ONNX's own is 19 where no call is of it."""
    versions: dict[str, int] = {}
    for op in ops:
        if isinstance(op, Call):
            versions[op.domain] = max(versions.get(op.domain, 0), op.opset)
    return {"": DEFAULT_OPSET, **versions}


def export_segment(
    ops: Sequence[Op], inputs: Sequence[Value], outputs: Sequence[Value], opset: Mapping[str, int] | None, name: str
) -> bytes:
    """`ops`, in an order in which operands come first, as a serialised ONNX model; the same ops give the same bytes.

    Inputs are called t0, t1, … in the order of `inputs`, outputs t(n), t(n+1), … in the order of `outputs`; nodes carry
    the user's names. Constants are embedded, also those whose ops are not among `ops`. Calls keep their own node; all
    other ops are written in the forms of `opset[""]` (attributes or operands). EmitError names the op and node that
    can't be written.
    """
    from .emitter import Emitter

    rules = _rules()
    emitter = Emitter({**segment_opset(ops), **(opset or {})})
    for value in inputs:
        emitter.names[value] = emitter.fresh()
    emitter.reserve(len(outputs))
    for op in ops:
        rule = rules.get(type(op))
        if rule is None:
            raise EmitError(f"{op.NAME} of node {op.node!r} can't run on the CPU: only the BPU has it")
        _require_float_form(op)
        emitter.emit(op, rule)
    return emitter.model(inputs, outputs, name)


def _require_float_form(op: Op) -> None:
    values = [v for v in (*op.operands, *op.results) if v is not None]
    if isinstance(op, _NUMBERS) or not any(v.type.is_quantized for v in values):
        return
    why = "it is in quantised form; dequantise its operands and quantise its result"
    if isinstance(op, Clip):
        why = "it limits quantised integers; dequantise them first"
    raise EmitError(f"{op.NAME} of node {op.node!r} can't run on the CPU: {why}")


@lru_cache(maxsize=1)
def _rules():  # type: ignore[no-untyped-def] # noqa: ANN202 - its type would import onnx
    from . import emit_compute, emit_move

    return {**emit_compute.RULES.table, **emit_move.RULES.table}
