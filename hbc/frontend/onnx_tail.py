"""Nodes between which pass what the IR has no type for: tensors whose size depends on the data, and sequences.

Detection models end in such nodes: NonMaxSuppression keeps as many boxes as there are, and Gather picks them. They and
everything that reads them become one `call_graph`, up to where sizes are known again. ONNX infers the types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from hbc.diagnostics import FrontendError, NotTaken, UnknownSize
from hbc.ir.location import NodeLoc, fuse
from hbc.ir.ops import CallGraph
from hbc.ir.types import DYNAMIC, TensorType

from .onnx_encode import encoded, renamed
from .onnx_infer import infer_graph
from .onnx_model import STANDARD, all_nodes, domain_of, label, reads
from .onnx_scope import Scope
from .onnx_tensors import DTYPES, dtype_name
from .problem import NODE_FAULTS, problem, quoted

ImportOne = Callable[[Scope, NodeProto], None]
Types = Mapping[str, tuple[int, tuple[int, ...] | None]]  # name → ONNX's element type, shape (None: of unknown rank)
MOST_AXES = 64  # beyond what any tensor has
REASON = "sizes depend on the data, or values are no tensors"


def import_nodes(scope: Scope, nodes: Sequence[NodeProto], import_one: ImportOne) -> None:
    """Import `nodes`, in an order in which operands come first. What UnknownSize stops becomes a `call_graph`.

    FrontendError where such a part has results that a program can't return, or nodes that ONNX Runtime hasn't.
    """
    rest = list(nodes)
    while rest:
        seeds, late = _walk(scope, rest, import_one)
        rest = _import_part(scope, seeds, late) if late else []


def _walk(scope: Scope, nodes: Iterable[NodeProto], import_one: ImportOne) -> tuple[list[NodeProto], list[NodeProto]]:
    """Import what can be; returns the nodes that UnknownSize stopped, and these with all that depends on them."""
    seeds: list[NodeProto] = []
    late: list[NodeProto] = []
    made: set[str] = set()
    for node in nodes:
        if made.isdisjoint(reads(node)):
            try:
                import_one(scope, node)
                continue
            except FrontendError as error:
                if not isinstance(error.diagnostic, UnknownSize):
                    raise
                seeds.append(node)
        late.append(node)
        made.update(name for name in node.output if name)
    return seeds, late


def _import_part(scope: Scope, seeds: Sequence[NodeProto], late: Sequence[NodeProto]) -> list[NodeProto]:
    """Make a `call_graph` of those of `late` that it takes; returns the others, which come after it."""
    where = f"{scope.source.file}: from node {quoted(label(seeds[0]))} ({seeds[0].op_type}) on"
    try:
        types = _infer(scope, late)
        part = _part(scope, seeds, late, types)
        taken = set(map(id, part))  # comparing messages would compare all that is in them
        rest = [node for node in late if id(node) not in taken]
        _Part(scope, part, rest, types, where).add()
    except FrontendError:
        raise
    except NODE_FAULTS as error:
        why = str(error) or type(error).__name__
        raise problem("nodes whose sizes depend on the data can't be taken in", where=where, why=why) from error
    return rest


# ---- types


def _infer(scope: Scope, nodes: Sequence[NodeProto]) -> Types:
    """What ONNX infers of all results together; the file's own statements fill what it leaves open.

    ValueError with ONNX's own text where the nodes contradict their operators' definitions.
    """
    made = {name for node in nodes for name in node.output if name}
    stated = {info.name: info for info in _stated(scope, made)}
    types = _infer_once(scope, nodes, made, stated)
    implied: dict[str, ValueInfoProto] = {}
    while more := {i.name: i for n in nodes for i in _implied(scope, n, made, types) if i.name not in implied}:
        implied |= more
        stated |= more
        types = _infer_once(scope, nodes, made, stated)
    return types


def _implied(scope: Scope, node: NodeProto, made: set[str], types: Types) -> Iterator[ValueInfoProto]:
    """Types that follow from a node's definition and that ONNX leaves open all the same."""
    if domain_of(node) or len(node.input) < 2:
        return
    if node.op_type == "TopK":
        yield from _picked(scope, node, types)
    elem_type, shape = types.get(node.output[0], (0, None))
    if node.op_type == "Reshape" and elem_type and shape is None:  # as many axes as its second operand has numbers
        name = node.input[1]
        _, sizes = types.get(name, (0, None if name in made else scope.known(name).shape))
        if sizes and sizes[0] != DYNAMIC:
            yield helper.make_tensor_value_info(node.output[0], elem_type, [None] * min(sizes[0], MOST_AXES))


def _picked(scope: Scope, node: NodeProto, types: Types) -> Iterator[ValueInfoProto]:
    """The results of a TopK with a known k: it picks k of any number, or fails."""
    k = scope.array(node.input[1])
    if k is None or k.size != 1 or k.min() < 0:
        return
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    for name in node.output:
        elem_type, shape = types.get(name, (0, None))
        if shape and -len(shape) <= axis < len(shape) and shape[axis] == DYNAMIC:
            sizes = [None if d == DYNAMIC else d for d in shape]
            sizes[axis] = int(k.reshape(-1)[0])
            yield helper.make_tensor_value_info(name, elem_type, sizes)


def _infer_once(
    scope: Scope, nodes: Sequence[NodeProto], made: set[str], stated: Mapping[str, ValueInfoProto]
) -> Types:
    operands = {n: scope.known(n) for n in dict.fromkeys(n for node in nodes for n in reads(node)) if n not in made}
    graph = infer_graph(nodes, operands, [], scope.source.versions, stated=stated.values())
    found = {info.name: info.type.tensor_type for info in graph.value_info}  # empty for what is no tensor
    return {name: (t.elem_type, _sizes(t) if t.HasField("shape") else None) for name, t in found.items() if t.elem_type}


