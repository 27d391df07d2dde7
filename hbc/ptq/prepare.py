"""A float model as quantising sees it: canonical forms, batch norms and affine parts in the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hbc.backend.bpu.target import Target
from hbc.diagnostics import AlreadyQuantised, error
from hbc.driver import lower_model
from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.rewriter import Rewriter
from hbc.options import CompileOptions
from hbc.passes.dce import Dce
from hbc.passes.matching import const_value, is_default_clip
from hbc.words import plural

from .errors import QuantizeError
from .split_norm import WEIGHTED, split_norms
from .volumes import take_volumes_apart

if TYPE_CHECKING:
    from onnx import ModelProto


def prepare(source: str | Path | bytes | ModelProto | object, options: CompileOptions) -> Module:
    """The float model `source` after normalising and fusing, ready for quantize and dequantize ops.

    QuantizeError where it is quantised already, FrontendError where it can't be taken in.
    """
    loaded = lower_model(source, options, stop_after="load")
    _refuse_quantised(loaded)
    module = lower_model(source, options, stop_after="fuse")
    take_volumes_apart(module)
    for op in module.graph.walk(ops.Binary):
        fold_affine(module, op)
    split_norms(module)
    Dce().run(module, Target(options.march, options.arith))
    name_values(module)
    return module


def _refuse_quantised(module: Module) -> None:
    values = [*module.graph.args, *(r for op in module.graph.ops for r in op.results)]
    found = [v for v in values if v.type.quant is not None]
    if not found:
        return
    named = next((v.name for v in found if v.name), None)
    first = f", the first {named!r}" if named else ""
    why = f"{plural(len(found), 'tensor')} {'has' if len(found) == 1 else 'have'} a scale{first}"
    hint = "compile it as it is, or give the float model that it was made from"
    where = module.metadata.get("source", "")
    raise error(QuantizeError, "the model is quantised already", where=where, why=why, hint=hint, kind=AlreadyQuantised)


def fold_affine(module: Module, op: ops.Binary) -> bool:
    """f(x, w, b) · c, / c, + c, − c by constants per channel → f(x, w·c, b·c) or f(x, w, b ± c), f having weights."""
    if isinstance(op, ops.Mul | ops.Add):
        pairs = [(op.lhs, op.rhs), (op.rhs, op.lhs)]
    elif isinstance(op, ops.Div | ops.Sub):
        pairs = [(op.lhs, op.rhs)]
    else:
        return False
    for product, other in pairs:
        constant, maker = const_value(other), product.op
        if constant is None or not isinstance(maker, WEIGHTED) or not product.has_one_use:
            continue
        rw = Rewriter(module.graph, op)
        operands = _folded(rw, op, maker, constant)
        if operands is not None:
            made = rw.op(type(maker), *operands, type=op.out.type, **(maker.attrs | {"clip": op.clip}))
            rw.replace(op, made, maker)
            return True
    return False


def _folded(rw: Rewriter, op: ops.Binary, maker: Op, constant: np.ndarray) -> list[Value | None] | None:
    """x, weight and bias with the constant in them; None where it isn't one number per output channel."""
    x, weight_value, bias_value, *rest = maker.operands
    weight, bias = const_value(weight_value), const_value(bias_value)
    if weight is None or (bias_value is not None and bias is None) or any(v is not None for v in rest):
        return None
    if not is_default_clip(maker) or maker.out.type.shape != op.out.type.shape:
        return None
    if isinstance(maker, ops.ConvTranspose2d) and maker.group != 1:
        return None
    per_channel = _per_channel(constant, maker)
    if per_channel is None or not np.all(np.isfinite(per_channel)):
        return None
    before = np.zeros(len(per_channel)) if bias is None else bias.astype(np.float64)
    if isinstance(op, ops.Mul | ops.Div):
        if isinstance(op, ops.Div) and not np.all(per_channel != 0):
            return None
        factor = per_channel if isinstance(op, ops.Mul) else 1.0 / per_channel
        axis = 1 if isinstance(maker, ops.ConvTranspose2d) else 0
        scaled = weight.astype(np.float64) * factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
        total = before * factor
    else:
        scaled = weight.astype(np.float64)
        total = before + (per_channel if isinstance(op, ops.Add) else -per_channel)
    return [x, *(rw.op(ops.Const, value=a.astype(np.float32)).out for a in (scaled, total))]


def _per_channel(constant: np.ndarray, maker: Op) -> np.ndarray | None:
    """The constant as float64 of one number per output channel."""
    shape = maker.out.type.shape
    axis = len(shape) - 1 if isinstance(maker, ops.Linear) else 1
    if constant.ndim > len(shape):
        return None
    aligned = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    sizes: tuple[int, ...] = aligned.shape
    if any(n != 1 for i, n in enumerate(sizes) if i != axis):
        return None
    return np.broadcast_to(aligned.reshape(-1), (shape[axis],)).astype(np.float64)


def name_values(module: Module) -> None:
    """Give every computed value a name of its own: the user's tensor's, or one made from its node's."""
    taken: set[str] = {str(a.name) for a in module.graph.args}
    # What is returned has the output's name: it is the one that users know.
    outputs = {o.value: o.name for o in reversed(module.graph.outputs) if o.value.op is not None}
    for value, name in outputs.items():
        value.name = name
        taken.add(name)
    for op in module.graph.ops:
        for value in op.results:
            if value in outputs:
                continue
            base = value.name or (f"{op.node}/weight" if isinstance(op, ops.Const) else op.node)
            name, count = base, 1
            while name in taken:
                count += 1
                name = f"{base}#{count}"
            taken.add(name)
            value.name = name
