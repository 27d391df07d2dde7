"""Why an op stayed in reals: which operand, constant or reader kept `fold-qdq` and `lower-to-lut` from taking it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hbc.diagnostics import Rejection
from hbc.ir import fixed_point, ops
from hbc.ir.builder import make_op
from hbc.ir.core import Op, Value
from hbc.ir.location import source_nodes
from hbc.ir.semantics import Semantics
from hbc.ir.types import DType, Quant
from hbc.words import plural, some

from .base import Target
from .fold_qdq import WEIGHTED, weight_axis_fits
from .lower_to_lut import LONGEST, Expression
from .lower_to_mul import why_no_product
from .matching import MAX_RANK, NARROW, activation_behind, const_value, integers_behind, real_constant
from .real_constants import why_too_coarse
from .why_select import why_unlike
from .wording import constant, quantise

KEEP = "keep it at the model's head or tail, where it doesn't split the BPU's part, or compute it outside the model"


def why_real(op: Op, target: Target) -> Rejection:
    """What kept `op` from becoming one on integers, and the rewrite to try."""
    sem = target.semantics
    table = _table(op, target)
    if table is not None:
        return table
    for question in (_only_onnx, _no_form, why_unlike, _operands, _bias, _readers, _constants):
        found = question(op, sem)
        if found is not None:
            return found
    refused = _illegal(op, target) or why_no_product(op, sem) or _function(op, sem)
    if refused is not None:
        return refused
    what = "its operands and its result are quantised, but not in a way that an instruction takes"
    return Rejection(what, "quantise activations per tensor to int8 or int16 and weights to int8")


def why_outside(op: Op, sem: Semantics) -> Rejection | None:
    """What is wrong with the op's operands or readers, whatever it computes; None where they are quantised."""
    return _operands(op, sem) or _readers(op, sem)


def _illegal(op: Op, target: Target) -> Rejection | None:
    """What the march would say to the op on integers, for ops of activations."""
    quantize = next((u for u in op.results[0].users if isinstance(u, ops.Quantize)), None)
    if quantize is None or not isinstance(op, (ops.Unary, ops.Binary, ops.Pool, ops.Reduce)):
        return None
    operands: list[Value | None] = [activation_behind(v) or v for v in op.operands]
    if type(op) in fixed_point.ARITHMETIC:
        quantized: Op = make_op(type(op), operands, op.attrs, op.loc, [quantize.out.type])
    else:  # it would be a table: any op from its operand's integers to its result's
        quantized = make_op(ops.Requantize, operands[:1], {}, op.loc, [quantize.out.type])
    try:
        return target.legal(quantized)
    finally:
        quantized.drop_operands()


def _table(op: Op, target: Target) -> Rejection | None:
    """What the march says to the table that `op` alone, or with the elementwise ops behind it, would have become."""
    behind = op
    for _ in range(LONGEST):
        quantize = next((u for u in behind.results[0].users if isinstance(u, ops.Quantize)), None)
        if quantize is not None:
            break
        ahead = [u for u in behind.results[0].users if isinstance(u, (ops.Unary, ops.Binary))]
        if len(ahead) != 1:
            return None
        behind = ahead[0]
    else:
        return None
    found = Expression.over_one_tensor(quantize.x, target.semantics)
    if found is None or op not in found.ops or quantize.out.type.quant is None:
        return None
    table = found.table_like(quantize.out.type)
    try:
        return target.legal(table)
    finally:
        table.drop_operands()


def name_of(value: Value) -> str:
    """A value as its user knows it: by its tensor's name, or by the node that makes it."""
    made = value.op
    if value.name or made is None:
        return repr(value.name or "an input")
    source = made.x if isinstance(made, ops.Dequantize) else value
    return repr(source.name) if source.name else f"(the result of {node_of(source.op or made)})"


def node_of(op: Op) -> str:
    """An op as its user knows it: node and operator."""
    types = [n.op_type for n in source_nodes(op.loc) if n.node == op.node and n.op_type]
    return f"{op.node!r} ({types[0]})" if types else repr(op.node)


# ---- what an op is


def _only_onnx(op: Op, sem: Semantics) -> Rejection | None:
    if isinstance(op, ops.CALLS):
        given = getattr(op, "reason", ""), getattr(op, "hint", "")
        name = op.op_type if isinstance(op, ops.Call) else "this part of the model"
        return Rejection(given[0] or f"{name} has no BPU form", given[1] or KEEP)
    return None


