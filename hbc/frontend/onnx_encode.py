"""Nodes as ops carry them: tensors under names of their own, serialised, as text."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from onnx import GraphProto, NodeProto

from .onnx_model import own_tensors, subgraphs


def encoded(proto: NodeProto | GraphProto) -> str:
    """The message in base64; equal messages give equal texts."""
    return base64.b64encode(proto.SerializeToString(deterministic=True)).decode("ascii")


def renamed(node: NodeProto, inputs: Iterable[str], outputs: Iterable[str], outer: Mapping[str, str]) -> NodeProto:
    """A copy of `node` on other tensors; `outer` names anew what its subgraphs capture."""
    proto = NodeProto()
    proto.CopyFrom(node)
    proto.doc_string = ""
    _rename(proto, inputs, outputs, outer)
    return proto


def _rename(node: NodeProto, inputs: Iterable[str], outputs: Iterable[str], outer: Mapping[str, str]) -> None:
    given, made = list(inputs), list(outputs)
    del node.input[:], node.output[:]
    node.input.extend(given)
    node.output.extend(made)
    for graph in subgraphs(node):
        _rename_graph(graph, outer)


def _rename_graph(graph: GraphProto, outer: Mapping[str, str]) -> None:
    """Rename what a subgraph captures by `outer`, and its own tensors out of every other name's way."""
    names = {**outer, **{name: f"local:{name}" for name in own_tensors(graph) if name}}
    for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        _rename(node, [names.get(x, x) for x in node.input], [names.get(x, x) for x in node.output], names)
