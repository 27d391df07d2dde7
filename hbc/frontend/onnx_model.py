"""From bytes to a sound ONNX graph: parsed, versions known, functions inlined, names unique, nodes in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from hbc.diagnostics import NotAModel, TooLarge

from .onnx_convert import FIRST, converted
from .onnx_sparse import densify
from .problem import listing, problem, quoted

OLDEST, NEWEST = 1, 28  # opsets of the ONNX domain whose operators the rules know
MOST_NODES = 1 << 17  # after inlining: large language models have some thousand
STANDARD = ("", "ai.onnx.ml", "com.microsoft")  # domains that ONNX Runtime brings
VENDOR = "horizon"


@dataclass(frozen=True)
class Source:
    """A parsed model: its graph's nodes in an order in which operands come first, and where it came from."""

    model: ModelProto
    file: str
    folder: Path | None
    sha256: str
    versions: Mapping[str, int]  # opset of each domain; the ONNX domain is ""
    stated: int = 0  # the opset that the file states, where the model had to be converted
    nodes: tuple[NodeProto, ...] = ()

    @property
    def graph(self) -> GraphProto:
        """The main graph."""
        return self.model.graph


def parse(data: bytes, file: str) -> ModelProto:
    """The message in `data`; FrontendError where it is none or holds no graph."""
    hint = "export or download the model again"
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError) as error:
        why = f"{error} (the file may be cut short)"
        raise problem("this is not a readable ONNX model", where=file, why=why, hint=hint, kind=NotAModel) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise problem(
            "this is not an ONNX model", where=file, why="no graph was found in it", hint=hint, kind=NotAModel
        )
    return model


def prepare(source: Source) -> Source:
    """`source` with functions inlined and `nodes` filled in: those that outputs depend on, each after its operands."""
    _require_text(source)
    _refuse_too_many_nodes(source)
    source = _renewed(replace(source, versions=_versions(source), model=_inlined(source)))
    graph = source.graph
    densify(graph, source.folder, source.file)
    if not graph.output:
        raise problem("the graph has no output", where=source.file, hint="name at least one output when exporting")
    _refuse_repeated_names(source)
    ordered = _ordered(source)
    return replace(source, nodes=tuple(_live(ordered, [o.name for o in graph.output])))


def domain_of(node: NodeProto | FunctionProto) -> str:
    """The node's or function's domain under its short name: "" for ONNX's own."""
    return "" if node.domain == "ai.onnx" else node.domain


def label(node: NodeProto) -> str:
    """The user's name for a node: its own, or `OpType:first output` where it has none."""
    return node.name or f"{node.op_type}:{next(iter(node.output), '')}"


def reads(node: NodeProto) -> Iterator[str]:
    """The tensors a node depends on: its inputs, then what its subgraphs capture; each name may come more than once."""
    yield from (name for name in node.input if name)
    yield from captured(node)


def captured(node: NodeProto) -> dict[str, None]:
    """The outer tensors that the node's subgraphs read, each once, in order."""
    found: dict[str, None] = {}
    for inner in subgraphs(node):
        own = own_tensors(inner)
        used = [name for n in inner.node for name in reads(n)] + [o.name for o in inner.output]
        found.update(dict.fromkeys(name for name in used if name not in own))
    return found


def own_tensors(graph: GraphProto) -> set[str]:
    """The tensors that a graph is given or makes."""
    given = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    return given | {o for n in graph.node for o in n.output}


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs among a node's attributes."""
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        elif a.type == onnx.AttributeProto.GRAPHS:
            yield from a.graphs


def _require_text(source: Source) -> None:
    """FrontendError where a name is no UTF-8 (protobuf hands such names out as bytes): nothing could be said of it."""
    model = source.model
    names = [model.producer_name, model.producer_version, *(o.domain for o in model.opset_import)]
    names += [text for f in model.functions for n in f.node for text in _node_texts(n)]
    wrong = [text for text in (*names, *_texts(model.graph)) if not isinstance(text, str)]
    if wrong:
        shown = repr(wrong[0])[:60]
        hint = "export or download the model again"
        raise problem("a name in the file is not UTF-8 text", where=source.file, why=f"it is {shown}", hint=hint)


def _texts(graph: GraphProto) -> Iterator[object]:
    yield graph.name
    yield from (t.name for t in graph.initializer)
    for info in (*graph.input, *graph.output, *graph.value_info):
        yield info.name
        yield from (d.dim_param for d in info.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from _node_texts(node)


def _node_texts(node: NodeProto) -> Iterator[object]:
    yield from (node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute))
    for inner in subgraphs(node):
        yield from _texts(inner)


def _versions(source: Source) -> dict[str, int]:
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in source.model.opset_import}
    used = {domain_of(n) for n in source.graph.node}
    if "" not in versions and ("" in used or not versions):
        hint = "export the model again, or set model.opset_import"
        raise problem("the model doesn't say which opset it is written in", where=source.file, hint=hint)
    version = versions.setdefault("", 17)
    if not OLDEST <= version <= NEWEST:
        why = f"hbc takes opsets {OLDEST} to {NEWEST}"
        hint = "export with another opset_version, or onnx.version_converter.convert_version(model, 17)"
        raise problem(f"the model is written in opset {version}", where=source.file, why=why, hint=hint)
    return versions


