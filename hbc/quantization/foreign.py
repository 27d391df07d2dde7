"""Operations that the kit has no ONNX form of: PyTorch traces them, and hbc's own front end says what they are.

So whatever hbc takes in a TorchScript file may stand in a model that is trained. In a unit it becomes what the passes
make of it; outside of one it is real, on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from onnx import AttributeProto, NodeProto, numpy_helper
from torch import Tensor, nn

from hbc.backend.cpu.export_model import export_model
from hbc.diagnostics import HbcError, NotExportable
from hbc.example import examples_of
from hbc.frontend import load

from .errors import trouble
from .onnx_writer import Writer
from .pytree import rebuild, walk

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # GridSample's words before opset 20, and since


class Bound(nn.Module):
    """A call with everything but its tensors filled in: `call(tensors)`. `inner`: the module that it calls, if any."""

    def __init__(self, call: Callable[[Sequence[Tensor]], Any], inner: nn.Module | None) -> None:
        super().__init__()
        self.call, self.inner = call, inner

    def forward(self, *values: Tensor) -> Any:
        """The tensors of the result, in order."""
        return tuple(leaf for _, leaf in walk(self.call(values)) if isinstance(leaf, Tensor))


def foreign(
    writer: Writer, bound: Bound, operands: Sequence[str], examples: Sequence[Tensor], kind: str, where: str
) -> Any:
    """The call as nodes of `writer`: names of values, in the structure that it returns. NotExportable otherwise."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = bound.call(examples)
            trace: Callable[..., Any] = torch.jit.trace
            traced = trace(bound.eval(), tuple(examples), check_trace=False, strict=False)
            proto = export_model(load(traced, examples=examples_of(list(examples)))).proto
    except (HbcError, RuntimeError, TypeError, ValueError) as cause:
        why = cause.diagnostic.title if isinstance(cause, HbcError) else str(cause).strip().splitlines()[0]
        hint = "leave it outside of the model, or write it with other operations"
        raise trouble(f"{kind!r} can't be exported", where=where, why=why, hint=hint, kind=NotExportable) from cause
    names = iter(_inlined(writer, proto, operands))
    return rebuild(result, lambda leaf: next(names) if isinstance(leaf, Tensor) else leaf)


def _inlined(writer: Writer, proto: Any, operands: Sequence[str]) -> list[str]:
    """The graph's nodes and tensors under free names; the names of its outputs."""
    graph, base = proto.graph, writer.prefix or "constant"
    names = {"": "", **{info.name: name for info, name in zip(graph.input, operands, strict=True)}}
    for tensor in graph.initializer:
        names[tensor.name] = writer.const(numpy_helper.to_array(tensor), f"{base}/{tensor.name}")
    for node in graph.node:
        made = NodeProto()
        made.CopyFrom(node)
        for result in node.output:
            names[result] = writer.free(f"{base}/{result}") if result else ""
        made.name = writer.free(f"{base}/{node.op_type}")
        _rename(made, names)
        writer.nodes.append(made)
    return [names[o.name] for o in graph.output]


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    node.input[:] = [names.get(n, n) for n in node.input]
    node.output[:] = [names.get(n, n) for n in node.output]
    for attribute in node.attribute:
        if node.op_type == "GridSample" and attribute.name == "mode":
            attribute.s = _MODES.get(attribute.s.decode(), attribute.s.decode()).encode()
        for inner in _bodies(attribute):
            for part in inner.node:
                _rename(part, names)
            for info in inner.output:
                info.name = names.get(info.name, info.name)


def _bodies(attribute: AttributeProto) -> Iterator[Any]:
    if attribute.type == AttributeProto.GRAPH:
        yield attribute.g
    yield from attribute.graphs