def _no_form(op: Op, sem: Semantics) -> Rejection | None:
    if isinstance(op, (ops.ResizeLinear, ops.GridSample)) and sem.is_onnx:
        what = "a bilinear resize" if isinstance(op, ops.ResizeLinear) else "a grid sample"
        return Rejection(f"{what} is computed in floats under --arith onnx (D10)", "compile with --arith bpu")
    if type(op) in fixed_point.ARITHMETIC or isinstance(op, (ops.Unary, ops.Binary, ops.Move, ops.Concat)):
        return None
    if any(v is not None and v.type.dtype.is_float for v in op.operands):
        return Rejection(f"{_kind(op)} has no BPU form", KEEP)
    dtypes = sorted({v.type.dtype.text for v in (*op.operands, *op.results) if v is not None})
    return Rejection(f"it computes with plain numbers ({', '.join(dtypes)}), which have no scale", KEEP)


def _kind(op: Op) -> str:
    types = [n.op_type for n in source_nodes(op.loc) if n.op_type]
    return types[0] if types else op.NAME


# ---- its operands


def _operands(op: Op, sem: Semantics) -> Rejection | None:
    for index, name, value in _named_operands(op):
        if isinstance(op, WEIGHTED) and index in (1, 2):
            found = _weight(op, value) if index == 1 else None
        else:
            found = None if const_value(value) is not None else _activation(op, name, value)
        if found is not None:
            return found
    return None


def _named_operands(op: Op) -> Iterator[tuple[int, str, Value]]:
    """Index, role and value of the operands that are given; a lone operand's role is `input`."""
    specs = op.OPERANDS
    for index, value in enumerate(op.operands):
        if value is not None:
            spec = specs[min(index, len(specs) - 1)]
            yield index, "input" if spec.name in {"x", "xs", "lhs", "rhs"} else spec.name, value


def _activation(op: Op, role: str, value: Value) -> Rejection | None:
    """Why an operand is no activation: narrow integers of one scale, dequantised."""
    if activation_behind(value) is not None or value.type.quant is not None:
        return None
    ints = integers_behind(value)
    maker = (ints or value).op
    if ints is None and not value.type.dtype.is_float:
        return Rejection(f"{role} {name_of(value)} is {value.type.dtype.text}, plain numbers without a scale", KEEP)
    if ints is None or (ints.type.dtype is DType.I32 and isinstance(maker, (*WEIGHTED, ops.Matmul))):
        made = f" (made by {node_of(maker)})" if maker is not None and value.name else ""
        where = f"between {node_of(maker)} and {node_of(op)}" if maker is not None else "behind the model's input"
        return Rejection(f"{role} {name_of(value)}{made} isn't quantised", quantise(op, where))
    who = f"{role} {name_of(ints)}"
    if ints.type.dtype not in NARROW:
        return Rejection(f"{who} is {ints.type.dtype.text}; activations are int8 or int16", "quantise it to int8")
    assert ints.type.quant is not None
    what = f"{who} has {_scales(ints.type.quant)}; activations need one scale"
    return Rejection(what, f"calibrate {name_of(ints)} per tensor")


def _scales(q: Quant) -> str:
    return f"a scale per channel (axis {q.axis}, {plural(len(q.scale), 'scale')})"


def _weight(op: Op, value: Value) -> Rejection | None:
    ints = integers_behind(value)
    who = f"the weight {name_of(ints or value)}"
    if ints is None and const_value(value) is not None:
        return Rejection(
            f"{who} is a constant of reals, not quantised",
            quantise(op, "on it (int8, one scale or one per output channel)"),
        )
    if ints is None or const_value(ints) is None:
        made = (ints or value).op
        by = f": {node_of(made)} computes it" if made is not None else ": it is an input of the model"
        return Rejection(f"{who} isn't constant{by}", f"{constant(op)}, or use MatMul of two quantised activations")
    if ints.type.dtype not in NARROW:
        return Rejection(f"{who} is {ints.type.dtype.text}; weights are int8", "quantise it to int8")
    if not weight_axis_fits(op, ints):
        assert ints.type.quant is not None
        want = 1 if isinstance(op, ops.ConvTranspose2d) else 0
        what = f"{who} has {_scales(ints.type.quant)}; a sum needs one scale per output channel, axis {want}"
        return Rejection(what, f"quantise it along axis {want}, or per tensor")
    return None


def _bias(op: Op, sem: Semantics) -> Rejection | None:
    bias = getattr(op, "bias", None) if isinstance(op, WEIGHTED) else None
    if bias is None or real_constant(bias, sem) is not None:
        return None
    made = f": {node_of(bias.op)} computes it" if bias.op is not None else ": it is an input of the model"
    return Rejection(f"the bias {name_of(bias)} isn't constant{made}", "add it in a node of its own, quantised")


