"""Constants that don't stay what the model says: real ones that become integers, scales that take something in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hbc.ir.core import Module, Op, Value
from hbc.ir.location import NodeLoc, source_nodes
from hbc.ir.ops import BpuOp, Const, Dequantize, FlipSign, Mul, Quantize
from hbc.ir.ops.quant import FLIPPED
from hbc.ir.types import DType, Quant

from .rows import ConstantRow
from .tensors import quant_text

PASSIVE = (Const, Quantize, Dequantize, FlipSign)
Place = tuple[str, int]  # node and operand
Constants = Mapping[Place, "Held"]


@dataclass(frozen=True)
class Held:
    """A constant operand: its tensor's name, and what it is."""

    tensor: str
    dtype: DType
    quant: Quant | None
    batch_norms: tuple[str, ...]
    fits_i8: bool = True
    inverted: bool = False

    @property
    def text(self) -> str:
        """Dtype and quantisation."""
        return quant_text(self.dtype, self.quant)


def constant_operands(module: Module) -> dict[Place, Held]:
    """The constants (behind a dequantize, too) that ops of the IR read, by the user's node and the operand's index."""
    found: dict[Place, Held] = {}
    for op in module.graph.ops:
        if isinstance(op, (*PASSIVE, BpuOp)) or (op.placement is not None and op.placement.device != "bpu"):
            continue
        for index, value in enumerate(op.operands):
            const = _constant(value)
            if const is not None:
                found.update(((n.node, index), _held(op, const, n)) for n in _owners(op))
    return found


def _owners(op: Op) -> list[NodeLoc]:
    return [n for n in source_nodes(op.loc) if not n.op_type.endswith("Linear") or n.op_type.startswith("QLinear")]


def _constant(value: Value | None) -> Value | None:
    dq = None if value is None else value.defined_by(Dequantize)
    source = value if dq is None else dq.x
    return source if source is not None and isinstance(source.op, Const) else None


def _held(op: Op, const: Value, node: NodeLoc) -> Held:
    norms = tuple(n.node for n in source_nodes(op.loc) if n.op_type == "BatchNormalization")
    assert isinstance(const.op, Const)
    fits = _fits_i8(const.op.value, const.type.quant)
    inverted = isinstance(op, Mul) and node.op_type == "Div"
    return Held(const.name or "", const.type.dtype, const.type.quant, norms, fits, inverted)


def _fits_i8(value: np.ndarray, quant: Quant | None) -> bool:
    if quant is None or quant.is_symmetric or value.dtype.itemsize > 1 or not value.size:
        return True
    zeros = quant.zero_point
    return bool(int(value.max()) - min(zeros) <= 127 and int(value.min()) - max(zeros) >= -128)


def constant_rows(before: Constants, after: Constants) -> tuple[ConstantRow, ...]:
    """The constants that differ between the model as it was read and the module as it is placed."""
    rows: dict[ConstantRow, None] = {}
    for place, now in after.items():
        was = before.get(place)
        if was is None or now.quant is None:
            continue
        why = _why(was, now)
        if why:
            text = now.text if now.fits_i8 else f"i16, {now.text.partition(', ')[2].partition(', zero')[0]}"
            rows.setdefault(ConstantRow(was.tensor or now.tensor, place[0], was.text, text, why))
    return tuple(rows)


def _why(was: Held, now: Held) -> str:
    if was.quant is None:
        what = (
            "its reciprocal: the BPU multiplies where the model divides"
            if now.inverted
            else "the BPU multiplies integers"
        )
        return f"{what}, and the model has reals"
    reasons = []
    if not _same_scales(was.quant, now.quant):
        if now.batch_norms:
            reasons.append(f"its scales take in {', '.join(map(repr, now.batch_norms))}")
        else:
            reasons.append("channels whose bias would leave 32 bits get a larger scale")
    if not now.fits_i8:
        reasons.append("without its zero point it leaves 8 bits, so it is stored in 16")
    if now.dtype not in {was.dtype, FLIPPED.get(was.dtype)}:
        reasons.append("with the signs of negative factors it leaves 8 bits")
    return "; ".join(reasons)


def _same_scales(a: Quant, b: Quant | None) -> bool:
    if b is None:
        return False
    n = max(len(a.scale), len(b.scale))
    was, now = (np.resize(np.asarray(q.scale, np.float32), n) for q in (a, b))
    return np.array_equal(was, now)
