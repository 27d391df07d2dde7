"""Which opset a CPU segment is written in: the oldest from 19 on in which its calls mean what they meant to the user.

ONNX Runtime registers a kernel for the exact version of an operator's schema, and lags behind ONNX: it runs RoiAlign of
opset 16 and refuses that of opset 22, whose only change is a longer list of types. So a call is written in an older
opset where the older schema has the same operands, results and attributes, and its lists of types hold the call's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, NodeProto
from onnx.defs import OpSchema

from hbc.ir.core import Op
from hbc.ir.ops import CALLS, Call, CallGraph
from hbc.ir.types import DType

DEFAULT_OPSET = 19  # where no call says which opset the model is written in; dilated average pools came with it

# Attributes that came with a newer schema and whose default is what the older one does, by (operator, attribute).
NEUTRAL = frozenset((
    ("Attention", "left_window_size"), ("Attention", "right_window_size"), ("Cast", "round_mode"),
    ("CastLike", "round_mode"), ("DequantizeLinear", "block_size"), ("DequantizeLinear", "output_dtype"),
    ("QuantizeLinear", "block_size"), ("QuantizeLinear", "output_dtype"), ("QuantizeLinear", "precision"),
    ("Range", "stash_type"), ("SpaceToDepth", "mode"),
))  # fmt: skip
# Schemas of one form whose text changed what is computed: a right shift of signed numbers and by more bits than there
# are (BitShift 28), the remainder of floats by `fmod` 0 (Mod 28).
REWORDED = frozenset((("BitShift", 28), ("Mod", 28)))
_VARIADIC = OpSchema.FormalParameterOption.Variadic

_TYPE_TEXT = {
    DType.I8: "tensor(int8)", DType.U8: "tensor(uint8)", DType.I16: "tensor(int16)", DType.U16: "tensor(uint16)",
    DType.I32: "tensor(int32)", DType.U32: "tensor(uint32)", DType.I64: "tensor(int64)", DType.U64: "tensor(uint64)",
    DType.F16: "tensor(float16)", DType.F32: "tensor(float)", DType.F64: "tensor(double)", DType.BOOL: "tensor(bool)",
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """Nodes as the user wrote them: all nodes of a call and of its subgraphs, and the opset of each domain.

    `call` is the op whose node stands first, where its types are known.
    """

    versions: Mapping[str, int]
    nodes: tuple[NodeProto, ...]
    call: Call | None = None


def written(op: Call | CallGraph) -> Written:
    """What stands in an op; no nodes where it can't be read back, which is told when it is emitted."""
    try:
        if isinstance(op, Call):
            node = read_node(op)
            return Written(op.versions, (node, *_inner_nodes(node)), op)
        graph = read_graph(op)
    except (DecodeError, ValueError):
        return Written(op.versions, ())
    return Written(op.versions, tuple(n for top in graph.node for n in (top, *_inner_nodes(top))))


def read_node(op: Call) -> NodeProto:
    """The call's node, with positions as tensor names. ValueError or DecodeError where it can't be read back."""
    node = NodeProto()
    node.ParseFromString(base64.b64decode(op.node_proto, validate=True))
    return node


def read_graph(op: CallGraph) -> GraphProto:
    """The nodes of a call_graph. ValueError or DecodeError where they can't be read back."""
    graph = GraphProto()
    graph.ParseFromString(base64.b64decode(op.graph_proto, validate=True))
    return graph


def segment_opset(ops: Sequence[Op]) -> dict[str, int]:
    """The opset of each domain for a segment with these ops; ONNX's own is 19 where no call asks for another."""
    calls = [written(op) for op in ops if isinstance(op, CALLS)]
    domains = {"": None, **dict.fromkeys(domain for w in calls for domain in w.versions)}
    return {domain: _opset(domain, calls) for domain in domains}


def _opset(domain: str, calls: Sequence[Written]) -> int:
    """The best opset in which everything means the same; the newest of them where there is none."""
    own = [w for w in calls if domain in w.versions]
    if not own:
        return DEFAULT_OPSET
    newest = max(w.versions[domain] for w in own)
    if domain not in {"", "ai.onnx.ml"}:
        return newest
    best = DEFAULT_OPSET if not domain else 1
    candidates = range(best, newest + 1) if newest >= best else range(best, newest - 1, -1)
    return next((v for v in candidates if all(means_same(w, domain, v) for w in own)), newest)


