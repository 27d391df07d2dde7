"""Result types of Loop where its body keeps them: ONNX's inference gives a loop's results no sizes at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from .onnx_infer import Inferred, Known, infer_graph, read_type
from .onnx_model import captured


def loop_types(
    node: NodeProto, operands: Mapping[str, Known], versions: Mapping[str, int], found: Sequence[Inferred | None]
) -> list[Inferred | None]:
    """`found` with the sizes filled in that a Loop's body shows.

    A carried value keeps its shape where every turn gives the shape that it started with, whatever becomes of values
    that don't. A scanned value has one row per turn, and their number is known where the trip count is and nothing ends
    the loop early.
    """
    body = next((a.g for a in node.attribute if a.name == "body" and a.type == AttributeProto.GRAPH), None)
    carried = [Inferred(operands[n].elem_type, operands[n].shape) for n in node.input[2:] if n in operands]
    if body is None or not all(node.input[2:]):
        return list(found)
    if len(body.input) != 2 + len(carried) or len(body.output) <= len(carried):
        return list(found)
    outer = {name: operands[name] for name in captured(node)}
    made = _settled(body, carried, outer, versions)
    trips = _trips(node, body, operands)
    types: list[Inferred | None] = []
    for i, before in enumerate(found):
        result = made[i] if i < len(made) else None
        after = None
        if i < len(carried):
            after = result if result == carried[i] else None
        elif result is not None and result.shape is not None and trips is not None:
            after = Inferred(result.elem_type, (trips, *result.shape))
        types.append(before if before is not None and before.shape is not None else after or before)
    return types


def _settled(
    body: GraphProto, carried: list[Inferred], outer: Mapping[str, Known], versions: Mapping[str, int]
) -> list[Inferred | None]:
    """The types of the body's results, its condition left out, that hold after every turn.

    A carried value whose shape changes enters the next turn without a shape, and others may change by that.
    """
    while True:
        made = _turn(body, carried, outer, versions)
        pairs = zip(carried, made, strict=False)  # there are scanned results, too
        kept = [given if given == result else Inferred(given.elem_type, None) for given, result in pairs]
        if not made or kept == carried:
            return made
        carried = kept


def _turn(
    body: GraphProto, carried: Sequence[Inferred], outer: Mapping[str, Known], versions: Mapping[str, int]
) -> list[Inferred | None]:
    """The types of the body's results after one turn; none at all where inference fails."""
    types = [Inferred(TensorProto.INT64, ()), Inferred(TensorProto.BOOL, ()), *carried]
    inputs = {i.name: t for i, t in zip(body.input, types, strict=True)}
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(o.name for o in body.output)]
    try:
        graph = infer_graph(body.node, {**inputs, **outer}, outputs, versions, constants=body.initializer)
    except ValueError:
        return []  # what is wrong with the body, ONNX Runtime will say
    found = {o.name: read_type(o.type) for o in graph.output}
    return [found[o.name] for o in body.output[1:]]


def _trips(node: NodeProto, body: GraphProto, operands: Mapping[str, Known]) -> int | None:
    """How often the loop turns, where nothing but its count ends it."""
    count = operands[node.input[0]].array if node.input[0] else None
    start = operands[node.input[1]].array if len(node.input) > 1 and node.input[1] else np.True_
    if count is None or start is None or count.size != 1:
        return None
    if not start.reshape(-1)[:1].all():
        return 0
    return max(0, int(count.reshape(-1)[0])) if _stays_true(body) else None


def _stays_true(body: GraphProto) -> bool:
    """True where the body returns the condition that it was given, or a constant true."""
    makers = {o: n for n in body.node for o in n.output}
    name = body.output[0].name
    while (maker := makers.get(name)) is not None and maker.op_type == "Identity":
        name = maker.input[0]
    values = [t for t in body.initializer if t.name == name]
    if maker is not None and maker.op_type == "Constant":
        values = [a.t for a in maker.attribute if a.name == "value"]
    return name == body.input[1].name or any(onnx.numpy_helper.to_array(t).all() for t in values)
