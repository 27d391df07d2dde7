"""Op by op: every quantised op fed ONNX Runtime's or PyTorch's own integers, so that no error is inherited.

End to end, one rounding that falls the other way can grow layer by layer in a deep net, whichever arithmetic is used.
What an arithmetic does to one op is seen here: at most 1 quantum (docs/numerics.md, "What is promised").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hbc.backend.bpu.target import Target
from hbc.driver import lower_model
from hbc.ir import fixed_point, ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import node_names
from hbc.ir.ops.quant import FLIPPED, flip_array
from hbc.ir.types import DType
from hbc.options import CompileOptions
from hbc.verify.ir_stage import ir_stage
from hbc.verify.references import reference_of
from hbc.verify.stage import Place

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OpResult:
    """One op: its source nodes, and how its integers compare.

    `equal` is the share that equal ONNX Runtime's, `quanta` the largest difference.
    """

    op: str
    nodes: tuple[str, ...]
    tensor: str
    equal: float
    quanta: int


def check_ops(
    model: Path, options: CompileOptions, sample: Mapping[str, Array], threads: int = 1
) -> tuple[OpResult, ...]:
    """Compile `model` up to its quantised form and compare each op on one sample. Raises HbcError, ProbeError."""
    module = lower_model(model, options, stop_after="quantize")
    reference = reference_of(model, options, threads)
    known = set(reference.inner)
    theirs = reference.inside(sample, [n for n in quantised_tensors(module) if n in known])
    return tuple(compare_ops(module, sample, theirs))


def quantised_tensors(module: Module) -> list[str]:
    """The names of the quantised values that the module computes, in order: what to ask ONNX Runtime for."""
    return [
        v.name
        for op in module.graph.ops
        for v in op.results
        if v.name and v.type.quant and not isinstance(op, ops.Const)
    ]


def compare_ops(module: Module, inputs: Mapping[str, Array], theirs: Mapping[str, Array]) -> list[OpResult]:
    """Each arithmetic op of a module against `theirs`, ONNX Runtime's tensors by name.

    The module has left the `quantize` stage. An op reads their tensors where they have them, else what hbc computes
    from theirs. Not compared: ops whose result they don't have, and ops that the march refuses (they run in reals).
    """
    stage = ir_stage(module, "ir:quantize", "")
    target = Target(module.march, module.arith)
    names = {p.name: v for v, p in stage.at.items() if isinstance(v, Value) and _is_judged(v, target)}
    results = []
    bound = {str(arg.name): np.asarray(inputs[str(arg.name)]) for arg in module.graph.args}
    for step in stage.walk(bound, lambda place, like: _as_ours(place, like, theirs)):
        want = _as_ours(step.place, step.total, theirs)
        value = names.get(step.place.name)
        if want is not None and value is not None and value.op is not None and step.own is not None:
            results.append(_compared(value.op, value, step.own, want))
    return results


def _is_judged(value: Value, target: Target) -> bool:
    op = value.op
    return op is not None and (fixed_point.is_fixed(op) or isinstance(op, ops.Lut)) and target.legal(op) is None


def _as_ours(place: Place, like: Array, theirs: Mapping[str, Array]) -> Array | None:
    """Their integers in `like`'s dtype; None where they have none of its shape."""
    array = theirs.get(place.name)
    if array is None or place.quant is None or array.dtype.kind not in "iu" or array.shape != like.shape:
        return None
    if array.dtype == like.dtype:
        return array
    flips = FLIPPED.get(DType.of(like.dtype))
    return flip_array(array) if flips is not None and DType.of(array.dtype) is flips else None


def _compared(op: Op, value: Value, ours: Array, want: Array) -> OpResult:
    apart = np.abs(ours.astype(np.int64) - want.astype(np.int64))
    return OpResult(
        op.NAME, node_names(op.loc), value.name or "", float((apart == 0).mean()), int(apart.max(initial=0))
    )
