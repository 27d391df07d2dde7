"""Brings a graph into the one form that the other passes look for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hbc.ir import ops
from hbc.ir.core import Module, Op, Value
from hbc.ir.ops.quant import FLIPPED, flip_type
from hbc.ir.rewriter import Rewriter
from hbc.ir.types import Quant, TensorType, remap_axis

from .base import Pass, Target
from .matching import NARROW, const_value, is_default_clip, narrowed
from .move_chains import Family, beside, must_copy, straighten
from .rules import Rule, apply_rules, rewrite


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Remove ops that do nothing, merge neighbours of one kind, and give equal meanings one spelling. Exact.

        %a = transpose %x {perm = [1, 0]}                    %c = clip %x {low = 0, high = 6}
        %b = transpose %a {perm = [1, 0]}                →   %d = linear %c, %wᵀ
        %c = clip %b {low = 0}
        %d = clip %c {high = 6}
        %e = matmul %d, %w                (%w constant)

    Identities: moves that move nothing, clips without limits, casts and requantizes to the same type, `+ 0`, `− 0`, `·
    1`, `/ 1`. Chains: reshape, transpose, slice, expand, clip, flip_sign, reinterpret; transposes that move only axes
    of size 1 are reshapes. A matmul by constant weights is a linear. A quantize of the reals of integers of its own
    type is those integers. A clip of a real input goes where the quantize behind it saturates earlier. The moves among
    the `bpu.*` ops follow the same rules, for use behind assign-layout.
    """

    name: ClassVar[str] = "canonicalize"
    absorbs: ClassVar[str] = "it changes nothing, or a neighbour does its work too"

    def run(self, module: Module, target: Target) -> int:
        return apply_rules(module, RULES)


# ---- ops that do nothing

BPU = {instruction.__name__: op for instruction, op in ops.BPU_OPS.items()}


def _keeps_shape(op: Op) -> bool:
    return op.out.type.shape == op.operands[0].type.shape  # type: ignore[union-attr]


def _takes_all(op: Op) -> bool:
    return _keeps_shape(op) and not any(op.attrs["starts"]) and _steps_forward(op)


def _steps_forward(op: Op) -> bool:
    return all(step == 1 or size <= 1 for step, size in zip(op.attrs["steps"], op.out.type.shape, strict=True))


def _always(_op: Op) -> bool:
    return True


IDENTITIES: dict[type[Op], Callable[[Any], bool]] = {
    ops.Reshape: _always,
    ops.Transpose: lambda op: list(op.perm) == sorted(op.perm),
    ops.Slice: _takes_all,
    ops.Pad: lambda op: not any(op.pads),
    ops.Expand: _always,
    ops.Gather: lambda op: tuple(op.indices) == tuple(range(op.x.type.shape[op.axis])),
    ops.ResizeNearest: lambda op: (*op.rows, *op.columns) == (*range(op.x.type.shape[2]), *range(op.x.type.shape[3])),
    ops.Concat: lambda op: len(op.xs) == 1,
    ops.Clip: lambda op: op.low == -math.inf and op.high == math.inf,
    ops.Cast: _always,
    ops.Requantize: _always,
    ops.Reinterpret: _always,
    BPU["Reshape"]: _always,
    BPU["Transpose"]: lambda op: list(op.perm) == sorted(op.perm),
    BPU["Slice"]: _takes_all,
    BPU["Pad"]: lambda op: not any(op.pads),
    BPU["Expand"]: _always,
    BPU["Concat"]: lambda op: len(op.xs) == 1,
    BPU["Clamp"]: lambda op: (op.clamp_min, op.clamp_max) == op.out.type.dtype.limits,
}  # where operand and result have one type


def drop_identity(op: Op, rw: Rewriter) -> None:
    """f(x) → x where f does nothing. An instruction that copies into one of the caller's arrays does something."""
    x = op.operands[0]
    assert x is not None
    if not IDENTITIES[type(op)](op) or not _may_stand_for(x, op) or must_copy(op, x):
        return
    maker = x.op
    loc = None if maker is None else maker.loc
    rw.replace(op, x)
    if isinstance(op, ops.BpuOp) and maker is not None and loc is not None:
        maker.loc = loc  # a move between instructions is named after its reader, which is not where `x` comes from


