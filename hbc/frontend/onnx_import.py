"""The walk: every node of a sound ONNX graph becomes ops, by its rule; what has no rule becomes a call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto

from hbc.diagnostics import BadModelOutput, FrontendError, NotTaken, UnknownSize
from hbc.ir.core import Module, Op, Value
from hbc.ir.location import FileLoc
from hbc.ir.ops import Cast
from hbc.ir.types import DType

from .onnx_check import check_nodes
from .onnx_infer import FOLD_LIMIT, Known, fold
from .onnx_inputs import add_inputs, bind_inputs
from .onnx_model import STANDARD, Source, domain_of, parse, prepare, reads, subgraphs
from .onnx_node import Node, Results, Rule
from .onnx_ops import FALLBACK, RULES
from .onnx_scope import Scope
from .onnx_sparse import dense, densify
from .onnx_tail import import_nodes
from .onnx_tensors import DTYPES, ELEM_TYPES, decode, dtype_name, packed_limits
from .onnx_trace import trace
from .onnx_weight_only import follow_integers
from .problem import NODE_FAULTS, problem, quoted

FOLD_BUDGET = 1 << 26  # elements of all folded results together: beyond, constant arithmetic stays in the graph


def import_bytes(
    data: bytes, file: str, folder: Path | None, sha256: str, shapes: Mapping[str, Sequence[int]]
) -> Module:
    """The module of a serialised ModelProto. FrontendError for anything that can't be taken in."""
    return import_model(Source(parse(data, file), file, folder, sha256, {}), shapes)


def import_model(source: Source, shapes: Mapping[str, Sequence[int]]) -> Module:
    """The module of a parsed model."""
    source = prepare(source)
    scope = Scope(source, check_nodes(source))
    scope.add_initializers(source.graph.initializer)
    scope.read = {name for n in source.nodes for name in reads(n)} | {o.name for o in source.graph.output}
    _declare(scope, source.graph, bound=bool(shapes))
    for node in source.nodes:
        if node.op_type == "Constant":  # scales and shapes are known before the inputs are typed by them
            _import_node(scope, node)
    try:
        add_inputs(scope, bind_inputs(source, shapes))
        import_nodes(scope, [n for n in source.nodes if n.op_type != "Constant"], _import_node)
    except FrontendError as error:  # what would follow is for want of an input, or of all that a part makes
        scope.failures.add(error)
        scope.failures.settle()
    for info in source.graph.output:
        with scope.failures.noted():
            _add_output(scope, info)
    scope.failures.settle()
    _sweep(scope)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(source.file).stem).strip("_") or "model"
    return trace(Module(scope.graph, name=name, metadata=_metadata(source, scope.notes)), source, scope)


def _metadata(source: Source, notes: Sequence[str]) -> dict[str, str]:
    used = sorted({domain_of(n) for n in source.nodes})
    versions = {**source.versions, "": source.stated or source.versions[""]}
    opset = ", ".join(f"{d or 'ai.onnx'} {versions.get(d, 1)}" for d in used)
    producer = f"{source.model.producer_name} {source.model.producer_version}".strip()
    found = {"source": source.file, "sha256": source.sha256, "opset": opset, "producer": producer}
    return found | ({"notes": "\n".join(notes)} if notes else {})


def _declare(scope: Scope, graph: GraphProto, *, bound: bool) -> None:
    """Remember static types that the file states; shapes bound by the user make them stale."""
    if bound:
        return
    for info in (*graph.value_info, *graph.output):
        t = info.type.tensor_type
        if t.elem_type in DTYPES and t.HasField("shape") and all(map(_is_size, t.shape.dim)):
            scope.declared[info.name] = Known(t.elem_type, tuple(d.dim_value for d in t.shape.dim))


def _is_size(d: onnx.TensorShapeProto.Dimension) -> bool:
    return d.HasField("dim_value") and d.dim_value >= 0  # some exporters write −1 for an open size


