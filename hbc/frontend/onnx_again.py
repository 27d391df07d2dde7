"""A `call` of a 3-D convolution or average, taken in after all: as 2-D ops in reals, to be quantised next.

Import leaves 3-D ops of reals to ONNX Runtime, which has kernels for them. Quantising needs them as what they become in
integers (`onnx_ops.volume`).
"""

from __future__ import annotations

import base64

from onnx import NodeProto

from hbc.diagnostics import FrontendError
from hbc.ir.builder import Builder
from hbc.ir.core import Graph, Value
from hbc.ir.location import NodeLoc, source_nodes
from hbc.ir.ops import Call
from hbc.ir.types import DType

from .building import GraphScope
from .onnx_node import Node
from .onnx_ops.conv import convolve
from .onnx_ops.pool import average
from .problem import quoted


class _Again(Node):
    """The node of a call, with ops built in front of it."""

    scope: GraphScope  # type: ignore[assignment] # a Scope has the whole file besides, which is gone

    def __init__(self, graph: Graph, op: Call) -> None:
        self.scope = GraphScope("")
        self.scope.graph, self.scope.build = graph, Builder(graph, graph.ops.index(op))
        self.proto = NodeProto()
        self.proto.ParseFromString(base64.b64decode(op.node_proto))
        self.op_type, self.domain, self.version = op.op_type, op.domain, op.opset
        nodes = source_nodes(op.loc)
        self.loc = nodes[0] if nodes else NodeLoc(op.node, op.op_type, "")
        self.attributes = {a.name: a for a in self.proto.attribute}

    @property
    def where(self) -> str:
        return f"node {quoted(self.loc.node)} ({self.op_type})"


def in_planes(graph: Graph, op: Call, weight: Value | None, bias: Value | None) -> Value | None:
    """What a call of Conv (by `weight` and `bias`) or AveragePool on [N,C,D,H,W] computes, by ops in front of it.

    None for any other call, and where the arrangement would be too large.
    """
    x = op.xs[0] if op.xs else None
    if x is None or op.domain or x.type.rank != 5 or x.type.dtype is not DType.F32 or len(op.results) != 1:
        return None
    n = _Again(graph, op)
    try:
        if op.op_type == "Conv" and weight is not None:
            return convolve(n, x, weight, bias)
        return average(n, x) if op.op_type == "AveragePool" else None
    except FrontendError:  # more planes than a table holds, or boxes that count differently: it stays a call
        return None
