"""The nodes of a `call_graph`, as they are in the user's model, their tensors named anew."""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import NodeProto

from hbc.ir.ops import CallGraph

from .emit_call import name_loop_results, rename, require_meaning
from .emitter import EmitRules, Emitter
from .opsets import drop_neutral, read_graph

RULES = EmitRules()


@RULES(CallGraph)
def call_graph(e: Emitter, op: CallGraph) -> list[str]:
    """Every node, in order."""
    try:
        graph = read_graph(op)
    except (DecodeError, ValueError) as error:
        raise e.error(f"its graph can't be read back ({error})") from error
    require_meaning(e, op)
    names = {f"operand:{i}": e.tensor(x) for i, x in enumerate(op.xs)}
    for node in graph.node:
        _add(e, node, names)
    results = [f"result:{i}" for i in range(len(op.results))]
    missing = [name for name in results if name not in names]
    if missing:
        raise e.error(f"nothing in its graph makes {missing[0]}")
    return [names[name] for name in results]


def _add(e: Emitter, node: NodeProto, names: dict[str, str]) -> None:
    """Append the node, its tensors renamed; its results get fresh names, which `names` learns."""
    unknown = [x for x in node.input if x and x not in names]
    if unknown:
        raise e.error(f"its node {node.name!r} reads {unknown[0]!r}, which is neither an operand nor made above it")
    made = {name: e.fresh() for name in node.output if name}
    rename(node, names, [made.get(name, "") for name in node.output])
    name_loop_results(e, node)
    names.update(made)
    node.name = e.node_name(node.name)
    drop_neutral(node, e.opsets)
    e.nodes.append(node)