def _import_node(scope: Scope, proto: NodeProto) -> None:
    """Import one node. What is wrong with it is noted, and the walk goes on; UnknownSize is raised, for `onnx_tail`."""
    if scope.failures.touch(reads(proto)) or scope.failures.touch(proto.output):
        scope.failures.skip(proto.output)
        return
    try:
        _import_sound(Node(scope, proto))
    except FrontendError as error:
        if isinstance(error.diagnostic, UnknownSize):
            raise
        scope.failures.add(error, proto.output)


def _import_sound(n: Node) -> None:
    try:
        if _import_constant(n) or _import_branch(n) or _import_folded(n):
            return
        rule = RULES.get((n.domain, n.op_type))
        _bind_results(n, FALLBACK(n) if rule is None else _by_rule(n, rule))
    except FrontendError:
        raise
    except NODE_FAULTS as error:
        why = str(error) or type(error).__name__
        raise n.fail("the node can't be taken in", why=why, hint="check the node's operands and attributes") from error


def _by_rule(n: Node, rule: Rule) -> Results:
    """What the rule makes of the node. A sound node that it has no form for is called instead, with the reason."""
    try:
        return rule(n)
    except FrontendError as error:
        if not isinstance(error.diagnostic, NotTaken) or n.domain not in STANDARD:
            raise
        d = error.diagnostic
        return n.call(reason=": ".join(part for part in (d.title, d.why) if part), hint=d.hint)


def _bind_results(n: Node, results: Results) -> None:
    """One value is the first output; several are the outputs that have names."""
    names = [name for name in (n.proto.output[:1] if isinstance(results, Value) else n.proto.output) if name]
    values = [results] if isinstance(results, Value) else list(results)
    wide_inputs = any(name in n.scope.wide for name in n.proto.input)
    for name, value in zip(names, values, strict=False):
        n.scope.values[name] = value
        if value.name is None:
            value.name = name
    if wide_inputs:
        _carry_width(n, names)


def _carry_width(n: Node, names: Sequence[str]) -> None:
    """Results of a node that reads float16 or float64 have the dtype that ONNX infers; the IR computes in f32."""
    try:
        elem_types = {name: r.elem_type for name, r in zip(n.proto.output, n.inferred(), strict=True) if r is not None}
    except ValueError:
        elem_types = {}
    widest = next(n.scope.wide[name] for name in n.proto.input if name in n.scope.wide)
    for name in names:
        value = n.scope.values.get(name)
        dtype = DTYPES.get(elem_types.get(name, ELEM_TYPES[widest]))
        if value is not None and value.type.dtype is DType.F32 and dtype in {DType.F16, DType.F64}:
            n.scope.wide.setdefault(name, dtype)


def _import_constant(n: Node) -> bool:
    """Constant, ConstantOfShape, Shape and Size: values known at once."""
    array = None
    if n.op_type == "Constant" and not n.domain:
        array = _constant(n)
    elif n.op_type in {"Shape", "Size"} and not n.domain:
        known = n.scope.array(n.name(0))
        shape = n.x(0).type.shape if known is None else known.shape
        rank = len(shape)
        window = shape[slice(n.integer("start", 0), n.integer("end", rank))]
        array = np.asarray(window, np.int64) if n.op_type == "Shape" else np.asarray(np.prod(shape, dtype=np.int64))
    elif n.op_type == "ConstantOfShape" and not n.domain:
        array = _filled(n)
    if array is None:
        return False
    n.scope.set_array(n.proto.output[0], array)
    return True


def _constant(n: Node) -> np.ndarray:
    for a in n.attributes.values():
        if a.name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(a.t)
            tensor.name = n.proto.output[0]
            limits = packed_limits(tensor.data_type)
            if limits is not None:
                n.scope.limits[tensor.name] = limits
            return decode(tensor, n.scope.source.folder, n.scope.source.file)
        if a.name in {"value_float", "value_floats"}:
            return np.asarray(a.f if a.type == AttributeProto.FLOAT else list(a.floats), np.float32)
        if a.name in {"value_int", "value_ints"}:
            return np.asarray(a.i if a.type == AttributeProto.INT else list(a.ints), np.int64)
        if a.name == "sparse_value":
            return dense(a.sparse_tensor, n.scope.source.folder, n.scope.source.file)
    what = "text" if {"value_string", "value_strings"} & n.attributes.keys() else "missing"
    hint = "export without text, which neither a BPU nor a .hbm has"
    raise n.fail("this constant isn't taken", why=f"its value is {what}", hint=hint, kind=NotTaken)