# ---- its readers


def _readers(op: Op, sem: Semantics) -> Rejection | None:
    result = op.results[0]
    plain = [node_of(u) for u in result.users if not isinstance(u, ops.Quantize)]
    if result.is_output:
        names = [name for use in result.uses if use.op is None for name in _output_names(op, use.index)]
        plain += [f"the output {name}" for name in names] or ["an output"]
    if plain:
        verb = "which isn't quantised" if len(plain) == 1 else "which aren't quantised"
        return Rejection(f"its result feeds {some(plain)}, {verb}", quantise(op, f"behind {node_of(op)}"))
    for user in result.users:
        found = _quantize(op, user) if isinstance(user, ops.Quantize) else None
        if found is not None:
            return found
    return None


def _output_names(op: Op, index: int) -> list[str]:
    name = op.results[0].name
    return [repr(name)] if name else [f"number {index}"]


def _quantize(op: Op, q: ops.Quantize) -> Rejection | None:
    t = q.out.type
    assert t.quant is not None
    if not t.quant.is_per_tensor:
        return Rejection(
            f"{node_of(q)} quantises its result with {_scales(t.quant)}; activations need one scale",
            "calibrate it per tensor",
        )
    if t.dtype not in {DType.I8, DType.I16}:
        return Rejection(
            f"{node_of(q)} quantises its result to {t.dtype.text}; activations are int8 or int16", "quantise it to int8"
        )
    if q.narrow and "clip" not in op.attrs:
        return Rejection(
            f"{node_of(q)} keeps {t.dtype.limits[0]} out of its result, which {_kind(op)} can't",
            "quantise it to the full range",
        )
    return None


# ---- what it computes


def _constants(op: Op, sem: Semantics) -> Rejection | None:
    for _, _, value in _named_operands(op):
        reals = real_constant(value, sem)
        ordered = isinstance(op, (ops.Add, ops.Sub, ops.Maximum, ops.Minimum))  # which infinities saturate
        if reals is not None and not np.all(np.isfinite(reals) | (ordered & np.isinf(reals))):
            return Rejection(f"the constant {name_of(value)} holds an infinity or a NaN", "clip it to finite numbers")
    coarse = why_too_coarse(op, sem)
    if coarse is not None:
        return coarse
    ranks = [v.type.rank for v in op.operands if v is not None]
    if isinstance(op, ops.Binary) and max(ranks) > MAX_RANK:
        return Rejection(
            f"its operands have {max(ranks)} axes; elementwise ops take {MAX_RANK}", "merge axes by a Reshape"
        )
    if isinstance(op, ops.BatchNorm) and ranks[0] != 4:
        return Rejection(
            f"its input has {ranks[0]} axes; a batch norm on its own takes 4", "fold it into the layer before it"
        )
    return None


def _function(op: Op, sem: Semantics) -> Rejection | None:
    """Ops that have no instruction of their own, and became no table."""
    if isinstance(op, (ops.Div, ops.Pow)):
        divisor = real_constant(op.rhs, sem)
        if divisor is None and real_constant(op.lhs, sem) is None:
            is_div = isinstance(op, ops.Div)
            what = "divides by" if is_div else "raises to the power of"
            hint = "multiply by a quantised reciprocal" if is_div else "use a constant exponent, or Mul"
            return Rejection(f"it {what} {name_of(op.rhs)}, which is computed: no instruction does that", hint)
        if divisor is not None and isinstance(op, ops.Div) and not np.all(divisor != 0):
            return Rejection(f"its divisor {name_of(op.rhs)} holds 0", "remove the zeros from the constant")
    if not isinstance(op, (ops.Unary, ops.Binary)) or (type(op) in fixed_point.ARITHMETIC and op.NAME != "clip"):
        return None
    ints = [q for v in op.operands if (q := activation_behind(v)) is not None]
    if sem.is_onnx and any(q.type.dtype is DType.I16 for q in ints):
        return Rejection(
            "a function of an i16 tensor is computed in floats under --arith onnx, where nothing is interpolated (D8)",
            "compile with --arith bpu, or quantise its input to int8",
        )
    if any(q.type.dtype is DType.I16 for q in ints) and not isinstance(op, ops.Clip):
        what = f"a table of segments would miss {_kind(op)} by more than a step of 8 bits, as at a pole or many steps"
        return Rejection(what, "quantise its input to int8, whose table is exact")
    if isinstance(op, ops.Binary):
        return Rejection(
            f"{_kind(op)} of a tensor and constants that differ by element has no table",
            "use one constant for the whole tensor",
        )
    return None