def _may_stand_for(x: Value, op: Op) -> bool:
    """Equal types; between instructions the scales are only remarks, which the border alone reads."""
    a, b = x.type, op.out.type
    if isinstance(op, ops.BpuOp) and not op.out.is_output and all(isinstance(u, ops.BpuOp) for u in op.out.users):
        return a.shape == b.shape and a.dtype is b.dtype
    return a == b


NEUTRAL: dict[type[Op], tuple[float, bool]] = {
    ops.Add: (0, True),
    ops.Sub: (0, False),
    ops.Mul: (1, True),
    ops.Div: (1, False),
}  # the constant that changes nothing, and whether it may stand on the left


def drop_neutral(op: ops.Binary, rw: Rewriter) -> None:
    """x + 0, x − 0, x · 1, x / 1 → x, or a clip where one is fused."""
    neutral, commutes = NEUTRAL[type(op)]
    sides = [(op.lhs, op.rhs), (op.rhs, op.lhs)] if commutes else [(op.lhs, op.rhs)]
    for x, other in sides:
        value = const_value(other)
        if value is None or x.type != op.out.type or x.type.quant is not None or not _is_all(value, neutral):
            continue
        if is_default_clip(op):
            rw.replace(op, x)
        else:
            rw.replace(op, rw.op(ops.Clip, x, low=op.clip[0], high=op.clip[1]))
        return


def _is_all(value: np.ndarray, number: float) -> bool:
    return value.size > 0 and value.flat[0] == number and bool((value == number).all())


# ---- chains of one kind


def merge_moves(op: Op, rw: Rewriter) -> None:
    """reshape(reshape(x)) → reshape(x), where the outer one alone says what comes out."""
    inner = _above(op)
    if inner is not None:
        rw.replace(op, beside(rw, type(op), inner.operands[0], op.out.type, op.attrs), inner)


def merge_slices(op: Op, rw: Rewriter) -> None:
    """slice(slice(x)) → slice(x)."""
    inner = _above(op)
    if inner is None or 0 in op.out.type.shape:
        return
    rows = list(zip(inner.attrs["starts"], inner.attrs["steps"], op.attrs["starts"], op.attrs["steps"], strict=True))
    starts = tuple(a + b * s for a, s, b, _ in rows)
    steps = tuple(s * t for _, s, _, t in rows)
    attrs = op.attrs | {"starts": starts, "steps": steps}
    rw.replace(op, beside(rw, type(op), inner.operands[0], op.out.type, attrs), inner)


@rewrite(ops.Clip)
def merge_clips(op: ops.Clip, rw: Rewriter) -> None:
    """clip(clip(x, a, b), c, d) → clip(x, clip(a, c, d), clip(b, c, d))."""
    inner = op.x.defined_by(ops.Clip)
    if inner is None or inner.x.type != op.out.type or op.x.type != op.out.type:
        return
    low, high = narrowed((inner.low, inner.high), op)
    rw.replace(op, rw.op(ops.Clip, inner.x, type=op.out.type, low=low, high=high), inner)


def cancel_flips(op: Op, rw: Rewriter) -> None:
    """flip_sign(flip_sign(x)) → x."""
    inner = _above(op)
    x = None if inner is None else inner.operands[0]
    if inner is not None and x is not None and _may_stand_for(x, op) and not must_copy(op, x):
        rw.replace(op, x)


def _above(op: Op) -> Op | None:
    """The op of the same class that makes `op`'s operand."""
    x = op.operands[0]
    return None if x is None else x.defined_by(type(op))


MODEL_MOVES = Family(ops.Transpose, ops.Reshape)
BPU_MOVES = Family(BPU["Transpose"], BPU["Reshape"])