def _filled(n: Node) -> np.ndarray:
    shape = n.known_integers(0)
    if shape is None:
        raise n.fail("the shape to fill isn't known before running", hint="export with static shapes", kind=UnknownSize)
    if min(shape, default=0) < 0 or np.prod(shape, dtype=np.float64) > FOLD_LIMIT:
        raise n.fail(
            f"can't fill the shape {list(shape)}", why=f"it has a negative size, or over {FOLD_LIMIT} elements"
        )
    value = n.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else decode(value.t, None, n.scope.source.file).reshape(-1)
    return np.broadcast_to(fill[:1].reshape(()), shape)


def _import_branch(n: Node) -> bool:
    """An If whose condition is known: the taken branch becomes part of the graph."""
    if n.op_type != "If" or n.domain or (condition := n.scope.array(n.name(0))) is None:
        return False
    name = "then_branch" if condition.reshape(-1)[:1].any() else "else_branch"
    if name not in n.attributes or n.attributes[name].type != AttributeProto.GRAPH:
        raise n.fail(f"attribute '{name}' is missing", hint="export the model again")
    branch = n.attributes[name].g
    densify(branch, n.scope.source.folder, n.scope.source.file)
    n.scope.add_initializers(branch.initializer)
    n.scope.read.update(name for inner in branch.node for name in reads(inner))
    n.scope.read.update(o.name for o in branch.output)
    for node in branch.node:  # where the size of one isn't known, the If as a whole is left to `import_nodes`
        _import_node(n.scope, node)
    for outer, inner in zip(n.proto.output, branch.output, strict=True):
        if n.scope.failures.touch([inner.name]):
            n.scope.failures.skip([outer])
            continue
        if n.scope.array(inner.name) is None:
            n.scope.value(inner.name)  # an error where the branch doesn't define its output
        n.scope.alias(outer, inner.name)
    return True


def _import_folded(n: Node) -> bool:
    """A cheap op on known operands: its results are known too."""
    if n.domain or any(True for _ in subgraphs(n.proto)):
        return False
    names = [name for name in n.proto.input if name]
    if not names or n.scope.folded > FOLD_BUDGET or any(n.scope.array(name) is None for name in names):
        return False
    arrays = fold(n.proto, {name: n.scope.known(name) for name in names}, n.scope.source.versions)
    if arrays is None:
        return False
    limits = None if n.op_type == "Cast" else n.scope.limits.get(names[0])  # of a 4 bit type, which moves keep
    for name, array in zip(n.proto.output, arrays, strict=True):
        n.scope.folded += array.size
        if name:
            n.scope.set_array(name, array)
            if limits is not None:
                n.scope.limits[name] = limits
    follow_integers(n, arrays)
    return True


def _add_output(scope: Scope, info: ValueInfoProto) -> None:
    """Return an output under its own name and in the dtype that the file states."""
    where = f"{scope.source.file}: output {quoted(info.name)}"
    value = scope.value(info.name)
    wide = scope.wide.get(info.name)
    elem_type = info.type.tensor_type.elem_type
    actual = ELEM_TYPES[wide or value.type.dtype]
    if elem_type and elem_type != actual:
        why = f"the file states {dtype_name(elem_type)}, its nodes compute {dtype_name(actual)}"
        what, hint = "an output has another type than the model says", "export the model again"
        raise problem(what, where=where, why=why, hint=hint, kind=BadModelOutput)
    if info.name in scope.originals:
        value = scope.originals[info.name]
    elif wide is not None:
        value = scope.op(Cast, value, loc=value.op.loc if value.op else FileLoc(scope.source.file), to=wide).out
    scope.graph.add_output(info.name, value)


def _sweep(scope: Scope) -> None:
    """Drop ops whose results nobody reads: constants that a rule took over in another form."""
    dead: list[Op] = []
    for op in reversed(scope.graph.ops):
        if not any(r.uses for r in op.results):
            op.drop_operands()
            dead.append(op)
    scope.graph.erase(dead)
