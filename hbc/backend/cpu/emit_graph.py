"""The nodes of a `call_graph`, as they are in the user's model, their tensors named anew."""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import NodeProto

from hbc.ir.ops import CallGraph

from .emit_call import rename_captured
from .emitter import EmitRules, Emitter
from .opsets import drop_neutral, means_same, read_graph, written

RULES = EmitRules()


@RULES(CallGraph)
def call_graph(e: Emitter, op: CallGraph) -> list[str]:
    """Every node, in order."""
    try:
        graph = read_graph(op)
    except (DecodeError, ValueError) as error:
        raise e.error(f"its graph can't be read back ({error})") from error
    for domain, opset in op.versions.items():
        version = e.opsets.setdefault(domain, opset)
        if not means_same(written(op), domain, version):
            raise e.error(f"its nodes of opset {opset} mean something else in the segment's opset {version}")
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
    inputs, outputs = [names.get(x, "") for x in node.input], list(node.output)
    rename_captured(node, names)
    names.update((name, e.fresh()) for name in outputs if name)
    del node.input[:], node.output[:]
    node.input.extend(inputs)
    node.output.extend(names.get(name, "") for name in outputs)
    node.name = e.node_name(node.name)
    drop_neutral(node, e.opsets)
    e.nodes.append(node)
