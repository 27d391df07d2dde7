"""An ONNX model node by node: which tensors there are, and each node on operands given to it, by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hbc.diagnostics import error

from .probe import ProbeError, load_proto, make_session

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class NodeInfo:
    """One node: its name (`OpType:output` where it has none, as in reports), and the tensors that it reads and writes.

    `depends`: its results depend on the model's inputs.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    depends: bool


class NodeRunner:
    """The nodes of one model, to be run one at a time with ONNX Runtime's optimiser off."""

    def __init__(self, model: Path) -> None:
        self.path = model
        self.proto = load_proto(model)
        graph = self.proto.graph
        self.constants = {t.name: t for t in graph.initializer}
        self.inputs = tuple(i.name for i in graph.input if i.name not in self.constants)
        self.outputs = tuple(o.name for o in graph.output)
        self.nodes = tuple(_infos(graph.node, set(self.inputs)))
        self._sessions: dict[int, Any] = {}

    def run(self, index: int, values: Mapping[str, Array]) -> dict[str, Array]:
        """The results of node `index`, by name, for `values` (the model's initialisers are known here).

        Raises ProbeError where ONNX Runtime does not run the node by itself, or gives no arrays.
        """
        info = self.nodes[index]
        feeds = {n: values[n] for n in info.inputs if n in values}
        if index not in self._sessions:
            data = self._single(self.proto.graph.node[index], feeds)
            self._sessions[index] = make_session(self.path, data, optimised=False, threads=1)
        names = [o for o in info.outputs if o]
        try:
            results = self._sessions[index].run(names, feeds)
        except Exception as err:  # ONNX Runtime's exceptions have no common base of their own
            title = f"ONNX Runtime could not run node {info.name!r} by itself"
            raise error(ProbeError, title, where=str(self.path), why=" ".join(str(err).split())[:200]) from err
        return {n: y for n, y in zip(names, results, strict=True) if isinstance(y, np.ndarray)}

    def _single(self, node: onnx.NodeProto, feeds: Mapping[str, Array]) -> bytes:
        """A model of one node. What is given is an input of any shape of its rank, initialisers stay constants."""
        import onnx
        from onnx import helper

        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)
            for n, a in feeds.items()
        ]
        outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
        read = [n for n in reads(node) if n in self.constants and n not in feeds]
        graph = helper.make_graph([node], "node", inputs, outputs, [self.constants[n] for n in dict.fromkeys(read)])
        made = onnx.ModelProto()
        made.CopyFrom(onnx.ModelProto(ir_version=self.proto.ir_version, opset_import=self.proto.opset_import))
        made.functions.extend(self.proto.functions)
        made.graph.CopyFrom(graph)
        return made.SerializeToString()


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, those that its subgraphs take from outside among them."""
    from .opsets import subgraphs

    yield from (n for n in node.input if n)
    for graph in subgraphs(node):
        own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
        own |= {o for inner in graph.node for o in inner.output}
        for inner in graph.node:
            yield from (n for n in reads(inner) if n not in own)


def _infos(nodes: Sequence[onnx.NodeProto], live: set[str]) -> Iterator[NodeInfo]:
    for node in nodes:
        inputs = tuple(dict.fromkeys(reads(node)))
        outputs = tuple(node.output)
        depends = any(n in live for n in inputs)
        if depends:
            live.update(o for o in outputs if o)
        first = next((o for o in outputs if o), "")
        yield NodeInfo(node.name or f"{node.op_type}:{first}", node.op_type, inputs, outputs, depends)
