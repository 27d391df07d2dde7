"""Calls as ONNX: the user's own node, or, where ONNX Runtime lacks a form of the operator, others that compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import NodeProto, TensorProto, helper

from hbc.ir.core import Value
from hbc.ir.ops import Call, CallGraph
from hbc.ir.types import DType

from .emitter import EmitRules, Emitter
from .opsets import drop_neutral, means_same, read_node, subgraphs, written

RULES = EmitRules()
Rewrite = Callable[[Emitter, Call, NodeProto], bool]  # False: the node is still to be added, perhaps changed


@RULES(Call)
def call(e: Emitter, op: Call) -> list[str]:
    """The user's own node, its operands and results renamed."""
    try:
        proto = read_node(op)
    except (DecodeError, ValueError) as error:
        raise e.error(f"its node can't be read back ({error})") from error
    require_meaning(e, op)
    names = {f"operand:{i}": e.tensor(x) for i, x in enumerate(op.xs)}
    outputs = [e.fresh() if name else "" for name in proto.output]
    results = [name for name in outputs if name]
    if len(results) != len(op.results) or any(x and x not in names for x in proto.input):
        raise e.error("its node has other operands and results than the op")
    rename(proto, names, outputs)
    name_loop_results(e, proto)
    rewrite = _REWRITES.get((op.domain, op.op_type))
    if rewrite is not None and rewrite(e, op, proto):
        return results
    proto.name = e.node_name()
    drop_neutral(proto, e.opsets)
    e.nodes.append(proto)
    return results


def require_meaning(e: Emitter, op: Call | CallGraph) -> None:
    """EmitError where the segment's opset gives a node of the op another meaning than the model's opset gave it."""
    for domain, opset in op.versions.items():
        version = e.opsets.setdefault(domain, opset)
        if not means_same(written(op), domain, version):
            what = op.op_type if isinstance(op, Call) else "a node"
            raise e.error(f"{what} of opset {opset} means something else in the segment's opset {version}")


def rename(node: NodeProto, names: Mapping[str, str], outputs: Iterable[str]) -> None:
    """Give what a node reads, itself or in subgraphs, its name in `names`, and its results the names `outputs`."""
    inputs, made = [names.get(x, "") for x in node.input], list(outputs)
    _rename_captured(node, names)
    del node.input[:], node.output[:]
    node.input.extend(inputs)
    node.output.extend(made)


def _rename_captured(node: NodeProto, names: Mapping[str, str]) -> None:
    for graph in subgraphs(node):
        for inner in graph.node:
            renamed = [names.get(x, x) for x in inner.input]
            del inner.input[:]
            inner.input.extend(renamed)
            _rename_captured(inner, names)
        for info in graph.output:
            info.name = names.get(info.name, info.name)


def name_loop_results(e: Emitter, node: NodeProto) -> None:
    """Give every result of a Loop a name, also in subgraphs: ONNX Runtime 1.32 crashes on one that has none."""
    if node.op_type == "Loop":
        named = [name or e.fresh() for name in node.output]
        del node.output[:]
        node.output.extend(named)
    for graph in subgraphs(node):
        for inner in graph.node:
            name_loop_results(e, inner)


# ---- forms that ONNX Runtime lacks


def _recurrent(e: Emitter, op: Call, proto: NodeProto) -> bool:
    """RNN, GRU and LSTM with `layout` 1 (batch first): the same with layout 0, between transposes.

    Of layout 0, X is [T,N,C], initial states and last states [D,N,H], Y [T,D,N,H]; of layout 1, [N,T,C], [N,D,H] and
    [N,T,D,H].
    """
    layout = next((a for a in proto.attribute if a.name == "layout"), None)
    if layout is None or layout.i != 1:
        return False
    proto.attribute.remove(layout)
    for i in (0, 5, 6):  # X, initial_h, initial_c
        if i < len(proto.input) and proto.input[i]:
            proto.input[i] = e.node("Transpose", proto.input[i], perm=[1, 0, 2])
    wanted = list(proto.output)
    for i, name in enumerate(wanted):
        proto.output[i] = e.fresh() if name else ""
    proto.name = e.node_name()
    e.nodes.append(proto)
    for i, name in enumerate(wanted):
        if name:
            perm = [2, 0, 1, 3] if i == 0 else [1, 0, 2]
            e.nodes.append(helper.make_node("Transpose", [proto.output[i]], [name], e.node_name(), perm=perm))
    return True


