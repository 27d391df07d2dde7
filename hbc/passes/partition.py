"""Decide where every op runs, and why; group ops into segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hbc.diagnostics import Rejection
from hbc.ir import fixed_point, ops
from hbc.ir.builder import make_op
from hbc.ir.core import Graph, Module, Op, Placement, Value
from hbc.ir.types import DType

from .base import Pass, Target
from .decompose import why_not
from .why_real import KEEP, name_of, why_outside, why_real

MOVES = (ops.Reshape, ops.Transpose, ops.Slice, ops.Expand, ops.Gather, ops.Concat, ops.Reinterpret)
BORDER = (ops.Quantize, ops.Dequantize, ops.FlipSign)
LOGIC = (ops.Logical, ops.LogicalNot)


@dataclass(frozen=True)
class Partition(Pass):
    """Place every op on `bpu`, `host` (quantise, dequantise, moves of reals at the border) or `cpu`, with the reason.

        %a = conv2d %x, %w                                %a = conv2d %x, %w  @bpu(0)
        %b = dequantize %a                            →   %b = dequantize %a  @host(0)
        %c = call %b {op_type = "Softmax"}                %c = call %b …      @cpu(1, "Softmax has no BPU form …")

    A quantised op that the march refuses is unfolded to dequantize → real op → quantize first, and the real op runs on
    the CPU. Segments alternate between BPU and CPU; ops are put in segment order.
    """

    name: ClassVar[str] = "partition"
    changes_numerics: ClassVar[bool] = True  # an op refused by the march is computed in reals

    def run(self, module: Module, target: Target) -> int:
        graph = module.graph
        rejections = {op: r for op in graph.ops if (r := _rejection(op, target)) is not None}
        unfolded = _unfold(graph, {op: r for op, r in rejections.items() if _has_real_form(op)})
        _fold_constant_dequantize(graph, target)
        for op in graph.ops:
            if not isinstance(op, ops.Const):
                op.placement = _place(op, unfolded.get(op) or rejections.get(op))
        _assign_segments(graph)
        return sum(op.placement is not None for op in graph.ops)


def _rejection(op: Op, target: Target) -> Rejection | None:
    """Why an op cannot run as instructions; None where it can (moves of reals are decided by their neighbours)."""
    if isinstance(op, (ops.Const, ops.BpuOp)):
        return None
    if isinstance(op, BORDER):
        wide = [v for v in (*op.operands, op.out) if v is not None and v.type.dtype.size > 4]
        what = ", ".join(f"{name_of(v)} is {v.type.dtype.text}" for v in wide)
        return Rejection(f"{what}; the border takes 32 bits", "cast it to float32") if wide else None
    if fixed_point.is_fixed(op) or isinstance(op, (ops.Lut, ops.SegmentLut)):
        return target.legal(op)
    if isinstance(op, (*MOVES, ops.Pad, ops.ResizeNearest)):
        first = op.operands[0]
        assert first is not None
        if isinstance(op, ops.Pad) and not first.type.dtype.is_integer:
            return why_real(op, target)
        return target.legal(op) if first.type.quant is not None else None
    if isinstance(op, ops.Composite):
        return why_outside(op, target.semantics) or why_not(op, target)
    return why_real(op, target)


def _has_real_form(op: Op) -> bool:
    """True where an op on integers is the same op on reals, between a dequantize and a quantize. A table is not."""
    if type(op) not in fixed_point.DERIVE or isinstance(op, (ops.Lut, ops.SegmentLut, *BORDER)):
        return False
    return any(v is not None and v.type.quant is not None for v in op.operands)


def _unfold(graph: Graph, refused: dict[Op, Rejection]) -> dict[Op, Rejection]:
    """Replace each refused quantised op by dequantize → real op → quantize; returns the real ops with their reasons."""
    if not refused:
        return {}
    body: list[Op] = []
    real: dict[Op, Rejection] = {}

    def add(op: Op) -> Value:
        body.append(op)
        return op.out

    reals: dict[Value, Value] = {}

    def as_real(value: Value | None, op: Op) -> Value | None:
        if value is None or value.type.quant is None:
            return value
        if value not in reals:
            reals[value] = add(make_op(ops.Dequantize, [value], {}, op.loc))
        return reals[value]

    for op in graph.ops:
        if op not in refused:
            body.append(op)
            continue
        operands = [as_real(v, op) for v in op.operands]
        if isinstance(op, ops.Requantize):
            result = operands[0]
        else:
            plain = op.out.type.quant is None  # truth values, positions
            t = op.out.type if plain else op.out.type.as_float()
            new = make_op(type(op), operands, dict(op.attrs), op.loc, [t], [op.out.name if plain else None])
            real[new] = refused[op]
            result = add(new)
            if plain:
                graph.replace_uses(op.out, result)
                op.drop_operands()
                continue
        graph.replace_uses(op.out, add(make_op(ops.Quantize, [result], {}, op.loc, [op.out.type], [op.out.name])))
        op.drop_operands()
    graph.ops = body
    return real


def _fold_constant_dequantize(graph: Graph, target: Target) -> None:
    """Real constants in place of dequantize(const): what still reads them runs on the CPU."""
    for op in graph.walk(ops.Dequantize):
        const = op.x.defined_by(ops.Const)
        if const is not None and not op.out.is_output:
            value = op.reference(target.semantics, const.value)[0]
            new = make_op(ops.Const, [], {"value": value}, op.loc, names=[op.out.name])
            graph.ops.insert(graph.ops.index(op), new)
            graph.replace_uses(op.out, new.out)


def _on_cpu(rejection: Rejection) -> Placement:
    """A placement whose reason ends in what to try."""
    return Placement("cpu", f"{rejection.reason.rstrip('.')}; try: {rejection.hint or KEEP}")


def _place(op: Op, rejection: Rejection | None) -> Placement:
    if rejection is not None:
        return _on_cpu(rejection)
    if isinstance(op, fixed_point.CHOICES):
        return Placement("bpu")
    if isinstance(op, BORDER) or op.out.type.dtype in {DType.F32, DType.F64, DType.F16, DType.BOOL}:
        return Placement("host", "border between integers and reals")
    return Placement("bpu")


def _assign_segments(graph: Graph) -> None:
    """Number segments (even: BPU and host, odd: CPU), and sort ops by them.

    Each op's operands come from its own segment or an earlier one. Moves of reals between two CPU ops join them.
    """
    segment: dict[Op, int] = {}
    for op in graph.ops:
        if op.placement is None:
            continue
        makers = [v.op for v in op.operands if v is not None and v.op is not None and v.op.placement is not None]
        behind = max((segment[m] for m in makers), default=0)
        on_cpu = op.placement.device == "cpu"
        if on_cpu is False and isinstance(op, LOGIC) and behind % 2 == 1:
            on_cpu = True
            op.placement = _on_cpu(Rejection("it joins truth values that the CPU made", "quantise what is compared"))
        if op.placement.device == "host" and isinstance(op, MOVES) and behind % 2 == 1 and _stays_on_cpu(op):
            on_cpu = True
            reason = "it moves reals between nodes that run on the CPU"
            op.placement = _on_cpu(Rejection(reason, "quantise those, and it runs on the BPU"))
        segment[op] = behind if (behind % 2 == 1) == on_cpu else behind + 1
        op.placement = Placement(op.placement.device, op.placement.reason, segment[op])
    consts = [op for op in graph.ops if op.placement is None]
    graph.ops = consts + sorted(segment, key=segment.__getitem__)


def _stays_on_cpu(op: Op) -> bool:
    return bool(op.out.users) and all(not isinstance(u, BORDER) for u in op.out.users)
