"""The ops of one CPU segment as an ONNX model that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from hbc.diagnostics import EmitError
from hbc.diagnostics.several import together
from hbc.ir.core import Op, Value
from hbc.ir.ops import (
    CALLS,
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

# Ops that mean the same for integers whatever those stand for, besides those between reals and integers.
_NUMBERS = (
    Move,
    Concat,
    Const,
    *CALLS,
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


def export_segment(
    ops: Sequence[Op], inputs: Sequence[Value], outputs: Sequence[Value], opset: Mapping[str, int] | None, name: str
) -> bytes:
    """`ops`, in an order in which operands come first, as a serialised ONNX model; the same ops give the same bytes.

    Inputs are called t0, t1, … in the order of `inputs`, outputs t(n), t(n+1), … in the order of `outputs`; nodes carry
    the user's names. Constants are embedded, also those whose ops are not among `ops`. Calls keep their own node; all
    other ops are written in the forms of `opset[""]` (attributes or operands). EmitError names the op and node that
    can't be written.
    """
    from .emitter import Emitter, no_cpu_form
    from .opsets import segment_opset

    rules = _rules()
    emitter = Emitter({**segment_opset(ops), **(opset or {})})
    for value in inputs:
        emitter.names[value] = emitter.fresh()
    emitter.reserve(len(outputs))
    failed: list[EmitError] = []
    for op in ops:
        try:
            rule = rules.get(type(op))
            if rule is None:
                raise no_cpu_form(op, "only the BPU has it")
            _require_float_form(op)
            emitter.emit(op, rule)
        except EmitError as err:
            failed.append(err)
            emitter.names.update((r, emitter.fresh()) for r in op.results)  # so that what reads them can be looked at
    if failed:
        raise together(failed, "{} ops can't run on the CPU", where="", kind=type(failed[0].diagnostic))
    return emitter.model(inputs, outputs, name)


def _require_float_form(op: Op) -> None:
    values = [v for v in (*op.operands, *op.results) if v is not None]
    if isinstance(op, _NUMBERS) or not any(v.type.is_quantized for v in values):
        return
    why = "it is in quantised form; dequantise its operands and quantise its result"
    if isinstance(op, Clip):
        why = "it limits quantised integers; dequantise them first"
    from .emitter import no_cpu_form

    raise no_cpu_form(op, why)


@lru_cache(maxsize=1)
def _rules():  # type: ignore[no-untyped-def] # noqa: ANN202 - its type would import onnx
    from . import emit_call, emit_compute, emit_graph, emit_move, emit_norm, emit_select

    modules = (emit_call, emit_compute, emit_graph, emit_move, emit_norm, emit_select)
    return {cls: rule for module in modules for cls, rule in module.RULES.table.items()}