def _renewed(source: Source) -> Source:
    """`source` in an opset that the rules know."""
    version = source.versions[""]
    if version >= FIRST:
        return source
    model = converted(source.model, version, source.file)
    return replace(source, model=model, versions={**source.versions, "": FIRST}, stated=version)


def _inlined(source: Source) -> ModelProto:
    if not source.model.functions:
        return source.model
    try:
        from onnx.inliner import inline_local_functions

        return inline_local_functions(source.model)
    except (RuntimeError, ValueError, TypeError, DecodeError, onnx.checker.ValidationError) as error:
        raise problem("the model's functions can't be inlined", where=source.file, why=str(error)) from error


def _refuse_too_many_nodes(source: Source) -> None:
    nodes = _inlined_size(source)
    if nodes > MOST_NODES:
        functions = " with its functions inlined" if source.model.functions else ""
        why = f"it has {nodes} nodes{functions}; hbc takes {MOST_NODES}"
        raise problem(
            "the model is too large", where=source.file, why=why, hint="check how the model was exported", kind=TooLarge
        )


def _inlined_size(source: Source) -> int:
    """How many nodes the model has once its functions are inlined: they may call each other, and grow like 2^n."""
    functions = {(domain_of(f), f.name, f.overload): f for f in source.model.functions}
    calls = {key: [_callee(n) for n in all_nodes(f.node)] for key, f in functions.items()}
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        for key in TopologicalSorter({k: functions.keys() & set(c) for k, c in calls.items()}).static_order():
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
    except CycleError as error:
        names = listing(quoted(name) for _, name, _ in dict.fromkeys(error.args[1]))
        where = f"{source.file}: function {names}"
        raise problem("a function of the model calls itself", where=where, hint="export the model again") from error
    return sum(sizes.get(_callee(n), 1) for n in all_nodes(source.graph.node))


def _callee(node: NodeProto) -> tuple[str, str, str]:
    return domain_of(node), node.op_type, node.overload


def _refuse_repeated_names(source: Source) -> None:
    graph = source.graph
    constants = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in constants] + [t.name for t in graph.initializer]
    names += [o for n in graph.node for o in n.output if o]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        makers = listing(quoted(label(n)) for n in graph.node if set(n.output) & set(twice)) or "the initializers"
        where = f"{source.file}: tensor {listing(map(quoted, twice))}"
        raise problem(
            "a tensor is defined twice", where=where, why=f"by {makers}", hint="give each tensor its own name"
        )
    twice = [name for name, count in Counter(o.name for o in graph.output).items() if count > 1]
    if twice:
        raise problem("two outputs have one name", where=f"{source.file}: output {listing(map(quoted, twice))}")


def _ordered(source: Source) -> list[NodeProto]:
    """The nodes, each after those it reads from (Kahn's algorithm, stable); FrontendError for loose ends and cycles."""
    graph, nodes = source.graph, list(source.graph.node)
    maker = {o: i for i, n in enumerate(nodes) for o in n.output if o}
    given = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    waits: list[int] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        needs = set(reads(node))
        loose = [name for name in needs if name not in maker and name not in given]
        if loose:
            who = f"node {quoted(label(node))} ({node.op_type})"
            where = f"{source.file}: {who}, input {listing(map(quoted, sorted(loose)))}"
            raise problem("a node reads a tensor that nothing defines", where=where, hint="export the model again")
        makers = {maker[name] for name in needs if name in maker}
        waits.append(len(makers))
        for m in makers:
            readers[m].append(i)
    missing = [o.name for o in graph.output if o.name not in maker and o.name not in given]
    if missing:
        where = f"{source.file}: output {listing(map(quoted, missing))}"
        raise problem("nothing computes an output of the graph", where=where, hint="export the model again")
    order = _settle(waits, readers)
    if len(order) < len(nodes):
        settled = set(order)
        stuck = [n for i, n in enumerate(nodes) if i not in settled]
        where = f"{source.file}: among the nodes {listing(quoted(label(n)) for n in stuck)}"
        raise problem(
            "the graph has a cycle", where=where, why="a node needs its own result", hint="export the model again"
        )
    return [nodes[i] for i in order]


def _settle(waits: list[int], readers: Sequence[Sequence[int]]) -> list[int]:
    from heapq import heapify, heappop, heappush

    ready = [i for i, n in enumerate(waits) if n == 0]
    heapify(ready)  # the lowest index first: a sorted file keeps its order
    order = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for r in readers[i]:
            waits[r] -= 1
            if waits[r] == 0:
                heappush(ready, r)
    return order


def _live(ordered: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    needed = set(outputs)
    kept = []
    for node in reversed(ordered):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(reads(node))
    return kept[::-1]


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)
