"""What a compilation came to: one frozen value, read off the final module and the program; rendered elsewhere."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbc.ir.core import Module, Op
from hbc.ir.location import FileLoc, FusedLoc, Loc, NodeLoc
from hbc.ir.ops import Const
from hbc_runtime import isa
from hbc_runtime.program import BpuSegment, Model, Program

from .analysis import HighPrecision, affine_tensors, high_precision, macs, wide_accumulators
from .words import human_bytes, human_count, plural, some

# What rewrites absorb by the hundred. A reader of the table wants the layers; the JSON has everything.
QUANT_NODES = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "HzQuantize", "HzDequantize", "HzCalibration", "Constant", "Initializer"}
)
DEVICES = ("bpu", "cpu", "host")  # where several ops of one node differ, the first of these speaks for the node
FOLDED = "folded"


@dataclass(frozen=True)
class NodeRow:
    """One node of the user's model: where it runs and why, the ops it became, the nodes that share those ops.

    `device` is bpu, cpu, host (quantise, dequantise and moves at the border) or folded (nothing left to run).
    """

    node: str
    op_type: str
    device: str
    reason: str
    ops: tuple[str, ...]
    fused_with: tuple[str, ...]


@dataclass(frozen=True)
class OutputRow:
    """One output: `high_precision` where the accumulator itself (i32, with `scales` scales) leaves the BPU, not i8."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    high_precision: bool
    scales: int


@dataclass(frozen=True)
class TensorRow:
    """A tensor with something to say about it, and the node it comes from."""

    tensor: str
    node: str
    detail: str


@dataclass(frozen=True)
class SegmentRow:
    """One segment: how many steps it has, and for the CPU why it is there."""

    name: str
    device: str
    steps: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What ran where, what it needs, and what a real BPU would say to it.

    `affine`: tensors with a zero point, which a real BPU would refuse (NUMERICS D1). `requantized`: tensors that get
    another scale in a step of their own. `wide`: accumulators that may pass 32 bits and then saturate (NUMERICS D3).
    Bytes are of the arena, of the constants, and of the file where it has been written.
    """

    model: str
    march: str
    arith: str
    nodes: tuple[NodeRow, ...]
    outputs: tuple[OutputRow, ...]
    affine: tuple[TensorRow, ...]
    requantized: tuple[TensorRow, ...]
    wide: tuple[TensorRow, ...]
    segments: tuple[SegmentRow, ...]
    instructions: dict[str, int] = field(hash=False)
    macs: int
    arena_bytes: int
    constant_bytes: int
    file_bytes: int | None = None

    @staticmethod
    def of(module: Module, program: Program, source: Iterable[NodeLoc] = ()) -> Report:
        """The report on `program`, emitted from `module`; `source` lists the nodes before any pass, folded ones too."""
        model = program.models[0]
        made = [i for s in model.segments if isinstance(s, BpuSegment) for i in s.instructions]
        return Report(
            model=model.name,
            march=program.march,
            arith=program.arith,
            nodes=node_rows(module.graph.ops, source),
            outputs=tuple(
                _output(info.name, info.shape, info.dtype.text, high_precision(model, info)) for info in model.outputs
            ),
            affine=tuple(TensorRow(a.name, a.node, f"zero point {a.zero_point}") for a in affine_tensors(model)),
            requantized=_requantized(model, made),
            wide=tuple(TensorRow(w.name, w.node, f"up to 2^{w.bits}") for w in wide_accumulators(model)),
            segments=tuple(_segment(s) for s in model.segments),
            instructions=dict(Counter(i.opcode.name.lower() for i in made).most_common()),
            macs=macs(model),
            arena_bytes=model.arena_size,
            constant_bytes=len(model.constants),
        )

    def with_file_bytes(self, size: int) -> Report:
        """The same report, once the file is written."""
        return dataclasses.replace(self, file_bytes=size)

    @property
    def placed(self) -> dict[str, int]:
        """How many of the user's nodes run on each device; nodes that only quantise are not counted."""
        counts = Counter(n.device for n in self.layers)
        return {d: counts[d] for d in (*DEVICES, FOLDED) if counts[d]}

    @property
    def layers(self) -> tuple[NodeRow, ...]:
        """The nodes that do more than quantise or dequantise."""
        return tuple(n for n in self.nodes if n.op_type not in QUANT_NODES)

    def summary(self) -> list[str]:
        """The report in a few lines."""
        placed = ", ".join(f"{count} {device}" for device, count in self.placed.items()) or "none"
        work = [plural(sum(self.instructions.values()), "instruction"), plural(len(self.segments), "segment")]
        return [
            f"nodes      {placed}",
            f"work       {human_count(self.macs)} MACs, {', '.join(work)}",
            f"memory     {human_bytes(self.arena_bytes)} arena, {human_bytes(self.constant_bytes)} constants",
        ]

    def warnings(self) -> list[str]:
        """What the user should know without asking, in lines of what, and what to try."""
        found = []
        if self.affine:
            names = some([repr(t.tensor) for t in self.affine])
            found.append(
                f"{plural(len(self.affine), 'tensor')} with a zero point; a real BPU would refuse this model: {names}\n"
                "   = try:  quantise activations symmetrically; --strict makes this an error, --explain lists them all"
            )
        if self.wide:
            names = some([repr(t.tensor) for t in self.wide])
            found.append(f"{plural(len(self.wide), 'sum')} may pass 32 bits and then saturate: {names}")
        on_cpu = [n for n in self.layers if n.device == "cpu"]
        if on_cpu:
            names = some([f"{n.node!r} ({n.op_type})" if n.op_type else repr(n.node) for n in on_cpu])
            found.append(
                f"{plural(len(on_cpu), 'node')} on the CPU, not the BPU: {names}\n   = try:  --explain says why"
            )
        return found

    def __str__(self) -> str:
        notes = [f"warning: {w}" for w in self.warnings()]
        return "\n".join([f"{self.model} on {self.march}, arith {self.arith}", *self.summary(), *notes])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {**dataclasses.asdict(self), "placed": self.placed}


