"""What a report says of tensors, read off the program: outputs, changes of scale, tables, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hbc.analysis import (
    MOVES,
    HighPrecision,
    accumulates,
    behind_moves,
    high_precision,
    instruction_macs,
    instructions,
)
from hbc.ir.core import Remark
from hbc_runtime import isa
from hbc_runtime.program import BpuSegment, CpuSegment, Model, Segment, Storage, Tensor, TensorInfo
from hbc_runtime.types import DType, Quant

from .rows import QUANT_NODES, OutputRow, RequantizeRow, SegmentRow, TableRow

KEEP_SCALE = (isa.MaxPool, isa.ReduceMax, isa.ReduceMin, isa.ResizeBilinear, isa.ResizeNearest)
JOIN = (isa.Concat, isa.Maximum, isa.Minimum)
Kinds = Mapping[str, str]  # operator type by node name


def named(loc: Sequence[str], kinds: Kinds) -> str:
    """`'Conv_1' + 'Relu_2'`: the nodes of an instruction, without those that only quantise."""
    layers = [n for n in loc if kinds.get(n, "") not in QUANT_NODES] or list(loc)
    return " + ".join(map(repr, layers)) or "no node"


def type_text(t: Tensor) -> str:
    """`i8, scale 0.05, zero point 3`."""
    return quant_text(t.dtype, t.quant)


def quant_text(dtype: DType, q: Quant | None) -> str:
    """Dtype and quantisation in words; per-channel scales as a count."""
    if q is None:
        return dtype.text
    scale = f"scale {q.scale[0]:.6g}" if len(q.scale) == 1 else f"{len(q.scale)} scales along axis {q.axis}"
    zeros = {z for z in q.zero_point if z}
    zero = f", zero point {next(iter(zeros))}" if len(zeros) == 1 else ", zero points" if zeros else ""
    return f"{dtype.text}, {scale}{zero}"


# ---- outputs


def output_rows(model: Model, kinds: Kinds) -> tuple[OutputRow, ...]:
    """Every output: whether it is an accumulator, whose, or why not."""
    return tuple(_output(model, info, kinds) for info in model.outputs)


def _output(model: Model, info: TensorInfo, kinds: Kinds) -> OutputRow:
    high = high_precision(model, info)
    reason = _output_reason(model, info, high, kinds)
    return OutputRow(
        info.name, info.shape, info.dtype.text, high is not None, 0 if high is None else high.scales, reason
    )


def _output_reason(model: Model, info: TensorInfo, high: HighPrecision | None, kinds: Kinds) -> str:
    root = behind_moves(model, info.tensor)
    makers = {o: op for op in instructions(model) for o in op.outputs}
    maker = next((op for o, op in makers.items() if model.tensors[o] is root), None)
    while isinstance(maker, MOVES) and maker.inputs[0] in makers:
        maker = makers[maker.inputs[0]]
    if maker is None:
        return _unmade(model, info, root)
    who = f"{maker.opcode.name.lower()} of {named(maker.loc, kinds)}"
    if high is not None:
        return f"the accumulator of {who}"
    if not accumulates(maker):
        return f"{who} has no accumulator; conv, linear and matmul have one"
    quantizer = next((n for n in maker.loc if kinds.get(n) in QUANT_NODES), None)
    if quantizer is not None:
        return f"{quantizer!r} quantises the result of {who}; without it the accumulator would be returned"
    return f"the model gives the result of {who} a scale; an accumulator has none but its own"


def _unmade(model: Model, info: TensorInfo, root: Tensor) -> str:
    if root.storage is Storage.INPUT:
        return "an input of the model, returned as it is"
    if root.storage is Storage.CONSTANT:
        return "a constant of the model"
    for segment in model.segments:
        if isinstance(segment, CpuSegment) and any(model.tensors[o] is root for o in segment.outputs):
            return f"computed in reals on the CPU (segment {segment.name!r}, {_last(segment)})"
    return f"made by no instruction ({info.name!r})"


def _last(segment: CpuSegment) -> str:
    return repr(segment.loc[-1]) if segment.loc else "no node"


# ---- changes of scale


def requantize_rows(model: Model, kinds: Kinds) -> tuple[RequantizeRow, ...]:
    """The tensors that get another scale in a step of their own."""
    ops = list(instructions(model))
    makers = {o: op for op in ops for o in op.outputs}
    readers: dict[int, list[isa.Instruction]] = {}
    for op in ops:
        for i in op.inputs:
            readers.setdefault(i, []).append(op)
    rows = []
    for op in ops:
        if isinstance(op, isa.Requantize):
            before, after = model.tensors[op.inputs[0]], model.tensors[op.outputs[0]]
            why = _why_requantized(op, makers, readers, kinds)
            name = after.name or before.name
            rows.append(RequantizeRow(name, named(op.loc, kinds), type_text(before), type_text(after), why))
    return tuple(rows)


def _why_requantized(
    op: isa.Requantize,
    makers: Mapping[int, isa.Instruction],
    readers: Mapping[int, list[isa.Instruction]],
    kinds: Kinds,
) -> str:
    for reader in _through(op.outputs[0], readers):
        if isinstance(reader, JOIN):
            verb = "joins" if isinstance(reader, isa.Concat) else "compares"
            return f"the operands of {named(reader.loc, kinds)} have different scales, and it {verb} integers"
    maker = makers.get(op.inputs[0])
    while isinstance(maker, MOVES):
        maker = makers.get(maker.inputs[0])
    if isinstance(maker, KEEP_SCALE):
        name = maker.opcode.name.lower()
        return f"{name} of {named(maker.loc, kinds)} keeps its operand's scale, and the model wants another behind it"
    return "the model quantises it again with another scale"


def _through(tensor: int, readers: Mapping[int, list[isa.Instruction]]) -> Iterable[isa.Instruction]:
    """The instructions that read `tensor`, past moves."""
    waiting, seen = [tensor], set()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        for op in readers.get(at, ()):
            if isinstance(op, MOVES):
                waiting += op.outputs
            else:
                yield op


# ---- tables


def table_rows(model: Model, kinds: Kinds, remarks: Iterable[Remark]) -> tuple[TableRow, ...]:
    """The nodes that became tables; `remarks` of kind `table` say how far interpolation is off."""
    worst = {frozenset(r.nodes): int(r.detail) for r in remarks if r.kind == "table"}
    rows = []
    for op in instructions(model):
        if isinstance(op, isa.Lut | isa.SegmentLut):
            table = model.tensors[op.inputs[-1]]
            nodes = tuple(n for n in op.loc if kinds.get(n, "") not in QUANT_NODES) or op.loc
            kind = "every input" if isinstance(op, isa.Lut) else f"{table.shape[0]} segments"
            off = 0 if isinstance(op, isa.Lut) else worst.get(frozenset(op.loc))
            rows.append(TableRow(nodes, kind, table.elements, off))
    return tuple(rows)


# ---- segments


def segment_row(model: Model, segment: Segment) -> SegmentRow:
    """One segment, with the bytes that it touches."""
    if not isinstance(segment, BpuSegment):
        arena = _bytes(model, Storage.ARENA, (*segment.inputs, *segment.outputs))
        return SegmentRow(segment.name, "cpu", len(segment.loc), segment.reasons, 0, arena, len(segment.onnx))
    touched = [i for op in segment.instructions for i in (*op.inputs, *op.outputs) if i >= 0]
    work = sum(instruction_macs(model, op) for op in segment.instructions)
    arena, constants = (_bytes(model, s, touched) for s in (Storage.ARENA, Storage.CONSTANT))
    return SegmentRow(segment.name, "bpu", len(segment.instructions), (), work, arena, constants)


def _bytes(model: Model, storage: Storage, touched: Iterable[int]) -> int:
    """How many bytes of a storage the tensors cover; bytes that several share count once."""
    ranges = sorted({(t.offset, t.offset + t.nbytes) for i in touched if (t := model.tensors[i]).storage is storage})
    total, end = 0, 0
    for begin, stop in ranges:
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total