def _stated(scope: Scope, names: set[str]) -> Iterator[ValueInfoProto]:
    """What the file says of `names`: the type where it is static, else no more than the rank."""
    graph = scope.source.graph
    for info in {i.name: i for i in (*graph.value_info, *graph.output) if i.name in names}.values():
        declared = scope.declared.get(info.name)
        t = info.type.tensor_type
        if declared is not None:
            yield helper.make_tensor_value_info(info.name, declared.elem_type, declared.shape)
        elif t.elem_type and t.HasField("shape"):
            yield helper.make_tensor_value_info(info.name, t.elem_type, [None] * len(t.shape.dim))


def _sizes(t: onnx.TypeProto.Tensor) -> tuple[int, ...]:
    return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else DYNAMIC for d in t.shape.dim)


def _has_type(types: Types, name: str) -> bool:
    """True where the IR has a type for the tensor."""
    elem_type, shape = types.get(name, (0, None))
    return elem_type in DTYPES and shape is not None and DYNAMIC not in shape


# ---- which nodes


def _part(scope: Scope, seeds: Sequence[NodeProto], late: Sequence[NodeProto], types: Types) -> list[NodeProto]:
    """The nodes that read or make what has no type, and those between them: no value leaves the part and comes back."""
    made = {name for node in late for name in node.output if name}
    without = {name for name in made if name in scope.read and not _has_type(types, name)}
    started = set(map(id, seeds))
    inside = [id(node) in started or not without.isdisjoint((*reads(node), *node.output)) for node in late]
    behind: set[str] = set()
    after = []  # for each node, whether it depends on one inside
    for node, chosen in zip(late, inside, strict=True):
        after.append(not behind.isdisjoint(reads(node)))
        if chosen or after[-1]:
            behind.update(name for name in node.output if name)
    needed: set[str] = set()
    part = []
    for node, chosen, depends in reversed(list(zip(late, inside, after, strict=True))):
        if chosen or (depends and not needed.isdisjoint(node.output)):
            part.append(node)
            needed.update(reads(node))
    return part[::-1]


class _Part:
    """The nodes of one `call_graph`, and what goes in and out of it."""

    def __init__(
        self, scope: Scope, nodes: Sequence[NodeProto], rest: Sequence[NodeProto], types: Types, where: str
    ) -> None:
        self.scope = scope
        self.nodes = nodes
        self.types = types
        self.where = where
        made = dict.fromkeys(name for node in nodes for name in node.output if name)
        wanted = {name for node in rest for name in reads(node)} | {o.name for o in scope.source.graph.output}
        self.operands = list(dict.fromkeys(name for node in nodes for name in reads(node) if name not in made))
        self.results = [name for name in made if name in wanted]
        self.names = {name: f"inner:{i}" for i, name in enumerate(made)}
        self.names |= {name: f"operand:{i}" for i, name in enumerate(self.operands)}
        self.names |= {name: f"result:{i}" for i, name in enumerate(self.results)}

    def add(self) -> None:
        """The op, and its results as values of the scope."""
        scope = self.scope
        loc = fuse(NodeLoc(label(node), node.op_type, scope.source.file) for node in self.nodes)
        versions = self.versions()
        types = [self.result_type(name) for name in self.results]
        reason = f"{REASON}, {self.where.removeprefix(f'{scope.source.file}: ')}"
        op = scope.op(
            CallGraph, *(scope.onnx_value(name, loc) for name in self.operands), loc=loc, types=types,
            domains=tuple(versions), opsets=tuple(versions.values()), reason=reason,
            graph_proto=encoded(GraphProto(node=[self.renamed(node) for node in self.nodes])),
        )  # fmt: skip
        for name, value in zip(self.results, op.results, strict=True):
            value.name = name
            scope.values[name] = scope.narrowed(name, value, loc)

    def result_type(self, name: str) -> TensorType:
        """The type of a result that leaves the part."""
        elem_type, shape = self.types.get(name, (0, None))
        if elem_type and elem_type not in DTYPES:
            hint = "convert the model to float32 or to 8 and 16 bit integers"
            what = f"the result {quoted(name)} has element type {dtype_name(elem_type)}, which isn't taken"
            raise problem(what, where=self.where, hint=hint, kind=NotTaken)
        if shape is None:
            why = f"neither inference nor the file says how many axes {quoted(name)} has, or it is no tensor"
            hint = "state its rank in the model (value_info, with names for open sizes), or cut the model before it"
            what = "the rank of a result isn't known before running"
            raise problem(what, where=self.where, why=why, hint=hint, kind=UnknownSize)
        return TensorType(shape, DTYPES[elem_type])

    def versions(self) -> dict[str, int]:
        """The opset of each domain that the nodes are written in; FrontendError for one that ONNX Runtime hasn't."""
        versions = {"": self.scope.source.versions[""]}
        for node in all_nodes(self.nodes):
            domain = domain_of(node)
            if domain not in STANDARD:
                what = f"node {quoted(label(node))} ({domain}.{node.op_type}) can't run where sizes depend on the data"
                why = "such nodes run on the CPU, by ONNX Runtime, which has no such operator"
                raise problem(what, where=self.where, why=why, hint="cut the model before this part", kind=NotTaken)
            versions[domain] = self.scope.source.versions.get(domain, 1)
        return versions

    def renamed(self, node: NodeProto) -> NodeProto:
        """A copy of `node` with new tensor names."""
        inputs, outputs = ([self.names[name] if name else "" for name in names] for names in (node.input, node.output))
        proto = renamed(node, inputs, outputs, self.names)
        proto.name, proto.domain = label(node), domain_of(node)
        return proto