def source_nodes(module: Module) -> tuple[NodeLoc, ...]:
    """The user's nodes that `module` was made from, each once, in order."""
    return tuple(dict.fromkeys(n for op in module.graph.ops for n in _nodes(op.loc)))


def node_rows(ops: Sequence[Op], source: Iterable[NodeLoc]) -> tuple[NodeRow, ...]:
    """One row per source node: those that `ops` came from, in order, and those of `source` of which nothing is left."""
    made: dict[NodeLoc, list[Op]] = {n: [] for n in source}
    for op in ops:
        for node in () if isinstance(op, Const) else _nodes(op.loc):
            made.setdefault(node, []).append(op)
    return tuple(_node_row(node, became) for node, became in made.items())


def _node_row(node: NodeLoc, became: Sequence[Op]) -> NodeRow:
    if not became:
        return NodeRow(node.node, node.op_type, FOLDED, "its value is known, or nothing reads it", (), ())
    speaker = min(became, key=lambda op: DEVICES.index(_device(op)))
    partners = dict.fromkeys(n for op in became for n in _nodes(op.loc) if n != node and n.op_type not in QUANT_NODES)
    reason = speaker.placement.reason if speaker.placement is not None else ""
    ops = tuple(dict.fromkeys(op.NAME.removeprefix("bpu.") for op in became))
    return NodeRow(node.node, node.op_type, _device(speaker), reason, ops, tuple(n.node for n in partners))


def _device(op: Op) -> str:
    return op.placement.device if op.placement is not None else "bpu"


def _nodes(loc: Loc) -> tuple[NodeLoc, ...]:
    parts: tuple[NodeLoc | FileLoc, ...] = loc.parts if isinstance(loc, FusedLoc) else (loc,)
    return tuple(p for p in parts if isinstance(p, NodeLoc))


def _output(name: str, shape: tuple[int, ...], dtype: str, high: HighPrecision | None) -> OutputRow:
    return OutputRow(name, shape, dtype, high is not None, 0 if high is None else high.scales)


def _requantized(model: Model, made: Iterable[isa.Instruction]) -> tuple[TensorRow, ...]:
    rows = []
    for op in made:
        if isinstance(op, isa.Requantize):
            t = model.tensors[op.outputs[0]]
            scale = "" if t.quant is None else f"to scale {t.quant.scale[0]:.6g}"
            rows.append(TensorRow(t.name, ", ".join(op.loc), scale))
    return tuple(rows)


def _segment(segment: object) -> SegmentRow:
    from hbc_runtime.program import CpuSegment

    if isinstance(segment, BpuSegment):
        return SegmentRow(segment.name, "bpu", len(segment.instructions))
    assert isinstance(segment, CpuSegment)
    return SegmentRow(segment.name, "cpu", len(segment.loc), segment.reasons)