def straighten_moves(op: Op, rw: Rewriter) -> None:
    """A transpose, with the transposes and reshapes above it, as one transpose or none (move_chains.py)."""
    straighten(op, rw, MODEL_MOVES if isinstance(op, ops.Transpose) else BPU_MOVES)


# ---- one spelling for one meaning


@rewrite(ops.Matmul)
def multiply_by_weights(op: ops.Matmul, rw: Rewriter) -> None:
    """matmul(x, w) → linear(x, wᵀ) for a constant w of one matrix, quantised or not, among reals."""
    source = op.rhs.defined_by(ops.Dequantize)
    integers = op.rhs if source is None else source.x
    value, quant, t = const_value(integers), integers.type.quant, op.rhs.type
    if value is None or const_value(op.lhs) is not None or any(v.type.quant for v in (op.lhs, op.rhs, op.out)):
        return
    lead = t.rank - 2
    if math.prod(t.shape[:lead]) != 1 or t.rank > op.lhs.type.rank:
        return
    if quant is not None and quant.axis is not None and quant.axis < lead:
        return
    weight = np.ascontiguousarray(value.reshape(t.shape[lead:]).T)
    const = _weight(rw, integers, weight, remap_axis(quant, {lead: 1, lead + 1: 0}))
    if source is not None:
        const = rw.op(ops.Dequantize, const, loc=source.loc, name=op.rhs.name).out
    rw.replace(op, rw.op(ops.Linear, op.lhs, const, type=op.out.type, clip=op.clip))


def _weight(rw: Rewriter, old: Value, value: np.ndarray, quant: Quant | None) -> Value:
    assert old.op is not None
    t = TensorType(value.shape, old.type.dtype, quant)
    return rw.op(ops.Const, type=t, loc=old.op.loc, name=old.name, value=value).out


@rewrite(ops.Quantize)
def keep_integers(op: ops.Quantize, rw: Rewriter) -> None:
    """quantize(dequantize(x)) → x where the types are equal, flip_sign(x) where only the signedness differs."""
    source = op.x.defined_by(ops.Dequantize)
    if source is None or op.narrow:
        return
    x: Value = source.x
    if x.type == op.out.type and x.type.dtype in NARROW:  # wider integers may not survive float32
        rw.replace(op, x)
    elif x.type.dtype in FLIPPED and flip_type(x.type) == op.out.type:
        rw.replace(op, rw.op(ops.FlipSign, x), source)


@rewrite(ops.Quantize)
def drop_covered_clip(op: ops.Quantize, rw: Rewriter) -> None:
    """quantize(clip(x)) → quantize(x) for a real input x, where the integers end before the clip does.

    A relu in front of unsigned integers would else keep the whole input on the CPU.
    """
    clip, quant = op.x.defined_by(ops.Clip), op.out.type.quant
    if clip is None or clip.x.op is not None or quant is None or not quant.is_per_tensor:
        return
    low, high = ((limit - quant.zero_point[0]) * quant.scale[0] for limit in op.limits)
    if clip.low <= low and high <= clip.high:
        rw.replace(op, rw.op(ops.Quantize, clip.x, type=op.out.type, narrow=op.narrow), clip)


def _rules(apply: Callable[[Any, Rewriter], None], classes: Iterable[type[Op]]) -> list[Rule[Any]]:
    return [Rule(cls, apply) for cls in classes]


RULES: list[Rule[Any]] = [
    *_rules(drop_identity, IDENTITIES),
    *_rules(drop_neutral, NEUTRAL),
    *_rules(merge_moves, (ops.Reshape, ops.Reinterpret, ops.Expand, BPU["Reshape"], BPU["Expand"])),
    *_rules(merge_slices, (ops.Slice, BPU["Slice"])),
    *_rules(straighten_moves, (ops.Transpose, BPU["Transpose"])),
    *_rules(cancel_flips, (ops.FlipSign, BPU["FlipSign"])),
    merge_clips,
    multiply_by_weights,
    keep_integers,
    drop_covered_clip,
]
