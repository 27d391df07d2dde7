"""Result types of Loop where its body keeps them: ONNX's inference gives a loop's results no sizes at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, helper

from .onnx_infer import DATA_LIMIT, Inferred, Known
from .onnx_model import captured

Type = tuple[int, tuple[int, ...]]  # element type and sizes


def loop_types(
    node: NodeProto, operands: Mapping[str, Known], versions: Mapping[str, int], found: Sequence[Inferred | None]
) -> list[Inferred | None]:
    """`found` with the sizes filled in that a Loop's body shows.

    A carried value keeps its shape where one turn gives the shape that it started with. A scanned value has one row per
    turn, and their number is known where the trip count is and nothing ends the loop early.
    """
    body = next((a.g for a in node.attribute if a.name == "body" and a.type == AttributeProto.GRAPH), None)
    carried = [operands[name] for name in node.input[2:] if name in operands]
    if body is None or len(body.input) != 2 + len(carried) or any(not name for name in node.input[2:]):
        return list(found)
    made = _turn(body, [(k.elem_type, k.shape) for k in carried], operands, captured(node), versions)
    trips = _trips(node, body, operands)
    types: list[Inferred | None] = []
    for i, before in enumerate(found):
        result = made[i + 1] if i + 1 < len(made) else None
        after = None
        if result is not None and i < len(carried):
            after = Inferred(*result) if result == (carried[i].elem_type, carried[i].shape) else None
        elif result is not None and trips is not None:
            after = Inferred(result[0], (trips, *result[1]))
        types.append(before if before is not None and before.shape is not None else after or before)
    return types


def _turn(
    body: GraphProto, carried: Sequence[Type], operands: Mapping[str, Known], outer: Mapping[str, None],
    versions: Mapping[str, int],
) -> list[Type | None]:  # fmt: skip
    """The types of the body's outputs after one turn, None for what inference doesn't reach."""
    types: list[Type] = [(TensorProto.INT64, ()), (TensorProto.BOOL, ()), *carried]
    inputs = [helper.make_tensor_value_info(i.name, *t) for i, t in zip(body.input, types, strict=True)]
    inputs += [helper.make_tensor_value_info(n, operands[n].elem_type, operands[n].shape) for n in outer]
    arrays = {name: operands[name].array for name in outer}
    known = [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if a is not None and a.size <= DATA_LIMIT]
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(o.name for o in body.output)]
    graph = helper.make_graph(list(body.node), "turn", inputs, outputs, [*body.initializer, *known])
    opsets = [helper.make_opsetid(d, v) for d, v in versions.items()]
    try:
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        result = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
        return []  # what is wrong with the body, ONNX Runtime will say
    found = {o.name: _static(o.type) for o in result.graph.output}
    return [found[o.name] for o in body.output]


def _static(type_: TypeProto) -> Type | None:
    t = type_.tensor_type
    if not t.elem_type or not t.HasField("shape") or not all(d.HasField("dim_value") for d in t.shape.dim):
        return None
    return t.elem_type, tuple(d.dim_value for d in t.shape.dim)


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