def means_same(w: Written, domain: str, opset: int) -> bool:
    """True where every node of `domain` is in `opset` what it is in the opset that it was written in."""
    if domain not in w.versions:
        return True
    return all(
        _node_means_same(n, domain, w.versions[domain], opset, w.call if i == 0 else None)
        for i, n in enumerate(w.nodes)
        if _short(n.domain) == domain
    )


def _node_means_same(node: NodeProto, domain: str, old: int, new: int, call: Call | None) -> bool:
    """As `means_same`, of one node whose types `call` has where they are known."""
    given, wanted = schema(node.op_type, old, domain), schema(node.op_type, new, domain)
    if given is None or wanted is None:
        return old == new
    if given.since_version == wanted.since_version:
        return True
    if new > old or _reworded(node.op_type, wanted.since_version, given.since_version):
        return False
    extra = set(given.attributes) - set(wanted.attributes)
    if any((node.op_type, name) not in NEUTRAL for name in extra) or not _at_default(node, given, extra):
        return False
    same = _form(given, frozenset(extra)) == _form(wanted, frozenset())
    return same and (call is None or _takes(wanted, node, call))


def schema(op_type: str, opset: int, domain: str) -> OpSchema | None:
    """ONNX's definition of an operator in an opset, None where it has none."""
    return onnx.defs.get_schema(op_type, opset, domain) if onnx.defs.has(op_type, opset, domain) else None


def drop_neutral(node: NodeProto, opsets: Mapping[str, int]) -> None:
    """Delete the attributes that a node's schema in `opsets` doesn't know yet: `means_same` saw them at defaults."""
    for n in (node, *_inner_nodes(node)):
        known = schema(n.op_type, opsets.get(_short(n.domain), 1), _short(n.domain))
        if known is None:
            continue
        kept = [a for a in n.attribute if a.name in known.attributes or (n.op_type, a.name) not in NEUTRAL]
        if len(kept) < len(n.attribute):
            del n.attribute[:]
            n.attribute.extend(kept)


def _reworded(op_type: str, since: int, until: int) -> bool:
    return any(name == op_type and since < version <= until for name, version in REWORDED)


def _at_default(node: NodeProto, given: OpSchema, names: set[str]) -> bool:
    for a in node.attribute:
        if a.name in names and _value(a) != _value(given.attributes[a.name].default_value):
            return False
    return True


def _value(a: AttributeProto) -> object:
    return onnx.helper.get_attribute_value(a)


@lru_cache(maxsize=4096)
def _schema_form(name: str, domain: str, since: int, without: frozenset[str]) -> tuple[object, ...]:
    s = onnx.defs.get_schema(name, since, domain)
    attributes = {
        key: (a.type, a.required, a.default_value.SerializeToString())
        for key, a in s.attributes.items()
        if key not in without
    }
    operands, results = ([(p.name, p.option, p.min_arity) for p in ps] for ps in (s.inputs, s.outputs))
    return attributes, operands, results, s.deprecated


def _form(s: OpSchema, without: frozenset[str]) -> tuple[object, ...]:
    """What a schema is but for its text and its types."""
    return _schema_form(s.name, s.domain, s.since_version, without)


def _takes(s: OpSchema, node: NodeProto, call: Call) -> bool:
    """True where the schema's types allow those of the call, the same for all that share a type variable."""
    operands = iter(call.xs)
    results = iter(call.results)
    given = [(s.inputs, i, next(operands).type.dtype) for i, name in enumerate(node.input) if name]
    given += [(s.outputs, i, next(results).type.dtype) for i, name in enumerate(node.output) if name]
    bound: dict[str, str] = {}
    for parameters, index, dtype in given:
        if not parameters:
            return False
        p = parameters[min(index, len(parameters) - 1)]
        text = _TYPE_TEXT[dtype]
        free = p.option == _VARIADIC and not p.is_homogeneous
        if text not in p.types or (not free and bound.setdefault(p.type_str, text) != text):
            return False
    return True


def _inner_nodes(node: NodeProto) -> list[NodeProto]:
    return [found for graph in subgraphs(node) for n in graph.node for found in (n, *_inner_nodes(n))]


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among a node's attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]


def _short(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
