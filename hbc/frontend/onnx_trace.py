"""What became of each of the user's nodes at import."""

from __future__ import annotations

from hbc.ir.core import Gone, Module
from hbc.ir.location import NodeLoc, source_nodes
from hbc.ir.ops import Const

from .onnx_model import Source, label
from .onnx_scope import Scope

BY = "import"


def trace(module: Module, source: Source, scope: Scope) -> Module:
    """`module` with every node of the file in `sources`, and in `gone` those of which no op is left that runs."""
    running = {n for op in module.graph.ops if not isinstance(op, Const) for n in source_nodes(op.loc)}
    live = {id(node) for node in source.nodes}
    for node in source.graph.node:
        loc = NodeLoc(label(node), node.op_type, source.file)
        module.sources += (loc,)
        if loc not in running:
            module.gone[loc] = Gone(BY, _why(node.op_type, next(iter(node.output), ""), id(node) in live, scope))
    return module


def _why(op_type: str, output: str, live: bool, scope: Scope) -> str:  # noqa: FBT001
    if not live:
        return "no output depends on it"
    if op_type == "If":
        return "its condition is known, so one branch is left"
    if scope.array(output) is not None:
        return "its value is known when the model is read"
    return "it changes nothing, or is part of another node's op"