def _conv_integer(e: Emitter, op: Call, proto: NodeProto) -> bool:
    """ConvInteger with a zero point per output channel: Σ(x−zx)(w−zw) = Σ(x−zx)w − zw·Σ(x−zx), in i32."""
    zero = _operand(op, proto, 3)
    if zero is None or zero.type.elements == 1:
        return False
    weight = op.xs[1]
    attrs = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    ones = e.const(np.ones(weight.type.shape, weight.type.dtype.numpy))
    products = e.node("ConvInteger", proto.input[0], proto.input[1], proto.input[2], **attrs)
    sums = e.node("ConvInteger", proto.input[0], ones, proto.input[2], **attrs)
    column = e.reshape(e.cast(proto.input[3], DType.I32), [-1] + [1] * (weight.type.rank - 2))
    result = e.node("Sub", products, e.node("Mul", sums, column))
    e.nodes.append(helper.make_node("Identity", [result], list(proto.output), e.node_name()))
    return True


def _top_k(e: Emitter, op: Call, proto: NodeProto) -> bool:
    """TopK of integers that ONNX Runtime has no kernel for: of i32, or of i64, which hold them all (u64 does not)."""
    x = op.xs[0].type.dtype
    if x in {DType.F32, DType.F64, DType.I32, DType.I64} or not x.is_integer or x is DType.U64:
        return False
    wide = DType.I64 if x.size > 2 else DType.I32
    values = e.fresh() if proto.output[0] else ""
    proto.input[0] = e.cast(proto.input[0], wide)
    wanted, proto.output[0] = proto.output[0], values
    proto.name = e.node_name()
    e.nodes.append(proto)
    if wanted:
        to = TensorProto.DataType.Value(x.numpy.name.upper())
        e.nodes.append(helper.make_node("Cast", [values], [wanted], e.node_name(), to=to))
    return True


def _attention(e: Emitter, op: Call, proto: NodeProto) -> bool:
    """Attention with a mask that is shorter than the keys: the missing columns are masked, as ONNX says."""
    mask = _operand(op, proto, 3)
    keys, past = _operand(op, proto, 1), _operand(op, proto, 4)
    if mask is None or keys is None:
        return False
    total = keys.type.shape[-2] + (past.type.shape[-2] if past is not None else 0)
    missing = total - mask.type.shape[-1]
    if missing > 0:
        dtype = mask.type.dtype.numpy
        column = np.zeros((*mask.type.shape[:-1], missing), dtype)
        if mask.type.dtype.is_float:
            column -= np.asarray(np.inf, dtype)
        proto.input[3] = e.node("Concat", proto.input[3], e.const(column), axis=-1)
    return False


def _reduce_bool(e: Emitter, op: Call, proto: NodeProto) -> bool:
    """ReduceMax and ReduceMin of truths, as u8: ONNX Runtime has none of an empty set, whose maximum is false."""
    if op.xs[0].type.dtype is not DType.BOOL:
        return False
    (wanted,) = proto.output
    proto.input[0] = e.cast(proto.input[0], DType.U8)
    proto.output[0] = e.fresh()
    proto.name = e.node_name()
    e.nodes.append(proto)
    e.nodes.append(helper.make_node("Cast", [proto.output[0]], [wanted], e.node_name(), to=TensorProto.BOOL))
    return True


def _operand(op: Call, proto: NodeProto, index: int) -> Value | None:
    """The value of the node's input `index`, None where it is missing."""
    if index >= len(proto.input) or not proto.input[index]:
        return None
    return op.xs[sum(bool(name) for name in proto.input[:index])]


_REWRITES: dict[tuple[str, str], Rewrite] = {
    ("", "RNN"): _recurrent, ("", "GRU"): _recurrent, ("", "LSTM"): _recurrent,
    ("", "ConvInteger"): _conv_integer, ("", "TopK"): _top_k, ("", "Attention"): _attention,
    ("", "ReduceMax"): _reduce_bool, ("", "ReduceMin"): _reduce_bool,
}  # fmt: skip
