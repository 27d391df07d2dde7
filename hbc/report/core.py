"""The report itself: made from a module and its program, summed up in a few lines, turned into JSON values."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbc.analysis import affine_tensors, instruction_macs, instructions, macs, wide_accumulators
from hbc.ir import location
from hbc.ir.core import Module
from hbc.ir.location import NodeLoc
from hbc.words import human_bytes, human_count, plural, some
from hbc_runtime.program import Model, Program

from .nodes import MOVES, device_of, layer_rows, node_rows, op_name
from .rows import (
    DEVICES,
    FOLDED,
    QUANT_NODES,
    ConstantRow,
    LayerRow,
    NodeRow,
    OutputRow,
    RequantizeRow,
    SegmentRow,
    StreamRow,
    TableRow,
    TensorRow,
)
from .tensors import output_rows, requantize_rows, segment_row, table_rows


@dataclass(frozen=True)
class Report:
    """What ran where, what it needs, and what a real BPU would say to it.

    `nodes`: every node of the model; `groups`: those that run, by the computations that they became. `affine`: tensors
    with a zero point, which a real BPU would refuse (NUMERICS D1). `requantized`: tensors that get another scale in a
    step of their own. `constants`: those whose integers or scales aren't the model's. `tables`: nodes that became
    look-ups. `wide`: accumulators that may pass 32 bits and then saturate (NUMERICS D3). `streams`: how each BPU
    segment is cut into commands. Bytes are of the arena, of the constants, and of the file where it has been written.
    """

    model: str
    march: str
    arith: str
    nodes: tuple[NodeRow, ...]
    groups: tuple[LayerRow, ...]
    outputs: tuple[OutputRow, ...]
    affine: tuple[TensorRow, ...]
    requantized: tuple[RequantizeRow, ...]
    constants: tuple[ConstantRow, ...]
    tables: tuple[TableRow, ...]
    wide: tuple[TensorRow, ...]
    segments: tuple[SegmentRow, ...]
    instructions: dict[str, int] = field(hash=False)
    macs: int
    arena_bytes: int
    constant_bytes: int
    notes: tuple[str, ...] = ()
    file_bytes: int | None = None
    streams: tuple[StreamRow, ...] = ()

    @staticmethod
    def of(
        module: Module,
        program: Program,
        source: Iterable[NodeLoc] = (),
        constants: Sequence[ConstantRow] = (),
    ) -> Report:
        """The report on `program`, emitted from `module`; `source` lists the nodes before any pass, folded ones too."""
        model = program.models[0]
        ops = module.graph.ops
        nodes = node_rows(ops, source, module.gone)
        kinds = {n.node: n.op_type for n in nodes}
        return Report(
            model=model.name,
            march=program.march,
            arith=program.arith,
            nodes=nodes,
            groups=layer_rows(ops, nodes, _macs_by_node(model, kinds)),
            outputs=tuple(_with_cpu_reason(o, module, nodes) for o in output_rows(model, kinds)),
            affine=tuple(TensorRow(a.name, a.node, f"zero point {a.zero_point}") for a in affine_tensors(model)),
            requantized=requantize_rows(model, kinds),
            constants=tuple(constants),
            tables=table_rows(model, kinds, module.graph.remarks),
            wide=tuple(TensorRow(w.name, w.node, f"up to 2^{w.bits}") for w in wide_accumulators(model)),
            segments=tuple(segment_row(model, s) for s in model.segments),
            instructions=dict(Counter(i.opcode.name.lower() for i in instructions(model)).most_common()),
            macs=macs(model),
            arena_bytes=model.arena_size,
            constant_bytes=len(model.constants),
            notes=tuple(filter(None, module.metadata.get("notes", "").split("\n"))),
        )

    def with_file_bytes(self, size: int) -> Report:
        """The same report, once the file is written."""
        return dataclasses.replace(self, file_bytes=size)

    def with_streams(self, streams: tuple[StreamRow, ...]) -> Report:
        """The same report, once the segments are cut into commands."""
        return dataclasses.replace(self, streams=streams)

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
            *self._tiles(),
        ]

    def _tiles(self) -> list[str]:
        """A line on the command streams, where there are any."""
        streams = [s for s in self.streams if not s.refused]
        if not streams:
            return []
        moved = sum(s.loaded_bytes + s.stored_bytes for s in streams)
        count, chip = sum(s.commands for s in streams), max(s.on_chip_bytes for s in streams)
        return [f"tiles      {plural(count, 'command')}, {human_bytes(chip)} on chip, {human_bytes(moved)} by DDR"]

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
        bare = [s for s in self.streams if s.refused]
        return found + [f"{s.segment} has no command stream: {s.refused}" for s in bare]

    def __str__(self) -> str:
        notes = [f"warning: {w}" for w in self.warnings()]
        return "\n".join([f"{self.model} on {self.march}, arith {self.arith}", *self.summary(), *notes])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {**dataclasses.asdict(self), "placed": self.placed}


def source_nodes(module: Module) -> tuple[NodeLoc, ...]:
    """The user's nodes that `module` was made from, each once, in the order of the file."""
    met = dict.fromkeys(n for op in module.graph.ops for n in location.source_nodes(op.loc))
    return tuple(dict.fromkeys([*module.sources, *met]))


def _with_cpu_reason(row: OutputRow, module: Module, nodes: Sequence[NodeRow]) -> OutputRow:
    """The row of an output that the CPU makes, with the node that makes it and why it does."""
    value = next((o.value for o in module.graph.outputs if o.name == row.name), None)
    while value is not None and value.op is not None and device_of(value.op) != "cpu":
        value = value.op.operands[0] if op_name(value.op) in MOVES else None
    made = None if value is None or value.op is None else next((n for n in nodes if n.node == value.op.node), None)
    if row.high_precision or made is None or made.device != "cpu":
        return row
    return dataclasses.replace(row, reason=f"{made.node!r} computes it in reals on the CPU: {made.reason}")


def _macs_by_node(model: Model, kinds: dict[str, str]) -> dict[str, int]:
    """Multiply-accumulates by the first node of each instruction that does more than quantise."""
    found: Counter[str] = Counter()
    for op in instructions(model):
        count = instruction_macs(model, op)
        owner = next((n for n in op.loc if kinds.get(n, "") not in QUANT_NODES), None)
        if count and owner is not None:
            found[owner] += count
    return dict(found)
