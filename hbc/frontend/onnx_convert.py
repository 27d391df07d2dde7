"""Models of opsets 1 to 8, brought to opset 9 by ONNX's own converter."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, helper

from hbc.diagnostics import NotTaken

from .problem import problem, quoted

FIRST = 9  # the first opset whose operators the import rules know


def converted(model: ModelProto, version: int, file: str) -> ModelProto:
    """`model`, written in opset `version`, in opset 9. FrontendError where ONNX has no adapter for an operator."""
    import onnx.version_converter

    _state_ir_version(model)
    hint = f"export with opset {FIRST} or newer; opset 13 or newer is best"
    what = f"the model is written in opset {version}, and can't be converted"
    try:
        if version < 7:
            _spell_broadcasts_out(model)
        made: ModelProto = onnx.version_converter.convert_version(model, FIRST)
    except (RuntimeError, ValueError, TypeError, LookupError, onnx.checker.ValidationError) as error:
        why = f"from opset {version} to {FIRST}: {_sentence(error)}"
        raise problem(what, where=file, why=why, hint=hint, kind=NotTaken) from error
    if not _same_border(model.graph, made.graph):  # Scan 8 had a batch axis, which the converter takes away
        why = "ONNX's converter changes the shapes of its inputs or outputs"
        raise problem(what, where=file, why=why, hint=hint, kind=NotTaken)
    return made


def _state_ir_version(model: ModelProto) -> None:
    """Before IR version 4 every initializer had to be an input as well; newer graphs don't list them."""
    inputs = {i.name for i in model.graph.input}
    if any(t.name not in inputs for t in model.graph.initializer):
        model.ir_version = max(model.ir_version, 4)
    model.ir_version = max(model.ir_version, 3)


def _spell_broadcasts_out(model: ModelProto) -> None:
    """Give the second operand of `broadcast` with `axis` the axes that it lacks behind its own, as 1s.

    Before opset 7 Add, Mul and their like said by `axis` where the second operand's axes belong; the converter knows
    only the place at the end.
    """
    import onnx.shape_inference

    graph = onnx.shape_inference.infer_shapes(model).graph
    typed = (*graph.input, *graph.value_info, *graph.output)
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in typed if i.type.tensor_type.HasField("shape")}
    ranks |= {t.name: len(t.dims) for t in graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        axis = next((a for a in node.attribute if a.name == "axis"), None)
        if axis is not None and any(a.name == "broadcast" and a.i for a in node.attribute):
            for name in node.input:
                if name not in ranks:
                    msg = f"the rank of {quoted(name)}, which a node broadcasts by `axis`, isn't known"
                    raise ValueError(msg)
            first, second = (ranks[name] for name in node.input)
            missing = first - axis.i % max(first, 1) - second
            if missing > 0:
                wide = f"{node.input[1]} beside {node.output[0]}"
                axes = list(range(second, second + missing))
                nodes.append(
                    helper.make_node("Unsqueeze", [node.input[1]], [wide], f"{node.name or wide}/axes", axes=axes)
                )
                node.input[1] = wide
            node.attribute.remove(axis)
        nodes.append(node)
    kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _same_border(before: GraphProto, after: GraphProto) -> bool:
    """True where inputs and outputs kept the types that were stated."""
    now = {i.name: i.type for i in (*after.input, *after.output)}
    return all(_keeps(i.type, now.get(i.name)) for i in (*before.input, *before.output) if i.name in now)


def _keeps(before: TypeProto, after: TypeProto | None) -> bool:
    if after is None or not before.tensor_type.HasField("shape"):
        return True
    old, new = ([(d.dim_value, d.dim_param) for d in t.tensor_type.shape.dim] for t in (before, after))
    return old == new


def _sentence(error: Exception) -> str:
    """The converter's message without the place in its source."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rsplit("failed: ", 1)[-1][:300]
