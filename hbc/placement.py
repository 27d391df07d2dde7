"""Where each node of a model would run, and which rules refuse those that the BPU does not take: `hbc check-ops`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hbc import frontend
from hbc.backend.bpu.fast_perf import FastPerfTarget
from hbc.backend.bpu.march import MARCHES
from hbc.backend.bpu.rules import RULES, Refusal
from hbc.backend.bpu.target import Target
from hbc.diagnostics import Rejection
from hbc.ir import ops
from hbc.ir.core import Module, Op
from hbc.ir.location import NodeLoc, source_nodes
from hbc.passes.manager import PassManager

from .driver import OnEvent, stage
from .options import CompileOptions
from .report import QUANT_NODES, NodeRow, node_rows
from .report import source_nodes as nodes_of

if TYPE_CHECKING:
    from onnx import ModelProto

LAST = "place"  # the stage behind which every op knows its place
Key = tuple[NodeLoc, str]


@dataclass(frozen=True)
class Placed:
    """One node: its device (bpu, cpu, host or folded), its subgraph, and why the BPU does not take it.

    `refusals`: the march's rules that the node breaks, each with the node's own value and the rewrite to try. Empty for
    a node on the CPU that no rule is about (an operator without a form on the BPU, a tensor that is not quantised):
    `reason` and `hint` say it then.
    """

    node: str
    op_type: str
    device: str
    subgraph: str
    reason: str = ""
    hint: str = ""
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Every node of a model on a march. `pseudo`: the model has no scales, and made-up ones stood in for them."""

    model: str
    march: str
    pseudo: bool
    nodes: tuple[Placed, ...]
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[Placed, ...]:
        """The nodes that do more than quantise or dequantise."""
        return tuple(n for n in self.nodes if n.op_type not in QUANT_NODES)

    def on(self, device: str) -> tuple[Placed, ...]:
        """The layers on one device."""
        return tuple(n for n in self.layers if n.device == device)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        counts = {d: len(self.on(d)) for d in ("bpu", "cpu", "host", "folded")}
        return {**asdict(self), "counts": counts}


@dataclass
class _Ledger:
    """What the march refused while passes asked: all broken rules by node and by the sentence that the passes saw."""

    found: dict[Key, tuple[Refusal, ...]] = field(default_factory=dict)

    def ask(self, op: Op, target: Target) -> Rejection | None:
        refusals = tuple(r for rule in RULES if (r := rule.refusal(op, target.march)) is not None)
        if not refusals:
            return None
        first = refusals[0].rejection
        self.found.update(((node, first.reason.rstrip(".")), refusals) for node in source_nodes(op.loc))
        return first


@dataclass(frozen=True)
class _Asking(Target):
    """A target that remembers every rule that an op breaks, not the first alone."""

    ledger: _Ledger = field(default_factory=_Ledger)

    def legal(self, op: Op) -> Rejection | None:
        return self.ledger.ask(op, self)


@dataclass(frozen=True)
class _AskingFast(FastPerfTarget):
    """The same for a model without scales."""

    ledger: _Ledger = field(default_factory=_Ledger)

    def legal(self, op: Op) -> Rejection | None:
        return self.ledger.ask(op, self.asked(op))


def place_model(
    source: str | Path | bytes | ModelProto | object, options: CompileOptions, *, on_event: OnEvent | None = None
) -> Placement:
    """Where the nodes of `source` would run on `options.march`; all of them, whatever is refused.

    A model without a single scale is quantised by made-up ones first, as `hbc perf --fast-perf` does. Raises HbcError
    where the model cannot be read.
    """
    with stage("load", 0, on_event):
        module = frontend.load(source, options.shape_map, options.example, options.output_names)
    module.march, module.arith = options.march, options.arith
    pseudo = options.fast_perf or not _has_scales(module)
    target = (_AskingFast if pseudo else _Asking)(options.march, options.arith)
    nodes = nodes_of(module)
    manager = PassManager(target, on_event=on_event)
    for step in target.pipeline:
        with stage(step.name, len(step.passes), on_event) as done:
            done.rewrites = manager.run(step, module)
        if step.name == LAST:
            break
    rows = node_rows(module.graph.ops, nodes, module.gone)
    names = _subgraphs(module)
    placed = tuple(_placed(row, names.get(row.node, ""), target.ledger) for row in rows if row.op_type != "Initializer")
    name = options.name or module.name
    return Placement(name, options.march, pseudo, placed, _notes(module, options.march))


def _has_scales(module: Module) -> bool:
    quantised = any(r.type.quant is not None for op in module.graph.ops for r in op.results)
    return quantised or any(isinstance(op, (ops.Quantize, ops.Dequantize)) for op in module.graph.ops)


def _subgraphs(module: Module) -> dict[str, str]:
    """The subgraph of each node: that of its op on the CPU, else of its last one."""
    found: dict[str, str] = {}
    for op in module.graph.ops:
        if op.placement is None:
            continue
        name = f"{'cpu' if op.placement.device == 'cpu' else 'bpu'}_{op.placement.segment}"
        for node in source_nodes(op.loc):
            if not found.get(node.node, "").startswith("cpu"):
                found[node.node] = name
    return found


def _placed(row: NodeRow, subgraph: str, ledger: _Ledger) -> Placed:
    plain = Placed(row.node, row.op_type, row.device, subgraph, row.reason, row.hint)
    if row.device != "cpu":
        return replace(plain, reason="" if row.device == "bpu" else row.reason)
    key = row.reason.rstrip(".")
    mine = (v for (node, reason), v in ledger.found.items() if reason == key and node.node == row.node)
    same = (v for (_, reason), v in ledger.found.items() if reason == key)
    return replace(plain, refusals=next(mine, next(same, ())))


def _notes(module: Module, march: str) -> tuple[str, ...]:
    """What the march asks of a model as a whole."""
    most, outputs = MARCHES[march].max_outputs, len(module.graph.outputs)
    if most and outputs > most:
        return (f"the model has {outputs} outputs; {march} takes {most}: concatenate some, or leave some out",)
    return ()
