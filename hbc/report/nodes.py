"""Rows per node of the user's model, and per group of nodes that became one computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hbc.ir.core import Gone, Op, Value
from hbc.ir.location import NodeLoc, source_nodes
from hbc.ir.ops import Const

from .rows import DEVICES, FOLDED, QUANT_NODES, LayerRow, NodeRow

MOVES = frozenset(
    {"transpose", "reshape", "slice", "concat", "pad", "gather", "expand", "quantize", "dequantize", "flip_sign"}
)  # ops that compute nothing: two nodes that share one are still two layers
FACTORS = {"weight", "rhs"}  # second operands that an op computes with, as with its first
TRY = "; try: "  # between reason and hint, in a placement
CONSTANT = Gone("import", "a constant")
NOTHING_LEFT = "its value is known, or nothing reads it"


def node_rows(
    ops: Sequence[Op], source: Iterable[NodeLoc], gone: Mapping[NodeLoc, Gone] | None = None
) -> tuple[NodeRow, ...]:
    """One row per source node: those that `ops` came from, in order, and those of `source` of which nothing is left."""
    made: dict[NodeLoc, list[Op]] = {n: [] for n in source}
    for op in ops:
        for node in () if isinstance(op, Const) else source_nodes(op.loc):
            made.setdefault(node, []).append(op)
    holders = _holders(ops)
    return tuple(_node_row(node, became, gone or {}, holders) for node, became in made.items())


def _node_row(
    node: NodeLoc, became: Sequence[Op], gone: Mapping[NodeLoc, Gone], holders: Mapping[NodeLoc, tuple[str, ...]]
) -> NodeRow:
    if not became:
        found = CONSTANT if node.op_type == "Initializer" else gone.get(node, Gone("", NOTHING_LEFT))
        held = holders.get(node, ())
        reason = f"{found.why}; {', '.join(map(repr, held))} holds it" if held else found.why
        return NodeRow(node.node, node.op_type, FOLDED, reason, (), (), by=found.by)
    speaker = min(became, key=lambda op: DEVICES.index(device_of(op)))
    shared = dict.fromkeys(n for op in became for n in source_nodes(op.loc) if n != node)
    partners = tuple(n.node for n in shared if n.op_type not in QUANT_NODES)
    reason, _, hint = (speaker.placement.reason if speaker.placement is not None else "").partition(TRY)
    ops = tuple(dict.fromkeys(op_name(op) for op in became))
    return NodeRow(node.node, node.op_type, device_of(speaker), reason, ops, partners, hint)


def _holders(ops: Sequence[Op]) -> dict[NodeLoc, tuple[str, ...]]:
    """Of each node whose result is a constant, the nodes that read it."""
    found: dict[NodeLoc, dict[str, None]] = {}
    for op in ops:
        if isinstance(op, Const):
            readers = [u.node for r in op.results for u in r.users]
            for node in source_nodes(op.loc):
                found.setdefault(node, {}).update(dict.fromkeys(r for r in readers if r != node.node))
    return {node: tuple(readers) for node, readers in found.items() if readers}


def device_of(op: Op) -> str:
    """Where an op runs: bpu, host or cpu."""
    return op.placement.device if op.placement is not None else "bpu"


def op_name(op: Op) -> str:
    """An op's name, without the dialect of its instruction form."""
    return op.NAME.removeprefix("bpu.")


def layer_rows(ops: Sequence[Op], order: Sequence[NodeRow], macs: Mapping[str, int]) -> tuple[LayerRow, ...]:
    """The nodes that run, grouped by the ops that several became; `macs` by node name (of any node of a group)."""
    running = [op for op in ops if not isinstance(op, Const)]
    group: dict[str, list[str]] = {n.node: [n.node] for n in order if _shown(n)}
    for op in running:
        members = [n.node for n in source_nodes(op.loc) if n.node in group]
        if op_name(op) not in MOVES and len(members) > 1:
            _merge(group, members)
    by_node: dict[str, list[Op]] = {}
    for op in running:
        for node in source_nodes(op.loc):
            by_node.setdefault(node.node, []).append(op)
    kinds = _by_name(order)
    groups = {id(members): members for members in group.values()}.values()
    return tuple(_layer(_in_order(members, kinds), kinds, by_node, macs) for members in groups)


def _by_name(order: Sequence[NodeRow]) -> dict[str, NodeRow]:
    """The rows by name. A weight may be called as the node that reads it: then the one that runs is meant."""
    found: dict[str, NodeRow] = {}
    for n in order:
        if n.node not in found or found[n.node].device == FOLDED:
            found[n.node] = n
    return found


def _shown(n: NodeRow) -> bool:
    return n.device != FOLDED and n.op_type not in QUANT_NODES


def _merge(group: dict[str, list[str]], members: Sequence[str]) -> None:
    joined = group[members[0]]
    for name in members[1:]:
        if group[name] is not joined:
            joined += group[name]
            for moved in group[name]:
                group[moved] = joined


def _in_order(members: Sequence[str], kinds: Mapping[str, NodeRow]) -> list[str]:
    position = {name: i for i, name in enumerate(kinds)}
    return sorted(members, key=position.__getitem__)


def _layer(
    members: Sequence[str], kinds: Mapping[str, NodeRow], by_node: Mapping[str, list[Op]], macs: Mapping[str, int]
) -> LayerRow:
    ops = list(dict.fromkeys(op for name in members for op in by_node.get(name, ())))
    device = min((kinds[m].device for m in members), key=DEVICES.index)
    work = [op for op in ops if device_of(op) == device and op_name(op) not in MOVES] or ops
    names = tuple(dict.fromkeys(op_name(op) for op in ops))
    total = sum(macs.get(name, 0) for name in members)
    return LayerRow(tuple(members), tuple(kinds[m].op_type for m in members), device, names, _types(work), total)


def _types(ops: Sequence[Op]) -> str:
    """`i8·i8 → i8`: the operands that the first op works on, and the last one's result."""
    if not ops:
        return ""
    specs = ops[0].OPERANDS
    ins = [
        v
        for i, v in enumerate(ops[0].operands[:2])
        if v is not None and (i == 0 or specs[-1 if i >= len(specs) else i].name in FACTORS)
    ]
    return f"{'·'.join(_dtype(v) for v in ins)} → {_dtype(ops[-1].results[0])}" if ins else _dtype(ops[-1].results[0])


def _dtype(value: Value) -> str:
    return value.type.dtype.text
